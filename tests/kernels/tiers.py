"""Calls of a kernel in the scalar tier and in another, on buffers that notice writes past their ends."""

import numpy as np

from oxillama.kernels import _check, _table

TIERS = [t for t in _table.usable_tiers() if t != "scalar"]
GUARD = 0xA5


class Buffer:
    """Bytes at an odd address with guards around them; ``check`` fails if a guard was touched."""

    def __init__(self, n_bytes, shift=0):
        self.memory = np.full(n_bytes + 192, GUARD, np.uint8)
        start = (-self.memory.ctypes.data) % 64 + 64 + shift
        self.bytes = self.memory[start : start + n_bytes]
        self.inside = slice(start, start + n_bytes)

    @classmethod
    def of(cls, array, shift=0):
        self = cls(array.nbytes, shift)
        self.bytes[:] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        return self

    def floats(self):
        return self.bytes.copy().view(np.float32)

    def check(self):
        outside = np.delete(self.memory, np.r_[self.inside])
        assert (outside == GUARD).all(), "a kernel wrote outside its buffer"


def both(tier, call, *arrays, output, shift=4):
    """The output buffer of the scalar tier and of ``tier`` after ``call(kernels, *inputs, output)``."""
    results = []
    for name in ("scalar", tier):
        inputs = [Buffer.of(a, shift) for a in arrays]
        out = Buffer.of(output, shift)
        call(_check.Tier(name), *[b.bytes for b in inputs], out.bytes)
        for b in (*inputs, out):
            b.check()
        for b, a in zip(inputs, arrays, strict=True):
            assert (b.bytes == np.ascontiguousarray(a).view(np.uint8).reshape(-1)).all(), "an input was changed"
        results.append(out.bytes.copy())
    return results
