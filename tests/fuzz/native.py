"""Branches of Cython modules, too: those that parse are compiled once more, so that they tell where they have been.

Needs a C compiler and a tree that was built in place: it compiles what Cython left in build/cython.
"""

import ctypes
import os
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ExtensionFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path

import numpy as np

__all__ = ["begin", "build", "features", "install"]

ROOT = Path(__file__).parents[2]
FIRST = 1 << 32  # numbers of native places begin here
PATTERNS = (
    "gguf/_scan.c",
    "grammar/automata/*.c",
    "grammar/json_schema/literal.c",
    "grammar/json_schema/shared_parts.c",
)
BUCKETS = np.searchsorted([1, 2, 3, 4, 8, 16, 32, 128], np.arange(256), "right") - 1


class _Map:
    """Of the process."""

    counts = None


def build(folder: Path):
    """Compiles, what is stale, and returns the folder. Raises RuntimeError where there is nothing to compile."""
    sources = [path for pattern in PATTERNS for path in sorted((ROOT / "build/cython/oxillama").glob(pattern))]
    if not sources:
        raise RuntimeError("native branches need a tree that was built: python setup.py build_ext --inplace")
    folder.mkdir(parents=True, exist_ok=True)
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    common = [*compiler, "-shared", "-fPIC", "-O1", "-g0", "-w"]
    headers = ["-Icsrc", f"-I{sysconfig.get_paths()['include']}", "-fopenmp", "-fsanitize-coverage=trace-pc"]

    def compile_one(job):
        source, root, flags = job
        output = folder / (".".join(source.relative_to(root).with_suffix("").parts) + ".so")
        if not output.exists() or output.stat().st_mtime < source.stat().st_mtime:
            subprocess.run([*common, *flags, str(source), "-o", str(output)], check=True, cwd=ROOT)

    jobs = [(Path(__file__).with_suffix(".c"), ROOT, []), *((path, ROOT / "build/cython", headers) for path in sources)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, jobs))
    return folder


def install(folder: Path):
    """Takes those modules from the folder when they are imported from now on."""
    library = ctypes.CDLL(str(folder / "tests.fuzz.native.so"), ctypes.RTLD_GLOBAL)
    counts = (ctypes.c_ubyte * (1 << 18)).in_dll(library, "fuzz_map")
    _Map.counts = np.frombuffer(counts, np.uint8)
    sys.meta_path.insert(0, _Finder(folder))


class _Finder:
    def __init__(self, folder):
        self.folder = folder

    def find_spec(self, name, path, target=None):
        found = self.folder / f"{name}.so"
        if not name.startswith("oxillama.") or not found.exists():
            return None
        return spec_from_file_location(name, found, loader=ExtensionFileLoader(name, str(found)))


def begin():
    if _Map.counts is not None:
        _Map.counts[:] = 0


def features():
    """As those of `coverage`."""
    if _Map.counts is None:
        return ()
    places = np.flatnonzero(_Map.counts)
    return (((places + FIRST) << 3) | BUCKETS[_Map.counts[places]]).tolist()
