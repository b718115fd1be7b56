"""Convolutions, scans and delta rules of recurrent layers against loops in float64, with equal bits for any chunks."""

import numpy as np
import pytest

from oxillama.errors import ConfigError
from oxillama.kernels.batch import Batch, Span
from oxillama.kernels.dplr import decaying
from oxillama.kernels.recurrent import RecurrentSlab
from oxillama.kernels.rows import Vector, Workspace
from oxillama.kernels.ssm import (
    Convolution,
    Scan1,
    Scan2,
    columns,
    conv1d,
    gated_conv1d,
    rms_norm_columns_,
    scan1,
    scan2,
)
from tests.kernels.ssm_layers import LAYERS, Mamba2, T, floats, run

BY_CHANNEL = ("delta by channel", "rwkv7")


@pytest.fixture(params=LAYERS)
def layer(request):
    return LAYERS[request.param]()


def test_is_what_a_loop_computes(layer):
    expected = layer.expected()
    np.testing.assert_allclose(run(layer, [T])[0], expected, rtol=0, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize("lengths", [[1] * T, [7] * 6 + [3], [16, 29], [33, 12], [2, 43]], ids=str)
def test_bits_do_not_depend_on_how_tokens_are_divided(layer, lengths):
    whole, state = run(layer, [T])
    parts, last = run(layer, lengths)
    assert (parts == whole).all()
    assert (last == state).all()


def test_bits_do_not_depend_on_threads_or_company(layer):
    whole, _ = run(layer, [T])
    assert (run(layer, [T], threads=3)[0] == whole).all()
    ws, slab = Workspace(3), RecurrentSlab(7, layer.n_values)
    first = Batch([Span(range(5), 0, [], slots=(-1, 3)), Span(range(9), 0, [], slots=(-1, 1))], ws)
    layer.run(ws.from_array(np.concatenate([layer.x[:5], layer.x[:9]])), slab, first)
    ends = [(9, (1, 0)), (0, (-1, 2)), (5, (3, 6))]
    spans = [Span(range(T - start), start, [], slots=slots) for start, slots in ends]
    rows = ws.from_array(np.concatenate([layer.x[9:], layer.x, layer.x[5:]]))
    got = layer.run(rows, slab, Batch(spans, ws)).numpy()
    assert (got == np.concatenate([whole[9:], whole, whole[5:]])).all()
    assert (slab.data[0] == slab.data[2]).all()
    assert (slab.data[6] == slab.data[2]).all()


def test_the_state_that_is_read_stays(layer):
    ws, slab = Workspace(2), RecurrentSlab(3, layer.n_values)
    layer.run(ws.from_array(layer.x[:10]), slab, Batch([Span(range(10), 0, [], slots=(-1, 1))], ws))
    before = slab.data.copy()
    for _ in range(2):  # the second time slot 2 isn't empty
        y = layer.run(ws.from_array(layer.x[10:]), slab, Batch([Span(range(T - 10), 10, [], slots=(1, 2))], ws)).numpy()
        assert (y == run(layer, [T])[0][10:]).all()
    assert (slab.data[:2] == before[:2]).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_is_seen(value):
    for kind in ("mamba", "mamba2", "conv, many tasks", "gated conv", "delta", "delta, odd", *BY_CHANNEL):
        layer = LAYERS[kind]()
        layer.x[3, :] = value
        y, _ = run(layer, [T])
        assert np.isfinite(y[:3]).all()
        assert not np.isfinite(y[3]).any(), kind


def test_large_time_steps_and_decays():
    """softplus is the identity far above zero and vanishes far below; exp of what it makes forgets everything."""
    layer = Mamba2(3, 16, 8, 1)
    layer.x[:, -3:] = np.linspace(-110, 110, 3 * T).reshape(T, 3)
    expected = layer.expected()
    np.testing.assert_allclose(run(layer, [T])[0], expected, rtol=2e-5, atol=2e-6 * np.abs(expected).max())


def test_columns():
    ws, x, w = Workspace(2), floats(0, 40, 300), floats(1, 100)
    rows = ws.from_array(x)
    assert (columns(rows, 17, 100).numpy() == x[:, 17:117]).all()
    rms_norm_columns_(rows, 17, Vector(w), 1e-5)
    part = x[:, 17:117].astype(np.float64)
    np.testing.assert_allclose(
        rows.numpy()[:, 17:117], part / np.sqrt((part**2).mean(1) + 1e-5)[:, None] * w, rtol=2e-6
    )
    assert (np.delete(rows.numpy(), np.r_[17:117], 1) == np.delete(x, np.r_[17:117], 1)).all()
    for first, n in ((-1, 4), (297, 4), (4, -5), (2**63 - 2, 4), (4, 2**63 - 2)):
        with pytest.raises(ConfigError, match=r"columns from .* of 40 rows are needed, not 40 rows of 300"):
            columns(rows, first, n)


def test_weights_that_do_not_fit():
    for w, bias in ((floats(0, 4), None), (floats(0, 0, 4), None), (floats(0, 5, 4), floats(0, 4))):
        with pytest.raises(ConfigError, match="a convolution of weights"):
            Convolution(w, bias)
    for a, d in ((floats(0, 8), floats(0, 8)), (floats(0, 8, 4), floats(0, 4)), (floats(0, 8, 0), floats(0, 8))):
        with pytest.raises(ConfigError, match=r"a scan of a \("):
            Scan1(a, d)
    good = {"head_dim": 4, "n_state": 3, "n_groups": 2}
    for heads, changed in ((3, {}), (4, {"head_dim": 0}), (4, {"n_state": 0}), (4, {"n_groups": 0}), (0, {})):
        with pytest.raises(ConfigError, match=r"a scan of a \("):
            Scan2(floats(0, heads), floats(1, heads), floats(2, heads), **good | changed)
    with pytest.raises(ConfigError, match=r"a scan of a \(4,\), d \(3,\)"):
        Scan2(floats(0, 4), floats(1, 3), floats(2, 4), **good)


def test_rows_and_slots_that_do_not_fit(layer):
    ws = Workspace(1)
    batch = Batch([Span(range(4), 0, [], slots=(-1, 1))], ws)
    for n_rows, slots, n_values, what in (
        (3, 2, layer.n_values, "3 rows"),
        (4, 1, layer.n_values, "writes slot 1; there are 1"),
        (4, 2, layer.n_values - 1, f"of a slot of {layer.n_values - 1}"),
    ):
        if n_values:
            with pytest.raises(ConfigError, match=what):
                layer.run(ws.from_array(layer.x[:n_rows]), RecurrentSlab(slots, n_values), batch)
    with pytest.raises(ConfigError, match="slot -1"):
        layer.run(ws.from_array(layer.x[:4]), RecurrentSlab(2, layer.n_values), Batch([Span(range(4), 0, [])], ws))


def test_decays_that_do_not_fit():
    ws, slab = Workspace(1), RecurrentSlab(2, 2 * 5 * 16)
    batch = Batch([Span(range(4), 0, [], slots=(-1, 1))], ws)
    good, odd = ws.from_array(floats(0, 4, 10)), ws.from_array(floats(0, 4, 9))
    decays = Vector(abs(floats(1, 10)))
    assert decaying(good, good, good, decays, 2, slab, batch).dim == 10
    with pytest.raises(ConfigError, match="10 decays for queries of 9 values"):
        decaying(odd, good, good, decays, 2, slab, batch)
    for k, v, heads in ((odd, good, 2), (good, odd, 2), (good, good, 3), (good, good, 0)):
        with pytest.raises(ConfigError, match=f"a rule of {heads} heads over a batch of 4"):
            decaying(good, k, v, decays, heads, slab, batch)


def test_columns_that_do_not_fit():
    ws, slab = Workspace(1), RecurrentSlab(2, 20000)
    batch = Batch([Span(range(4), 0, [], slots=(-1, 1))], ws)
    rows = {n: ws.from_array(floats(0, 4, n)) for n in (5, 10, 15, 16, 20, 32, 33)}
    for call in (
        lambda: conv1d(rows[10], 6, Convolution(floats(0, 5, 4)), slab, batch),
        lambda: conv1d(rows[10], -1, Convolution(floats(0, 5, 4)), slab, batch),
        lambda: conv1d(rows[10], 2**63 - 5, Convolution(floats(0, 5, 4)), slab, batch),
        lambda: gated_conv1d(rows[10], Convolution(floats(0, 5, 4)), slab, batch),
        lambda: scan1(rows[5], rows[10], rows[10], rows[10], Scan1(floats(0, 10, 5), floats(0, 10)), 0, slab, batch),
        lambda: scan1(rows[10], rows[5], rows[10], rows[10], Scan1(floats(0, 10, 5), floats(0, 10)), 0, slab, batch),
        lambda: scan1(rows[10], rows[10], rows[5], rows[10], Scan1(floats(0, 10, 5), floats(0, 10)), 0, slab, batch),
        lambda: scan1(rows[10], rows[10], rows[10], rows[5], Scan1(floats(0, 10, 5), floats(0, 10)), 0, slab, batch),
    ):
        with pytest.raises(ConfigError, match="columns"):
            call()
    scan = Scan2(floats(0, 2), floats(1, 2), floats(2, 2), head_dim=5, n_state=5)
    for x, projected in ((20, 33), (16, 32), (20, 20)):
        with pytest.raises(ConfigError, match="a scan of 10 channels in 2 heads"):
            scan2(rows[x], rows[projected], scan, 0, slab, batch)
    for at in (8, 2**63 - 64):
        with pytest.raises(ConfigError, match=f"80 values at {at} of a slot"):
            scan1(rows[10], rows[10], rows[10], rows[10], Scan1(floats(0, 10, 5), floats(0, 10)), at, slab, batch)
