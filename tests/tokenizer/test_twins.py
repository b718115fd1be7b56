"""Every kind of vocabulary against a naive twin, on random vocabularies and texts."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.tokenizer import Tokenizer
from tests.tokenizer.build import P, by_score, byte_level, make
from tests.tokenizer.naive import best_score, longest_match, merge_all

few = settings(max_examples=40)


@st.composite
def merge_lists(draw: st.DrawFn) -> list[str]:
    made = ["ba", "a", "b", "c", "Ġ"]
    merges: list[str] = ["b a"]
    for _ in range(draw(st.integers(0, 12))):
        left, right = draw(st.sampled_from(made)), draw(st.sampled_from(made[:-1]))
        if f"{left} {right}" not in merges and "Ġ" not in right and len(left + right) < 8:
            merges.append(f"{left} {right}")
            if left + right not in made:
                made.insert(0, left + right)
    return merges


def texts(alphabet: str, size: int = 14) -> st.SearchStrategy[list[str]]:
    return st.lists(st.text(alphabet, max_size=size), min_size=1, max_size=12)


@few
@given(merge_lists(), texts("abc"))
def test_byte_pairs_merge_by_rank(merges: list[str], words: list[str]) -> None:
    tokenizer = make(byte_level(merges))
    ranks = {merge: i for i, merge in reversed(list(enumerate(merges)))}
    for word in words:
        expected = merge_all(word, lambda left, right: ranks.get(f"{left} {right}"))
        assert [tokenizer.id_to_token(i) for i in tokenizer.encode(word)] == expected


@st.composite
def scored_pieces(draw: st.DrawFn) -> dict[str, float]:
    longer = draw(st.lists(st.text("ab▁", min_size=2, max_size=5), max_size=14, unique=True))
    singles = draw(st.sampled_from([["a", "b", "▁"], ["a", "▁"]]))
    pieces = [*longer, *singles]
    order = draw(st.permutations(range(len(pieces))))
    return {piece: -float(rank) for piece, rank in zip(pieces, order, strict=True)}


@few
@given(scored_pieces(), texts("abz "))
def test_scored_pieces_merge_by_score(scores: dict[str, float], words: list[str]) -> None:
    tokenizer = make(by_score(list(scores), list(scores.values()), add_space_prefix=False, add_bos_token=False))
    for word in words:
        merged = merge_all(
            word.replace(" ", "▁"), lambda left, right: -scores[left + right] if left + right in scores else None
        )
        expected = [
            token
            for part in merged
            for token in ([part] if part in scores else [f"<0x{b:02X}>" for b in part.encode()])
        ]
        assert [tokenizer.id_to_token(i) for i in tokenizer.encode(word)] == expected


def word_pieces(pieces: list[str]) -> Tokenizer:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens += [piece[2:] if piece.startswith("##") else "▁" + piece for piece in pieces]
    return make(
        {
            "general.architecture": "bert",
            P + "model": "bert",
            P + "tokens": tokens,
            P + "token_type": [3] * 5 + [1] * len(pieces),
        }
    )


@few
@given(st.sets(st.from_regex("(##)?[abc]{1,4}", fullmatch=True), max_size=20), texts("abc", 8))
def test_word_pieces_match_longest_first(pieces: set[str], words: list[str]) -> None:
    tokenizer = word_pieces(sorted(pieces))
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(pieces)]
    for word in words:
        found = [names[i] for i in tokenizer.encode(word, add_special=False)]
        assert found == (longest_match(word, pieces) or ["[UNK]"] if word else [])


@few
@given(
    st.dictionaries(st.text("abc▁", min_size=2, max_size=4), st.integers(-40, -1).map(float), max_size=20),
    st.lists(st.integers(-40, -1).map(float), min_size=4, max_size=4),
    texts("abcz ", 12),
)
def test_unigram_finds_a_best_segmentation(longer: dict[str, float], singles: list[float], words: list[str]) -> None:
    scores = {**longer, **dict(zip("abc▁", singles, strict=True))}
    metadata = {
        "general.architecture": "t5",
        P + "model": "t5",
        P + "tokens": ["<pad>", "</s>", "<unk>", *scores],
        P + "scores": np.array([0.0, 0.0, 0.0, *scores.values()], np.float32),
        P + "token_type": [3, 3, 2] + [1] * len(scores),
        P + "add_space_prefix": False,
    }
    tokenizer = make(metadata)
    unknown = min(scores.values()) - 10
    for word in words:
        rest = marked = word.replace(" ", "▁")
        total = 0.0
        for token in map(tokenizer.id_to_token, tokenizer.encode(word, add_special=False)):
            # No piece has a z; a run of them is one unknown token.
            size = len(rest) - len(rest.lstrip("z")) if token == "<unk>" else len(token)
            assert size > 0
            assert token in ("<unk>", rest[:size])
            total += unknown * size if token == "<unk>" else scores[token]
            rest = rest[size:]
        assert rest == ""
        assert total == best_score(marked, scores, unknown)
