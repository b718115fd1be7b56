"""Models that are split over several files."""

import struct

import pytest

import oxillama.gguf as gguf
from oxillama.errors import GGUFError, LoadError, MissingKeyError, ModelNotFoundError

from . import build as b


def part(no, count, names, total, **changes):
    keys = {"split.no": (b.U16, no), "split.count": (b.U16, count), "split.tensors.count": (b.I32, total), **changes}
    kvs = [b.kv("general.architecture", b.STRING, "llama")] if no == 0 else []
    kvs += [b.kv(k, *v) for k, v in keys.items() if v is not None]
    infos = [b.tensor(name, [4], 0, 32 * i) for i, name in enumerate(names)]
    data = b"".join(struct.pack("<4f", no, i, 0, 0) + bytes(16) for i in range(len(names)))
    return b.gguf(kvs, infos, data)


@pytest.fixture
def split(tmp_path):
    """Three parts with 2, 0 and 1 tensors; returns a function from part number to path."""

    def path(i):
        return tmp_path / f"m-{i:05}-of-00003.gguf"

    for i, names in enumerate((["a", "b"], [], ["c"])):
        path(i + 1).write_bytes(part(i, 3, names, 3))
    return path


def test_the_first_file_opens_all(split):
    with gguf.open(split(1)) as f:
        assert list(f.tensors) == ["a", "b", "c"]
        assert [t.dequantize()[:2].tolist() for t in f.tensors.values()] == [[0, 0], [0, 1], [2, 0]]
        assert [t.path for t in f.tensors.values()] == [split(1), split(1), split(3)]
        assert f.metadata.arch == "llama"
        assert f.n_bytes == sum(split(i).stat().st_size for i in (1, 2, 3))
        assert len(f.shards) == 3


def test_a_missing_part_is_named(split):
    split(2).unlink()
    with pytest.raises(ModelNotFoundError, match=r"m-00002-of-00003\.gguf: part 2 of 3 .* is missing"):
        gguf.open(split(1))


def test_another_part_than_the_first_names_the_first(split):
    with pytest.raises(GGUFError, match=r"part 3 of 3 .*open the first: .*m-00001-of-00003\.gguf"):
        gguf.open(split(3))


def test_a_part_that_was_renamed_or_is_in_memory_is_refused(split, tmp_path):
    raw = split(1).read_bytes()
    (tmp_path / "other.gguf").write_bytes(raw)
    with pytest.raises(GGUFError, match=r"other\.gguf: part 1 .*NAME-00001-of-00003\.gguf"):
        gguf.open(tmp_path / "other.gguf")
    (tmp_path / "m-00001-of-00004.gguf").write_bytes(raw)
    with pytest.raises(GGUFError, match=r"NAME-00001-of-00003\.gguf"):
        gguf.open(tmp_path / "m-00001-of-00004.gguf")
    with pytest.raises(GGUFError, match=r"<memory>: part 1 .*by the path"):
        gguf.open(raw)


@pytest.mark.parametrize(
    ("number", "content", "message"),
    [
        (2, part(2, 3, ["x"], 3), r"m-00002.*its metadata say part 3 of 3; part 2 of 3 is needed"),
        (2, part(1, 4, [], 3), r"m-00002.*part 2 of 4; part 2 of 3"),
        (2, part(1, 3, ["a"], 3), r"m-00002.*tensor 'a' is also in .*m-00001"),
        (2, part(1, 3, ["x"], 3), r"m-00001.*split\.tensors\.count is 3; its 3 files hold 4"),
        (2, part(1, 3, [], 3)[:-1], r"m-00002.*truncated|m-00002.*needs"),
        (2, b"", r"m-00002.*empty"),
        (2, b.gguf(), r"m-00002.*part 1 of 1; part 2 of 3"),
        (1, part(0, 3, ["a", "b"], 4), r"m-00001.*split\.tensors\.count is 4; its 3 files hold 3"),
        (1, part(3, 3, ["a", "b"], 3), r"m-00001.*split\.no is 3, split\.count 3"),
        (1, part(-1, 3, [], 3, **{"split.no": (b.I32, -1)}), r"m-00001.*'split\.no' is -1"),
        (1, part(0, 3, [], 3, **{"split.count": (b.STRING, "3")}), r"m-00001.*'split\.count' holds STRING"),
        (1, part(0, 3, [], 3, **{"split.count": (b.U32, 1 << 31)}), r"m-00001.*'split\.count' is 2147483648"),
    ],
)
def test_parts_that_do_not_belong_together_are_named(split, number, content, message):
    split(number).write_bytes(content)
    with pytest.raises(LoadError, match=message):
        gguf.open(split(1))


def test_the_number_of_tensors_must_be_there(split):
    split(1).write_bytes(part(0, 3, ["a", "b"], 3, **{"split.tensors.count": None}))
    with pytest.raises(MissingKeyError, match=r"split\.tensors\.count"):
        gguf.open(split(1))


def test_a_model_split_into_one_is_not_split(tmp_path):
    (tmp_path / "m.gguf").write_bytes(part(0, 1, ["a"], 1))
    assert list(gguf.open(tmp_path / "m.gguf").tensors) == ["a"]
    assert list(gguf.open(part(0, 1, ["a"], 1)).tensors) == ["a"]


def test_a_split_model_is_copied_into_one_file(split, tmp_path):
    with gguf.open(split(1)) as f:
        gguf.copy(f, tmp_path / "one.gguf")
        with gguf.open(tmp_path / "one.gguf") as g:
            assert dict(g.metadata) == {"general.architecture": "llama"}
            assert [(t.name, t.data.tobytes()) for t in g.tensors.values()] == [
                (t.name, t.data.tobytes()) for t in f.tensors.values()
            ]
