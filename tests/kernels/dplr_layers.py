"""The delta rule by channel as a layer of `test_ssm`, and what a loop in float64 makes of the same inputs."""

import numpy as np

from oxillama.kernels.dplr import ChannelDelta, channel_delta, decaying
from oxillama.kernels.rows import Vector
from oxillama.kernels.ssm import columns
from tests.kernels.delta_layer import EPS, sigmoid, unit


def parts_of(rows, sizes):
    first = np.cumsum([0, *sizes])
    return (columns(rows, int(at), n) for at, n in zip(first, sizes, strict=False))


class ChannelDeltaLayer:
    """Rows are queries, keys, values, the gate, time steps and beta. ``bound``: of logarithms of decays, or 0."""

    def __init__(self, heads, dim, n_tokens, bound=0.0):
        rng = np.random.default_rng(8)
        self.heads, self.dim, inner = heads, dim, heads * dim
        self.sizes = [inner] * 5 + [heads]
        self.x = rng.standard_normal((n_tokens, sum(self.sizes))).astype(np.float32)
        self.a, self.bound = -np.exp(rng.standard_normal(heads)).astype(np.float32) * (-1 if bound else 1), bound
        self.bias, self.norm = (rng.standard_normal(n).astype(np.float32) for n in (inner, dim))
        self.rule = ChannelDelta(self.a, self.bias, self.norm, eps=EPS, bound=bound)
        self.n_values = heads * dim * (-(-dim // 16) * 16)

    def run(self, rows, slab, batch):
        return channel_delta(*parts_of(rows, self.sizes), self.rule, slab, batch)

    def expected(self):
        n, shape = len(self.x), (len(self.x), self.heads, self.dim)
        q, k, v, gate, steps, beta = np.split(self.x.astype(np.float64), np.cumsum(self.sizes[:-1]), axis=1)
        q, k, v = unit(q.reshape(shape)) / np.sqrt(self.dim), unit(k.reshape(shape)), v.reshape(shape)
        if self.bound:
            forget = np.exp(self.bound * sigmoid(self.a[:, None] * (steps + self.bias).reshape(shape)))
        else:
            forget = np.exp(self.a[:, None] * np.logaddexp(0, steps + self.bias).reshape(shape))
        y, state = np.empty_like(v), np.zeros((self.heads, self.dim, self.dim))
        for t in range(n):
            state *= forget[t][:, :, None]
            wrong = v[t] - (state * k[t][:, :, None]).sum(1)
            state += k[t][:, :, None] * (sigmoid(beta[t])[:, None] * wrong)[:, None]
            y[t] = (state * q[t][:, :, None]).sum(1)
        y = y / np.sqrt((y * y).mean(-1, keepdims=True) + EPS) * self.norm
        return y.reshape(n, -1) * sigmoid(gate)


class FadingLayer:
    """Linear attention whose past fades: rows are queries, keys and values."""

    def __init__(self, heads, dim, n_tokens):
        rng = np.random.default_rng(9)
        self.heads, self.dim, inner = heads, dim, heads * dim
        self.sizes = [inner] * 3
        self.x = rng.standard_normal((n_tokens, 3 * inner)).astype(np.float32)
        self.decays = rng.uniform(0.3, 1, inner).astype(np.float32)
        self.n_values = heads * dim * (-(-dim // 16) * 16)

    def run(self, rows, slab, batch):
        return decaying(*parts_of(rows, self.sizes), Vector(self.decays), self.heads, slab, batch)

    def expected(self):
        shape = (len(self.x), self.heads, self.dim)
        q, k, v = (part.reshape(shape) for part in np.split(self.x.astype(np.float64), 3, axis=1))
        y, state = np.empty_like(v), np.zeros((self.heads, self.dim, self.dim))
        for t in range(len(v)):
            state = self.decays.reshape(self.heads, -1, 1) * state + k[t][:, :, None] * v[t][:, None]
            y[t] = (state * q[t][:, :, None]).sum(1)
        return y.reshape(len(y), -1)
