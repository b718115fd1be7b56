"""Convolutions, scans and delta rules of recurrent layers against loops in float64, with equal bits for any chunks."""

import numpy as np
import pytest

from oxillama.errors import ConfigError
from oxillama.kernels.batch import Batch
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
from tests.kernels.delta_layer import DeltaLayer

AT = 64  # where a scan's state starts in these tests
T = 45  # tokens: more than one run of the kernels


def floats(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def silu(x):
    return x / (1 + np.exp(-x))


def naive_conv(x, w, bias, before):
    """[T, C] after the n_taps - 1 inputs ``before``."""
    u = np.concatenate([before, x]).astype(np.float64)
    return np.stack([(w.T * u[t : t + w.shape[1]]).sum(0) + bias for t in range(len(x))])


def naive_scan(x, dt, b, c, a, d, h):
    """x, dt [T, C]; b, c [T, C, N]; a [C, N]; d [C]; h [C, N]: outputs [T, C] and the last state."""
    x, dt, b, c, a, h = (v.astype(np.float64) for v in (x, dt, b, c, a, h))
    step, out = np.log1p(np.exp(dt)), []
    for t in range(len(x)):
        h = np.exp(step[t][:, None] * a) * h + (step[t] * x[t])[:, None] * b[t]
        out.append((h * c[t]).sum(1) + d * x[t])
    return np.stack(out), h


class Layer:
    """What a layer of some kind computes of its inputs, and what a slow twin makes of them."""

    def __init__(self, n_inputs):
        self.x = floats(1, T, n_inputs)


class Conv(Layer):
    def __init__(self, channels, taps, activated):
        super().__init__(channels + 5)
        self.w, self.bias = floats(2, channels, taps), floats(3, channels)
        self.conv = Convolution(self.w, self.bias, silu=activated)
        self.n_values = self.conv.n_values or 1

    def run(self, rows, slab, batch):
        return conv1d(rows, 3, self.conv, slab, batch)

    def expected(self):
        x = self.x[:, 3 : 3 + len(self.w)]
        y = naive_conv(x, self.w, self.bias, np.zeros((self.conv.n_taps - 1, len(self.w))))
        return silu(y) if self.conv.silu else y


class GatedConv(Layer):
    def __init__(self, channels, taps):
        super().__init__(3 * channels)
        self.w = floats(2, channels, taps)
        self.conv = Convolution(self.w)
        self.n_values = self.conv.n_values

    def run(self, rows, slab, batch):
        return gated_conv1d(rows, self.conv, slab, batch)

    def expected(self):
        b, c, u = np.split(self.x, 3, axis=1)
        return c * naive_conv(b * u, self.w, 0, np.zeros((self.conv.n_taps - 1, len(self.w))))


class Mamba(Layer):
    def __init__(self, channels, state):
        self.n, self.state = channels, state
        super().__init__(3 * channels + 2 * state)
        self.a, self.d = -np.exp(floats(2, channels, state)), floats(3, channels)
        self.scan = Scan1(self.a, self.d)
        self.n_values = AT + self.scan.n_values

    def parts(self, x):
        n = self.n
        return x[:, :n], x[:, n : 2 * n], x[:, 2 * n : 3 * n], x[:, 3 * n :]

    def run(self, rows, slab, batch):
        x, dt, z, bc = (columns(rows, *at) for at in ((0, self.n), (self.n, self.n), (2 * self.n, self.n), (
            3 * self.n, 2 * self.state)))  # fmt: skip
        return scan1(x, dt, bc, z, self.scan, AT, slab, batch)

    def expected(self):
        x, dt, z, bc = self.parts(self.x)
        b, c = (np.repeat(v[:, None], self.n, 1) for v in np.split(bc, 2, axis=1))
        return naive_scan(x, dt, b, c, self.a, self.d, np.zeros((self.n, self.state)))[0] * silu(z.astype(np.float64))


class Mamba2(Layer):
    def __init__(self, heads, dim, state, groups):
        self.n, self.bc = heads * dim, groups * state
        super().__init__(2 * self.n + 2 * self.bc + heads)
        self.heads, self.dim, self.groups, self.state = heads, dim, groups, state
        self.a, self.d, self.bias = -np.exp(floats(2, heads)), floats(3, heads), floats(4, heads)
        self.scan = Scan2(self.a, self.d, self.bias, head_dim=dim, n_state=state, n_groups=groups)
        self.n_values = AT + self.scan.n_values

    def run(self, rows, slab, batch):
        return scan2(columns(rows, self.n, self.n + 2 * self.bc), rows, self.scan, AT, slab, batch)

    def expected(self):
        z, x, b, c, dt = np.split(self.x, np.cumsum([self.n, self.n, self.bc, self.bc]), axis=1)
        b, c = (np.repeat(v.reshape(T, self.groups, -1), self.n // self.groups, 1) for v in (b, c))
        a, d, dt = (np.repeat(v, self.dim, -1) for v in (self.a, self.d, dt + self.bias))
        a = np.repeat(a[:, None], self.state, 1)
        return naive_scan(x, dt, b, c, a, d, np.zeros(a.shape))[0] * silu(z.astype(np.float64))


LAYERS = {
    "conv of one channel": lambda: Conv(1, 4, True),
    "conv without past": lambda: Conv(20, 1, True),
    "conv, many tasks": lambda: Conv(600, 4, True),
    "conv, long": lambda: Conv(33, 50, False),
    "gated conv": lambda: GatedConv(70, 3),
    "mamba": lambda: Mamba(128, 16),
    "mamba, odd": lambda: Mamba(131, 5),
    "mamba, one": lambda: Mamba(1, 1),
    "mamba2": lambda: Mamba2(4, 64, 128, 1),
    "mamba2, odd": lambda: Mamba2(6, 19, 21, 3),
    "mamba2, tiny heads": lambda: Mamba2(5, 1, 40, 5),
    "delta": lambda: DeltaLayer(8, 2, 128, 128, T),
    "delta, neighbours": lambda: DeltaLayer(6, 3, 64, 48, T, neighbours=True),
    "delta, odd": lambda: DeltaLayer(6, 2, 19, 21, T),
    "delta, narrow": lambda: DeltaLayer(3, 1, 2, 5, T),
}


def run(layer, lengths, threads=1):
    """Outputs [T, ...] of one sequence in spans of these lengths, and the slab with slot 0 or 1 written last."""
    ws, slab, out, start = Workspace(threads), RecurrentSlab(3, layer.n_values), [], 0
    for i, n in enumerate(lengths):
        slots = ((i + 1) % 2 if start else -1, i % 2)
        batch = Batch([(range(n), start, [], slots)], ws)
        out.append(layer.run(ws.from_array(layer.x[start : start + n]), slab, batch).numpy().copy())
        start += n
        ws.reset()
    return np.concatenate(out), slab.data[(len(lengths) - 1) % 2].copy()


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
    first = Batch([(range(5), 0, [], (-1, 3)), (range(9), 0, [], (-1, 1))], ws)
    layer.run(ws.from_array(np.concatenate([layer.x[:5], layer.x[:9]])), slab, first)
    spans = [(range(T - 9), 9, [], (1, 0)), (range(T), 0, [], (-1, 2)), (range(T - 5), 5, [], (3, 6))]
    rows = ws.from_array(np.concatenate([layer.x[9:], layer.x, layer.x[5:]]))
    got = layer.run(rows, slab, Batch(spans, ws)).numpy()
    assert (got == np.concatenate([whole[9:], whole, whole[5:]])).all()
    assert (slab.data[0] == slab.data[2]).all()
    assert (slab.data[6] == slab.data[2]).all()


def test_the_state_that_is_read_stays(layer):
    ws, slab = Workspace(2), RecurrentSlab(3, layer.n_values)
    layer.run(ws.from_array(layer.x[:10]), slab, Batch([(range(10), 0, [], (-1, 1))], ws))
    before = slab.data.copy()
    for _ in range(2):  # the second time slot 2 isn't empty
        y = layer.run(ws.from_array(layer.x[10:]), slab, Batch([(range(T - 10), 10, [], (1, 2))], ws)).numpy()
        assert (y == run(layer, [T])[0][10:]).all()
    assert (slab.data[:2] == before[:2]).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_is_seen(value):
    for kind in ("mamba", "mamba2", "conv, many tasks", "gated conv", "delta", "delta, odd"):
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
    batch = Batch([(range(4), 0, [], (-1, 1))], ws)
    for n_rows, slots, n_values, what in (
        (3, 2, layer.n_values, "3 rows"),
        (4, 1, layer.n_values, "writes slot 1; there are 1"),
        (4, 2, layer.n_values - 1, f"of a slot of {layer.n_values - 1}"),
    ):
        if n_values:
            with pytest.raises(ConfigError, match=what):
                layer.run(ws.from_array(layer.x[:n_rows]), RecurrentSlab(slots, n_values), batch)
    with pytest.raises(ConfigError, match="slot -1"):
        layer.run(ws.from_array(layer.x[:4]), RecurrentSlab(2, layer.n_values), Batch([(range(4), 0, [])], ws))


def test_columns_that_do_not_fit():
    ws, slab = Workspace(1), RecurrentSlab(2, 20000)
    batch = Batch([(range(4), 0, [], (-1, 1))], ws)
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
