"""No allocation that fails may crash, leak, or leave anything half done; `python -m tests.memory` does it in full."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from oxillama.kernels import _memory
from oxillama.kernels.sampling import Candidates
from tests.kernels.checkasm import NATIVE, compiler
from tests.memory.hook import Kernels
from tests.memory.trial import Operation, exhaust

KERNELS = Path(__file__).parents[2] / "oxillama"


@pytest.mark.sweep(1)
@pytest.mark.parametrize("parts", [["kernels:"], ["greedy"], ["engines: grammar"], ["engines: snapshot"]])
def test_every_allocation_denied(parts):
    """In a process of its own, which a crash ends alone, and whose allocators stay replaced."""
    if not shutil.which(compiler(NATIVE)[0]):
        pytest.skip("replacing numpy's allocator needs a C compiler")
    command = [sys.executable, "-m", "tests.memory", "--few", "5", *parts]
    done = subprocess.run(command, capture_output=True, text=True, cwd=KERNELS.parent, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"^\w+: .*: \d+ allocations", done.stdout, re.MULTILINE)) >= 3


def test_only_one_module_allocates_in_c():
    wild = re.compile(
        r"\b(?:malloc|calloc|realloc|aligned_alloc|free)\s*\(|PyMem_|libc\.stdlib cimport[^\n]*(?:alloc|free)"
    )
    sources = [p for ending in ("*.pyx", "*.pxd") for p in KERNELS.rglob(ending) if p.stem != "_memory"]
    assert len(sources) > 40
    assert [p.name for p in sources if wild.search(p.read_text())] == []


def cut(candidates):
    candidates.load(np.arange(50, dtype=np.float32))
    return candidates.items()


def swallowed(candidates):
    try:
        return cut(candidates)
    except MemoryError:
        return []


KEPT = []


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("operation", "complaint"),
    [
        (Operation(Candidates, swallowed), "allocation 1: another result"),
        (Operation(Candidates, lambda c: [KEPT.append(Candidates()), cut(KEPT[-1])], again=False), "holds memory"),
    ],
)
def test_the_trial_finds_faults(operation, complaint):
    with pytest.raises(AssertionError, match=complaint):
        exhaust(operation, Kernels())
    KEPT.clear()


def test_a_denied_buffer_is_none_of_the_next_ones():
    made, live = _memory.counts()
    candidates = Candidates()
    _memory.refuse(1)
    with pytest.raises(MemoryError, match="no memory for 50 candidates"):
        cut(candidates)
    assert _memory.counts() == (made + 1, live)
    cut(candidates)
    assert _memory.counts() == (made + 2, live + 1)
    del candidates
    assert _memory.counts()[1] == live
