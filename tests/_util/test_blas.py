"""NumPy is imported where its BLAS can't create threads, and the environment is left as it was."""

import os
import subprocess
import sys

import pytest

from oxillama._util import blas

SHOW = """
import os, threading, sys
from oxillama._util import blas
seen = []
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy.version":
            seen.append(os.environ.get("OPENBLAS_NUM_THREADS"))
sys.meta_path.insert(0, Watch())
if sys.argv[1] == "short":
    blas.can_start = lambda n: False
exec(sys.argv[2])
print(*seen, os.environ.get("OPENBLAS_NUM_THREADS"), "numpy" in sys.modules)
"""


IMPORTS = (
    "import oxillama; oxillama.load", "import oxillama; oxillama.Tokenizer", "import numpy", "import oxillama.data",
    "from oxillama.gguf import open", "import oxillama.tokenizer.tokenizer", "import oxillama.kernels",
    "from oxillama.cli import main; main(['tokenize', 'a'])",
)  # fmt: skip


@pytest.mark.parametrize("code", IMPORTS)
def test_whatever_is_imported_first(code):
    command = [sys.executable, "-c", SHOW, "short", f"{code}; import numpy; numpy.__spec__.loader.get_data"]
    env = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "1 None True", done.stderr


@pytest.mark.parametrize(
    ("threads", "given", "printed"),
    [
        ("short", {}, "1 None True"),
        ("enough", {}, "None None True"),
        ("short", {"OPENBLAS_NUM_THREADS": "2"}, "2 2 True"),
    ],
)
def test_threads_of_blas(threads, given, printed):
    env = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"} | given
    command = [sys.executable, "-c", SHOW, threads, "blas.import_numpy()"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == printed, done.stderr


def test_importing_the_package_imports_no_numpy():
    code = "import sys, oxillama; print('numpy' in sys.modules, oxillama.Engine.__name__, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "False Engine True", done.stderr


def test_as_many_threads_as_can_be_started(monkeypatch):
    assert blas.can_start(0)
    assert blas.can_start(3)

    class Few(blas.threading.Thread):
        n = 2

        def start(self):
            Few.n -= 1
            if Few.n < 0:
                raise RuntimeError("can't start new thread")
            super().start()

    monkeypatch.setattr(blas.threading, "Thread", Few)
    assert not blas.can_start(3)
