"""Paged attention of every tier against softmax in float64, and against itself however it is cut up."""

import threading
import time

import numpy as np
import pytest

from oxillama.errors import ConfigError
from oxillama.kernels import _check, _table, flash_attention
from oxillama.kernels.attention import Attention, KvSlab, attend, attend_source, store
from oxillama.kernels.batch import Batch, Span
from oxillama.kernels.rows import Workspace
from tests.kernels.paged_attention import BOUND, STORED, TYPES, Setup, as_scored, in_chunks


def naive(q, k, v, positions, rule):
    """Softmax attention in float64, every feature spelt out: q [n, heads, d], k and v [keys, kv heads, d]."""
    out = np.zeros((*q.shape[:2], v.shape[2]))
    group, keys = q.shape[1] // k.shape[1], np.arange(len(k))
    for i, pos in enumerate(positions):
        seen = keys[(keys <= pos) | (not rule.causal)]
        if rule.chunked:
            seen = seen[seen // rule.window == pos // rule.window]
        elif rule.window:
            seen = seen[np.abs(seen - pos) < rule.window]
        for h in range(q.shape[1] if seen.size else 0):
            s = k[seen, h // group].astype(np.float64) @ q[i, h].astype(np.float64) * rule.scale
            s = rule.softcap * np.tanh(s / rule.softcap) if rule.softcap else s
            s = s - float(rule.slopes[h]) * np.abs(seen - pos) if rule.slopes is not None else s
            s = s + by_distance(rule.bias[h], seen - pos) if rule.bias is not None else s
            sink = [float(rule.sinks[h])] if rule.sinks is not None else []
            p = np.exp(np.concatenate([s, sink]) - max(s.max(), *sink, s.max()))
            out[i, h] = p[: len(s)] / p.sum() @ v[seen, h // group]
    return out


def by_distance(bias, distances):
    """Of distances of keys from the query; that of the furthest, which the kernel's rows repeat, for those beyond."""
    far = len(bias) // 2
    return bias[np.clip(distances, -far, far) + far].astype(np.float64)


def as_stored(s, kv_type):
    """Queries, keys and values as the kernel gets to see them."""
    return *as_scored(s.q, s.k, kv_type), STORED[kv_type](s.v)


@pytest.mark.parametrize("kv_type", TYPES)
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
def test_against_float64(n, heads, kv_heads, dim, block, window, kv_type):
    s = Setup(n, heads, kv_heads, dim, block, kv_type)
    expected = naive(*as_stored(s, kv_type), range(n), Attention(s.scale, window=window))
    assert np.abs(s.run([n], window) - expected).max() < BOUND[kv_type]


@pytest.mark.parametrize("kv_type", TYPES)
@pytest.mark.parametrize(("n", "window"), [(70, 1), (150, 40), (200, 64), (1300, 600), (1300, 1024)])
def test_chunks_of_positions_against_float64(n, window, kv_type):
    """A row sees its own chunk up to itself, wherever a batch, a tile or a span of keys ends."""
    s = Setup(n, 4, 2, 24, kv_type=kv_type, threads=2)
    rule = Attention(s.scale, window=window, chunked=True)
    whole = s.run([n], window, chunked=True)
    rows = np.unique(np.clip([0, 1, window - 1, window, window + 1, 2 * window, n - 1], 0, n - 1))
    q, k, v = as_stored(s, kv_type)
    assert np.abs(whole[rows] - naive(q[rows], k, v, rows, rule)).max() < BOUND[kv_type]
    for size, threads, block in ((7, 1, 16), (64, 2, 32), (1, 2, 128)):
        other = Setup(n, 4, 2, 24, block, kv_type, threads)
        assert (other.run(in_chunks(n, size), window, chunked=True) == whole).all()


@pytest.mark.parametrize("window", [0, 40, 64, 100])
@pytest.mark.parametrize("kv_type", TYPES)
def test_any_chunks_and_threads_give_equal_bits(kv_type, window):
    n = 213
    whole = Setup(n, 6, 2, 48, kv_type=kv_type).run([n], window)
    for size, threads in ((1, 1), (7, 2), (64, 3), (100, 2), (n, 3)):
        assert (Setup(n, 6, 2, 48, kv_type=kv_type, threads=threads).run(in_chunks(n, size), window) == whole).all()
    for block in (32, 64, 256):
        assert (Setup(n, 6, 2, 48, block, kv_type).run(in_chunks(n, 50), window) == whole).all()


def test_sequences_in_one_batch_do_not_see_each_other():
    """Two sequences in one pool, blocks interleaved, different lengths and phases."""
    a, b = Setup(90, 4, 2, 32, seed=1), Setup(40, 4, 2, 32, seed=2)
    alone = a.run([90]), b.run([40])
    slab = KvSlab("f32", 16, 2, 16, 32)
    slab.k[:] = slab.v[:] = 0xFF
    tables = np.array([0, 2, 4, 6, 8, 10], np.int32), np.array([1, 3, 5], np.int32)
    out = [[], []]
    steps = [((0, 33), (0, 1)), ((33, 34), (1, 17)), ((34, 90), (17, 40))]
    for cuts in steps:
        batch = Batch([Span(range(e - s), s, t) for (s, e), t in zip(cuts, tables, strict=True)], a.workspace)
        rows = [np.concatenate([getattr(o, f)[s:e] for o, (s, e) in zip((a, b), cuts, strict=True)]) for f in "qkv"]
        q, k, v = (a.workspace.from_array(r.reshape(len(r), -1)) for r in rows)
        store(k, v, slab, batch)
        got = attend(q, slab, batch, Attention(a.scale)).numpy().reshape(-1, 4, 32)
        split = cuts[0][1] - cuts[0][0]
        out[0].append(got[:split].copy())
        out[1].append(got[split:].copy())
        a.workspace.reset()
    assert (np.concatenate(out[0]) == alone[0]).all()
    assert (np.concatenate(out[1]) == alone[1]).all()


FEATURES = {
    "plain": {},
    "softcap": {"softcap": 3.0},
    "alibi": {"slopes": [2.0**-i for i in range(1, 7)]},
    "sinks": {"sinks": [-3.0, 0.0, 2.0, 5.0, 30.0, -90.0]},
    "bias": {"bias": np.random.default_rng(5).standard_normal((6, 2 * 128 + 1))},
    "bias of three distances": {"bias": np.random.default_rng(6).standard_normal((6, 3))},
    "all": {
        "softcap": 20.0,
        "slopes": [0.3] * 6,
        "sinks": [1.0] * 6,
        "bias": np.linspace(0, 1, 6 * 1299).reshape(6, 1299),
    },
}


@pytest.mark.sweep(56)
@pytest.mark.parametrize("kv_type", TYPES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize(("n", "window", "v_dim"), [(33, 0, 48), (150, 40, 16), (1100, 0, 70), (1100, 600, 40)])
def test_features_against_float64(name, causal, kv_type, n, window, v_dim):
    """Six heads over two, keys of 24 values; the last rows alone of a long sequence, if the rest is not needed."""
    s = Setup(n, 6, 2, 24, 64 if n > 600 else 16, kv_type, v_dim=v_dim, threads=2)
    s.scale = 0.4
    rule = Attention(s.scale, window=window, causal=causal, **FEATURES[name])
    got = s.run([n], window, causal=causal, **FEATURES[name])
    rows = np.unique([0, 1, n // 3, n // 2, n - 2, n - 1])
    q, k, v = as_stored(s, kv_type)
    assert np.abs(got[rows] - naive(q[rows], k, v, rows, rule)).max() < BOUND[kv_type]


@pytest.mark.parametrize("kv_type", TYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "v_dim"), [(4, 1, None), (6, 3, 40)])
def test_spans_over_threads_give_equal_bits(heads, kv_heads, v_dim, kv_type):
    """One row and a long past: spans of keys go to threads; together with the rest, one task does them all."""
    n, features = 1700, {"window": 1200, "softcap": 30.0, "sinks": [0.5] * heads, "slopes": [0.01] * heads}
    whole = Setup(n, heads, kv_heads, 32, 64, kv_type, v_dim=v_dim).run([n], **features)
    for threads in (1, 2, 3, 5):
        s = Setup(n, heads, kv_heads, 32, 16, kv_type, v_dim=v_dim, threads=threads)
        chunks = [1000, 600, 83, *[1] * 17]
        assert (s.run(chunks, **features) == whole).all()


def test_8_bit_keys_and_values_lose_what_their_codes_lose():
    """Against float32 KV: scores move by the rounding of keys and queries, outputs by that of values.

    A code is off by at most 1/254 of the largest of its 32 values, each one uniformly: 1/254/sqrt(3) on average. A
    score of 64 products of unit normals then moves by sqrt(2 * 64) * largest / 254 / sqrt(3) * scale, an average of
    values by that relative to its spread, beside the values' own rounding. Largest of 32 normals: about 2.2, squared
    mean 4.7.
    """
    n = 400
    exact, coded = (Setup(n, 4, 2, 64, kv_type=t).run([n]) for t in ("f32", "q8_0"))
    move = np.sqrt(4.7) / 254 / np.sqrt(3)
    rms = np.sqrt(np.mean((exact - coded)[100:] ** 2)) / np.sqrt(np.mean(exact[100:] ** 2))
    assert 0 < rms < 1.2 * np.sqrt((np.sqrt(2 * 64) * move / 8) ** 2 + move**2)


def test_4_bit_keys_and_values_lose_what_their_codes_lose():
    """As 8 bits do: here 0.0059 of the squares of keys move scores, and of values outputs."""
    exact, coded = (Setup(400, 4, 2, 64, kv_type=t).run([400]) for t in ("f32", "q4_0"))
    rms = np.sqrt(np.mean((exact - coded)[100:] ** 2)) / np.sqrt(np.mean(exact[100:] ** 2))
    assert 0 < rms < 1.2 * np.sqrt(0.0059 + 0.0059)


@pytest.mark.parametrize("dim", [32, 64, 80, 128, 256, 576])
def test_outliers_of_keys_cost_4_bits_little(dim):
    """One dimension of keys 20 times the others, as models have them, and of queries a 20th: the same scores.

    All of a rotation's values then are larger, those of runs of 32 by sqrt(1 + 400 / 32) at most. Unrotated, the values
    beside the large one would have lost most of their bits.
    """
    found = []
    for factor in (1, 20):
        outputs = []
        for kv_type in ("f32", "q4_0"):
            s = Setup(300, 2, 1, dim, kv_type=kv_type)
            s.k[..., 3] *= factor
            s.q[..., 3] /= factor
            outputs.append(s.run([300])[100:])
        found.append(np.sqrt(np.mean((outputs[0] - outputs[1]) ** 2) / np.mean(outputs[0] ** 2)))
    assert found[0] < found[1] < 3.7 * found[0]


@pytest.mark.parametrize("kv_type", range(4))
@pytest.mark.parametrize("tier", [t for t in _table.usable_tiers() if t != "scalar"])
@pytest.mark.parametrize("dim", [1, 16, 31, 33, 64, 96, 100, 256, 320, 576])
def test_tiers_store_equal_bits(tier, dim, kv_type):
    x = np.random.default_rng(dim).standard_normal(dim).astype(np.float32)
    for kind, size in zip(("key", "value"), _check.kv_panel_bytes(kv_type, dim, dim), strict=True):
        panels = []
        for name in ("scalar", tier):
            memory = np.full(size + 8, 0xA5, np.uint8)
            for lane in (0, 7, 15):
                getattr(_check.Tier(name), f"store_{kind}")(kv_type, x.view(np.uint8), memory[4:-4], lane, dim)
            assert (memory[:4] == 0xA5).all()
            assert (memory[-4:] == 0xA5).all()
            panels.append(memory)
        assert (panels[0] == panels[1]).all()


@pytest.mark.parametrize("tier", _table.usable_tiers())
@pytest.mark.parametrize("kv_type", range(4))
@pytest.mark.parametrize(
    ("n", "group", "k_dim", "v_dim", "pos", "options"),
    [
        (1, 1, 16, 16, 100, {}),
        (5, 3, 33, 40, 100, {"window": 9}),
        (17, 4, 64, 64, 550, {"window": 30, "sinks": 1}),
        (9, 1, 128, 16, 1030, {"softcap": 5.0, "slopes": 1}),
        (8, 2, 20, 70, -5, {}),
        (12, 2, 24, 32, 595, {"window": 600, "chunked": True}),
        (3, 16, 64, 100, 700, {"causal": False, "softcap": 30.0, "sinks": 1}),
        (7, 3, 24, 24, 300, {"causal": False, "bias": 40}),
        (1, 4, 32, 32, 700, {"bias": 128, "slopes": 1}),
    ],
)
def test_tiers_agree(tier, kv_type, n, group, k_dim, v_dim, pos, options):
    """Exact-size buffers at odd addresses; spans of keys one by one and all in one call, to the bit."""
    rng = np.random.default_rng(n)
    n_blocks, scalar = -(-(pos + n) // 16), _check.Tier("scalar")
    far = options.get("bias", 0)
    shapes = {"slopes": group, "sinks": group, "bias": (group, 2 * far + 1)}
    options = {k: rng.standard_normal(shapes[k]).astype(np.float32) if k in shapes else x for k, x in options.items()}
    if far:
        options["bias"] = Attention(1.0, bias=options["bias"]).bias
    stored = [np.full(n_blocks * b, 0xFF, np.uint8) for b in _check.kv_panel_bytes(kv_type, k_dim, v_dim)]
    for panels, dim, kind in zip(stored, (k_dim, v_dim), ("key", "value"), strict=True):
        for key in range(pos + n):
            x = rng.standard_normal(dim).astype(np.float32).view(np.uint8)
            panel = panels.reshape(n_blocks, -1)[key // 16]
            getattr(scalar, f"store_{kind}")(kv_type, x, panel, key % 16, dim)
    q = rng.standard_normal((n, group, k_dim)).astype(np.float32)
    scratch, state = (np.empty(b, np.uint8) for b in _check.attention_bytes(n * group, k_dim, v_dim))
    states, results = np.tile(state, 4), []
    for name, split in (("scalar", False), (tier, False), (tier, True)):
        memory = np.full(n * group * v_dim * 4 + 8, 0xA5, np.uint8)
        _check.Tier(name).attention(
            q.view(np.uint8).reshape(-1), memory[4:-4], *stored, np.arange(n_blocks, dtype=np.int32), scratch, states,
            kv_type=kv_type, block_tokens=16, n_queries=n, group=group, k_dim=k_dim, v_dim=v_dim, pos=pos,
            n_keys=pos + n, scale=0.2, split=split, **options,
        )  # fmt: skip
        assert (memory[:4] == 0xA5).all()
        assert (memory[-4:] == 0xA5).all()
        results.append(memory[4:-4].copy().view(np.float32))
    assert np.abs(results[0] - results[1]).max() < (BOUND["q8_0"] if kv_type >= 2 else 4e-6)
    assert (results[1] == results[2]).all()


@pytest.mark.parametrize("block", [0, 8, 48, 72, 96])
def test_block_size_must_fit_the_tile(block):
    with pytest.raises(ConfigError, match=f"kv_block_size={block}"):
        KvSlab("f32", 1, 1, block, 16)


def test_what_can_not_be_stored_or_attended_is_refused():
    for make, match in (
        (lambda: KvSlab("q4_1", 1, 1, 16, 16), "q4_1"),
        (lambda: KvSlab("f32", 1, 1, 16, 0), "0 key and 0 value"),
        (lambda: KvSlab("f32", 0, 1, 16, 8), "0 blocks"),
        (lambda: Attention(float("nan")), "scale"),
        (lambda: Attention(1.0, softcap=-1.0), "softcap"),
        (lambda: Attention(1.0, window=-1), "window"),
        (lambda: Attention(1.0, window=5, causal=False, chunked=True), "in chunks is causal"),
        (lambda: Attention(1.0, sinks=[float("inf")]), "sinks"),
        (lambda: Attention(1.0, slopes=[[1.0]]), "slopes"),
        (lambda: Attention(1.0, bias=[1.0]), "bias"),
        (lambda: Attention(1.0, bias=[[1.0, 2.0]]), r"bias .* shape \(1, 2\)"),
        (lambda: Attention(1.0, bias=[[float("nan")]]), "bias"),
    ):
        with pytest.raises(ConfigError, match=match):
            make()
    with pytest.raises(ConfigError, match="sinks of 3 heads for 2"):
        Setup(3, 2, 1, 16).run([3], sinks=[1.0, 2.0, 3.0])
    with pytest.raises(ConfigError, match="bias of 3 heads for 2"):
        Setup(3, 2, 1, 16).run([3], bias=np.ones((3, 5)))


@pytest.mark.parametrize("kv_type", TYPES)
@pytest.mark.parametrize("window", [0, 40])
def test_what_a_row_must_not_see_can_not_touch_it(window, kv_type):
    """NaN in keys and values of later rows of the same chunk, and before the window: not even multiplied by zero."""
    n, poisoned = 150, 100
    clean = Setup(n, 4, 2, 32, kv_type=kv_type).run([n], window)
    s = Setup(n, 4, 2, 32, kv_type=kv_type)
    s.k[poisoned:] = s.v[poisoned:] = np.nan
    assert (s.run([n], window)[:poisoned] == clean[:poisoned]).all()
    assert np.isnan(s.run([n], window)[poisoned:]).all()
    if window:
        s = Setup(n, 4, 2, 32, kv_type=kv_type)
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
    slab = KvSlab("f32", 4, 1, 16, 16)

    def stored():
        batch = Batch([Span(range(3), 0, [1]), Span(*SPANS[case])], ws)
        store(ws.new(batch.n_rows, 16), ws.new(batch.n_rows, 16), slab, batch)

    def attended():
        batch = Batch([Span(range(3), 0, [1]), Span(*SPANS[case])], ws)
        attend(ws.new(batch.n_rows, 16), slab, batch, Attention(1.0))

    for call in (stored, attended):
        with pytest.raises(ConfigError, match=r"span 1|tokens must be"):
            call()


def test_rows_that_do_not_belong_to_the_batch_are_refused():
    ws = Workspace(1)
    slab = KvSlab("f32", 4, 2, 16, 16)
    batch = Batch([Span(range(3), 0, [1])], ws)
    for n, dim in ((2, 32), (3, 48), (3, 16)):
        with pytest.raises(ConfigError, match=f"{n} rows of {dim} values"):
            attend(ws.new(n, dim), slab, batch, Attention(1.0))
    with pytest.raises(ConfigError, match="keys of 64 and values of 32"):
        store(ws.new(3, 64), ws.new(3, 32), slab, batch)


def test_other_threads_run_while_one_thread_attends():
    """With a single compute thread, too, Python's lock is free meanwhile: a loaded machine may lack a core for them."""
    s = Setup(1500, 8, 2, 64)
    assert any(ticks_while_attending(s) for _ in range(20))


def ticks_while_attending(s):
    """Times at which another thread ran in the middle of a call."""
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
        attend(q, s.slab, batch, Attention(s.scale))
        end = time.perf_counter()
    finally:
        done.set()
        other.join()
    return [t for t in ticks if start + 0.2 * (end - start) < t < end - 0.2 * (end - start)]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("n_queries", "n_keys", "heads", "kv_heads", "dim"),
    [
        (1, 1, 1, 1, 1),
        (7, 7, 4, 2, 19),
        (1, 1300, 4, 1, 64),
        (300, 300, 2, 2, 32),
        (9, 600, 6, 3, 33),
        (20, 5, 2, 1, 16),
    ],
)
def test_flash_attention_of_plain_arrays(n_queries, n_keys, heads, kv_heads, dim, causal):
    """Rows of a query that outnumbers its keys see nothing at first, and give zeros."""
    rng = np.random.default_rng(n_keys)
    q = rng.standard_normal((n_queries, heads, dim)).astype(np.float32)
    k, v = rng.standard_normal((2, n_keys, kv_heads, dim)).astype(np.float32)
    rule = Attention(0.3, causal=causal)
    expected = naive(q, k, v, range(n_keys - n_queries, n_keys), rule)
    options = {"num_heads": heads, "head_dim": dim, "softmax_scale": 0.3, "causal": causal}
    got = flash_attention(q, k, v, **options)
    assert got.dtype == np.float32
    assert np.abs(got - expected).max() < 1e-5
    for threads in (1, 3):
        assert (flash_attention(q, k, v, **options, num_threads=threads) == got).all()
    flat = [np.asfortranarray(a.astype(np.float64).reshape(len(a), -1)) for a in (q, k, v)]
    assert (flash_attention(*flat, **options) == got).all()


@pytest.mark.parametrize("kv_type", TYPES)
@pytest.mark.parametrize(("n_source", "n_rows"), [(1, 1), (1, 7), (20, 3), (20, 64), (700, 1), (700, 9)])
def test_what_an_encoder_left_is_seen_whole(n_source, n_rows, kv_type):
    """By rows further on, which are in other positions of the same blocks, as many as there may be at once."""
    first = -(-n_source // 16) * 16
    s = Setup(first + n_rows, 6, 2, 24, kv_type=kv_type, threads=2, v_dim=40)
    batch = Batch([s.span(0, first)], s.workspace)
    store(*(s.workspace.from_array(a[:first].reshape(first, -1)) for a in (s.k, s.v)), s.slab, batch)
    rule = Attention(0.3, causal=False)

    def rows(start, end):
        batch = Batch([Span(range(end - start), start, s.table, n_source=n_source)], s.workspace)
        q = s.workspace.from_array(s.q[start:end].reshape(end - start, -1))
        return attend_source(q, s.slab, batch, rule).numpy().copy().reshape(end - start, 6, -1)

    q, k, v = as_stored(s, kv_type)
    whole = rows(first, first + n_rows)
    expected = naive(q[first:], k[:n_source], v[:n_source], range(n_rows), rule)
    assert np.abs(whole - expected).max() < BOUND[kv_type]
    assert (np.concatenate([rows(first + i, first + i + 1) for i in range(n_rows)]) == whole).all()


def test_what_an_encoder_left_must_be_there():
    s = Setup(40, 2, 1, 16)
    q = s.workspace.from_array(s.q[:3].reshape(3, -1))
    for start, n_source in ((16, 0), (16, 17), (0, 1)):
        batch = Batch([Span(range(3), start, s.table, n_source=n_source)], s.workspace)
        with pytest.raises(ConfigError, match=f"at position {start} has an encoder's {n_source} positions"):
            attend_source(q, s.slab, batch, Attention(1.0, causal=False))
    batch = Batch([Span(range(3), 16, s.table, n_source=9)], s.workspace)
    for rule in (
        Attention(1.0),
        Attention(1.0, causal=False, window=3),
        Attention(1.0, causal=False, bias=[[1.0]] * 2),
    ):
        with pytest.raises(ConfigError, match="knows no positions"):
            attend_source(q, s.slab, batch, rule)
    with pytest.raises(ConfigError, match="n_source=-1"):
        Span(range(3), 0, s.table, n_source=-1)


def test_flash_attention_takes_no_memory_for_threads_without_work():
    some = np.ones((3, 2, 8), np.float32)
    options = {"num_heads": 2, "head_dim": 8, "softmax_scale": 1.0, "causal": True}
    got = flash_attention(some, some, some, **options, num_threads=10**6)
    assert (got == flash_attention(some, some, some, **options, num_threads=1)).all()


def test_flash_attention_without_a_scale_names_the_head_that_has_no_size():
    none = np.ones((3, 2, 0), np.float32)
    with pytest.raises(ConfigError, match="head_dim=0"):
        flash_attention(none, none, none, num_heads=2, head_dim=0)


def test_flash_attention_of_nothing():
    options = {"num_heads": 2, "head_dim": 8, "softmax_scale": 1.0, "causal": True}
    some, none = np.ones((3, 2, 8), np.float32), np.ones((0, 2, 8), np.float32)
    assert (flash_attention(some, none, none, **options) == np.zeros((3, 2, 8))).all()
    assert flash_attention(none, some, some, **options).shape == (0, 2, 8)


@pytest.mark.parametrize(
    ("q", "k", "v", "heads", "dim"),
    [
        ((3, 4, 8), (3, 3, 8), (3, 3, 8), 4, 8),
        ((3, 4, 8), (3, 2, 8), (4, 2, 8), 4, 8),
        ((3, 4, 8), (3, 2, 8), (3, 2, 8), 2, 8),
        ((3, 4, 8), (3, 2, 4), (3, 2, 4), 4, 8),
        ((3, 4, 8), (3, 0, 8), (3, 0, 8), 4, 8),
        ((3, 0, 8), (3, 1, 8), (3, 1, 8), 0, 8),
        ((3,), (3, 2, 8), (3, 2, 8), 4, 8),
        ((3, 4, 8), (3, 2, 8), (3, 2, 8), 4, 0),
    ],
)
def test_flash_attention_names_shapes_that_do_not_fit(q, k, v, heads, dim):
    arrays = [np.zeros(shape, np.float32) for shape in (q, k, v)]
    with pytest.raises(ConfigError, match=r"\(3"):
        flash_attention(*arrays, num_heads=heads, head_dim=dim, softmax_scale=1.0, causal=True)
