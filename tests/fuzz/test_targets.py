"""Every target for a few seconds: its seeds, what was found before (tests/data/fuzz), and new inputs from a fixed seed.

`python -m tests.fuzz` goes on from there; OXILLAMA_FUZZ_RUNS sets how many inputs are tried here.
"""

import os

import pytest

from tests.fuzz.supervise import fuzz
from tests.fuzz.target import NAMES

RUNS = int(os.environ.get("OXILLAMA_FUZZ_RUNS", "80"))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", NAMES)
def test_only_right_results_and_typed_errors(name, tmp_path, capfd):
    good = fuzz(name, tmp_path, runs=RUNS, seed=1, keep=False)
    assert good, capfd.readouterr().err
