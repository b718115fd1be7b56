"""Snapshots in folders: incremental ones, shared blocks, other processes, compression, and writes that were killed."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

import oxillama as ox
from oxillama.errors import SnapshotDamagedError, SnapshotError, SnapshotFileError, SnapshotFormatError
from oxillama.snapshot import snapshot_info
from oxillama.snapshot.format import codec as compression
from oxillama.snapshot.format.block_garbage import collect_garbage
from oxillama.snapshot.format.reader import ArrayRows, Contents, SnapshotReader, open_reader
from oxillama.snapshot.format.source import MemorySource
from oxillama.snapshot.format.writer import packed
from tests.fakes import sequence_of, session_of
from tests.processes import ROOT, in_process
from tests.snapshot.models import load, path_of, same, tokens_of, told


@pytest.fixture(scope="module")
def engine():
    with load("llama") as engine:
        yield engine


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["llama", "gemma3", "mamba", "falcon-h1"])
def test_a_snapshot_resumes_in_another_process(name, tmp_path):
    tokenizer = {} if "tokenizer" in name else {"tokenizer_path": path_of("llama")}
    engine = ox.load(path_of(name), num_threads=1, **tokenizer)
    tokens = tokens_of(engine, 40)
    engine.prefill(tokens[:23])
    engine.snapshot(tmp_path / "session")
    stream = engine.stream(tokens[:9], max_tokens=20, seed=3, regex="[a-z ]*", logprobs=1)
    first = [next(stream) for _ in range(2)]
    stream.snapshot(tmp_path / "text")
    found = in_process(
        """
        engine = ox.Engine.restore(sys.argv[1], num_threads=3)
        print(engine.prefill(eval(sys.argv[3])).tobytes().hex())
        print([(c.text, c.token_ids, c.finish_reason, c.logprobs) for c in engine.resume(sys.argv[2])])
        """,
        tmp_path / "session", tmp_path / "text", tokens[23:],
    ).splitlines()  # fmt: skip
    assert found[0] == engine.prefill(tokens[23:]).tobytes().hex()
    assert found[1] == str([(c.text, c.token_ids, c.finish_reason, c.logprobs) for c in stream])
    assert first


def test_restore_finds_model_and_settings(tmp_path):
    engine = load(
        "llama", kv_type="q8_0", context_size=100, kv_block_size=32, prefix_cache=False, rope={"freq_base": 5e5}
    )
    row = engine.prefill([1, 2, 3, 4])
    engine.snapshot(tmp_path / "session")
    again = ox.Engine.restore(tmp_path / "session")
    assert again.config == engine.config
    assert same(again.logits, row)
    assert same(again.forward_one(7), engine.forward_one(7))
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(Path(path_of("llama")).read_bytes())
    other = ox.Engine.restore(tmp_path / "session", copy, num_threads=2, kv_budget=1 << 20)
    assert (other.num_threads, other.config.kv_budget, other.position) == (2, 1 << 20, 4)
    with pytest.raises(ox.SnapshotMismatchError, match="kv_type"):
        ox.Engine.restore(tmp_path / "session", kv_type="f16")
    moved = load("llama").config.model_path
    with ox.load(copy) as engine:
        engine.prefill([1, 2])
        saved = engine.snapshot_bytes()
    copy.unlink()
    with pytest.raises(SnapshotFileError, match=r"its model is not at '.*copy.gguf' any more: give model_path"):
        ox.Engine.restore_bytes(saved)
    assert ox.Engine.restore_bytes(saved, moved).position == 2


def test_models_in_memory_and_the_shipped_one_are_restored():
    data = Path(path_of("llama")).read_bytes()
    with ox.load(data) as engine:
        row = engine.prefill([1, 2, 3])
        saved = engine.snapshot_bytes()
    assert same(ox.Engine.restore_bytes(saved, data).logits, row)
    with pytest.raises(SnapshotFileError, match="was in memory: give model_path"):
        ox.Engine.restore_bytes(saved)
    with ox.load() as engine:
        engine.prefill([1, 2, 3])
        saved = engine.snapshot_bytes()
    assert ox.Engine.restore_bytes(saved).position == 3


def test_dump_and_load(engine, tmp_path):
    engine.reset()
    row = engine.prefill([1, 2, 3])
    ox.snapshot.dump(engine, tmp_path / "session")
    assert (tmp_path / "session").read_bytes() == ox.snapshot.dumps(engine)
    assert same(ox.snapshot.load(tmp_path / "session").logits, row)
    assert same(ox.snapshot.loads(ox.snapshot.dumps(engine), model_path=path_of("llama")).logits, row)


@pytest.mark.parametrize("name", ["llama", "jamba"])
def test_an_empty_session_is_saved(name, tmp_path):
    """Its last section is empty, and the file ends where that does nevertheless."""
    with load(name) as engine, load(name) as other:
        for begin in (lambda: None, lambda: engine.prefill([1, 2, 3]), engine.reset):
            begin()
            for option in ({}, {"shared": True}):
                engine.snapshot(tmp_path / "session", **option)
                again = other.resume(tmp_path / "session")
                assert (again.tokens, again.position) == (session_of(engine).tokens, engine.position)
        assert same(again.prefill([5, 6]), engine.prefill([5, 6]))


def test_file_names_that_are_not_unicode(tmp_path):
    name = os.fsdecode(b"m\xff\xe9")
    shutil.copy(path_of("llama"), tmp_path / f"{name}.gguf")
    with ox.load(tmp_path / f"{name}.gguf", num_threads=1) as engine:
        row = engine.prefill([1, 2, 3])
        engine.snapshot(tmp_path / name)
        assert ox.snapshot.snapshot_info(tmp_path / name).model_path == str(tmp_path / f"{name}.gguf")
        with ox.Engine.restore(tmp_path / name) as again:
            assert same(again.logits, row)
        with pytest.raises(ox.SnapshotError, match="is no UTF-8: use format=2"):
            engine.snapshot_bytes(format=1)


def test_snapshot_info_describes_every_kind(engine, tmp_path):
    engine.reset()
    engine.prefill([1, 2, 3])
    engine.snapshot(tmp_path / "session")
    info = snapshot_info(tmp_path / "session")
    assert info == snapshot_info((tmp_path / "session").read_bytes()) == ox.Engine.snapshot_info(tmp_path / "session")
    assert (info.magic, info.version, info.kind, info.arch_id) == (b"OXISNAP1", 2, "session", "llama")
    assert (info.model_path, info.tokenizer_path) == (path_of("llama"), None)
    assert (info.max_context_length, info.num_threads, info.tokens_count, info.computed_count) == (256, 1, 3, 3)
    assert (info.kv_type, info.adapters, info.base, info.shared_blocks) == ("f16", (), None, 0)
    assert sum(n for _, n in info.sections) < (tmp_path / "session").stat().st_size
    stream = engine.stream([1, 2, 3], max_tokens=3)
    assert snapshot_info(stream.snapshot()).kind == "text"


def test_arrays_can_be_read_where_they_lie(engine, tmp_path):
    """Aligned, and as they are in memory, so that a mapped file is enough."""
    engine.reset()
    engine.prefill(list(range(3, 50)))
    engine.snapshot(tmp_path / "session")
    mapped = np.memmap(tmp_path / "session", np.uint8, "r")
    with open_reader(tmp_path / "session") as reader:
        for section in reader.sections.values():
            assert section.offset % 64 == 0
            lying = mapped[section.offset : section.offset + section.n_stored]
            if section.name != "state":
                assert np.array_equal(lying.view(section.dtype).reshape(section.shape), reader.array(section.name))
    assert mapped[reader.sections["tokens"].offset :][: 47 * 4].view("<i4").tolist() == list(range(3, 50))


def test_the_same_session_gives_the_same_bytes(engine):
    tokens = tokens_of(engine, 40)
    found = set()
    for chunks in ([40], [1] * 40, [17, 23]):
        engine.generate(tokens_of(engine, 60, seed=len(chunks)), max_tokens=20)  # leaves something in the blocks
        engine.reset()
        at = 0
        for n in chunks:
            engine.prefill(tokens[at : at + n])
            at += n
        found.add(engine.snapshot_bytes())
    assert len(found) == 1


# ---- incremental


@pytest.mark.parametrize("name", ["llama", "gemma3", "jamba", "mamba2", "gpt-oss"])
def test_incremental_saves_resume_with_the_same_bits(name, tmp_path):
    with load(name, context_size=250) as engine, load(name, context_size=250, kv_block_size=32) as other:
        tokens = tokens_of(engine, 230)
        engine.prefill(tokens[:100])
        engine.snapshot(tmp_path / "0")
        for i, n in enumerate((101, 112, 113, 160), 1):
            engine.prefill(tokens[engine.position : n])
            engine.snapshot(tmp_path / f"{i}", base=tmp_path / f"{i - 1}")
            with other.resume(tmp_path / f"{i}") as session, engine.fork() as fork:
                assert sequence_of(session).n_computed == n
                assert same(session.prefill(tokens[n:]), fork.prefill(tokens[n:]))
        assert snapshot_info(tmp_path / "3").base == (None if name == "mamba2" else "2")  # of states, all is new
        engine.forward_prefill(tokens[::-1][:30], 90)  # goes another way from token 90 on
        engine.snapshot(tmp_path / "5", base=tmp_path / "4")
        with other.resume(tmp_path / "5") as session, engine.fork() as fork:
            assert session.tokens == session_of(engine).tokens
            assert same(session.forward_one(9), fork.forward_one(9))
        with other.resume(tmp_path / "4") as session:
            assert session.position == 160


def test_an_incremental_save_writes_only_new_rows(tmp_path):
    with load("llama", context_size=250) as engine:
        engine.prefill(tokens_of(engine, 30))
        sizes = []
        for i in range(6):
            engine.prefill(tokens_of(engine, 32, seed=i))
            engine.snapshot(tmp_path / f"{i}", **({"base": tmp_path / f"{i - 1}"} if i else {}))
            sizes.append((tmp_path / f"{i}").stat().st_size)
        # Two panels, and the one that was begun: 3 layers, 2 heads of 16 dimensions, keys and values of 2 bytes.
        assert max(sizes[1:]) - min(sizes[1:]) < 1000  # the tokens' ids
        kv = 3 * 16 * 3 * 2 * 16 * 2 * 2
        assert kv < sizes[-1] < kv + 10_000


def test_requests_are_saved_incrementally(engine, tmp_path):
    prompt = tokens_of(engine, 60)
    options = {"max_tokens": 60, "seed": 1, "ignore_eos": True}
    whole = told(engine.stream(prompt, **options))
    stream = engine.stream(prompt, **options)
    first = [next(stream) for _ in range(20)]
    stream.snapshot(tmp_path / "0")
    first += [next(stream) for _ in range(20)]
    stream.snapshot(tmp_path / "1", base=tmp_path / "0")
    assert told(first) + told(engine.resume(tmp_path / "1")) == whole
    assert snapshot_info(tmp_path / "1").base == "0"


def test_missing_and_changed_bases_are_refused(engine, tmp_path):
    engine.reset()
    engine.prefill(list(range(3, 40)))
    engine.snapshot(tmp_path / "a")
    engine.forward_one(7)
    engine.snapshot(tmp_path / "b", base=tmp_path / "a")
    with pytest.raises(SnapshotFormatError, match="needs the file 'a' beside it: give its path"):
        engine.resume((tmp_path / "b").read_bytes())
    with pytest.raises(ox.ConfigError, match="must be two files"):
        engine.snapshot(tmp_path / "a", base=tmp_path / "a")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ox.ConfigError, match="base must be in the folder of path"):
        engine.snapshot(tmp_path / "folder" / "c", base=tmp_path / "a")
    with pytest.raises(SnapshotFileError, match="missing"):
        engine.snapshot(tmp_path / "c", base=tmp_path / "missing")
    engine.forward_one(8)
    engine.snapshot(tmp_path / "c")
    (tmp_path / "a").rename(tmp_path / "kept")
    with pytest.raises(SnapshotFileError, match=r"/a'.* can't be read"):
        engine.resume(tmp_path / "b")
    (tmp_path / "c").rename(tmp_path / "a")
    with pytest.raises(SnapshotDamagedError, match="the file 'a' that it needs is not the one"):
        engine.resume(tmp_path / "b")
    bad = bytearray((tmp_path / "kept").read_bytes())
    bad[-5] ^= 1
    (tmp_path / "a").write_bytes(bad)
    engine.resume(tmp_path / "b").close()  # what is damaged is not what it needs
    with open_reader(tmp_path / "kept") as reader:
        bad[reader.sections["kv.1.0.v"].offset] ^= 1
    (tmp_path / "a").write_bytes(bad)
    with pytest.raises(SnapshotDamagedError, match=r"a: section kv.1.0.v holds other bytes"):
        engine.resume(tmp_path / "b")


# ---- shared blocks


def blocks_in(folder):
    return sorted(p for p in (folder / "blocks").rglob("*") if p.is_file() and p.name != "lock")


@pytest.mark.parametrize("name", ["llama", "gemma3", "jamba", "deepseek2"])
def test_shared_blocks_are_stored_once(name, tmp_path):
    with load(name, context_size=250) as engine, load(name, context_size=250, num_threads=2) as other:
        tokens = tokens_of(engine, 240)
        for i, n in enumerate((220, 130, 129, 200)):
            engine.reset()
            engine.prefill(tokens[:n])
            engine.snapshot(tmp_path / f"{i}", shared=True)
        assert len(blocks_in(tmp_path)) == 3  # of the longest: 220 // 64
        for i, n in enumerate((220, 130, 129, 200)):
            assert snapshot_info(tmp_path / f"{i}").shared_blocks == n // 64
            with other.resume(tmp_path / f"{i}") as session:
                assert sequence_of(session).n_computed == n
                assert same(session.prefill(tokens[n:]), other.prefill(tokens))
                other.reset()
        assert collect_garbage(tmp_path) == 0
        (tmp_path / "0").unlink()
        (tmp_path / "3").unlink()
        size = blocks_in(tmp_path)[0].stat().st_size
        assert collect_garbage(tmp_path) == size
        assert len(blocks_in(tmp_path)) == 2
        other.resume(tmp_path / "1").close()
        for path in (tmp_path / "1", tmp_path / "2"):
            path.unlink()
        assert collect_garbage(tmp_path) == 2 * size
        assert blocks_in(tmp_path) == []


def test_missing_and_changed_blocks_are_refused(tmp_path):
    with load("llama") as engine:
        engine.prefill(tokens_of(engine, 200))
        row = engine.snapshot(tmp_path / "a", shared=True)
        assert row is None
        paths = blocks_in(tmp_path)
        contents = [p.read_bytes() for p in paths]
        for path in paths:
            path.unlink()
            with pytest.raises(SnapshotFileError, match=r"block .* can't be read"):
                engine.resume(tmp_path / "a")
            engine.snapshot(tmp_path / "a", shared=True)  # puts it back
        paths[0].write_bytes(contents[1])
        with pytest.raises(SnapshotDamagedError, match=r"block .* holds other bytes"):
            engine.resume(tmp_path / "a")
        paths[0].write_bytes(contents[0][:-1])
        with pytest.raises(SnapshotDamagedError, match=r"block .* has 24575 bytes, not 24576"):
            engine.resume(tmp_path / "a")
        engine.snapshot(tmp_path / "b", shared=True)  # and mends it
        assert [p.read_bytes() for p in paths] == contents
        with pytest.raises(SnapshotFormatError, match="needs the folder 'blocks' beside it"):
            engine.resume((tmp_path / "a").read_bytes())
        assert engine.resume(tmp_path / "a").position == 200
        for other in ({"compress": True}, {"base": tmp_path / "a"}):
            with pytest.raises(ox.ConfigError, match="are both given"):
                engine.snapshot(tmp_path / "c", shared=True, **other)


def test_garbage_is_left_alone_where_a_snapshot_can_not_be_read(tmp_path):
    with load("llama") as engine:
        engine.prefill(tokens_of(engine, 200))
        engine.snapshot(tmp_path / "a", shared=True)
        engine.snapshot(tmp_path / "b")
        (tmp_path / "notes.txt").write_text("of no matter")
        bad = bytearray((tmp_path / "b").read_bytes())
        bad[50] = 1
        (tmp_path / "b").write_bytes(bad)
        (tmp_path / "a").unlink()
        with pytest.raises(SnapshotDamagedError, match="b: header and table"):
            collect_garbage(tmp_path)
        assert len(blocks_in(tmp_path)) == 3
        (tmp_path / "b").unlink()
        assert collect_garbage(tmp_path) > 0
    with pytest.raises(ox.ConfigError, match="folder must be one of snapshots with shared blocks"):
        collect_garbage(tmp_path / "nowhere")


def test_two_processes_save_into_one_folder(tmp_path):
    """Each writes and resumes its own, while garbage is collected all the time."""
    code = f"""
        engine = ox.load({path_of("llama")!r}, num_threads=1)
        folder, me = sys.argv[1], sys.argv[2]
        tokens = np.random.default_rng(int(me) % 2).integers(3, 384, 220).tolist()
        for i in range(12):
            n = 70 + 13 * i
            engine.reset()
            row = engine.prefill(tokens[:n])
            engine.snapshot(f"{{folder}}/{{me}}", shared=True)
            with engine.resume(f"{{folder}}/{{me}}") as session:
                assert session.position == n and (session.logits == row).all() and session._sequence.n_computed == n
        print("done")
    """
    found = {}

    def run(i):
        found[i] = in_process(code, tmp_path, i)

    (tmp_path / "blocks").mkdir()
    threads = [threading.Thread(target=run, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        collect_garbage(tmp_path)
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(3), "done\n")
    collect_garbage(tmp_path)
    # Two of the three are of the same tokens.
    assert len(blocks_in(tmp_path)) == 2 * (213 // 64)


# ---- killed


def test_a_killed_writer_leaves_the_old_file(tmp_path):
    """At any moment: the file is the old one or the new one, whole."""
    with load("llama") as engine:
        engine.prefill(tokens_of(engine, 50))
        engine.snapshot(tmp_path / "session")
        code = """
            engine = ox.Engine.restore(sys.argv[1] + "/session")
            print("ready", flush=True)
            while True:
                engine.truncate(50)
                engine.snapshot(sys.argv[1] + "/session")
                engine.prefill([7] * 100)
                engine.snapshot(sys.argv[1] + "/session")
        """
        prelude = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import oxillama as ox\n"
        for delay in (0.0, 0.003, 0.01, 0.03):
            process = subprocess.Popen(
                [sys.executable, "-c", prelude + textwrap.dedent(code), str(tmp_path)], stdout=subprocess.PIPE
            )
            assert process.stdout.readline() == b"ready\n"
            threading.Event().wait(delay)
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()
            with engine.resume(tmp_path / "session") as session:
                assert session.position in (50, 150)


def test_a_write_beyond_the_file_size_limit_leaves_the_old_file(tmp_path):
    """RLIMIT_FSIZE, as a full disk: an error, the old file, and no litter."""
    with load("llama") as engine:
        engine.prefill(tokens_of(engine, 50))
        engine.snapshot(tmp_path / "session")
    before = (tmp_path / "session").read_bytes()
    found = in_process(
        """
        import resource, signal
        engine = ox.Engine.restore(sys.argv[1] + "/session")
        engine.prefill([7] * 100)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
        for options in ({}, {"shared": True}, {"base": sys.argv[1] + "/session"}):
            try:
                engine.snapshot(sys.argv[1] + ("/other" if "base" in options else "/session"), **options)
            except ox.SnapshotFileError as error:
                print(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(engine.forward_one(5).shape)
        """,
        tmp_path,
    ).splitlines()
    assert [("File too large" in line) for line in found] == [True, True, True, False], found
    assert (tmp_path / "session").read_bytes() == before
    left = [p.name for p in tmp_path.iterdir() if p.name != "blocks"]
    assert left == ["session"]
    assert not [p for p in blocks_in(tmp_path) if p.name.startswith(".")]


# ---- compression


def test_compression_without_zstd_is_refused(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(compression, "_library", lambda: ("", None))
    engine.reset()
    engine.prefill([1, 2, 3])
    with pytest.raises(ox.ConfigError, match=r"compress=True needs zstd: Python 3\.14, or `pip install zstandard`"):
        engine.snapshot_bytes(compress=True)
    with pytest.raises(ox.ConfigError, match="needs zstd"):
        engine.snapshot(tmp_path / "x", compress=True)
    assert not list(tmp_path.iterdir())


needs_zstd = pytest.mark.skipif(not compression._library()[0], reason="there is no zstd")


@needs_zstd
@pytest.mark.parametrize("name", ["llama", "jamba"])
def test_compressed_snapshots_resume(name, tmp_path, monkeypatch):
    with load(name) as engine:
        tokens = tokens_of(engine, 100)
        engine.prefill(tokens[:60])
        engine.snapshot(tmp_path / "a", compress=True)
        engine.prefill(tokens[60:80])
        engine.snapshot(tmp_path / "b", base=tmp_path / "a", compress=True)
        row = engine.prefill(tokens[80:])
        for path, n in (("a", 60), ("b", 80)):
            with engine.resume(tmp_path / path) as session:
                assert session.position == n
                assert same(session.prefill(tokens[n:]), row)
        monkeypatch.setattr(compression, "_library", lambda: ("", None))
        with pytest.raises(SnapshotFormatError, match="is compressed: zstd is needed"):
            engine.resume(tmp_path / "a")


@needs_zstd
def test_compressed_frames_with_wrong_sizes_are_refused(engine):
    data = os.urandom(1000) + bytes(100_000)
    frame = compression.compress(memoryview(data))
    assert compression.decompress(memoryview(frame), len(data), "x") == data
    for n in (0, len(data) - 1, len(data) + 1, 1 << 20):
        with pytest.raises(SnapshotError, match="x holds other than"):
            compression.decompress(memoryview(frame), n, "x")
    for bad in (b"", frame[:-1], frame[:20], b"\0" + frame, os.urandom(50)):
        with pytest.raises(SnapshotError, match="x "):
            compression.decompress(memoryview(bad), len(data), "x")


@needs_zstd
@pytest.mark.parametrize("kind", ["texts", "beams"])
def test_a_compressed_section_of_a_bundle_is_refused(engine, kind):
    """Nothing says how large it may be: a hundred bytes could stand for as many gigabytes as there are."""
    stream = engine.beam_rounds([3, 4], beam_width=2) if kind == "beams" else engine.stream([3, 4], n=2, max_tokens=5)
    next(stream)
    reader = SnapshotReader(MemorySource(stream.snapshot()))
    state = {name: value for name, value in reader.state.items() if name != "tensors"}
    data = packed(Contents(state, {name: ArrayRows.whole(reader.array(name)) for name in reader.ranges}), squeeze=True)
    for use in (engine.resume, ox.snapshot.snapshot_info):
        with pytest.raises(SnapshotDamagedError, match=r"section (text|beam)\.0 is no snapshot"):
            use(data)
    stream.close()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cancel_token": "x"}, "cancel_token must be of type CancelToken"),
        ({"sampler": "x"}, "sampler must be of type"),
    ],
)
def test_a_wrong_argument_of_resume_is_no_damage_of_the_file(engine, given, message):
    stream = engine.stream("Once", max_tokens=4, seed=3)
    next(stream)
    with pytest.raises(ox.ConfigError, match=message):
        engine.resume(stream.snapshot_bytes(), **given)
    beams = engine.beam_rounds("Once", beam_width=2, max_new_tokens=4)
    next(beams)
    with pytest.raises(ox.ConfigError, match=message):
        engine.resume(beams.snapshot_bytes(), **given)
    with pytest.raises(TypeError, match=r"restore\(\) got an unexpected keyword argument 'kind'"):
        ox.Engine.restore_bytes(engine.snapshot_bytes(), kind=1)
