"""Attention with a window over block tables whose beginning was given back: the bits of a table that has it all."""

import numpy as np
import pytest

from oxillama.errors import ConfigError
from oxillama.kernels.attention import Attention, KvSlab, attend, store
from oxillama.kernels.batch import Batch, Span
from oxillama.kernels.rows import Workspace
from oxillama.layer_state import first_read
from tests.kernels.paged_attention import TYPES, Setup, in_chunks


class GivingBack(Setup):
    """The same sequence in few blocks: those that no row sees any more are poisoned, and used again."""

    def __init__(self, n, window, chunk, *sizes, block=16, kv_type="f32", threads=1):
        super().__init__(n, *sizes, block, kv_type, threads)
        n_blocks = -(-(window + chunk + max(64, block)) // block)
        full = self.slab
        self.slab = KvSlab(kv_type, n_blocks, full.n_heads, block, full.k_dim, full.v_dim, windowed=True)
        self.slab.k[:] = self.slab.v[:] = 0xFF
        self.free, self.window, self.block = list(range(n_blocks)), window, block
        self.table = []

    def span(self, start, end):
        for i in range(first_read(start, self.window) // self.block):
            if self.table[i] >= 0:
                self.slab.k[self.table[i]] = self.slab.v[self.table[i]] = 0xFF
                self.free.append(self.table[i])
                self.table[i] = -1
        while len(self.table) * self.block < end:
            self.table.append(self.free.pop())
        return Span(range(end - start), start, [], windowed=list(self.table))


@pytest.mark.parametrize("kv_type", TYPES)
@pytest.mark.parametrize(("window", "chunk"), [(1, 1), (40, 1), (64, 7), (100, 30), (40, 64), (600, 100)])
def test_blocks_before_the_window_are_never_read(window, chunk, kv_type):
    n = 330 if window < 200 else 1300
    whole = Setup(n, 4, 2, 48, kv_type=kv_type).run([n], window)
    for block, threads in ((16, 1), (32, 3), (64, 2), (128, 1)):
        s = GivingBack(n, window, chunk, 4, 2, 48, block=block, kv_type=kv_type, threads=threads)
        assert (s.run(in_chunks(n, chunk), window) == whole).all()
        assert s.table[0] == -1


@pytest.mark.parametrize(("window", "chunk"), [(1, 1), (40, 7), (64, 30), (600, 100)])
def test_blocks_that_no_chunk_reaches_are_never_read(window, chunk):
    n = 330 if window < 200 else 1300
    whole = Setup(n, 4, 2, 48).run([n], window, chunked=True)
    for block in (16, 64):
        s = GivingBack(n, window, chunk, 4, 2, 48, block=block)
        assert (s.run(in_chunks(n, chunk), window, chunked=True) == whole).all()


def test_rows_that_leave_the_model_have_the_table_too():
    ws = Workspace(1)
    table = [-1] * 8 + [0, 1]
    batch = Batch([Span(range(20), 140, [], windowed=table)], ws)
    slab = KvSlab("f32", 2, 1, 16, 16, windowed=True)
    store(ws.new(20, 16), ws.new(20, 16), slab, batch)
    assert attend(ws.new(1, 16), slab, batch.outputs, Attention(1.0, window=5)).n == 1


TABLES = {
    "seen by the first row": ([-1] * 8 + [0, 1], 131, "sees position 64, but its first 8 blocks of 16"),
    "a hole": ([-1] * 4 + [0, -1, 1, 2, 3], 131, "block id -1 in its block table is negative"),
    "too short": ([-1] * 4 + [0, 1], 131, "covers 96"),
    "beyond the slab": ([-1] * 8 + [5], 132, "block id 5"),
    "all given back": ([-1] * 9, 140, "sees position 128, but its first 9 blocks"),
}


@pytest.mark.parametrize("case", TABLES)
def test_tables_that_would_lead_c_astray_are_refused(case):
    table, start, match = TABLES[case]
    ws = Workspace(1)
    slab = KvSlab("f32", 5, 1, 16, 16, windowed=True)
    with pytest.raises(ConfigError, match=match):
        attend(ws.new(2, 16), slab, Batch([Span(range(2), start, [], windowed=table)], ws), Attention(1.0, window=5))


def test_without_a_window_nothing_may_be_missing():
    ws = Workspace(1)
    slab = KvSlab("f32", 5, 1, 16, 16, windowed=True)
    batch = Batch([Span(range(2), 140, [], windowed=[-1] * 8 + [0])], ws)
    with pytest.raises(ConfigError, match="sees position 0, but its first 8 blocks"):
        attend(ws.new(2, 16), slab, batch, Attention(1.0))


@pytest.mark.parametrize("windowed", [False, True])
def test_each_slab_takes_its_own_table(windowed):
    ws = Workspace(1)
    slab = KvSlab("f32", 9, 1, 16, 16, windowed=windowed)
    k = np.arange(32, dtype=np.float32).reshape(2, 16) + 1
    store(ws.from_array(k), ws.from_array(k), slab, Batch([Span(range(2), 0, [3], windowed=[7])], ws))
    assert [i for i in range(9) if slab.k[i].any()] == [7 if windowed else 3]
