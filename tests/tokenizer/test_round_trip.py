"""Decoding undoes encoding, whole and token by token."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oxillama.errors import TokenizerError
from tests.tokenizer.build import P, by_score, make, tokenizer

LOSSLESS = ("deepseek-llm", "gemma-4", "gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2", "starcoder")
MARKED = ("gemma-4", "llama-spm", "phi-3")  # of which a literal mark is a space
SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|end|>", "<|endoftext|>", "<unk>", "<0x41>", "▁", " ", "\n", "<eos>", "é"]

# StarCoder's vocabulary lacks the bytes that begin characters of the (empty) planes from 4 on.
any_text = st.text(st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs"]), max_size=40)
tricky_text = st.lists(st.sampled_from(SPECIALS) | any_text, max_size=8).map("".join)
many = settings(max_examples=60)


@pytest.mark.parametrize("name", LOSSLESS)
def test_any_text_survives(name: str) -> None:
    vocab = tokenizer(name)

    @many
    @given(any_text | tricky_text)
    @example("")
    @example(" ")
    @example("  ▁ ▁▁x")
    @example("e\u0301\u1100\u1161\u11a8\u212b")  # not in composed form
    @example("\x00\x7f\ufffd\U0003ffff")
    def check(text: str) -> None:
        ids = vocab.encode(text, add_special=False)
        text = text.replace("▁", " ") if name in MARKED else text
        assert vocab.decode(ids) == text
        assert vocab.decode_bytes(ids) == text.encode()
        assert vocab.decode(vocab.encode(text), skip_special=True) == text
        assert vocab.encode(text, add_special=False) == ids
        stream = vocab.stream(continuation=False)
        assert "".join(map(stream.push, ids)) + stream.flush() == text

    check()


@pytest.mark.parametrize("name", ["llama-spm", "gemma-4", "qwen2", "llama-bpe"])
def test_text_with_special_tokens_survives(name: str) -> None:
    vocab = tokenizer(name)

    @many
    @given(tricky_text)
    def check(text: str) -> None:
        expected = text.replace("▁", " ") if name in MARKED else text
        assert vocab.decode(vocab.encode(text, add_special=False, parse_special=True)) == expected

    check()


@pytest.mark.parametrize("name", LOSSLESS)
def test_a_stream_of_any_tokens_gives_the_same_text_as_decoding(name: str) -> None:
    vocab = tokenizer(name)

    @many
    @given(st.lists(st.integers(0, vocab.n_vocab - 1), max_size=30))
    def check(ids: list[int]) -> None:
        stream = vocab.stream()
        pieces = [stream.push(token) for token in ids] + [stream.flush()]
        assert "".join(pieces) == vocab.decode(ids, continuation=True)
        assert vocab.decode_bytes(ids, continuation=True) == b"".join(map(vocab.token_bytes, ids))

    check()


def test_a_stream_never_shows_half_a_character() -> None:
    vocab = tokenizer("gpt-2")
    ids = vocab.encode("a🦙é")
    stream = vocab.stream()
    pieces = [stream.push(token) for token in ids]
    assert all("\ufffd" not in piece for piece in pieces)
    assert "".join(pieces) == "a🦙é"
    assert pieces.count("") >= 2
    assert stream.flush() == ""


def test_flush_shows_an_unfinished_character_and_starts_anew() -> None:
    vocab = tokenizer("gpt-2")
    stream = vocab.stream()
    assert stream.push(vocab.encode("🦙")[0]) == ""
    assert stream.flush() == "\ufffd"
    assert stream.push(vocab.encode("x")[0]) == "x"


def test_a_continuation_keeps_its_first_space() -> None:
    vocab = tokenizer("llama-spm")
    (token,) = vocab.encode("Hello", add_special=False)
    assert vocab.id_to_token(token) == "▁Hello"
    assert vocab.decode([token]) == "Hello"
    assert vocab.decode([token], continuation=True) == " Hello"
    assert vocab.stream().push(token) == " Hello"


@pytest.mark.parametrize("name", MARKED)
def test_a_literal_mark_is_a_space(name: str) -> None:
    """As it was when the models were trained, whose tokenizers know it as nothing else."""
    vocab = tokenizer(name)
    for text in ("a▁b", "▁", "▁▁a ▁ b", "a▁"):
        ids = vocab.encode(text, add_special=False)
        assert ids == vocab.encode(text.replace("▁", " "), add_special=False)
        assert vocab.decode(ids) == text.replace("▁", " ")


def test_bytes_that_the_vocabulary_lacks_are_refused_not_dropped() -> None:
    with pytest.raises(TokenizerError, match=r"'\\U00040000' at position 1, which can't be spelt"):
        tokenizer("starcoder").encode("a\U00040000b")


def test_byte_tokens_that_a_file_types_otherwise_spell_characters_too() -> None:
    """If there are others that it types as such; and no control token does."""
    data = by_score(["a", "b", "ab"], [0.0, 0.0, -1.0], add_space_prefix=False)
    types = list(data[P + "token_type"])
    types[3 + 0x0A], types[3 + 0xC3], types[3 + 0xC2] = 1, 4, 3
    vocab = make(data, token_type=types)
    ids = vocab.encode("ab\né©", add_special=False)
    assert ids == [261, 3 + 0x0A, 3 + 0xC3, 3 + 0xA9, 0]
    none = make(data, token_type=[t if t != 6 else 1 for t in types]).encode("ab\né", add_special=False)
    assert none == [261, 0]


@pytest.mark.parametrize("merged", [False, True])
def test_characters_whose_byte_tokens_are_missing_become_unknown_in_the_order_of_the_text(merged: bool) -> None:
    data = by_score(["a", "b", "ab"], [0.0, 0.0, -1.0], add_space_prefix=False)
    tokens, types = list(data[P + "tokens"]), list(data[P + "token_type"])
    tokens[3 + 0xC3], types[3 + 0xC3] = "<gone>", 1  # é and ö can't be spelt, ẞ can
    extra = {"model": "gemma4", "merges": ["a b"], "scores": None, "unknown_token_id": 0} if merged else {}
    vocab = make(data, tokens=tokens, token_type=types, add_bos_token=False, **extra)
    capital = [3 + byte for byte in "ẞ".encode()]
    assert vocab.encode("éẞab", add_special=False) == [0, *capital, 261]
    assert vocab.encode("ẞéöabẞé", add_special=False) == [*capital, 0, 261, *capital, 0]


def test_without_byte_tokens_the_unknown_token_stands_in() -> None:
    metadata = by_score(["a", "▁"], [-1.0, -2.0], unknown_token_id=0, add_bos_token=False, add_space_prefix=False)
    metadata["tokenizer.ggml.token_type"] = [2, 3, 3] + [5] * 256 + [1, 1]
    vocab = make(metadata)
    assert vocab.encode("a¡¡a") == [259, 0, 259]


def test_control_tokens_can_be_left_out() -> None:
    vocab = tokenizer("llama-spm")
    ids = vocab.encode("<s>hi</s>", add_special=False, parse_special=True)
    assert vocab.decode(ids) == "<s>hi</s>"
    assert vocab.decode(ids, skip_special=True) == "hi"
    stream = vocab.stream(skip_special=True)
    assert "".join(map(stream.push, ids)) == " hi"


@pytest.mark.parametrize("bad", [-1, 10**9, 1 << 70, True, 1.0, "1", None, b"1"])
def test_a_bad_id_is_named_with_its_position(bad: object) -> None:
    vocab = tokenizer("gpt-2")
    with pytest.raises(TokenizerError, match=r"position 2 is .*(0\.\.\d+|integers)"):
        vocab.decode([1, 2, bad])  # type: ignore[list-item]
    with pytest.raises(TokenizerError, match="token id is"):
        vocab.token_bytes(bad)  # type: ignore[arg-type]
    with pytest.raises(TokenizerError):
        vocab.stream().push(bad)  # type: ignore[arg-type]
    with pytest.raises(TokenizerError):
        vocab.is_special(bad)  # type: ignore[arg-type]
    with pytest.raises(TokenizerError):
        vocab.check_ids([bad])  # type: ignore[list-item]


@pytest.mark.parametrize("bad", ["12", b"12", 5, None])
def test_ids_must_be_a_sequence(bad: object) -> None:
    with pytest.raises(TokenizerError, match="sequence of token ids"):
        tokenizer("gpt-2").decode(bad)  # type: ignore[arg-type]


def test_numpy_ids_are_ids() -> None:
    vocab = tokenizer("gpt-2")
    ids = np.array(vocab.encode("Hello world"), np.int32)
    assert vocab.decode(ids) == "Hello world"
    assert vocab.check_ids(ids) == ids.tolist()
    assert all(type(token) is int for token in vocab.check_ids(ids))


@pytest.mark.parametrize("bad", [None, 3, b"x", ["x"]])
def test_text_must_be_a_str(bad: object) -> None:
    with pytest.raises(TokenizerError, match="must be a str, not"):
        tokenizer("gpt-2").encode(bad)  # type: ignore[arg-type]


def test_a_lone_surrogate_is_named() -> None:
    with pytest.raises(TokenizerError, match=r"surrogate '\\ud800' at position 2"):
        tokenizer("gpt-2").encode("ab\ud800")
