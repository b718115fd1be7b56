"""python -m tests.kernels.checkasm: the driver with the sanitisers, on this machine."""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.kernels import checkasm

with tempfile.TemporaryDirectory() as folder:
    flags = checkasm.setup_py().SANITIZE
    objects = checkasm.compile_all(Path(folder), checkasm.NATIVE, flags)
    driver = checkasm.link(objects, Path(folder) / "checkasm", checkasm.NATIVE, flags)
    sys.exit(subprocess.run([driver]).returncode)
