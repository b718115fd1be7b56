"""Attention over one sequence in a paged slab, filled in chunks, and what is stored of keys and values."""

import numpy as np

from oxillama.kernels.attention import Attention, KvSlab, attend, store
from oxillama.kernels.batch import Batch, Span
from oxillama.kernels.rows import Workspace

TYPES = ["f32", "f16", "q8_0", "q4_0"]


def normal(rng, shape):
    """Of so few bits that sums of them are exact in any order: the codes of rotated ones then are, too."""
    return (np.rint(rng.standard_normal(shape) * 4096) / 4096).astype(np.float32)


class Setup:
    """Keys and values of one sequence in a paged slab, filled token by token or in any chunks."""

    def __init__(self, n, heads, kv_heads, dim, block=16, kv_type="f32", threads=1, seed=0, v_dim=None):
        rng = np.random.default_rng(seed)
        self.q = normal(rng, (n, heads, dim))
        self.k = normal(rng, (n, kv_heads, dim))
        self.v = normal(rng, (n, kv_heads, v_dim or dim))
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


def rotated(x):
    """[..., d] padded to a multiple of 32, times an orthonormal Hadamard matrix of the largest power of two in that."""
    padded = np.zeros((*x.shape[:-1], -(-x.shape[-1] // 32) * 32))
    padded[..., : x.shape[-1]] = x
    run = min(padded.shape[-1] & -padded.shape[-1], 256)
    signs = np.array([[(-1) ** (i & j).bit_count() for j in range(run)] for i in range(run)])
    sums = padded.reshape(*x.shape[:-1], -1, run) @ signs
    return (sums.astype(np.float32) * np.float32(run**-0.5)).reshape(padded.shape)


CODES = np.array([6, 18, 31, 44, 59, 77, 98, 127])  # and the same below zero


def four_bits(x):
    """What q4_0 keeps of rotated [..., d], a multiple of 32.

    Of each 32 values the largest has the best of three places. Codes are those nearest to 32767ths of the largest;
    scales and what they gain are single floats, as the kernel's.
    """
    chunks = x.astype(np.float32).reshape(*x.shape[:-1], -1, 32)
    largest = np.abs(chunks).max(-1, keepdims=True)
    fixed = np.rint(chunks * (np.float32(32767) / np.maximum(largest, np.float32(1e-30)))).astype(np.int64)
    most, kept = np.full(largest.shape, -1.0), np.zeros(chunks.shape)
    for place in (124, 132, 140):
        codes = CODES[(2 * place * np.abs(fixed)[..., None] > (CODES[1:] + CODES[:-1]) * 32767).sum(-1)]
        codes = np.where(fixed < 0, -codes, codes)
        product = (fixed * codes).sum(-1, keepdims=True).astype(np.float32)
        ratio = product / (codes**2).sum(-1, keepdims=True).astype(np.float32)
        scale = (ratio * (largest * np.float32(1 / 32767))).astype(np.float16).astype(np.float64)
        kept = np.where(product * ratio > most, codes * scale, kept)
        most = np.maximum(product * ratio, most)
    return kept.reshape(x.shape)


def stored_in_four_bits(x):
    """What q4_0 keeps of [..., d], rotated back."""
    return rotated(four_bits(rotated(x)))[..., : x.shape[-1]]


# Weights of coded values have 14 bits: each of a tile's 64 keys is off by up to half a unit of the largest weight, 0.29
# units on average, times values of average size 1. Six times sqrt(64) * 0.29 units, where the largest is all there is.
BOUND = {"f32": 1e-5, "f16": 1e-5} | dict.fromkeys(("q8_0", "q4_0"), 6 * 8 * 0.29 / 16383)

STORED = {"f32": lambda x: x.astype(np.float64), "f16": lambda x: x.astype(np.float16).astype(np.float64)}
STORED |= {"q8_0": quantised, "q4_0": stored_in_four_bits}


def as_scored(q, k, kv_type):
    """Queries and keys [..., d] as scores see them: coded keys are scored with a query of 8-bit codes."""
    if kv_type in ("f32", "f16"):
        return q.astype(np.float64), STORED[kv_type](k)
    if kv_type == "q4_0":
        q, k = rotated(q), rotated(k)
    padded = np.zeros((*q.shape[:-1], -(-q.shape[-1] // 32) * 32), np.float32)
    padded[..., : q.shape[-1]] = q
    chunks = padded.reshape(*q.shape[:-1], -1, 32)
    largest = np.maximum(np.abs(chunks).max(-1, keepdims=True), np.float32(1e-30))
    codes = np.rint(chunks * (np.float32(127) / largest)) * (largest.astype(np.float64) / 127)
    kept = quantised(k) if kv_type == "q8_0" else four_bits(k)
    return codes.reshape(padded.shape)[..., : q.shape[-1]], kept
