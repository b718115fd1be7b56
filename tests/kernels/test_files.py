"""Single rows of a table in a file, in the page cache or not."""

import os

import numpy as np
import pytest

from oxillama.errors import GenerateError
from oxillama.kernels.files import read_rows

N_ROWS, ROW_BYTES, OFFSET = 300, 34, 3


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rows = np.random.default_rng(0).integers(0, 256, (N_ROWS, ROW_BYTES), dtype=np.uint8)
    path = tmp_path_factory.mktemp("table") / "rows"
    path.write_bytes(b"abc" + rows.tobytes())
    with path.open("rb") as file:
        yield file.fileno(), rows


def read(fd, ids, n_rows=N_ROWS):
    out = np.zeros((len(ids), ROW_BYTES), np.uint8)
    status = read_rows(fd, OFFSET, ROW_BYTES, n_rows, np.array(ids, np.int32), out.reshape(-1))
    return status, out


@pytest.mark.parametrize("n", [0, 1, 200])
@pytest.mark.parametrize("cached", [True, False])
def test_rows(table, n, cached):
    fd, rows = table
    ids = np.random.default_rng(n).integers(0, N_ROWS, n)
    if not cached and hasattr(os, "posix_fadvise"):
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    status, found = read(fd, ids)
    assert status == 0
    assert (found == rows[ids]).all()


@pytest.mark.parametrize("before", [0, 5])
def test_a_file_that_ends_before_a_row(table, before):
    fd, rows = table
    status, found = read(fd, [*range(before), N_ROWS], N_ROWS + 1)
    assert status == -1
    assert (found[:before] == rows[:before]).all()


def test_rows_that_the_table_does_not_have(table):
    for ids in ([N_ROWS], [0, -1]):
        with pytest.raises(GenerateError, match=r"is not in 0\.\.299"):
            read(table[0], ids)


def test_a_descriptor_that_is_no_file():
    assert read(-1, [0])[0] > 0
