"""Three allocators that can be told to give nothing once: that of the kernels in C, numpy's, and Python's.

The last two are replaced for the rest of the process's life, so this is for processes of its own (`python -m
tests.memory`).
"""

import ctypes
import subprocess
import sysconfig
from pathlib import Path

import numpy as np

from oxillama.kernels import _memory
from tests.kernels.checkasm import NATIVE, compiler

BUFFER = 2048  # bytes: what Python allocates in smaller pieces are objects


class Kernels:
    """What the kernels allocate in C."""

    def made(self):
        return _memory.counts()[0]

    def live(self):
        return _memory.counts()[1]

    def refuse(self, n):
        _memory.refuse(n)


class _Tally(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("made_", "live_", "refused")]

    def made(self):
        return self.made_

    def live(self):
        return self.live_

    def refuse(self, n):
        self.refused = self.made_ + n if n else 0


def sources(folder):
    """{name: allocator}; `folder` is for the library."""
    library = Path(folder) / "hook.so"
    include = [f"-I{path}" for path in (sysconfig.get_path("include"), np.get_include())]
    here = Path(__file__).with_name("hook.c")
    subprocess.run([*compiler(NATIVE), "-shared", "-fPIC", *include, str(here), "-o", str(library)], check=True)
    loaded = ctypes.PyDLL(str(library))
    if loaded.hook_install(ctypes.c_size_t(BUFFER)):
        raise RuntimeError("numpy's allocator can't be replaced")
    found = {name: _Tally.in_dll(loaded, f"hook_{name}") for name in ("numpy", "python")}
    return {"kernels": Kernels(), **found}
