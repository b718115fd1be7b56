"""The gated delta rule as a layer of `test_ssm`, and what a loop in float64 makes of the same inputs."""

import numpy as np

from oxillama.kernels.delta import Delta, delta
from oxillama.kernels.ssm import columns

AT, EPS = 64, 1e-6


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def unit(x):
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)


class DeltaLayer:
    """Rows are queries, keys, values, the gate, time steps and beta."""

    def __init__(self, heads, n_keys, k_dim, v_dim, n_tokens, neighbours=False):
        rng = np.random.default_rng(8)
        self.heads, self.n_keys, self.k_dim, self.v_dim, self.neighbours = heads, n_keys, k_dim, v_dim, neighbours
        self.sizes = [2 * n_keys * k_dim + heads * v_dim, heads * v_dim, heads, heads]
        self.x = rng.standard_normal((n_tokens, sum(self.sizes))).astype(np.float32)
        self.a = -np.exp(rng.standard_normal(heads)).astype(np.float32)
        self.bias, self.norm = (rng.standard_normal(n).astype(np.float32) for n in (heads, v_dim))
        self.rule = Delta(self.a, self.bias, self.norm, k_dim=k_dim, n_keys=n_keys, eps=EPS, neighbours=neighbours)
        self.n_values = AT + self.rule.n_values

    def run(self, rows, slab, batch):
        first = np.cumsum([0, *self.sizes])
        parts = (columns(rows, int(at), n) for at, n in zip(first, self.sizes, strict=False))
        return delta(*parts, self.rule, AT, slab, batch)

    def expected(self):
        x = self.x.astype(np.float64)
        qkv, z, dt, beta = np.split(x, np.cumsum(self.sizes[:-1]), axis=1)
        n, keys = len(x), self.n_keys * self.k_dim
        q, k, v = (part.reshape(n, -1, width) for part, width in zip(
            np.split(qkv, [keys, 2 * keys], axis=1), (self.k_dim, self.k_dim, self.v_dim), strict=True
        ))  # fmt: skip
        each = self.heads // self.n_keys
        of = np.arange(self.heads) // each if self.neighbours else np.arange(self.heads) % self.n_keys
        q, k = unit(q)[:, of] / np.sqrt(self.k_dim), unit(k)[:, of]
        forget, learn = np.exp(self.a * np.logaddexp(0, dt + self.bias)), sigmoid(beta)
        y, state = np.empty_like(v), np.zeros((self.heads, self.k_dim, self.v_dim))
        for t in range(n):
            state *= forget[t][:, None, None]
            wrong = v[t] - (state * k[t][:, :, None]).sum(1)
            state += k[t][:, :, None] * (learn[t][:, None] * wrong)[:, None]
            y[t] = (state * q[t][:, :, None]).sum(1)
        y = y / np.sqrt((y * y).mean(-1, keepdims=True) + EPS) * self.norm
        return y.reshape(n, -1) * z * sigmoid(z)
