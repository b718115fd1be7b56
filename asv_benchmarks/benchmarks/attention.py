"""Attention alone: one layer of 32 heads over 8, 64 wide, after 4096 positions, for each type of KV."""

import numpy as np

from oxillama.kernels import config
from oxillama.kernels.attention import Attention, KvSlab, attend, store
from oxillama.kernels.batch import Batch, Span
from oxillama.kernels.rows import Workspace

DEPTH, HEADS, KV_HEADS, DIM, BLOCK = 4096, 32, 8, 64, 16


class AtDepth:
    """n rows after 4096 positions: a chunk of a prompt, or one token."""

    params = (("f16", "q8_0", "q4_0"), (512, 1))
    param_names = ("kv_type", "rows")

    def setup(self, kv_type: str, n: int) -> None:
        rng = np.random.default_rng(0)
        self.workspace = Workspace(int(str(config()["threads"])))
        blocks = (DEPTH + 512) // BLOCK
        self.slab, table = KvSlab(kv_type, blocks, KV_HEADS, BLOCK, DIM), rng.permutation(blocks).tolist()
        for start in range(0, DEPTH + 512, 512):
            batch = Batch([Span(range(512), start, table)], self.workspace)
            k, v = (self.workspace.from_array(rng.standard_normal((512, KV_HEADS * DIM))) for _ in range(2))
            store(k, v, self.slab, batch)
            self.workspace.reset()
        self.batch = Batch([Span(range(n), DEPTH, table)], self.workspace)
        self.q = self.workspace.from_array(rng.standard_normal((n, HEADS * DIM)))
        self.rule = Attention(DIM**-0.5)

    def time_attend(self, kv_type: str, n: int) -> None:
        mark = self.workspace.mark()
        attend(self.q, self.slab, self.batch, self.rule)
        self.workspace.release(mark)
