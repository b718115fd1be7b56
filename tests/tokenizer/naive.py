"""Slow tokenizers that follow the definitions word by word, to compare with."""

from collections.abc import Callable, Sequence
from itertools import pairwise


def merge_all(symbols: Sequence[str], rank: Callable[[str, str], float | None]) -> list[str]:
    """Merge the adjacent pair of the lowest rank, the leftmost of equals, until no pair has a rank."""
    parts = list(symbols)
    while True:
        ranked = [(found, i) for i, pair in enumerate(pairwise(parts)) if (found := rank(*pair)) is not None]
        if not ranked:
            return parts
        _, i = min(ranked)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def longest_match(word: str, pieces: set[str]) -> list[str] | None:
    """WordPiece: from the left, always the longest piece; None if one can't be found."""
    out: list[str] = []
    while word:
        mark = "##" if out else ""
        found = next((word[:n] for n in range(len(word), 0, -1) if mark + word[:n] in pieces), None)
        if found is None:
            return None
        out.append(mark + found)
        word = word[len(found) :]
    return out


def best_score(text: str, scores: dict[str, float], unknown: float) -> float:
    """Viterbi: the highest sum of scores over all ways to cut ``text`` into pieces (or unknown characters)."""
    best = [0.0] + [float("-inf")] * len(text)
    for end in range(1, len(text) + 1):
        for start in range(end):
            piece = text[start:end]
            if piece in scores:
                best[end] = max(best[end], best[start] + scores[piece])
            elif len(piece) == 1:
                best[end] = max(best[end], best[start] + unknown)
    return best[-1]
