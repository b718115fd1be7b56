"""Released memory: the right pages go, and no other byte changes."""

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from oxillama.kv_cache import pages
from oxillama.kv_cache.arrays import StateArrays
from oxillama.kv_cache.pages import begin_small, release_rows
from oxillama.layer_state import KvShape, RecurrentShape

PAGE = mmap.PAGESIZE
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives pages back at once")

HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
huge_pages = pytest.mark.skipif(
    not HUGE.exists() or "[never]" in HUGE.read_text(), reason="huge pages are off: all are small without asking"
)


def touched(n_rows, row_bytes, offset=0):
    array = np.zeros(n_rows * row_bytes + offset, np.uint8)[offset:].reshape(n_rows, row_bytes)
    array[:] = 7
    return array


@linux
@pytest.mark.parametrize(
    ("row_bytes", "offset"), [(PAGE, 0), (PAGE // 4, 64), (5 * PAGE + 100, 3), (64, 0), (3 * PAGE, 1)]
)
def test_whole_pages_of_the_rows_go_and_nothing_else(row_bytes, offset):
    array = touched(2000 if row_bytes < PAGE else 40, row_bytes, offset)
    rows = [*range(5, 30), 33, 34]
    released = release_rows(array, reversed(rows))
    assert released % PAGE == 0
    assert release_rows(array, rows) == 0  # they are not there any more
    others = np.delete(array, rows, 0)
    assert (others == 7).all()
    assert np.count_nonzero(array == 0) == released
    assert released >= 27 * row_bytes - 4 * PAGE
    array[rows] = 9
    assert release_rows(array, rows) == released


@linux
def test_pages_never_written_are_not_counted():
    memory = mmap.mmap(-1, 100 << 16)
    memory.madvise(mmap.MADV_NOHUGEPAGE)  # of which one would be written as a whole
    array = np.frombuffer(memory, np.uint8).reshape(100, 1 << 16)
    array[3] = 1
    assert 1 << 16 <= release_rows(array, range(100)) <= (1 << 16) + PAGE


@linux
@huge_pages
@pytest.mark.parametrize("offset", [0, 64, PAGE + 1])
def test_what_is_written_first_takes_small_pages(offset):
    """And what comes behind keeps those that it was given."""
    array = np.zeros((64 << 20) + offset, np.uint8)[offset:]
    begin_small(array)
    for at in (0, pages.HUGE - 1):
        array[at] = 1
    rows = array.reshape(64, 1 << 20)
    assert release_rows(rows, range(4)) <= 4 * PAGE
    assert (array == 0).sum() >= array.size - 2
    array[:] = 3
    assert (array == 3).all()


def test_nothing_is_released_on_other_systems(monkeypatch):
    monkeypatch.setattr(pages, "LINUX", False)
    array = touched(9, PAGE)
    assert release_rows(array, range(9)) == 0
    assert (array == 7).all()


@linux
def test_each_kind_of_id_releases_its_own_slabs():
    states = [(KvShape(1, 64, 64),), (KvShape(1, 64, 64, window=9), RecurrentShape(1 << 12))]
    arrays = StateArrays(states, kv_type="f32", block_tokens=64, n_blocks=20, n_slots=20, n_windowed=20)
    (full,), (windowed, recurrent) = arrays.layers
    for array in (full.k, full.v, windowed.k, windowed.v, recurrent.data):
        array[:] = 1
    n = arrays.release(range(4), range(4, 8), range(8, 12))
    assert sum(arrays.id_bytes) * 4 - 10 * PAGE <= n <= sum(arrays.id_bytes) * 4
    for array, rows in ((full.k, range(4)), (windowed.v, range(4, 8)), (recurrent.data, range(8, 12))):
        assert not array[rows[1]].all()
        assert np.delete(array, rows, 0).all()
