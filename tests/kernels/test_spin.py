"""Idle threads spin briefly unless the environment says otherwise, and the environment is left as it was."""

import os
import subprocess
import sys
import textwrap

import pytest

from oxillama.kernels import _threads
from oxillama.kernels._spin import OURS, short_spins

NAMES = (*OURS, "OMP_WAIT_POLICY")
SHOW = f"import os, oxillama.kernels as k; print(k.config()['idle_spins'], *(os.environ.get(n) for n in {NAMES}))"
GNU = _threads.openmp_variable() == "GOMP_SPINCOUNT"


def without(given):
    return {k: v for k, v in os.environ.items() if k not in NAMES} | given


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ({}, "1000 None None None" if GNU else "0 None None None"),
        ({"GOMP_SPINCOUNT": "77"}, "GOMP_SPINCOUNT=77 77 None None" if GNU else "0 77 None None"),
        ({"KMP_BLOCKTIME": "77"}, "1000 None 77 None" if GNU else "KMP_BLOCKTIME=77 None 77 None"),
        ({"OMP_WAIT_POLICY": "passive"}, "OMP_WAIT_POLICY=passive None None passive"),
    ],
)
def test_spins(given, printed):
    command = [sys.executable, "-c", SHOW]
    done = subprocess.run(command, env=without(given), capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == printed, done.stderr


def test_each_variable_is_set_unless_a_user_has_set_it(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KMP_BLOCKTIME", "5")
    with short_spins() as found:
        assert (os.environ["GOMP_SPINCOUNT"], os.environ["KMP_BLOCKTIME"]) == ("1000", "5")
        assert found == {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "KMP_BLOCKTIME=5"}
    assert os.environ.get("GOMP_SPINCOUNT") is None
    assert os.environ["KMP_BLOCKTIME"] == "5"


@pytest.mark.skipif(GNU, reason="of LLVM's OpenMP library, which clang brings in")
def test_the_library_of_llvm_has_read_it():
    code = """
        import ctypes
        import oxillama
        from oxillama.cli.machine import openmp_libraries
        print(ctypes.CDLL(openmp_libraries()[0]).kmp_get_blocktime())
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=without({}), capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == OURS["KMP_BLOCKTIME"], done.stderr
