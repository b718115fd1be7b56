"""Damaged and unsupported vocabularies: a typed error that names the key."""

from contextlib import suppress

import numpy as np
import pytest

from oxillama import gguf
from oxillama.errors import LoadError, MissingKeyError, TokenizerError, UnsupportedModelError
from oxillama.tokenizer import Tokenizer
from tests.tokenizer.build import P, by_score, byte_level, file_bytes, make, recorded

BPE = byte_level(["a b", "ab c"], extra=("<x>",))
SPM = by_score(["a", "b", "ab"], [-1.0, -2.0, -3.0])
N_BPE = len(BPE[P + "tokens"])  # type: ignore[arg-type]
N_SPM = len(SPM[P + "tokens"])  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["model", "tokens", "merges"])
def test_missing_keys_of_byte_pairs(key: str) -> None:
    with pytest.raises(MissingKeyError, match=f"tokenizer.ggml.{key}"):
        make(BPE, **{key: None})


@pytest.mark.parametrize("key", ["tokens", "scores"])
def test_missing_keys_of_scored_pieces(key: str) -> None:
    with pytest.raises(MissingKeyError, match=f"tokenizer.ggml.{key}"):
        make(SPM, **{key: None})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", 3),
        ("tokens", "abc"),
        ("tokens", [1, 2]),
        ("merges", [1, 2]),
        ("token_type", ["a"]),
        ("token_type", 3),
        ("bos_token_id", "x"),
        ("add_bos_token", 1),
        ("pre", True),
        ("precompiled_charsmap", [1000, 2000]),
    ],
)
def test_values_of_another_type(key: str, value: object) -> None:
    with pytest.raises(MissingKeyError, match=f"tokenizer.ggml.{key}"):
        make(BPE, **{key: value})


@pytest.mark.parametrize("model", ["plamo2", "no_vocab", "none", "GPT2", ""])
def test_unsupported_models_are_named(model: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"tokenizer.ggml.model is '{model}'"):
        make(BPE, model=model)


@pytest.mark.parametrize("length", [0, 1, N_BPE - 1, N_BPE + 1])
def test_token_types_of_another_length(length: int) -> None:
    with pytest.raises(TokenizerError, match=f"token_type has {length} entries, but tokenizer.ggml.tokens has {N_BPE}"):
        make(BPE, token_type=np.ones(length, np.int32))


@pytest.mark.parametrize("length", [0, N_SPM - 1, N_SPM + 1])
def test_scores_of_another_length(length: int) -> None:
    with pytest.raises(TokenizerError, match=f"scores has {length} entries, but tokenizer.ggml.tokens has {N_SPM}"):
        make(SPM, scores=np.zeros(length, np.float32))


def test_an_unknown_token_type() -> None:
    with pytest.raises(TokenizerError, match=r"token_type\[5\] is 9"):
        make(BPE, token_type=[1] * 5 + [9] + [1] * (N_BPE - 6))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_no_number(value: float) -> None:
    scores = np.zeros(N_SPM, np.float32)
    scores[7] = value
    with pytest.raises(TokenizerError, match=rf"scores\[7\] is {value}, not a finite number"):
        make(SPM, scores=scores)


def test_a_scored_token_of_absurd_length() -> None:
    assert make(by_score(["a", "a" * 512], [-1.0, -2.0])).n_vocab == 261
    with pytest.raises(TokenizerError, match=r"tokens\[260\] has 513 characters; the limit is 512"):
        make(by_score(["a", "a" * 513], [-1.0, -2.0]))


@pytest.mark.parametrize(
    "key",
    ["bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "mask", "cls", "fim_pad", "fim_rep", "fim_sep"],
)
@pytest.mark.parametrize("value", [N_BPE, 2**32 - 1, -1])
def test_special_ids_out_of_range(key: str, value: int) -> None:
    with pytest.raises(TokenizerError, match=rf"{key}_token_id is {value}, outside the vocabulary 0\.\.{N_BPE - 1}"):
        make(BPE, **{f"{key}_token_id": value})


def test_the_last_id_is_in_range() -> None:
    assert make(BPE, bos_token_id=N_BPE - 1).bos_id == N_BPE - 1


@pytest.mark.parametrize("name", ["bos", "eos", "sep"])
def test_a_token_to_add_that_is_not_set(name: str) -> None:
    with pytest.raises(
        TokenizerError, match=f"add_{name}_token is true, but tokenizer.ggml.{name[:3]}.*_id is not set"
    ):
        make(BPE, **{f"add_{name}_token": True})


def test_duplicate_tokens() -> None:
    tokens = list(BPE[P + "tokens"])  # type: ignore[call-overload]
    tokens[9] = tokens[4]
    with pytest.raises(TokenizerError, match=r"holds 'Ą' twice, as ids 4 and 9"):
        make(BPE, tokens=tokens)


def test_no_tokens() -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.ggml\.tokens is empty"):
        _empty()


def _empty() -> Tokenizer:
    # An empty array of strings: item type 8, count 0.
    data = file_bytes({k: v for k, v in BPE.items() if k not in (P + "tokens", P + "token_type")})
    key = (P + "tokens").encode()
    entry = len(key).to_bytes(8, "little") + key + (9).to_bytes(4, "little") + (8).to_bytes(4, "little") + bytes(8)
    count = int.from_bytes(data[16:24], "little") + 1
    return Tokenizer.from_gguf(data[:16] + count.to_bytes(8, "little") + entry + data[24:])


@pytest.mark.parametrize("merge", ["ab", "", " ", "a ", " a", "a  b", "a b c"])
def test_malformed_merges(merge: str) -> None:
    with pytest.raises(TokenizerError, match=r"merges\[1\] is "):
        make(BPE, merges=["a b", merge])


@pytest.mark.parametrize("merge", ["a zz", "zz a", "b a"])
def test_merges_of_tokens_that_are_not_there(merge: str) -> None:
    with pytest.raises(TokenizerError, match=rf"merges\[1\] is '{merge}', but '\w+' is not in tokenizer.ggml.tokens"):
        make(BPE, merges=["a b", merge])


def test_tokens_that_are_not_utf8() -> None:
    data = file_bytes(BPE)
    at = data.index(b"\x03\0\0\0\0\0\0\0<x>")
    broken = data[: at + 8] + b"\xff" + data[at + 9 :]
    with pytest.raises((TokenizerError, LoadError), match=r"tokens\[258\]"):
        Tokenizer.from_gguf(broken)


@pytest.mark.parametrize("text", ["<0x4>", "<0xGG>", "x", "<0x100>", "<0x +>", "<0x-1>", "<0x+1>", "<0x٣٣>"])
def test_byte_tokens_that_are_none(text: str) -> None:
    tokens = list(SPM[P + "tokens"])  # type: ignore[call-overload]
    tokens[3] = text
    with pytest.raises(TokenizerError, match=r"tokens\[3\] is a byte token but reads"):
        make(SPM, tokens=tokens)


def test_byte_tokens_of_a_word_piece_vocabulary() -> None:
    meta = {
        "general.architecture": "bert",
        P + "model": "bert",
        P + "tokens": ["[UNK]", "a", "<0xk>"],
        P + "token_type": [2, 1, 6],
        P + "unknown_token_id": 0,
    }
    with pytest.raises(TokenizerError, match=r"tokens\[2\] is a byte token but reads '<0xk>'"):
        make(meta)
    assert make(meta, tokens=["[UNK]", "a", "<0x6B>"]).decode([2]) == "k"


def test_no_way_to_spell_unknown_characters() -> None:
    meta = {
        **{k: v for k, v in SPM.items() if not k.endswith(("tokens", "scores", "token_type"))},
        P + "tokens": ["a"],
        P + "scores": [0.0],
        P + "token_type": [1],
    }
    with pytest.raises(TokenizerError, match="neither all <0xXX> byte tokens nor an unknown token"):
        make(meta, unknown_token_id=None, model="gemma4", merges=["a a"])


@pytest.mark.parametrize("model", ["bert", "t5"])
def test_word_models_need_an_unknown_token(model: str) -> None:
    meta = {"general.architecture": model, P + "model": model, P + "tokens": ["a"], P + "scores": [0.0]}
    with pytest.raises(TokenizerError, match=r"needs an unknown token: set tokenizer\.ggml\.unknown_token_id"):
        make(meta)


def test_damaged_charsmaps() -> None:
    data = recorded("sentencepiece_unigram_rules")["metadata"]
    good = bytes(data[P + "precompiled_charsmap"])
    for charsmap in (b"\1", good[:3], good[:40], b"\xff\xff\xff\xff" + good[4:], b"\3" + good[1:], good + b"\xff"):
        with pytest.raises(TokenizerError, match="precompiled_charsmap is damaged"):
            make(data, precompiled_charsmap=np.frombuffer(charsmap, np.uint8))


def test_a_charsmap_full_of_nonsense_never_ends_the_process() -> None:
    data = recorded("sentencepiece_unigram_rules")["metadata"]
    good = bytes(data[P + "precompiled_charsmap"])
    generator = np.random.default_rng(1)
    accepted = 0
    for _ in range(60):
        noise = bytearray(good)
        for at in generator.integers(4, len(good), 3):
            noise[at] = generator.integers(256)
        with suppress(TokenizerError):
            vocab = make(data, precompiled_charsmap=np.frombuffer(bytes(noise), np.uint8))
            # A table that was let through has to work, whatever it says.
            assert vocab.encode("ﬁne \u3000 ΩÉ text \xa0Ａ" + bytes(range(128)).decode())
            accepted += 1
    assert 0 < accepted < 50


class TestSource:
    def test_an_open_file_stays_open(self) -> None:
        with gguf.open(file_bytes(BPE)) as file:
            assert Tokenizer.from_gguf(file).n_vocab == N_BPE
            assert file.metadata.get_str(P + "model") == "gpt2"

    def test_overrides(self) -> None:
        data = file_bytes(BPE)
        assert Tokenizer.from_gguf(data, overrides={P + "pre": "qwen2"}).pre == "qwen2"
        with gguf.open(data) as file, pytest.raises(TokenizerError, match=r"give them to gguf\.open"):
            Tokenizer.from_gguf(file, overrides={P + "pre": "qwen2"})

    def test_an_override_mends_an_unknown_pre_tokenizer(self) -> None:
        data = file_bytes(byte_level(["a b"], pre="nobody-2"))
        assert Tokenizer.from_gguf(data, overrides={P + "pre": "llama-bpe"}).encode("ab") == [256]

    def test_a_file_without_a_tokenizer(self) -> None:
        with pytest.raises(MissingKeyError, match=r"tokenizer\.ggml\.model"):
            Tokenizer.from_gguf(file_bytes({"general.architecture": "llama"}))
