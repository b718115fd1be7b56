"""Attention over one sequence in a paged slab, filled in chunks, and what is stored of keys and values."""

import numpy as np

from oxillama.kernels.attention import Attention, KvSlab, attend, store
from oxillama.kernels.batch import Batch, Span
from oxillama.kernels.rows import Workspace

TYPES = ["f32", "f16", "q8_0"]


class Setup:
    """Keys and values of one sequence in a paged slab, filled token by token or in any chunks."""

    def __init__(self, n, heads, kv_heads, dim, block=16, kv_type="f32", threads=1, seed=0, v_dim=None):
        rng = np.random.default_rng(seed)
        self.q = rng.standard_normal((n, heads, dim)).astype(np.float32)
        self.k = rng.standard_normal((n, kv_heads, dim)).astype(np.float32)
        self.v = rng.standard_normal((n, kv_heads, v_dim or dim)).astype(np.float32)
        n_blocks = -(-n // block) + 3
        self.slab = KvSlab(kv_type, n_blocks, kv_heads, block, dim, v_dim)
        self.slab.k[:] = self.slab.v[:] = 0xFF  # NaN as a float, a half, and the scale of 8-bit codes
        self.table = rng.permutation(n_blocks)[: -(-n // block)].astype(np.int32)
        self.workspace = Workspace(threads)
        self.n, self.scale = n, dim**-0.5

    def span(self, start, end):
        return Span(range(end - start), start, self.table)

    def run(self, chunks, window=0, **options):
        rule = Attention(self.scale, window=window, **options)
        out, start = [], 0
        for size in chunks:
            end = min(start + size, self.n)
            batch = Batch([self.span(start, end)], self.workspace)
            part = [self.workspace.from_array(a[start:end].reshape(end - start, -1)) for a in (self.q, self.k, self.v)]
            store(part[1], part[2], self.slab, batch)
            out.append(attend(part[0], self.slab, batch, rule).numpy().copy())
            self.workspace.reset()
            start = end
        return np.concatenate(out).reshape(*self.q.shape[:2], -1)


def in_chunks(n, size):
    return [size] * -(-n // size)


def quantised(x):
    """What q8_0 keeps of [..., d]: codes of the largest of each 32 values / 127, and that scale as a half."""
    padded = np.zeros((*x.shape[:-1], -(-x.shape[-1] // 32) * 32), np.float32)
    padded[..., : x.shape[-1]] = x
    chunks = padded.reshape(*x.shape[:-1], -1, 32)
    largest = np.abs(chunks).max(-1, keepdims=True)
    codes = np.rint(chunks * (np.float32(127) / np.maximum(largest, np.float32(1e-30))))
    scale = (largest * np.float32(1 / 127)).astype(np.float16).astype(np.float32)
    return (codes * scale).reshape(padded.shape)[..., : x.shape[-1]].astype(np.float64)


# Weights of 8-bit values have 14 bits: each of a tile's 64 keys is off by up to half a unit of the largest weight, 0.29
# units on average, times values of average size 1. Six times sqrt(64) * 0.29 units, where the largest is all there is.
BOUND = {"f32": 1e-5, "f16": 1e-5, "q8_0": 6 * 8 * 0.29 / 16383}

STORED = {"f32": lambda x: x.astype(np.float64), "f16": lambda x: x.astype(np.float16).astype(np.float64)}
STORED["q8_0"] = quantised
