"""Files of models that are cut off while they are used: a few lines of what `python -m tests.faults cut` does."""

import os
import signal
import subprocess
import sys
import textwrap
from unittest import mock

import pytest

from oxillama.gguf.source import FileSource
from tests.faults import cut
from tests.faults.limits import ROOT, run_module


@pytest.mark.sweep(2)
@pytest.mark.parametrize("scene", cut.SCENES)
def test_a_file_that_is_cut_off(scene):
    assert run_module("tests.faults.cut", scene, "997") == []


def test_a_loss_would_be_seen(tmp_path):
    with mock.patch.object(FileSource, "check", return_value=None):
        found = cut.losses("decode", tmp_path, 20)
    assert any("another result" in loss for loss in found)


CHILD = """
    import os, random, resource, shutil, signal, sys, threading, time, oxillama as ox
    from oxillama.core.loading import shipped_model

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    path, n_threads, prompt = os.path.join(sys.argv[1], "model.gguf"), int(sys.argv[2]), "Once upon a time"

    def load():
        if os.path.exists(path):
            os.unlink(path)
        shutil.copy(shipped_model(), path)
        return ox.load(path, num_threads=n_threads, repack=False)

    def fails(use):
        try:
            use()
        except ox.ModelFileError as error:
            return "model.gguf: the file" in str(error)
        return False
"""


def child(folder, code, *, tier=None, threads=2):
    """(how it ended, what it printed, what it complained of)"""
    env = os.environ | ({"OXILLAMA_TIER": tier} if tier else {})
    command = [sys.executable, "-c", textwrap.dedent(CHILD) + textwrap.dedent(code), str(folder), str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=env, cwd=ROOT)
    return done.returncode, done.stdout, done.stderr


IN_A_STEP = """
    beside = ox.load(num_threads=1)
    expected = beside.generate(prompt, max_tokens=5, seed=1).token_ids
    engine = load()
    assert engine.generate(prompt, max_tokens=5, seed=1).token_ids == expected
    core, polls, poll = engine._core, [], engine._core._poll

    def cut():
        poll()
        polls.append(1)
        if len(polls) == 2:  # the second layer is next
            GUARD
            os.truncate(path, 4096)

    core._poll = cut
    print("begins", flush=True)
    assert fails(lambda: engine.generate(prompt, max_tokens=5, seed=1)) and len(polls) > 2
    core._poll = poll
    assert fails(lambda: engine.generate(prompt, max_tokens=1))
    assert fails(lambda: engine.embed(prompt))
    assert fails(lambda: engine.prefill([1]))
    assert beside.generate(prompt, max_tokens=5, seed=1).token_ids == expected
    engine.close()
    assert load().generate(prompt, max_tokens=5, seed=1).token_ids == expected
"""


@pytest.mark.sweep(1)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("tier", [None, "scalar"])
def test_in_the_middle_of_a_step(tmp_path, tier, threads):
    found = child(tmp_path, IN_A_STEP.replace("GUARD", "pass"), tier=tier, threads=threads)
    assert found[:2] == (0, "begins\n"), found[2]


def test_that_step_reads_what_is_gone(tmp_path):
    """Without a handler it ends the process."""
    code = IN_A_STEP.replace("GUARD", "signal.signal(signal.SIGBUS, signal.SIG_DFL)")
    assert child(tmp_path, code)[:2] == (-signal.SIGBUS, "begins\n")


def test_a_handler_that_came_later_is_no_harm(tmp_path):
    """It is seen to before each step."""
    code = IN_A_STEP.replace("GUARD", "pass").replace("print", "import faulthandler; faulthandler.enable(); print")
    found = child(tmp_path, code)
    assert found[:2] == (0, "begins\n"), found[2]
    assert "Fatal" not in found[2]


def test_at_any_moment(tmp_path):
    code = """
    expected = ox.load(num_threads=1).generate(prompt, max_tokens=20, seed=1, ignore_eos=True).token_ids
    for seed in range(12):
        engine, moment = load(), random.Random(seed).uniform(0, 0.02)
        cutter = threading.Thread(target=lambda: (time.sleep(moment), os.truncate(path, seed * 200_000)))
        cutter.start()
        n = 0
        while cutter.is_alive() or n == 0:
            try:
                assert engine.generate(prompt, max_tokens=20, seed=1, ignore_eos=True).token_ids == expected
            except ox.ModelFileError:
                break
            n += 1
        cutter.join()
        assert fails(lambda: engine.generate(prompt, max_tokens=1))
    """
    found = child(tmp_path, code)
    assert found[0] == 0, found[2]
