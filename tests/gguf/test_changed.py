"""A file that is changed while it is open: what is read of it then is an error, whoever reads it."""

import copy
import os
import pickle

import numpy as np
import pytest

import oxillama.gguf as gguf
from oxillama.errors import GGUFError, ModelFileError
from oxillama.gguf.source import FileSource

ARRAYS = {"words": ["a", "bc", ""], "numbers": [1, 2, 3]}
VALUES = np.arange(40_000, dtype=np.float32)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "m.gguf"
    gguf.write_gguf(path, {"name": "m", **ARRAYS}, {"t": VALUES})
    return path


def touch(path):
    os.utime(path, (1, 1))


def cut(path):
    os.truncate(path, path.stat().st_size - 9)


CHANGES = pytest.mark.parametrize("change", [touch, cut])


@CHANGES
def test_whatever_is_decoded(path, change):
    file = gguf.open(path)
    words, numbers, tensor = file.metadata["words"], file.metadata["numbers"], file.tensors["t"]
    assert (words[1], numbers[1], len(tensor.dequantize())) == ("bc", 2, 40_000)
    change(path)
    reads = [
        words.tolist, words.bytes_list, numbers.tolist, numbers.numpy, tensor.dequantize, tensor.check, file.check,
        lambda: words[1], lambda: words[1:], lambda: numbers[1], lambda: words.bytes_at(1), lambda: list(words),
        lambda: words == ARRAYS["words"],
    ]  # fmt: skip
    for read in reads:
        with pytest.raises(ModelFileError, match=r"m\.gguf: the file"):
            read()
    assert file.metadata["name"] == "m"


def use(path, change=lambda path: None, error=None):
    """In a block, at whose end the file must be closed."""
    try:
        with gguf.open(path) as file:
            change(path)
            if error is not None:
                raise error
    finally:
        assert file.closed


@CHANGES
def test_a_block_ends_in_the_error(path, change):
    with pytest.raises(ModelFileError):
        use(path, change)


@pytest.mark.parametrize("error", [GGUFError("what came of it"), OSError(14, "Bad address")])
def test_so_it_does_for_an_error_that_may_come_of_it(path, error):
    with pytest.raises(ModelFileError) as caught:
        use(path, cut, error)
    assert caught.value.__context__ is error


def test_but_not_for_another(path):
    with pytest.raises(ZeroDivisionError):
        use(path, cut, ZeroDivisionError())


def test_nor_for_a_file_that_was_closed_before(path):
    with gguf.open(path) as file:
        file.close()
        cut(path)


def test_a_block_ends_well_without_a_change(path):
    use(path)
    with pytest.raises(GGUFError, match="something else"):
        use(path, error=GGUFError("something else"))
    with gguf.open(path.read_bytes()) as file:
        file.check()
        file.tensors["t"].check()
    file.check()


@CHANGES
@pytest.mark.parametrize("tensors", [True, False])
def test_nothing_is_written(path, tmp_path, change, tensors):
    to = tmp_path / "to.gguf"
    to.write_bytes(b"old")
    file = gguf.open(path)
    writes = [
        lambda: gguf.write_gguf(to, file.metadata, file.tensors if tensors else {}),
        lambda: gguf.copy(file, to),
        lambda: gguf.write_gguf(to, {}, {"t": file.tensors["t"]}),
    ]
    change(path)
    for write in writes:
        with pytest.raises(ModelFileError):
            write()
        assert to.read_bytes() == b"old"
        assert sorted(p.name for p in tmp_path.iterdir()) == ["m.gguf", "to.gguf"]


def test_a_disk_that_fails(path):
    """Neither size nor time tell of it."""
    file, data, info = gguf.open(path), path.read_bytes(), path.stat()
    mapped = np.frombuffer(file.shards[0].source.mapping, np.uint8)
    os.truncate(path, 0)
    assert not mapped.any()  # what can't be read is zeros
    path.write_bytes(data)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    for _ in range(2):
        with pytest.raises(ModelFileError, match="the file could not be read where it is mapped; load the model again"):
            file.tensors["t"].dequantize()


def test_arrays_are_copied_without_their_file(path):
    file = gguf.open(path)
    for name, expected in ARRAYS.items():
        array = file.metadata[name]
        copies = [pickle.loads(pickle.dumps(array)), copy.deepcopy(array)]
        assert [list(c) for c in copies] == [expected, expected]
    path.write_bytes(b"")
    assert [list(c) for c in copies] == [expected, expected]


def test_mapped_as_long_as_somebody_needs_it(path):
    source = FileSource(path)
    data = source.map()
    del source
    os.replace(path, path.with_name("other"))
    assert data[:4].tobytes() == b"GGUF"


def test_no_copy_shares_what_is_mapped(path):
    """It would have nothing that checks it."""
    file = gguf.open(path)
    arrays = [file.metadata[name] for name in ARRAYS]
    copies = [copy.copy(array) for array in arrays]
    cut(path)
    path.write_bytes(b"")
    assert [list(c) for c in copies] == list(ARRAYS.values())
    for array in arrays:
        for way in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(ModelFileError, match=r"m\.gguf: the file"):
                way(array)


def test_a_part_of_an_array_is_checked_once(path):
    file = gguf.open(path)
    for name, expected in ARRAYS.items():
        array, checks = file.metadata[name], []
        array.check = lambda checks=checks: checks.append(1)
        for part in (slice(None), slice(1, None), slice(None, None, -2), slice(2, 1), slice(-2, 99)):
            checks.clear()
            assert (array[part], len(checks)) == (expected[part], 1)
            assert {type(x) for x in array[part]} <= {type(expected[0])}
