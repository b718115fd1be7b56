"""A model's file that shrinks, changes, is replaced or can't be read while an engine uses it."""

import os
import shutil
import subprocess
import sys
import textwrap

import pytest

import oxillama as ox
import oxillama.gguf as gguf
from oxillama.core.loading import shipped_model
from oxillama.errors import ModelFileError
from oxillama.gguf.source import FileSource
from oxillama.offload import OffloadPolicy
from tests.fakes import core_of
from tests.offload.paged import open_runner, path_of, rows, tokens_of


@pytest.fixture
def path(tmp_path):
    copy = tmp_path / "model.gguf"
    shutil.copy(shipped_model(), copy)
    return copy


@pytest.fixture(params=["paged", "in memory", "mapped"])
def engine(path, request):
    """With weights that are paged, in memory, or used where the file is mapped: rows of the embedding are read in all.

    Of one that is mapped, these reads tell before a step whether it may be touched.
    """
    offload = path.stat().st_size // 3 if request.param == "paged" else None
    with ox.load(path, num_threads=2, offload=offload, repack=request.param != "mapped") as engine:
        engine.generate("Once", max_tokens=2, seed=1)
        yield engine


def test_a_file_that_is_cut_off(engine, path):
    os.truncate(path, path.stat().st_size // 2)
    for _ in range(2):
        with pytest.raises(ModelFileError, match=r"model\.gguf: the file had \d+ bytes .* has \d+ now; load"):
            engine.generate("Once upon a time", max_tokens=4)


def test_a_file_that_is_empty_now(engine, path):
    path.write_bytes(b"")
    with pytest.raises(ModelFileError, match="and has 0 now"):
        engine.embed("Once upon a time")


def test_a_file_that_is_cut_off_in_the_middle_of_a_request(engine, path):
    stream = engine.stream("Once upon a time", max_tokens=200, ignore_eos=True)
    next(stream)
    os.truncate(path, 100)
    with pytest.raises(ModelFileError):
        list(stream)


def test_a_file_that_is_written_to_is_never_used_again(engine, path):
    data = path.read_bytes()
    with path.open("r+b") as f:
        f.seek(len(data) // 2)
        f.write(b"other weights")
    with pytest.raises(ModelFileError, match="was written to since it was opened"):
        engine.generate("Once upon a time", max_tokens=4)
    path.write_bytes(data)  # as it was; but other bytes may have been read meanwhile
    with pytest.raises(ModelFileError, match="was written to"):
        engine.generate("Once upon a time", max_tokens=4)


def test_a_mapped_file_that_is_written_to_in_the_middle_of_a_step(path, monkeypatch):
    """What was computed with it is not used."""
    with ox.load(path, num_threads=1, repack=False) as engine:
        assert len(engine.generate("Once", max_tokens=3, ignore_eos=True).token_ids) == 3
        model, data = core_of(engine).runner.model, path.read_bytes()
        forward = model.forward

        def written_to(*args):
            found = forward(*args)
            with path.open("r+b") as f:
                f.write(data)
            return found

        monkeypatch.setattr(model, "forward", written_to)
        for use in (lambda: engine.generate("Once", max_tokens=1), lambda: engine.embed("Once")):
            with pytest.raises(ModelFileError, match="was written to since it was opened"):
                use()


@pytest.mark.parametrize("how", ["replaced", "deleted"])
def test_another_file_under_the_name_changes_nothing(engine, path, tmp_path, how):
    expected = engine.generate("Once upon a time", max_tokens=12, seed=1).token_ids
    if how == "replaced":
        other = tmp_path / "other"
        other.write_bytes(b"nothing like a model")
        os.replace(other, path)
    else:
        path.unlink()
    assert engine.generate("Once upon a time", max_tokens=12, seed=1).token_ids == expected


def test_an_error_of_the_disk_ends_the_request_and_not_the_engine(monkeypatch, path):
    monkeypatch.setattr("oxillama.offload.ahead.is_cached", lambda *_: False)
    with ox.load(path, num_threads=2, offload=path.stat().st_size // 3) as engine:
        expected = engine.generate("Once upon a time", max_tokens=8, seed=1).token_ids
        read, left = os.preadv, [3]

        def fail(*args):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(5, "Input/output error")
            return read(*args)

        monkeypatch.setattr("os.preadv", fail)
        for _ in range(2):
            with pytest.raises(ModelFileError, match="can't be read any more: Input/output error"):
                engine.generate("Once upon a time", max_tokens=8, seed=1)
        monkeypatch.undo()
        assert engine.generate("Once upon a time", max_tokens=8, seed=1).token_ids == expected


def test_a_bug_while_reading_is_an_error_too(monkeypatch):
    runner = open_runner(path_of("llama"), OffloadPolicy(budget=100_000))
    monkeypatch.setattr("oxillama.offload.ahead.is_cached", lambda *_: False)
    monkeypatch.setattr(FileSource, "read", lambda *args: 1 / 0)
    with pytest.raises(ModelFileError, match=r"llama\.gguf: reading failed: ZeroDivisionError"):
        rows(runner, tokens_of("llama"))


def test_a_file_that_changes_while_it_is_loaded(path):
    file = gguf.open(path)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(ModelFileError, match="load the model again"):
        next(iter(file.tensors.values())).source.check()


CHILD = """
    import os, sys, oxillama as ox
    path, prompt = sys.argv[1], "Once upon a time"
    engine = ox.load(path, num_threads=2, offload=os.path.getsize(path) // 3)
    expected = engine.generate(prompt, max_tokens=8, seed=1).token_ids
"""


def child(path, code, *, before=""):
    """Runs in another process, which must come to its end."""
    whole = before + textwrap.dedent(CHILD) + textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-c", whole, str(path)], capture_output=True, text=True, timeout=120, check=False
    )


def test_a_forked_child_reads_for_itself(path):
    done = child(
        path,
        """
        pid = os.fork()
        same = engine.generate(prompt, max_tokens=8, seed=1).token_ids == expected
        if pid == 0:
            os._exit(0 if same else 1)
        print(same, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """,
    )
    assert done.stdout == "True 0\n", done.stderr


@pytest.mark.parametrize("first", ["oxillama.core.step_loop", "oxillama.offload.reader"])
def test_a_fork_waits_for_a_step_that_waits_for_a_page(path, first):
    """Whichever of the two modules was imported first: hooks of forks run in an order that follows from that."""
    done = child(
        path,
        """
        import threading, time
        stop = threading.Event()

        def work():
            while not stop.is_set():
                engine.generate(prompt, max_tokens=20, seed=3)

        thread = threading.Thread(target=work)
        thread.start()
        found = []
        for i in range(12):
            time.sleep(0.002 * i)
            pid = os.fork()
            if pid == 0:
                os._exit(0 if engine.generate(prompt, max_tokens=8, seed=1).token_ids == expected else 1)
            found.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        stop.set()
        thread.join()
        print(found == [0] * 12)
        """,
        before=f"import {first}",
    )
    assert done.stdout == "True\n", done.stderr


def test_the_process_ends_with_the_engine_in_use(path):
    done = child(path, "stream = engine.stream(prompt, max_tokens=100); next(stream); print('end')")
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


def test_a_process_is_not_killed_by_a_file_that_shrinks(path):
    done = child(
        path,
        """
        os.truncate(path, 4096)
        try:
            engine.generate(prompt, max_tokens=8)
        except ox.ModelFileError as error:
            print("typed")
        """,
    )
    assert (done.returncode, done.stdout) == (0, "typed\n"), done.stderr


def test_a_dropped_engine_ends_its_thread(path):
    done = child(
        path,
        """
        import gc, threading, time
        gc.disable()
        assert [t.name for t in threading.enumerate()].count("oxillama-pages") == 1
        del engine
        until = time.monotonic() + 60
        while len(threading.enumerate()) > 1 and time.monotonic() < until:
            time.sleep(0.01)
        print([t.name for t in threading.enumerate()])
        """,
    )
    assert done.stdout == "['MainThread']\n", done.stderr
