"""Damage at random: a file is opened whole or refused with a LoadError; nothing else, and at no great cost."""

import random
import struct
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import oxillama.gguf as gguf
from oxillama.errors import LoadError

from . import build as b

INTERESTING = [0, 1, 7, 8, 255, 1 << 31, (1 << 32) - 1, 1 << 61, 1 << 63, (1 << 64) - 8, (1 << 64) - 1]


def use(raw: bytes) -> bool:
    """Open, decode and describe everything; whether it was accepted."""
    try:
        with gguf.open(raw) as f:
            assert isinstance(gguf.describe(f), str)
            for value in f.metadata.values():
                if isinstance(value, gguf.GGUFArray) and value.item_type is gguf.ValueType.STRING:
                    assert len(value.bytes_list()) == len(value)
                    value.tolist()
                elif isinstance(value, gguf.GGUFArray):
                    assert value.numpy().size == len(value)
            for t in f.tensors.values():
                assert len(t.data.tobytes()) == t.nbytes
    except LoadError:
        return False
    return True


def mutated(raw: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(raw)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at = rng.randrange(len(damaged))
        kind = rng.randrange(4)
        if kind == 0:
            damaged[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            value = struct.pack("<Q", rng.choice(INTERESTING))[: rng.choice([1, 4, 8])]
            damaged[at : at + len(value)] = value
        elif kind == 2:
            del damaged[at : at + rng.choice([1, 4, 8, 40])]
        else:
            other = rng.randrange(len(damaged))
            damaged[at:at] = damaged[other : other + rng.choice([1, 4, 8, 40])]
        if not damaged:
            break
    return bytes(damaged)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_are_opened_or_refused(seed):
    rng = random.Random(seed)
    raw = b.small()
    tracemalloc.start()
    try:
        accepted = sum(use(mutated(raw, rng)) for _ in range(600))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Both ways are taken, so that the loop tests both.
    assert 50 < accepted < 550
    assert peak < 4 << 20


def test_every_flipped_bit_of_the_header_is_opened_or_refused():
    raw = b.gguf([b.kv("k", b.STRING, "v"), b.kv_array("a", b.STRING, ["x"])], [b.tensor("t", [4], 0, 0)], bytes(16))
    results = set()
    for i in range(len(raw) * 8):
        damaged = bytearray(raw)
        damaged[i // 8] ^= 1 << (i % 8)
        results.add(use(bytes(damaged)))
    assert results == {True, False}


@settings(max_examples=300)
@given(st.binary(max_size=200))
@example(b"")
@example(b"\x03\0\0\0" + bytes(16))
def test_any_bytes_behind_the_magic_are_opened_or_refused(tail):
    use(b"GGUF" + tail)
    use(b"GGUF\x03\0\0\0" + bytes(8) + b"\1" + bytes(7) + tail)
    use(b"GGUF\x03\0\0\0\1" + bytes(15) + tail)
