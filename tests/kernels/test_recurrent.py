"""Slots of recurrent states, and the batches that name them."""

import os

import numpy as np
import pytest

from oxillama.errors import ConfigError
from oxillama.kernels.batch import Batch, Span
from oxillama.kernels.recurrent import RecurrentSlab
from oxillama.kernels.rows import Workspace


def batch(*spans):
    """Of (number of tokens, position, (read, write) or None)."""
    return Batch([Span(range(n), start, [], slots=slots) for n, start, slots in spans], Workspace(1))


@pytest.mark.parametrize("n_values", [1, 15, 16, 17, 1000])
def test_rows_are_zeros_aligned_and_apart(n_values):
    slab = RecurrentSlab(5, n_values)
    assert slab.data.shape == (5, n_values)
    assert slab.data.dtype == np.float32
    assert not slab.data.any()
    assert all(row.ctypes.data % 64 == 0 for row in slab.data)
    slab.data[:] = np.arange(5)[:, None]
    assert (slab.data == np.arange(5)[:, None]).all()


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux's figures of a process")
def test_memory_comes_when_it_is_written():
    def resident():
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident()
    slab = RecurrentSlab(1 << 14, 1 << 16)  # 4 GB
    slab.data[-1] = 1
    assert resident() - before < 64 << 20
    assert slab.data[-1].all()


@pytest.mark.parametrize(("n_slots", "n_values"), [(0, 4), (4, 0), (-1, 4)])
def test_no_slots_or_values(n_slots, n_values):
    with pytest.raises(ConfigError, match=f"{n_slots} slots of {n_values}"):
        RecurrentSlab(n_slots, n_values)


def test_good_batches():
    slab = RecurrentSlab(4, 3)
    slab.check_batch(batch((3, 0, (-1, 0)), (2, 5, (1, 2)), (1, 9, (1, 3))))  # two may read the same
    assert batch((2, 7, None)).n_rows == 2


@pytest.mark.parametrize(
    ("start", "slots"), [(0, (0, 1)), (3, (-1, 1)), (3, (2, 2)), (3, (2, -1)), (3, (-2, 1)), (3, (1, 1 << 31))]
)
def test_slots_that_can_not_be(start, slots):
    with pytest.raises(
        ConfigError, match=f"span 1 at position {start} reads slot {slots[0]} and writes slot {slots[1]}:"
    ):
        batch((1, 0, (-1, 9)), (1, start, slots))


@pytest.mark.parametrize("second", [(5, 1), (1, 7)])
def test_what_one_span_writes_no_other_uses(second):
    with pytest.raises(ConfigError, match=r"writes slot 1, which span . uses"):
        batch((1, 3, (2, 1)), (1, 3, second))


@pytest.mark.parametrize("slots", [(4, 0), (0, 4), None])
def test_slots_that_a_slab_does_not_have(slots):
    slab = RecurrentSlab(4, 3)
    with pytest.raises(ConfigError, match="span 1"):
        slab.check_batch(batch((1, 0, (-1, 1)), (1, 3, slots)))
    with pytest.raises(ConfigError, match="reads slot -1 and writes slot -1"):
        slab.check_batch(batch((1, 0, None)))


def test_the_rows_that_leave_have_no_slots():
    """A recurrent layer that is given them by mistake says so, rather than skip rows."""
    full = Batch([Span(range(5), 0, [], "last", (-1, 2)), Span([1, 2], 4, [], "all", (0, 1))], Workspace(1))
    slab = RecurrentSlab(3, 3)
    slab.check_batch(full)
    assert full.outputs.n_rows == 3
    with pytest.raises(ConfigError, match="reads slot -1"):
        slab.check_batch(full.outputs)
