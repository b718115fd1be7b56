"""Paged attention of every tier against softmax in float64, and against itself however it is cut up."""

import threading
import time

import numpy as np
import pytest

from oxillama.errors import ConfigError
from oxillama.kernels import _check, _table
from oxillama.kernels.attention import KvSlab, attend, store
from oxillama.kernels.batch import Batch
from oxillama.kernels.rows import Workspace


def naive(q, k, v, positions, scale, window):
    """Softmax attention in float64: q [n, heads, d], k and v [keys, kv heads, d]."""
    out = np.zeros(q.shape)
    group = q.shape[1] // k.shape[1]
    for i, pos in enumerate(positions):
        first = max(0, pos + 1 - window) if window else 0
        for h in range(q.shape[1]):
            s = k[first : pos + 1, h // group].astype(np.float64) @ q[i, h] * scale
            p = np.exp(s - s.max())
            out[i, h] = p / p.sum() @ v[first : pos + 1, h // group]
    return out


class Setup:
    """Keys and values of one sequence in a paged slab, filled token by token or in any chunks."""

    def __init__(self, n, heads, kv_heads, dim, block=16, dtype=np.float32, threads=1, seed=0):
        rng = np.random.default_rng(seed)
        self.q = rng.standard_normal((n, heads, dim)).astype(np.float32)
        self.k = rng.standard_normal((n, kv_heads, dim)).astype(np.float32)
        self.v = rng.standard_normal((n, kv_heads, dim)).astype(np.float32)
        n_blocks = -(-n // block) + 3
        self.slab = KvSlab(
            np.full((n_blocks, kv_heads, block // 16, dim, 16), np.nan, dtype),
            np.full((n_blocks, kv_heads, block, -(-dim // 16) * 16), np.nan, dtype),
        )
        self.table = rng.permutation(n_blocks)[: -(-n // block)].astype(np.int32)
        self.workspace = Workspace(threads)
        self.n, self.scale = n, dim**-0.5

    def span(self, start, end):
        return (range(end - start), start, self.table)

    def run(self, chunks, window=0):
        out, start = [], 0
        for size in chunks:
            end = min(start + size, self.n)
            batch = Batch([self.span(start, end)], self.workspace)
            part = [self.workspace.from_array(a[start:end].reshape(end - start, -1)) for a in (self.q, self.k, self.v)]
            store(part[1], part[2], self.slab, batch)
            out.append(attend(part[0], self.slab, batch, self.scale, window).numpy().copy())
            self.workspace.reset()
            start = end
        return np.concatenate(out).reshape(self.q.shape)


def in_chunks(n, size):
    return [size] * -(-n // size)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("n", "heads", "kv_heads", "dim", "block", "window"),
    [
        (1, 1, 1, 16, 16, 0),
        (70, 4, 2, 16, 16, 0),
        (130, 6, 2, 64, 32, 0),
        (130, 8, 1, 80, 64, 0),
        (200, 3, 3, 96, 128, 0),
        (150, 5, 1, 20, 16, 0),
        (300, 4, 4, 128, 256, 0),
        (150, 4, 2, 32, 16, 1),
        (150, 4, 2, 32, 16, 50),
        (150, 4, 2, 32, 16, 64),
        (150, 9, 3, 48, 16, 100),
    ],
)
def test_against_float64(n, heads, kv_heads, dim, block, window, dtype):
    s = Setup(n, heads, kv_heads, dim, block, dtype)
    k, v = s.k.astype(dtype).astype(np.float64), s.v.astype(dtype).astype(np.float64)
    expected = naive(s.q, k, v, range(n), s.scale, window)
    assert np.abs(s.run([n], window) - expected).max() < 1e-5


@pytest.mark.parametrize("window", [0, 40, 64, 100])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_any_chunks_and_threads_give_equal_bits(dtype, window):
    n = 213
    whole = Setup(n, 6, 2, 48, dtype=dtype).run([n], window)
    for size, threads in ((1, 1), (7, 2), (64, 3), (100, 2), (n, 3)):
        assert (Setup(n, 6, 2, 48, dtype=dtype, threads=threads).run(in_chunks(n, size), window) == whole).all()
    for block in (32, 64, 256):
        assert (Setup(n, 6, 2, 48, block, dtype).run(in_chunks(n, 50), window) == whole).all()


def test_sequences_in_one_batch_do_not_see_each_other():
    """Two sequences in one pool, blocks interleaved, different lengths and phases."""
    a, b = Setup(90, 4, 2, 32, seed=1), Setup(40, 4, 2, 32, seed=2)
    alone = a.run([90]), b.run([40])
    slab = KvSlab(np.full((16, 2, 1, 32, 16), np.nan, np.float32), np.full((16, 2, 16, 32), np.nan, np.float32))
    tables = np.array([0, 2, 4, 6, 8, 10], np.int32), np.array([1, 3, 5], np.int32)
    out = [[], []]
    steps = [((0, 33), (0, 1)), ((33, 34), (1, 17)), ((34, 90), (17, 40))]
    for cuts in steps:
        batch = Batch([(range(e - s), s, t) for (s, e), t in zip(cuts, tables, strict=True)], a.workspace)
        rows = [np.concatenate([getattr(o, f)[s:e] for o, (s, e) in zip((a, b), cuts, strict=True)]) for f in "qkv"]
        q, k, v = (a.workspace.from_array(r.reshape(len(r), -1)) for r in rows)
        store(k, v, slab, batch)
        got = attend(q, slab, batch, a.scale).numpy().reshape(-1, 4, 32)
        split = cuts[0][1] - cuts[0][0]
        out[0].append(got[:split].copy())
        out[1].append(got[split:].copy())
        a.workspace.reset()
    assert (np.concatenate(out[0]) == alone[0]).all()
    assert (np.concatenate(out[1]) == alone[1]).all()


@pytest.mark.parametrize("tier", [t for t in _table.usable_tiers() if t != "scalar"])
@pytest.mark.parametrize("f16", [False, True])
@pytest.mark.parametrize(
    ("n", "group", "dim", "window"), [(1, 1, 16, 0), (5, 3, 33, 0), (17, 4, 64, 30), (9, 1, 128, 64)]
)
def test_tiers_agree(tier, f16, n, group, dim, window):
    """Exact-size buffers at odd addresses; the last block is only as full as the sequence is long."""
    rng = np.random.default_rng(n)
    pos, dtype = 100, np.float16 if f16 else np.float32
    n_blocks, padded = -(-(pos + n) // 16), -(-dim // 16) * 16
    k = rng.standard_normal((n_blocks, dim, 16)).astype(dtype)
    v = rng.standard_normal((n_blocks, 16, padded)).astype(dtype)
    q = rng.standard_normal((n, group, dim)).astype(np.float32)
    table = rng.permutation(n_blocks).astype(np.int32)
    results = []
    for name in ("scalar", tier):
        memory = np.full(q.nbytes + 8, 0xA5, np.uint8)
        scratch = np.empty(n * group * (64 + padded + 18) * 4, np.uint8)
        buffers = [np.ascontiguousarray(a).view(np.uint8).reshape(-1) for a in (q, k, v)]
        _check.Tier(name).attention(
            buffers[0], memory[4:-4], buffers[1], buffers[2], table, 16, n, group, dim, pos, window, 0.2, f16, scratch
        )
        assert (memory[:4] == 0xA5).all()
        assert (memory[-4:] == 0xA5).all()
        results.append(memory[4:-4].copy().view(np.float32))
    assert np.abs(results[0] - results[1]).max() < 2e-6


def test_block_size_must_fit_the_tile():
    with pytest.raises(ConfigError, match="kv_block_size=48"):
        KvSlab(np.zeros((1, 1, 3, 16, 16), np.float32), np.zeros((1, 1, 48, 16), np.float32))
    with pytest.raises(ConfigError, match="don't belong together"):
        KvSlab(np.zeros((1, 1, 1, 16, 16), np.float32), np.zeros((1, 1, 16, 16), np.float16))


@pytest.mark.parametrize("window", [0, 40])
def test_what_a_row_must_not_see_can_not_touch_it(window):
    """NaN in keys and values of later rows of the same chunk, and before the window: not even multiplied by zero."""
    n, poisoned = 150, 100
    clean = Setup(n, 4, 2, 32).run([n], window)
    s = Setup(n, 4, 2, 32)
    s.k[poisoned:] = s.v[poisoned:] = np.nan
    assert (s.run([n], window)[:poisoned] == clean[:poisoned]).all()
    assert np.isnan(s.run([n], window)[poisoned:]).all()
    if window:
        s = Setup(n, 4, 2, 32)
        s.k[:50] = s.v[:50] = np.inf
        assert (s.run([n], window)[50 + window :] == clean[50 + window :]).all()


SPANS = {
    "table too short": (range(40), 0, [0]),
    "no table": (range(4), 0, []),
    "block id beyond the slab": (range(4), 0, [7]),
    "negative block id": (range(4), 0, [-1]),
    "negative start": (range(4), -1, [0]),
    "start beyond 31 bits": (range(4), 2**31 - 3, [0]),
    "empty": ([], 0, [0]),
    "token beyond 32 bits": ([2**40], 0, [0]),
}


@pytest.mark.parametrize("case", SPANS)
def test_spans_that_would_lead_c_astray_are_refused(case):
    ws = Workspace(1)
    slab = KvSlab(np.zeros((4, 1, 1, 16, 16), np.float32), np.zeros((4, 1, 16, 16), np.float32))
    spans = [(range(3), 0, [1]), SPANS[case]]

    def stored():
        batch = Batch(spans, ws)
        store(ws.new(batch.n_rows, 16), ws.new(batch.n_rows, 16), slab, batch)

    def attended():
        batch = Batch(spans, ws)
        attend(ws.new(batch.n_rows, 16), slab, batch, 1.0)

    for call in (stored, attended):
        with pytest.raises(ConfigError, match=r"span 1|tokens must be"):
            call()


def test_rows_that_do_not_belong_to_the_batch_are_refused():
    ws = Workspace(1)
    slab = KvSlab(np.zeros((4, 2, 1, 16, 16), np.float32), np.zeros((4, 2, 16, 16), np.float32))
    batch = Batch([(range(3), 0, [1])], ws)
    for n, dim in ((2, 32), (3, 48), (3, 16)):
        with pytest.raises(ConfigError, match=f"{n} rows of {dim} values"):
            attend(ws.new(n, dim), slab, batch, 1.0)
    with pytest.raises(ConfigError, match="keys of 64 and values of 32"):
        store(ws.new(3, 64), ws.new(3, 32), slab, batch)
    with pytest.raises(ConfigError, match="don't belong together"):
        KvSlab(np.zeros((4, 2, 1, 16, 16)), np.zeros((4, 2, 16, 16)))


def test_other_threads_run_while_one_thread_attends():
    """With a single compute thread, too, Python's lock is free meanwhile."""
    s = Setup(1500, 8, 2, 64)
    ticks, done = [], threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())

    other = threading.Thread(target=tick)
    other.start()
    try:
        batch = Batch([s.span(0, s.n)], s.workspace)
        q, k, v = (s.workspace.from_array(a.reshape(s.n, -1)) for a in (s.q, s.k, s.v))
        store(k, v, s.slab, batch)
        start = time.perf_counter()
        attend(q, s.slab, batch, s.scale)
        end = time.perf_counter()
    finally:
        done.set()
        other.join()
    inside = [t for t in ticks if start + 0.2 * (end - start) < t < end - 0.2 * (end - start)]
    assert inside
