"""Texts of tokens and merging, against dicts and the BPE of the ``tokenizers`` library."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers.models import BPE

from oxillama.tokenizer._merging import Merger, MergeTable
from oxillama.tokenizer._texts import TokenTexts

few = settings(max_examples=60, deadline=None)


def strings(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """A GGUF array of strings: bytes, and where each begins."""
    raw = [text.encode() for text in texts]
    payload = b"".join(len(text).to_bytes(8, "little") + text for text in raw)
    return np.frombuffer(payload, np.uint8), np.cumsum([0, *(8 + len(text) for text in raw)], dtype=np.int64)


def table(texts: list[str]) -> TokenTexts:
    return TokenTexts(*strings(texts))


@few
@given(st.lists(st.text("ab€ ", max_size=20), unique=True, max_size=60), st.lists(st.text("ab€ ", max_size=4)))
def test_texts_are_found_by_id_and_by_text(texts: list[str], others: list[str]) -> None:
    found, ids = table(texts), {text: i for i, text in enumerate(texts) if text}
    assert list(found) == texts
    assert len(found) == len(texts)
    assert [found.id_of(text) for text in (*texts, *others)] == [ids.get(text, -1) for text in (*texts, *others)]
    assert found.n_chars().tolist() == [len(text) for text in texts]
    assert found.twice is None


def test_the_first_text_that_is_there_twice_is_named() -> None:
    assert table(["a", "", "b", "", "b", "a"]).twice == (2, 4)


def test_text_without_utf8_has_no_id() -> None:
    assert table(["a"]).id_of("\ud800") == -1


def test_ids_out_of_range_are_refused() -> None:
    found = table(["a", "b"])
    assert found[-1] == "b"
    for i in (2, -3):
        with pytest.raises(IndexError):
            found[i]


@st.composite
def vocabularies(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    """Tokens and merges, some of them there twice: then the last one counts."""
    tokens = ["a", "b", "c", "é", "<unk>"]
    merges: list[str] = []
    for _ in range(draw(st.integers(0, 14))):
        left, right = (draw(st.sampled_from([token for token in tokens if token != "<unk>"])) for _ in range(2))
        merges.append(f"{left} {right}")
        if left + right not in tokens:
            tokens.append(left + right)
    return tokens, merges


@few
@given(vocabularies(), st.lists(st.text("abcéxy", max_size=40), max_size=10), st.booleans())
def test_merges_are_those_of_the_library(made: tuple[list[str], list[str]], texts: list[str], whole: bool) -> None:
    tokens, merges = made
    pairs = [(left, right) for left, right in map(str.split, merges)]
    ids = {token: i for i, token in enumerate(tokens)}
    library = Library(BPE(ids, pairs, unk_token="<unk>", fuse_unk=True))
    found, usable = table(tokens), np.ones(len(tokens), np.uint8)
    merge_table = MergeTable(found, usable, *strings(merges))
    assert merge_table.open == []
    merge_table.close([])
    merger = Merger(found, usable, merges=merge_table, unk=ids["<unk>"])
    assert [merger.ids([text]) for text in texts] == [library.encode(text).ids for text in texts]
    assert merger.ids(texts) == [i for text in texts for i in library.encode(text).ids]


@pytest.mark.parametrize("n", [4095, 4096, 30_000])
def test_long_pieces_merge_alike(n: int) -> None:
    """Of those, other threads go on meanwhile."""
    tokens, merges = ["a", "b", "aa", "ab", "aaaa"], ["a a", "a b", "aa aa"]
    found, usable = table(tokens), np.ones(5, np.uint8)
    merge_table = MergeTable(found, usable, *strings(merges))
    merge_table.close([])
    text = ("a" * 7 + "b") * (n // 8) + "a" * (n % 8)
    library = Library(BPE({token: i for i, token in enumerate(tokens)}, [("a", "a"), ("a", "b"), ("aa", "aa")]))
    assert Merger(found, usable, merges=merge_table).ids([text]) == library.encode(text).ids


def test_merges_that_name_what_is_not_there_stay_open() -> None:
    found, usable = table(["a", "b", "ab", "ba"]), np.array([1, 1, 1, 0], np.uint8)
    assert MergeTable(found, usable, *strings(["a b", "b a", "a c", "ab", "a ", " a b"])).open == [1, 2, 3, 4, 5]
