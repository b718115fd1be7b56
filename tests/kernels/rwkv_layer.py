"""RWKV-7's time mix as a layer of `test_ssm`, and what a loop in float64 makes of the same inputs."""

import numpy as np

from oxillama.kernels.rwkv import Rwkv7, rwkv7
from tests.kernels.delta_layer import sigmoid
from tests.kernels.dplr_layers import parts_of


class Rwkv7Layer:
    """Rows are receptances, what goes into decays, keys, values, and what goes into the rates of learning."""

    EPS = 64e-5

    def __init__(self, heads, dim, n_tokens):
        rng = np.random.default_rng(9)
        self.heads, self.dim, inner = heads, dim, heads * dim
        self.sizes = [inner] * 5
        self.x = rng.standard_normal((n_tokens, sum(self.sizes))).astype(np.float32)
        self.vectors = rng.standard_normal((6, inner)).astype(np.float32)
        self.mix = Rwkv7(*self.vectors, width=dim, eps=self.EPS)
        self.n_values = heads * dim * (-(-dim // 16) * 16)

    def run(self, rows, slab, batch):
        return rwkv7(*parts_of(rows, self.sizes), self.mix, slab, batch)

    def expected(self):
        n, shape = len(self.x), (len(self.x), self.heads, self.dim)
        r, w, k, v, a = (x.reshape(shape) for x in np.split(self.x.astype(np.float64), 5, axis=1))
        w0, k_k, k_a, r_k, weight, bias = self.vectors.astype(np.float64).reshape(6, self.heads, self.dim)
        w, a, removed = np.exp(-np.exp(-0.5) * sigmoid(w0 + w)), sigmoid(a), k * k_k
        removed = removed / np.sqrt((removed * removed).sum(-1, keepdims=True))
        k = k * (1 + (a - 1) * k_a)
        y, state = np.empty_like(v), np.zeros((self.heads, self.dim, self.dim))  # [keys, values]
        for t in range(n):
            seen = (state * removed[t][:, :, None]).sum(1)
            state = state * w[t][:, :, None] - (removed[t] * a[t])[:, :, None] * seen[:, None]
            state += k[t][:, :, None] * v[t][:, None]
            y[t] = (state * r[t][:, :, None]).sum(1)
        centred = y - y.mean(-1, keepdims=True)
        y = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + self.EPS) * weight + bias
        return (y + (r * k * r_k).sum(-1, keepdims=True) * v).reshape(n, -1)
