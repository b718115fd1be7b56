"""Idle threads spin briefly unless the environment says otherwise, and the environment is left as it was."""

import os
import subprocess
import sys

import pytest

SHOW = "import os, oxillama.kernels as k; print(k.config()['idle_spins'], os.environ.get('GOMP_SPINCOUNT'))"


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ({}, "1000 None"),
        ({"GOMP_SPINCOUNT": "77"}, "GOMP_SPINCOUNT=77 77"),
        ({"OMP_WAIT_POLICY": "passive"}, "OMP_WAIT_POLICY=passive None"),
    ],
)
def test_spin_count(given, printed):
    env = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")} | given
    done = subprocess.run([sys.executable, "-c", SHOW], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == printed, done.stderr
