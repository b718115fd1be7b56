"""Kept pieces: token ids of long texts between control tokens; a text that grows is tokenised where it is new."""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Callable, Hashable, Iterator

from oxillama._util.owned import Bound, OwnedCache
from oxillama.errors import TokenizerError

__all__ = ["BETWEEN_WORDS", "LEAST", "KeptPieces"]

LEAST = 256  # characters from which a piece is kept: shorter ones take a few microseconds
PART = 1024  # of a piece that can be cut
MAX_PIECES = 2048
MAX_BYTES = 16 << 20
# Before a space behind a letter, where a letter follows: `PreTokenizer.cuts_words` says whether it is a place to cut.
BETWEEN_WORDS = re.compile(r"(?<=[a-z])(?= [a-z])")


class KeptPieces:
    """The last pieces that were tokenised, each of one owner: the time that a text takes tells nothing of others'.

    A piece is a whole argument of the encoder, so that its ids are the ones that the encoder gives; with `cuts_words`,
    those of its parts are, too, and what a longer text has in front is found part by part. Where there are too
    many, the owner that has most loses some.
    """

    def __init__(self, cuts_words: bool = False) -> None:
        bound = Bound(MAX_PIECES, MAX_BYTES)
        self._kept: OwnedCache[array[int]] = OwnedCache(_n_bytes, bound, bound)
        self._cuts = cuts_words

    def encode(self, owner: Hashable, piece: str, make: Callable[[str], list[int]]) -> list[int]:
        """make(piece), or what it gave for this owner before. Raises what `make` raises of the whole piece."""
        if len(piece) < LEAST:
            return make(piece)
        ids: list[int] = []
        for part in _parts(piece) if self._cuts else (piece,):
            found = self._kept.find(owner, part)
            if found is None:
                try:
                    found = array("q", make(part))
                except TokenizerError:
                    return make(piece)  # whose error has the place in it
                self._kept.put(owner, part, found)
            ids += found
        return ids

    def clear(self) -> None:
        """Forgets the texts of all owners."""
        self._kept.clear()


def _n_bytes(text: Hashable, ids: array[int]) -> int:
    """Memory of a piece and its ids: a character may take four bytes."""
    return sys.getsizeof(text) + ids.itemsize * len(ids)


def _parts(piece: str) -> Iterator[str]:
    """The piece in parts of `PART` characters or a little more. A longer piece has the same parts, but for the last."""
    at = 0
    while (found := BETWEEN_WORDS.search(piece, at + PART)) is not None:
        yield piece[at : found.start()]
        at = found.start()
    yield piece[at:]
