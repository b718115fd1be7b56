"""Kept pieces: token ids of long texts between control tokens; a text that grows is tokenised where it is new."""

import re
from array import array
from collections.abc import Callable, Hashable, Iterator

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
    those of its parts are, too, and what a longer text has in front is found part by part. There is no lock, which a
    fork could leave locked: two threads may tokenise a piece twice, with the same result.
    """

    def __init__(self, cuts_words: bool = False) -> None:
        self._kept: dict[tuple[Hashable, str], array[int]] = {}
        self._cuts = cuts_words

    def encode(self, owner: Hashable, piece: str, make: Callable[[str], list[int]]) -> list[int]:
        """make(piece), or what it gave for this owner before. Raises what `make` raises of the whole piece."""
        if len(piece) < LEAST:
            return make(piece)
        ids: list[int] = []
        n_new = 0
        for part in _parts(piece) if self._cuts else (piece,):
            key = owner, part
            found = self._kept.pop(key, None)
            if found is None:
                try:
                    found = array("q", make(part))
                except TokenizerError:
                    return make(piece)  # whose error has the place in it
                n_new += 1
            self._kept[key] = found  # the last one used is the last to leave
            ids += found
        if n_new:
            self._cut()
        return ids

    def clear(self) -> None:
        """Forgets the texts of all owners."""
        self._kept.clear()

    def _cut(self) -> None:
        """Gives up the pieces that were not used for longest, so that the rest is within its bounds."""
        entries = list(self._kept.items())
        size = sum(len(text) + 8 * len(ids) for (_, text), ids in entries)
        for n_left, ((owner, text), ids) in zip(range(len(entries), 0, -1), entries, strict=True):
            if n_left <= MAX_PIECES and size <= MAX_BYTES:
                return
            size -= len(text) + 8 * len(ids)
            self._kept.pop((owner, text), None)


def _parts(piece: str) -> Iterator[str]:
    """The piece in parts of `PART` characters or a little more. A longer piece has the same parts, but for the last."""
    at = 0
    while (found := BETWEEN_WORDS.search(piece, at + PART)) is not None:
        yield piece[at : found.start()]
        at = found.start()
    yield piece[at:]
