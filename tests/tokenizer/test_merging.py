"""Texts of tokens and merging, against dicts and the BPE of the ``tokenizers`` library."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers.models import BPE

from oxillama.tokenizer._merging import Merger, MergeTable, lone_chars
from oxillama.tokenizer.token_bytes import BYTE_TO_CHAR
from tests.tokenizer.build import strings, table
from tests.tokenizer.naive import merge_all

few = settings(max_examples=60)


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
@given(vocabularies(), st.lists(st.text("abcéxy", max_size=40), max_size=10))
def test_merges_are_those_of_the_library(made: tuple[list[str], list[str]], texts: list[str]) -> None:
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


@few
@given(vocabularies(), st.sets(st.text("abcé", min_size=2, max_size=4)), st.data(), st.booleans())
def test_bytes_merge_like_those_of_the_library(
    made: tuple[list[str], list[str]], more: set[str], data: st.DataObject, whole: bool
) -> None:
    """Of the byte alphabet some letters are missing, which are left out; and a piece may be a token that none makes."""
    tokens, merges = [[spelt(text) for text in texts] for texts in made]
    merges = [merge.replace(BYTE_TO_CHAR[ord(" ")], " ") for merge in merges]
    letters = sorted({char for token in tokens for char in token} | {BYTE_TO_CHAR[byte] for byte in b"xy"})
    tokens = list(dict.fromkeys([*letters, *tokens, *map(spelt, sorted(more))]))
    pairs = [(left, right) for left, right in map(str.split, merges)]
    library = Library(BPE({token: i for i, token in enumerate(tokens)}, pairs, ignore_merges=whole))
    found, usable = table(tokens), np.ones(len(tokens), np.uint8)
    merge_table = MergeTable(found, usable, *strings(merges))
    merge_table.close([])
    alphabet = [BYTE_TO_CHAR[byte].encode() for byte in range(256)]
    merger = Merger(found, usable, merges=merge_table, alphabet=alphabet, whole=whole)
    drawn = st.lists(st.sampled_from(sorted(more) or ["a"]) | st.text("abcéxyz", max_size=20), max_size=10)
    for text in data.draw(drawn):
        assert merger.ids([text]) == library.encode(spelt(text)).ids


def spelt(text: str) -> str:
    return "".join(BYTE_TO_CHAR[byte] for byte in text.encode())


@st.composite
def scored(draw: st.DrawFn) -> tuple[list[str], dict[str, int], list[int]]:
    """Tokens, their ranks if merges make them, and bytes that have a token."""
    longer = draw(st.lists(st.text("abé€", min_size=2, max_size=4), max_size=14, unique=True))
    singles = draw(st.sets(st.sampled_from("abé")))
    order = draw(st.permutations(range(len(longer))))
    return [*sorted(singles), *longer], dict(zip(longer, order, strict=True)), draw(
        st.just(list(range(256))) | st.lists(st.sampled_from(list("aé€ö".encode())), unique=True)
    )  # fmt: skip


@few
@given(scored(), st.lists(st.text("abé€öz", max_size=20), max_size=10), st.booleans())
def test_scores_merge_as_a_naive_twin_does(
    made: tuple[list[str], dict[str, int], list[int]], texts: list[str], has_unk: bool
) -> None:
    """Characters without a token may have a place beside the tokens (lone), else bytes, else they are unknown."""
    pieces, ranks, spelling = made
    tokens = [*pieces, "<unk>", *(f"<0x{byte:02X}>" for byte in spelling)]
    found, unk = table(tokens), len(pieces)
    usable = np.array([1] * len(pieces) + [0] * (1 + len(spelling)), np.uint8)
    order = np.array([ranks.get(token, -1) for token in tokens], np.int32)
    byte_ids = np.full(256, -1, np.int32)
    byte_ids[spelling] = unk + 1 + np.arange(len(spelling), dtype=np.int32)
    lone = sorted(char.decode() for char in lone_chars(found, usable))
    merger = Merger(found, usable, order=order, lone=table(lone), byte_ids=byte_ids, unk=unk if has_unk else -1)
    chars = {**{char: len(tokens) + i for i, char in enumerate(lone)}, **{t: i for i, t in enumerate(pieces)}}
    for text in texts:
        expected: list[int] = []
        before = False
        for part in merge_all(text, lambda left, right: ranks.get(left + right)):
            ids = [chars[part]] if part in chars else [int(byte_ids[byte]) for byte in part.encode()]
            unknown = min(ids) < 0
            if not unknown:
                expected += ids
            elif has_unk and not before:
                expected.append(unk)
            before = unknown
        assert merger.ids([text]) == expected


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
