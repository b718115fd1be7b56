"""Best segmentations against those of the ``tokenizers`` library, which keeps a trie of its own."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers.models import Unigram

from oxillama.errors import TokenizerError
from oxillama.tokenizer import Tokenizer
from oxillama.tokenizer._unigram import UnigramTrie
from tests.tokenizer.build import P, make, table

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
Vocabulary = dict[str, tuple[float, int]]  # of each text the score and the type


def of_library(vocabulary: Vocabulary, unk: int) -> Callable[[str], list[int]]:
    """Its ids of texts that hold no space. Tokens that no text turns into keep their places under texts with one."""
    normal = [score for score, kind in vocabulary.values() if kind == NORMAL]
    lowest = min(normal, default=0.0)  # those of other tokens don't count in sentencepiece
    scored = [
        (text, score) if kind == NORMAL else (f" {i}", lowest)
        for i, (text, (score, kind)) in enumerate(vocabulary.items())
    ]
    library = Library(Unigram(scored, unk, False))
    byte_ids = [i for i, (_, kind) in enumerate(vocabulary.values()) if kind == BYTE]

    def ids(text: str) -> list[int]:
        found, out = library.encode(text), []
        for token, (start, end) in zip(found.ids, found.offsets, strict=True):
            spelt = byte_ids and token == unk
            out += [byte_ids[byte] for byte in text[start:end].encode()] if spelt else [token]
        return out

    return ids


def of_file(vocabulary: Vocabulary, unk: int) -> Tokenizer:
    scores, types = zip(*vocabulary.values(), strict=True)
    metadata = {
        "general.architecture": "t5",
        P + "model": "t5",
        P + "tokens": list(vocabulary),
        P + "scores": np.array(scores, np.float32),
        P + "token_type": list(types),
        P + "unknown_token_id": unk,
        P + "eos_token_id": unk,
        P + "add_space_prefix": False,
    }
    return make(metadata)


SCORES = st.integers(-160, 0).map(lambda n: n / 8) | st.sampled_from([-1.0, -2.0, -3.0])
POSITIVE = st.integers(1, 400).map(float)
PIECES = st.text("ab▁é€🙂", min_size=1, max_size=5)


@st.composite
def vocabularies(draw: st.DrawFn) -> tuple[Vocabulary, int]:
    """Mostly of plain tokens; the unknown one may be one of them, as a damaged file says, and all scores positive."""
    kinds = st.sampled_from([NORMAL] * 8 + [UNUSED, CONTROL])
    scores = draw(st.sampled_from([SCORES, SCORES, POSITIVE]))
    found = draw(st.dictionaries(PIECES, st.tuples(scores, kinds), max_size=25))
    for text in draw(st.lists(st.text("?z", min_size=1, max_size=3), max_size=3)):
        found[text] = draw(scores), NORMAL
    found["?"] = draw(scores), draw(st.sampled_from([UNKNOWN, UNKNOWN, NORMAL]))
    if draw(st.booleans()):
        found |= dict.fromkeys(BYTES, (0.0, BYTE))
    return found, list(found).index("?")


@settings(max_examples=300)
@given(vocabularies(), st.lists(st.text("ab▁é€🙂z?漢", max_size=30), max_size=8))
@example(({"?": (0.0, NORMAL), "??": (-20.0, NORMAL), "a": (-1.0, NORMAL)}, 0), ["??", "?", "???", "a??a?za"])
@example(({"?": (9.0, UNKNOWN), "ab": (30.0, NORMAL)}, 0), ["ab", "aab", "abz"])
@example(({"?": (50.0, NORMAL), "zz": (50.0, NORMAL)}, 0), ["zz", "z", "zzz?", "zzzz"])
def test_tokens_are_those_of_the_library(made: tuple[Vocabulary, int], texts: list[str]) -> None:
    tokenizer, library = of_file(*made), of_library(*made)
    assert [tokenizer.encode(text, add_special=False) for text in texts] == [library(text) for text in texts]


@settings(max_examples=60)
@given(vocabularies(), st.sampled_from(["ab", "🙂", "▁a"]), st.text("abz", max_size=30))
def test_added_tokens_are_found_before_all_others(made: tuple[Vocabulary, int], own: str, text: str) -> None:
    """User-defined ones with the score that converters write for tokens that were added to a model."""
    vocabulary, unk = made
    vocabulary = vocabulary | {own: (-1000.0, USER_DEFINED)}
    unk, added = list(vocabulary).index("?"), list(vocabulary).index(own)
    tokenizer, library = of_file(vocabulary, unk), of_library(vocabulary, unk)
    expected: list[int] = []
    for i, part in enumerate(text.split(own)):
        expected += [added] * bool(i) + library(part)
    assert tokenizer.encode(text, add_special=False) == expected


@pytest.fixture(scope="module")
def large() -> tuple[Tokenizer, Callable[[str], list[int]], list[str]]:
    """Twenty thousand tokens, one of them of 512 characters."""
    generator = np.random.default_rng(5)
    letters = np.array(list("abcdefghijklmnop▁éß漢字🙂"))
    words = {"".join(generator.choice(letters, n)) for n in generator.integers(1, 9, 20_000)} | {"a" * 512}
    scores = (np.round(generator.uniform(-96, -16, len(words))) / 8).tolist()  # whose sums are exact in float32
    vocabulary: Vocabulary = {"<unk>": (0.0, UNKNOWN)}
    vocabulary |= {word: (score, NORMAL) for word, score in zip(sorted(words), scores, strict=True)}
    pieces = [*vocabulary, "x", "\0", "a" * 400]
    texts = ["".join(generator.choice(pieces, n)).replace(" ", "") for n in (1, 3, 30, 300, 3000)]
    return of_file(vocabulary, 0), of_library(vocabulary, 0), [*texts, "a" * 5000, "x" * 5000, ""]


def test_large_vocabularies_and_long_texts(
    large: tuple[Tokenizer, Callable[[str], list[int]], list[str]],
) -> None:
    tokenizer, library, texts = large
    assert [tokenizer.encode(text, add_special=False) for text in texts] == [library(text) for text in texts]
    with pytest.raises(TokenizerError, match="lone surrogate"):
        tokenizer.encode("a\ud800")


def test_threads_share_a_tokenizer(large: tuple[Tokenizer, Callable[[str], list[int]], list[str]]) -> None:
    tokenizer, _, texts = large
    alone = [tokenizer.encode(text) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(tokenizer.encode, texts * 8)) == alone * 8


def test_a_token_that_is_too_long_is_refused() -> None:
    """Each place of a text of its first character would be the start of as many steps as it has."""
    with pytest.raises(TokenizerError, match=r"tokenizer\.ggml\.tokens\[2\] has 513 characters; the limit is 512"):
        of_file({"?": (0.0, UNKNOWN), "a": (-1.0, NORMAL), "a" * 513: (-2.0, NORMAL)}, 0).encode("a")
    never = {"?": (0.0, UNKNOWN), "a": (-1.0, NORMAL), "a" * 513: (-2.0, CONTROL)}
    assert of_file(never, 0).encode("aa", add_special=False) == [1, 1]


def test_arrays_of_other_lengths_are_refused() -> None:
    texts, one = table(["a", "b"]), np.ones(2, np.uint8)
    for usable, scores, byte_ids in (
        (one[:1], np.zeros(2), None),
        (one, np.zeros(3), None),
        (one, np.zeros(2), np.zeros(1, np.int32)),
    ):
        with pytest.raises(ValueError, match="2 tokens with"):
            UnigramTrie(texts, usable, scores, unk=0, unknown=-1.0, byte_ids=byte_ids)


@pytest.mark.long
def test_too_much_text_is_refused() -> None:
    none, one = np.zeros(1), np.ones(1, np.uint8)
    with pytest.raises(TokenizerError, match="the vocabulary holds 268435456 bytes of text; the limit is 268435455"):
        UnigramTrie(table(["a" * (1 << 28)]), one, none, unk=0, unknown=-1.0)
    trie = UnigramTrie(table(["a"]), one, none, unk=0, unknown=-1.0)
    with pytest.raises(TokenizerError, match="a text of 1073741824 bytes; the limit is 1073741823"):
        trie.ids("a" * (1 << 30))
