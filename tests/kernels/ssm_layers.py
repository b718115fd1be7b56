"""State space layers of the kernels, each beside a loop over its recurrence."""

import numpy as np

from oxillama.kernels.batch import Batch, Span
from oxillama.kernels.recurrent import RecurrentSlab
from oxillama.kernels.rows import Workspace
from oxillama.kernels.ssm import Convolution, Scan1, Scan2, columns, conv1d, gated_conv1d, scan1, scan2
from tests.kernels.delta_layer import DeltaLayer
from tests.kernels.dplr_layers import ChannelDeltaLayer, FadingLayer
from tests.kernels.rwkv_layer import Rwkv7Layer

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
    "delta by channel": lambda: ChannelDeltaLayer(8, 128, T),
    "delta by channel, odd": lambda: ChannelDeltaLayer(5, 19, T),
    "fading": lambda: FadingLayer(4, 32, T),
    "fading, odd": lambda: FadingLayer(3, 19, T),
    "delta by channel, bounded": lambda: ChannelDeltaLayer(3, 21, T, bound=-5.0),
    "rwkv7": lambda: Rwkv7Layer(8, 64, T),
    "rwkv7, odd": lambda: Rwkv7Layer(3, 21, T),
}


def run(layer, lengths, threads=1):
    """Outputs [T, ...] of one sequence in spans of these lengths, and the slab with slot 0 or 1 written last."""
    ws, slab, out, start = Workspace(threads), RecurrentSlab(3, layer.n_values), [], 0
    for i, n in enumerate(lengths):
        slots = ((i + 1) % 2 if start else -1, i % 2)
        batch = Batch([Span(range(n), start, [], slots=slots)], ws)
        out.append(layer.run(ws.from_array(layer.x[start : start + n]), slab, batch).numpy().copy())
        start += n
        ws.reset()
    return np.concatenate(out), slab.data[(len(lengths) - 1) % 2].copy()
