"""The quick part of the matrix; `python -m tests.faults` runs all of it."""

import subprocess
import sys

import pytest

from tests.faults import damage, signals
from tests.faults.injected import ERRORS, KILL, Call, Fault, faults_of, run, staged
from tests.faults.limits import can_mount, file_limit, files_of, full_disk, read_only, shim, sizes
from tests.faults.scenes import OTHERS, SAVES, SCENES, Scene
from tests.faults.tracing import can_trace
from tests.faults.trees import losses

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
traces = pytest.mark.skipif(not can_trace(), reason="no process can be traced here")
QUICK = ("session, shared", "request, plain")


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    made = {}

    def stage(name):
        if name not in made:
            folder = tmp_path_factory.mktemp("stage")
            made[name] = staged(name, folder), folder
        return made[name]

    return stage


@pytest.mark.sweep(1)
@traces
@pytest.mark.parametrize("name", QUICK)
def test_each_call_that_changes_something_killed_or_full(stages, name):
    stage, folder = stages(name)
    changing = {"write", "pwrite64", "writev", "mkdir", "mkdirat", "rename", "renameat", "renameat2", "fsync"}
    calls = [call for call in stage.calls if call.name in changing]
    assert {call.name for call in calls} & {"rename", "renameat", "renameat2"}
    for i, call in enumerate(calls):
        fault = Fault(call, KILL if i % 2 else "ENOSPC")
        assert run(stage, folder, fault) == [], str(fault)


@pytest.mark.long
@traces
def test_some_of_all_faults_of_all_scenes(stages):
    for i, name in enumerate(SCENES):
        stage, folder = stages(name)
        faults = list(faults_of(stage))
        assert {fault.how for fault in faults} == {*ERRORS, KILL} or name in OTHERS
        for fault in faults[i % 7 :: len(faults) // 3]:
            assert run(stage, folder, fault) == [], f"{name}: {fault}"


@traces
def test_a_loss_would_be_seen(stages, tmp_path):
    """A save that is not careful."""

    def careless(folder):
        (folder / "session").write_bytes(b"old")

        def act(place):
            with (place / "session").open("wb") as f:
                f.write(b"new")

        return Scene(act, lambda: 1)

    stage = staged("careless", tmp_path, careless)
    write = Fault(Call("write", 1), "ENOSPC")
    (lost, untyped) = run(stage, tmp_path, write)
    assert lost == "session is neither the old nor the new one"
    assert "not one of our errors: OSError(28" in untyped
    (lost,) = run(stage, tmp_path, Fault(Call("write", 1), KILL))
    assert lost == "session is neither the old nor the new one"


def test_losses():
    old, new = {"session": b"old"}, {"session": b"new", "blocks": None, "blocks/a": b"a"}
    for now, alive, error, found in (
        (old, True, "x", []),
        (new, True, None, []),
        (old, True, None, ["session is the old one", "blocks is missing", "blocks/a is missing"]),
        (new, True, "x", ["session is the new one"]),
        (new, True, "x: it has its name, but", []),
        ({"session": b"ne"}, False, None, ["session is neither the old nor the new one"]),
        ({}, False, None, ["session is neither the old nor the new one"]),
        ({"session": b"new"}, False, None, ["blocks is missing", "blocks/a is missing"]),
        (old | {"blocks/a": b"b"}, True, "x", ["blocks/a is neither the old nor the new one"]),
        (old | {"blocks/a": b"a"}, True, "x", []),
        (old | {".session.0123456789ab.tmp": b""}, False, None, []),
        (old | {".session.0123456789ab.tmp": b""}, True, "x", [".session.0123456789ab.tmp is left"]),
        (old | {"other": b""}, False, None, ["other is left"]),
    ):
        assert losses(old, new, now, alive=alive, error=error) == found


@pytest.mark.parametrize("name", QUICK)
def test_files_that_may_not_grow(stages, name):
    stage, folder = stages(name)
    for i, n in enumerate(sizes(stage, 3)):
        assert file_limit(stage, folder, n, deadly=bool(i % 2)) == [], n


@pytest.mark.skipif(not can_mount(), reason="no disk can be mounted here")
@pytest.mark.parametrize("name", QUICK)
def test_a_full_disk(stages, name):
    stage, folder = stages(name)
    there = sum(len(data or b"") + 4096 for data in stage.old.values())
    for n in sizes(stage, 2):
        assert full_disk(stage, folder, there + n) == [], n


@pytest.mark.parametrize("name", QUICK)
def test_a_folder_that_can_not_be_written_to(stages, name):
    stage, folder = stages(name)
    assert read_only(stage, folder) == []


def test_calls_that_do_half_of_what_they_should(tmp_path):
    library = shim(tmp_path)
    if library is None:
        pytest.skip("no compiler")
    code = "import os, sys; f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); print(os.write(f, b'12345678'))"
    command = [sys.executable, "-c", code, str(tmp_path / "x")]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        env={"LD_PRELOAD": str(library), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.stdout == "4\n"
    names = ["session, plain", "request, shared", "speculative, plain", "resume, base", "a step that reads weights"]
    assert files_of(names, library) == files_of(names, None)


@pytest.mark.parametrize("kind", signals.HANDLERS)
def test_signals_at_some_lines(stages, kind):
    stage, folder = stages("session, shared")
    n = len(signals.places_of(stage, folder))
    assert n > 500
    for line in range(1 + list(signals.HANDLERS).index(kind) * 13, n, n // 8):
        assert signals.at_line(stage, folder, line, kind) == [], line


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "source"), [("session, base", "source"), ("resume, base", "source"), ("session, shared", "block_store")]
)
def test_ctrl_c_where_files_are_opened_and_closed(stages, name, source):
    stage, folder = stages(name)
    places = signals.places_of(stage, folder)
    lines = [n for n in signals.worth(places) if places[n - 1].startswith(f"snapshot/format/{source}.py")]
    assert len(lines) > 20
    assert [loss for n in lines for loss in signals.at_line(stage, folder, n, "Ctrl-C")] == []


@pytest.mark.parametrize("kind", ["once", "storm"])
def test_signals_at_random(stages, kind):
    stage, folder = stages("session, shared")
    for seed in range(4):
        assert signals.at_random(stage, folder, seed, kind) == [], seed


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", SAVES)
def test_some_bits_of_what_is_no_data(name, tmp_path):
    file = damage.file_of(name, tmp_path)
    checks = [*damage.cut(file), *damage.flipped(file, step=997)]
    assert len(checks) > 20
    assert [loss for losses in checks for loss in losses] == []
