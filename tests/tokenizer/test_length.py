"""Bounds of a text's tokens: never more than there are, and known without much memory."""

import tracemalloc
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oxillama as ox
from oxillama.errors import ContextOverflowError
from oxillama.tokenizer import Tokenizer, length
from oxillama.tokenizer.pre_tokenizers import known_pre_tokenizers
from tests.tokenizer.build import RECORDED, SENTENCEPIECE, P, by_score, byte_level, make, recorded, tokenizer

ALL = 1 << 40
many = settings(max_examples=60)
# Merges across words, spaces, digits and lines, so that a cut in a wrong place has other tokens.
MERGES = [
    "a b", "ab ab", "abab abab", "Ġ a", "Ġ ab", "Ġa b", "b Ġ", "a Ġ", "bĠ a", "a Ċ", "Ċ Ċ", "Ġ Ġ", "ĠĠ ĠĠ", "1 2",
    "12 3", "1 1", "11 11", ". Ġ", "Ġ .", ", Ġ", "' s", "a '", "s Ġ", "é Ġ", "Ã ©", "a A", "A B", "AB a", "- -", "Ċ a",
]  # fmt: skip
PIECES = [
    "a", "b", "ab", "abab", "aab", "A", "B", "aA", " ", "  ", "    ", "\n", "\n\n", "\r\n", "\t", "1", "12", "111",
    ".", ",", "'s", "'", "--", "é", "e\u0301", "漢", "字", "。", "カ・カ", "\u0301", "🙂", "<s>", "</s>", "word",
    "the next", "Han漢", "x y", "▁", "a▁", "IMGIMGABZ", "½", "\u0663", "\uff21\uff22",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=4).filter(lambda t: t.isprintable()), max_size=60).map(
    "".join
)
WORDS = st.lists(st.sampled_from(["ab", "abab", "a", "aab", "word", "ABa"]), min_size=10, max_size=60).map(" ".join)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(length, "PIECE", 16)
    monkeypatch.setattr(length, "LONGEST_PIECE", 64)


def check(vocab: Tokenizer, text: str, parse_special: bool = False) -> None:
    """That the bound is one, and what it stands on: the tokens on both sides of each cut are those of the whole."""
    whole = vocab.encode(text, False, parse_special)
    for enough in (0, len(whole) // 2, len(whole), ALL):
        least = vocab.least_tokens(text, enough, parse_special=parse_special)
        assert least <= len(whole), (text, least, len(whole))
    measure, partition = vocab._measure, vocab._partition_all if parse_special else vocab._partition_user
    for cut in measure.cuts(text):
        if not length._has_special(text, cut, partition.texts):
            left = vocab.encode(text[:cut], False, parse_special)
            right = vocab.encode(text[cut + measure.dropped :], False, parse_special, continuation=True)
            if measure.slack:
                assert len(left) + len(right) <= len(whole) + measure.slack, (text, cut)
            else:
                assert left + right == whole, (text, cut)


@pytest.mark.sweep(15)
@pytest.mark.parametrize("pre", known_pre_tokenizers())
def test_every_pre_tokenizer(pre):
    utf8 = pre in ("gemma4", "gemma-4", "granite-embed-multi-311m", "sarvam-moe")
    vocab = gemma() if utf8 else make(byte_level(MERGES, ("<s>", "</s>"), pre))

    @settings(max_examples=40)
    @given(TEXTS | WORDS, st.booleans())
    def bounded(text, parse_special):
        check(vocab, text, parse_special=parse_special)

    bounded()


@cache
def gemma() -> Tokenizer:
    return tokenizer("gemma-4")


@pytest.mark.sweep(5)
@pytest.mark.parametrize("name", [*RECORDED, *SENTENCEPIECE])
def test_recorded_vocabularies(name):
    vocab = tokenizer(name)

    @many
    @given(TEXTS | WORDS, st.booleans())
    def bounded(text, parse_special):
        check(vocab, text, parse_special=parse_special)

    bounded()


@settings(max_examples=300)
@given(
    pieces=st.lists(st.text("ab▁é", min_size=2, max_size=3), max_size=8, unique=True),
    letters=st.sampled_from(["ab▁", "ab", "ab▁é", "▁"]),
    with_bytes=st.booleans(),
    prefix=st.booleans(),
    text=st.text("ab é\n", max_size=60),
    random=st.randoms(),
)
def test_random_vocabularies_of_scores(pieces, letters, with_bytes, prefix, text, random):
    """With and without byte tokens: without, unknown characters in a row are one token, on both sides of a cut too."""
    scores = [-1.0] * len(letters) + [-random.random() for _ in pieces]
    meta = by_score([*letters, *pieces], scores, add_space_prefix=prefix)
    if not with_bytes:
        keep = [i for i, kind in enumerate(meta[P + "token_type"]) if kind != 6]
        for key in ("tokens", "token_type", "scores"):
            meta[P + key] = np.array(meta[P + key])[keep] if key == "scores" else [meta[P + key][i] for i in keep]
        meta[P + "unknown_token_id"] = 0
    vocab = make(meta)
    check(vocab, text)
    check(vocab, "zzzz" * 20 + text)


@pytest.mark.parametrize("extra", ["  ", "b a", " ", "ba", "éé", "\n\n"])
def test_user_defined_tokens_anywhere(extra):
    meta = byte_level(MERGES, (extra,), "llama-bpe")
    meta[P + "token_type"][-1] = 4
    vocab = make(meta)

    @many
    @given(TEXTS | WORDS)
    def bounded(text):
        check(vocab, text)

    bounded()


def test_composed_characters():
    """Four characters that are one, of three bytes, and a token that has two of those."""
    meta = byte_level(["á ¾", "á¾ Ĥ", "á¾Ĥ á¾Ĥ"], (), "qwen2")
    vocab = make(meta, **{"normalizer.nfc": True})
    composed = "\u03b1\u0313\u0300\u0345"
    assert len(vocab.encode(composed * 30)) == 15
    for text in (composed * 30, "e\u0301" * 50, "\u1100\u1161\u11a8" * 40, "ab " * 40):
        check(vocab, text)


def test_whitespace_that_tokens_swallow():
    meta = recorded("phi-3")["metadata"]
    vocab = make({**meta, "general.name": "Phi-3-mini"})
    for text in ("<|end|>" + " " * 5000 + "a", "<|end|>\n\t " * 100, "word " * 40 + "<|end|>" + " \u3000" * 900):
        check(vocab, text, parse_special=True)
    assert len(vocab.encode("<|end|>" + " " * 5000, add_special=False, parse_special=True)) < 9


def test_the_bound_is_near_for_words(monkeypatch):
    """Else it would be of little use: a thousandth of the tokens may be missing where texts are cut."""
    monkeypatch.undo()
    text = "The little fox went into the village by the sea, and saw a cat.\nIt was 12 years old. " * 600
    for name in RECORDED:
        vocab = tokenizer(name)
        n = len(vocab.encode(text, add_special=False))
        assert n * 0.6 < vocab.least_tokens(text, ALL) <= n, name
    with ox.load(num_threads=1) as engine:
        n = len(engine.tokenizer.encode(text, add_special=False))
        assert 0.6 * n < engine.tokenizer.least_tokens(text, ALL) <= n


def test_no_more_is_tokenised_than_decides(monkeypatch):
    """Also where one token may stand for thousands of characters, so that the length tells little."""
    monkeypatch.undo()
    merges = ["Ġ Ġ"] + [f"{'Ġ' * (1 << i)} {'Ġ' * (1 << i)}" for i in range(1, 12)]
    for meta in (byte_level(merges, (), "llama-bpe"), by_score(["▁" * 300, *"word▁"], [-1.0] * 6)):
        vocab, seen = make(meta), []
        encode = vocab._encode_plain
        vocab._encode_plain = lambda text, encode=encode, seen=seen: seen.append(len(text)) or encode(text)
        assert vocab.least_tokens("word " * 1_000_000, 256) > 256
        assert sum(seen) < 2 * length.PIECE


# ---- the engine

HUGE = 100_000_000


@pytest.fixture(scope="module")
def engine():
    with ox.load(num_threads=1, context_size=256) as engine:
        yield engine


def calls(engine, text):
    return {
        "generate": lambda: engine.generate(text),
        "a list": lambda: engine.generate(["a", text]),
        "stream": lambda: engine.stream(text),
        "batch": lambda: list(engine.batch([text])),
        "chat": lambda: engine.chat([{"role": "user", "content": text}]),
        "embed": lambda: engine.embed(text),
        "beam_search": lambda: engine.beam_search(text),
    }


@pytest.mark.parametrize("text", ["a" * HUGE, "word " * (HUGE // 5)], ids=["one letter", "words"])
def test_a_hundred_megabytes_are_refused_with_little_memory(engine, text, monkeypatch):
    monkeypatch.undo()
    for name, call in calls(engine, text).items():
        if name == "chat":
            continue  # a template writes the text out
        tracemalloc.start()
        with pytest.raises(ContextOverflowError, match=r"has at least \d+ tokens and context_size is 256"):
            call()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4 << 20, name


def test_messages_and_pairs_are_refused_before_they_are_tokenised(engine, monkeypatch):
    monkeypatch.undo()
    text = "The cat sat. " * 10_000
    said = []
    encode = Tokenizer.encode
    monkeypatch.setattr(
        Tokenizer, "encode", lambda self, text, *a, **k: said.append(text) or encode(self, text, *a, **k)
    )
    for name, call in calls(engine, text).items():
        with pytest.raises(ContextOverflowError, match="at least"):
            call()
        assert max(map(len, said), default=0) < len(text), name


def test_what_fits_is_never_refused(engine):
    """Up to the last token, of texts that are much longer than they have tokens."""
    tokens = engine.tokenizer
    longest = max(range(tokens.n_vocab), key=lambda i: len(tokens.token_bytes(i)) * (not tokens.is_special(i)))
    text = tokens.token_bytes(longest).decode() * 400
    while len(tokens.encode(text)) > 256:
        text = text[:-1]
    assert len(text) > 8 * 256
    assert engine.embed(text).shape == (engine.model_config.n_embd,)
    assert engine.generate(text[: -len(text) // 100], max_tokens=1).usage.prompt_tokens <= 256
