"""Low-rank changes against double precision, each row's bits against the row alone, and factors that can't be."""

import numpy as np
import pytest

from oxillama.errors import ConfigError, QuantError
from oxillama.kernels.batch import Batch, Span
from oxillama.kernels.gated import gated
from oxillama.kernels.lora import Adapters, LowRank
from oxillama.kernels.matmul import embed, linear, linear_add_, matmul, quantize
from oxillama.kernels.matrix import Matrix
from oxillama.kernels.rows import Workspace

N_IN, N_OUT = 64, 96


def floats(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


KEPT = {
    "F32": lambda x: x,
    "F16": lambda x: x.astype(np.float16).astype(np.float32),
    "BF16": lambda x: (x.view(np.uint32) & 0xFFFF0000).view(np.float32),
}


def matrix(values, type="F32", repack=True):
    return Matrix(quantize(values, type), type, values.shape, repack=repack, rounds=False)


def low_rank(seed, rank, n_out=N_OUT, n_in=N_IN, type="F32", scale=1.0, repack=True):
    """A change, and its factors as they are kept."""
    a, b = KEPT[type](floats(seed, rank, n_in)), KEPT[type](floats(seed + 1, n_out, rank))
    made = LowRank(matrix(a, type, repack), matrix(b, type, repack), scale)
    return made, (a.astype(np.float64), b.astype(np.float64))


def workspace(sets, threads=1, wants=()):
    """For spans of these numbers of rows: ``(n, set)``."""
    ws = Workspace(threads)
    adapters = Adapters([n for n, _ in sets], [used for _, used in sets])
    wanted = wants or ["all"] * len(sets)
    spans = [Span([1] * n, 0, [0], want) for (n, _), want in zip(sets, wanted, strict=True)]
    return ws, Batch(spans, ws, None, adapters)


def assert_changed(got, plain, x, a, b, scale):
    """Within the rounding of each of the n_in and rank products and sums."""
    wanted = plain + scale * (x.astype(np.float64) @ a.T) @ b.T
    size = scale * (np.abs(x) @ np.abs(a).T) @ np.abs(b).T + np.abs(plain)
    assert (np.abs(got - wanted) <= (sum(a.shape) + 3) * 2.0**-24 * size).all()


@pytest.mark.parametrize("type", ["F32", "F16"])
@pytest.mark.parametrize("rank", [1, 3, 16, 33])
@pytest.mark.parametrize("base", ["F32", "Q8_0"])
def test_products_in_double(type, rank, base):
    w, x = matrix(floats(0, N_OUT, N_IN), base), floats(1, 6, N_IN)
    change, (a, b) = low_rank(2, rank, type=type, scale=0.5)
    plain = linear(Workspace(1).from_array(x), w).numpy().astype(np.float64)
    ws, batch = workspace([(2, ()), (4, (({w: change}, 3.0),))])
    got = linear(ws.from_array(x), w, batch).numpy()
    assert np.array_equal(got[:2], plain[:2])
    assert_changed(got[2:], plain[2:], x[2:], a, b, 1.5)


@pytest.mark.parametrize("type", KEPT)
@pytest.mark.parametrize("rank", [3, 16, 33])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_factors_as_stored(n, rank, type):
    """Whole panels of rows as files store them go without packing for up to four tokens: with the bits of panels.

    First products gather every other row, second ones are added to these rows alone.
    """
    n_in, n_out = 70, 101
    w, x = matrix(floats(0, n_out, n_in)), floats(1, 2 * n + 1, n_in)
    plain = linear(Workspace(1).from_array(x), w).numpy().astype(np.float64)
    found = []
    for repack, threads in ((True, 1), (False, 1), (False, 2)):
        change, factors = low_rank(2, rank, n_out, n_in, type, 0.5, repack)
        ws, batch = workspace([(1, ()), (1, (({w: change}, 3.0),))] * n + [(1, ())], threads)
        found.append(linear(ws.from_array(x), w, batch).numpy().copy())
    for stored in found[1:]:
        assert np.array_equal(stored, found[0])
    assert np.array_equal(found[0][::2], plain[::2])
    assert_changed(found[0][1::2], plain[1::2], x[1::2], *factors, 1.5)


def test_every_way_to_multiply_gives_each_row_its_own_bits():
    """Eight rows of four spans, with no, one and two changes; each alone, in company, with any number of threads."""
    gate, up = (matrix(floats(i, N_OUT, N_IN), "Q8_0") for i in (10, 11))
    down = matrix(floats(12, N_IN, N_OUT), "F16")
    one = {gate: low_rank(20, 4)[0], up: low_rank(22, 4)[0], down: low_rank(24, 4, N_IN, N_OUT)[0]}
    two = {up: low_rank(30, 7)[0], down: low_rank(32, 7, N_IN, N_OUT)[0]}
    used = [(), ((one, 0.5),), ((one, 2.0), (two, 1.0)), ((two, -1.0),)]
    counts, x = [1, 3, 2, 2], floats(13, 8, N_IN)

    def all_of_it(rows, sets, threads):
        ws, batch = workspace(sets, threads)
        h = ws.from_array(rows)
        hidden = gated(h, gate, up, "silu", True, batch=batch)
        y = ws.from_array(rows)
        linear_add_(y, hidden, down, batch)
        return [r.numpy().copy() for r in (hidden, y, *matmul(h, gate, up, gate, batch=batch))]

    together = all_of_it(x, list(zip(counts, used, strict=True)), 1)
    for got, again in zip(together, all_of_it(x, list(zip(counts, used, strict=True)), 3), strict=True):
        assert np.array_equal(got, again)
    first = 0
    for n, used_by in zip(counts, used, strict=True):
        for i in range(first, first + n):
            for got, alone in zip(together, all_of_it(x[i : i + 1], [(1, used_by)], 2), strict=True):
                assert np.array_equal(got[i], alone[0])
        first += n
    assert not np.array_equal(together[0][:1], together[0][1:2])


@pytest.mark.parametrize("type", ["Q8_0", "F32"])
@pytest.mark.parametrize("n", [1, 40])
def test_shared_out_among_threads(type, n):
    """Products that are shared out, by more threads than there are cores: changes wait for their first half."""
    n_in, n_out, ranks = 512, 1200, (16, 33)
    w = [matrix(floats(i, n_out, n_in), type) for i in range(2)]
    made = [[low_rank(10 * i + k, rank, n_out, n_in, scale=0.5) for k in range(2)] for i, rank in enumerate(ranks, 4)]
    sets = [tuple((dict(zip(w, [c for c, _ in one], strict=True)), 2.0) for one in made)]
    x = floats(9, n, n_in)
    plain = [y.numpy().astype(np.float64) for y in matmul(Workspace(1).from_array(x), *w)]
    found = []
    for threads in (1, 2, 7):
        ws, batch = workspace([(n, sets[0])], threads)
        found.append([y.numpy().copy() for y in matmul(ws.from_array(x), *w, batch=batch)])
    for got, base, k in zip(found[0], plain, range(2), strict=True):
        factors = [one[k][1] for one in made]
        wanted = base + sum((x.astype(np.float64) @ a.T) @ b.T for a, b in factors)
        size = sum((np.abs(x) @ np.abs(a).T) @ np.abs(b).T for a, b in factors) + np.abs(base)
        assert (np.abs(got - wanted) <= (n_in + sum(ranks) + 3) * 2.0**-24 * size).all()
    for other in found[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(other, found[0], strict=True))


def test_tables():
    """A row of the first factor for each row of the table."""
    a, b, tokens = floats(1, 40, 5), floats(2, N_OUT, 5), np.array([3, 39, 0, 3], np.int32)
    table = quantize(floats(3, 40, N_OUT), "F32")
    change = LowRank((quantize(a, "F32"), "F32"), matrix(b))
    ws, batch = workspace([(2, (({"table": change}, 2.0),)), (2, ())])
    y = embed(ws, table, "F32", N_OUT, tokens)
    before = y.numpy().copy()
    batch.adapters.add_rows(y, "table", tokens)
    wanted = before[:2] + 2.0 * a[tokens[:2]].astype(np.float64) @ b.T
    assert np.abs(y.numpy()[:2] - wanted).max() <= 1e-6 * np.abs(wanted).max()
    assert np.array_equal(y.numpy()[2:], before[2:])


def test_rows_that_leave_the_model():
    """They are a batch of their own, with its share of the adapters."""
    w, x = matrix(floats(0, N_OUT, N_IN)), floats(1, 6, N_IN)
    used = (({w: low_rank(2, 4)[0]}, 1.0),)
    ws, batch = workspace([(3, used), (2, ()), (1, used)], wants=["last", "all", "none"])
    whole = linear(ws.from_array(x), w, batch).numpy().copy()
    kept = batch.output_rows
    assert kept.tolist() == [2, 3, 4]
    assert np.array_equal(linear(ws.from_array(x[kept]), w, batch.outputs).numpy(), whole[kept])
    for rows, taken, n in ((batch, 4, 6), (batch, 3, 6), (batch.outputs, 6, 3)):
        with pytest.raises(ConfigError, match=f"{taken} rows in a step of {n}"):
            linear(ws.from_array(x[:taken]), w, rows)


def test_adapters_stay_with_their_batch():
    """Another batch in the same workspace has none of them, nor have rows that are of no batch."""
    w, x = matrix(floats(0, N_OUT, N_IN)), floats(1, 2, N_IN)
    plain = linear(Workspace(1).from_array(x), w).numpy()
    ws, changed = workspace([(2, (({w: low_rank(2, 4)[0]}, 1.0),))])
    other = Batch([Span([1, 1], 0, [0])], ws)
    assert not np.array_equal(linear(ws.from_array(x), w, changed).numpy(), plain)
    assert np.array_equal(linear(ws.from_array(x), w, other).numpy(), plain)
    assert np.array_equal(linear(ws.from_array(x), w).numpy(), plain)


def test_factors_that_dont_fit():
    with pytest.raises(QuantError, match="don't make a change"):
        LowRank(matrix(floats(0, 4, N_IN)), matrix(floats(1, N_OUT, 5)))
    with pytest.raises(QuantError, match="don't make a change"):
        LowRank(matrix(floats(0, 2, 4, N_IN)), matrix(floats(1, 3, N_OUT, 4)))
    with pytest.raises(QuantError, match="multiplied in float32"):
        LowRank(matrix(floats(0, 32, N_IN), "Q8_0"), matrix(floats(1, N_OUT, 32)))
    w = matrix(floats(2, N_OUT, N_IN))
    for n_out, n_in in ((N_OUT, N_IN + 1), (N_OUT + 1, N_IN)):
        ws, batch = workspace([(1, (({w: low_rank(3, 4, n_out, n_in)[0]}, 1.0),))])
        with pytest.raises(QuantError):
            linear(ws.from_array(floats(4, 1, N_IN)), w, batch)
    with pytest.raises(ConfigError, match="2 sets of adapters for 1 spans"):
        Adapters([1], [(), ()])
