"""Kept pieces: token ids of long texts between control tokens; a text that grows is tokenised where it is new."""

from array import array
from collections.abc import Callable, Hashable

__all__ = ["LEAST", "KeptPieces"]

LEAST = 256  # characters from which a piece is kept: shorter ones take a few microseconds
MAX_PIECES = 256
MAX_BYTES = 16 << 20


class KeptPieces:
    """The last pieces that were tokenised, each of one owner: the time that a text takes tells nothing of others'.

    A piece is a whole argument of the encoder, so that its ids are the ones that the encoder gives. There is no lock,
    which a fork could leave locked: two threads may tokenise a piece twice, with the same result.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[Hashable, str], array[int]] = {}

    def encode(self, owner: Hashable, piece: str, make: Callable[[str], list[int]]) -> list[int]:
        """make(piece), or what it gave for this owner before."""
        if len(piece) < LEAST:
            return make(piece)
        key = owner, piece
        found = self._kept.pop(key, None)
        ids = make(piece) if found is None else found.tolist()
        self._kept[key] = array("q", ids) if found is None else found  # the last one used is the last to leave
        if found is None:
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
