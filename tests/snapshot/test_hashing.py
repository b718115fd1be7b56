"""Digests that a thread makes meanwhile are those that anybody makes."""

import threading

import numpy as np
from blake3 import blake3

from oxillama.snapshot.format import codec as hashing
from oxillama.snapshot.format.codec import LONG, Hashing, digest_of


def pieces_of(seed):
    """Of several lengths, around the one from which on a thread is worth it."""
    rng = np.random.default_rng(seed)
    lengths = [0, 1, LONG - 1, LONG, 3 * LONG + 5][seed % 5 :] + [int(n) for n in rng.integers(0, 99, seed % 4)]
    return [rng.integers(0, 256, n, dtype=np.uint8) for n in lengths]


def plain(pieces):
    return blake3(b"".join(piece.tobytes() for piece in pieces)).digest()


def test_in_order():
    given = [pieces_of(seed) for seed in range(25)]
    with Hashing() as hashed:
        found = [hashed(pieces) for pieces in given]
        assert [digest() for digest in found] == [plain(pieces) for pieces in given]
        assert [digest() for digest in found] == [digest_of(pieces) for pieces in given]
    assert not [t for t in threading.enumerate() if t.name.startswith("oxillama-hash")]


def test_without_a_thread(monkeypatch):
    """The interpreter ends, or the system has no more."""

    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(hashing.ThreadPoolExecutor, "submit", refuse)
    with Hashing() as hashed:
        pieces = pieces_of(3)
        assert hashed(pieces)() == plain(pieces)


def test_left_early():
    with Hashing() as hashed:
        for seed in range(9):
            hashed(pieces_of(seed))  # nobody asks for them
    assert not [t for t in threading.enumerate() if t.name.startswith("oxillama-hash")]
