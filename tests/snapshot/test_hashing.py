"""Digests computed in a thread equal those computed directly."""

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


def test_digests_come_in_order():
    given = [pieces_of(seed) for seed in range(25)]
    with Hashing() as hashed:
        found = [hashed(pieces) for pieces in given]
        assert [digest() for digest in found] == [plain(pieces) for pieces in given]
        assert [digest() for digest in found] == [digest_of(pieces) for pieces in given]
    assert not [t for t in threading.enumerate() if t.name.startswith("oxillama-hash")]


def test_digests_without_a_thread_are_the_same(monkeypatch):
    """The interpreter ends, or the system has no more."""

    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(hashing.ThreadPoolExecutor, "submit", refuse)
    with Hashing() as hashed:
        pieces = pieces_of(3)
        assert hashed(pieces)() == plain(pieces)


def test_a_hashing_left_early_ends_its_thread():
    with Hashing() as hashed:
        for seed in range(9):
            hashed(pieces_of(seed))  # the digests are never requested
    assert not [t for t in threading.enumerate() if t.name.startswith("oxillama-hash")]
