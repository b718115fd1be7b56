"""Long texts are cut into windows, with the tokens of the whole; other threads run between them."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.tokenizer import bpe, word_models
from oxillama.tokenizer.pre_tokenizers import known_pre_tokenizers
from tests.other_threads import longest_turn
from tests.tokenizer.build import P, byte_level, make, tokenizer

MERGES = [
    "a b", "ab ab", "Ġ a", "Ġ ab", "Ġa b", "b Ġ", "a Ġ", "bĠ a", "a Ċ", "Ċ Ċ", "Ġ Ġ", "ĠĠ ĠĠ", "1 2", "12 3", "1 1",
    "11 11", ". Ġ", "Ġ .", ", Ġ", "' s", "a '", "s Ġ", "é Ġ", "Ã ©", "a A", "A B", "AB a", "- -",
]  # fmt: skip
PIECES = [
    "a", "ab", "aab", "A", "aA", " ", "  ", "    ", "\n", "\r\n", "\t", "1", "12", "111", ".", ",", "'s", "--", "é",
    "e\u0301", "漢", "字", "。", "カ・カ", "\u0301", "🙂", "word", "the next", "x y", "▁", "½", "\u0663", "IMGIMGABZ",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=3).filter(str.isprintable), min_size=8, max_size=70).map(
    "".join
)


def windowed(vocab, text, monkeypatch, serial):
    """The tokens of a text, cut into windows of a few characters."""
    with monkeypatch.context() as patch:
        patch.setattr(bpe, "WINDOW", 8)
        patch.setattr(bpe, "WIDEST", 32)
        patch.setattr(bpe, "PIECES", 3)
        patch.setattr(word_models, "WINDOW", 8)
        if serial:
            patch.setenv(bpe.PARALLELISM, "false")
        else:
            patch.delenv(bpe.PARALLELISM, raising=False)
        return vocab.encode(text, add_special=False)


@cache
def built(name):
    return tokenizer(name)


@pytest.mark.sweep(15)
@pytest.mark.parametrize("pre", known_pre_tokenizers())
def test_windows_have_the_tokens_of_the_whole(pre, monkeypatch):
    utf8 = pre in ("gemma4", "gemma-4", "granite-embed-multi-311m", "sarvam-moe")
    vocab = built("gemma-4") if utf8 else make(byte_level(MERGES, ("<s>",), pre))

    @settings(max_examples=40)
    @given(TEXTS, st.booleans())
    def same(text, serial):
        assert windowed(vocab, text, monkeypatch, serial) == vocab.encode(text, add_special=False)

    same()


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", ["bert-bge", "qwen2", "deepseek-llm", "phi-3"])
def test_windows_of_recorded_vocabularies(name, monkeypatch):
    vocab = built(name)

    @settings(max_examples=80)
    @given(TEXTS, st.booleans())
    def same(text, serial):
        assert windowed(vocab, text, monkeypatch, serial) == vocab.encode(text, add_special=False)

    same()


@settings(max_examples=100)
@given(st.text("ae\u0301\u0327\u1100\u1161\u11a8 1漢", min_size=10, max_size=60))
def test_texts_are_composed_in_parts(text):
    vocab = make(byte_level(MERGES, (), "qwen2"), **{"normalizer.nfc": True})
    with pytest.MonkeyPatch.context() as patch:
        whole = vocab.encode(text)
        patch.setattr(bpe, "WINDOW", 4)
        assert vocab.encode(text) == whole


def test_words_of_thousands_of_letters_are_unknown(monkeypatch):
    vocab = built("bert-bge")
    for text in ("a" * 50_000, "a" * 250 + "é", "x " + "b1" * 4000 + " y", "é" + "a" * 3000 + "漢" + "a" * 250):
        expected = vocab.encode(text.replace("a" * 3000, "a" * 300).replace("a" * 50_000, "a" * 300), False)
        assert vocab.encode(text + " " * 3000, False) == expected


def yields(make):
    """Whether no call of compiled code takes an eighth of all the time."""
    return any(longest_turn(make) < 1 / 8 for _ in range(8))


@pytest.mark.parametrize(
    "text", ["The cat sat on a mat, and 12 dogs. ", "漢字かな交じり文。", "    x_1 = foo(a, b)\n", "🙂!"]
)
@pytest.mark.parametrize("name", ["qwen2", "bert-bge"])
def test_other_threads_run_meanwhile(name, text, monkeypatch):
    monkeypatch.setenv(bpe.PARALLELISM, "false")
    vocab, long = built(name), text * (1_000_000 // len(text))
    assert yields(lambda: vocab.encode(long))


def test_control_tokens_are_looked_for_one_at_a_time():
    meta = byte_level(MERGES, tuple(f"<t{i}>" for i in range(3000)), "qwen2")
    meta[P + "token_type"][-3000:] = [4] * 3000
    vocab, text = make(meta), "a < b " * 70_000  # what begins all of them
    assert yields(lambda: list(vocab._partition_user(text)))


def test_texts_without_letters_are_cut_into_pieces_once(monkeypatch):
    """Nowhere in them can a text be cut, which is seen without the library."""
    vocab, cut, called = built("qwen2"), bpe.Splitter.__call__, []
    monkeypatch.setattr(bpe.Splitter, "__call__", lambda self, text: called.append(len(text)) or cut(self, text))
    monkeypatch.setenv(bpe.PARALLELISM, "false")
    assert len(vocab.encode("7" * 50_000)) == 50_000
    assert called == []
    vocab.encode("The cat sat on a mat. " * 500)
    assert called
