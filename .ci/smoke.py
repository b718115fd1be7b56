"""Smoke test of an installed package: python .ci/smoke.py [each-tier]

Greedy text, logits that don't depend on how they were computed, a batch, a JSON schema, and (on Linux) threads that
sleep while the process waits, on the CPU tier in use, or on each that this machine has.
"""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

import oxillama as ox
from oxillama.kernels import _table

PROMPT = "Once upon a time"
TASKS = Path("/proc/self/task")


def smoke() -> str:
    greedy = ox.SamplerConfig.greedy()
    with ox.load(num_threads=1) as one, ox.load(num_threads=2) as two:
        ids = two.tokenize(f"{PROMPT} there was a")
        whole = two.forward_logits(ids)
        assert np.isfinite(whole).all()
        assert (whole == one.forward_logits(ids)).all(), "logits depend on the number of threads"
        alone = [e.generate(PROMPT, max_tokens=24, sampler=greedy).text for e in (one, two)]
        together = two.generate([PROMPT] * 3, max_tokens=24, sampler=greedy)
        assert {*alone, *(c.text for c in together)} == {alone[0]}, "a text depends on threads, or on its neighbours"
        assert len(alone[0]) > 40, alone
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        written = two.generate("A number: ", json_schema=schema, max_tokens=60)
        assert isinstance(json.loads(written.text)["n"], int), written
    if TASKS.exists():
        assert min(spinning() for _ in range(3)) == 0, "idle threads don't sleep"
    else:
        print(f"not looked at: whether idle threads sleep, which {TASKS} says on Linux alone", flush=True)
    return alone[0]


def spinning() -> int:
    """Threads that still run, or want to, soon after threads were used to rearrange weights: they should sleep."""
    with ox.load(num_threads=2):
        time.sleep(0.05)
        own = threading.get_native_id()
        others = (f for f in TASKS.glob("*/stat") if f.parent.name != str(own))
        return sum(f.read_text().rpartition(")")[2].split()[0] == "R" for f in others)


def main() -> None:
    if sys.argv[1:] != ["each-tier"]:
        print(f"{_table.tier()}: {smoke()!r}", flush=True)
        return
    for tier in _table.usable_tiers():
        subprocess.run([sys.executable, __file__], env=os.environ | {"OXILLAMA_TIER": tier}, check=True)


if __name__ == "__main__":
    main()
