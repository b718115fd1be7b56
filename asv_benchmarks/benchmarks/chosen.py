"""Attention over chosen keys, against that over all: one layer of latent attention, and one of MiniMax-M3's shape."""

import numpy as np

from oxillama.kernels import config
from oxillama.kernels.attention import Attention, KvSlab, attend, store
from oxillama.kernels.batch import Batch, Span
from oxillama.kernels.chosen import Choice, attend_chosen, choose
from oxillama.kernels.rows import Rows, Workspace

BLOCK, INDEX_DIM = 16, 128
# heads, heads of keys, widths of keys and values, heads of the index, units that are chosen, positions in a unit
SHAPES = {"latent": (128, 1, 576, 512, 64, 2048, 1), "blocks": (64, 4, 128, 128, 4, 16, 128)}


class AtDepth:
    """n rows after so many positions."""

    params = (tuple(SHAPES), (4096, 16384), (16, 1), ("f16", "q4_0"))
    param_names = ("shape", "depth", "rows", "kv_type")

    def setup(self, shape: str, depth: int, n: int, kv_type: str) -> None:
        heads, kv_heads, k_dim, v_dim, index_heads, self.k, self.unit = SHAPES[shape]
        self.rng, self.workspace = np.random.default_rng(0), Workspace(int(str(config()["threads"])))
        blocks = (depth + 512) // BLOCK
        self.slab, self.index = (
            KvSlab(kv_type, blocks, kv_heads, BLOCK, k_dim, v_dim),
            KvSlab(kv_type, blocks, 1, BLOCK, INDEX_DIM, 0),
        )
        table = self.rng.permutation(blocks).tolist()
        for start in range(0, depth + 512, 512):
            batch = Batch([Span(range(512), start, table)], self.workspace)
            store(self.rows(512, kv_heads * k_dim), self.rows(512, kv_heads * v_dim), self.slab, batch)
            store(self.rows(512, INDEX_DIM), None, self.index, batch)
            self.workspace.reset()
        self.batch, self.rule = Batch([Span(range(n), depth, table)], self.workspace), Attention(k_dim**-0.5)
        self.q, self.index_q = self.rows(n, heads * k_dim), self.rows(n, index_heads * INDEX_DIM)
        self.weights, self.kv_heads = self.rows(n, index_heads) if self.unit == 1 else None, kv_heads

    def rows(self, n: int, dim: int) -> Rows:
        return self.workspace.from_array(self.rng.standard_normal((n, dim), np.float32))

    def time_all(self, shape: str, depth: int, n: int, kv_type: str) -> None:
        mark = self.workspace.mark()
        attend(self.q, self.slab, self.batch, self.rule)
        self.workspace.release(mark)

    def time_chosen(self, shape: str, depth: int, n: int, kv_type: str) -> None:
        mark = self.workspace.mark()
        choice = Choice(self.batch, self.k, unit=self.unit, n_heads=self.kv_heads, local=self.unit > 1)
        choose(self.index_q, self.weights, self.index, self.batch, choice)
        attend_chosen(self.q, self.slab, self.batch, self.rule, choice)
        self.workspace.release(mark)
