"""Resident memory of a process that computes with a model larger than its budget."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import oxillama.gguf as gguf
from tests.models.tiny import Shape, tiny

CHILD = """
    import sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[3])
    from oxillama.offload import OffloadPolicy
    from tests.offload.paged import open_runner, rows

    def resident(what="RssAnon"):
        lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
        return int(lines[what].split()[0]) << 10

    path, budget = Path(sys.argv[1]), int(sys.argv[2])
    rows(open_runner(path, OffloadPolicy(budget=budget), n_blocks=8), list(range(40)))  # imports, threads, workspace
    before = resident(), resident("RssFile")
    runner = open_runner(path, OffloadPolicy(budget=budget))
    highest = resident()
    for i in range(3):
        rows(runner, list(range(40)), chunk=20)
        highest = max(highest, resident())
    beside = runner.arrays.kv_bytes + runner.memory_bytes()["workspace"]
    print(highest - before[0], resident("RssFile") - before[1], beside, runner.pager.counts()["faults"])
"""

SHAPE = Shape(n_layers=6, n_embd=512, n_heads=8, n_kv_heads=4, head_dim=64, n_ff=2048, n_vocab=4096, n_experts=8)


@pytest.fixture(scope="module", params=["llama", "mixtral"])
def path(tmp_path_factory, request):
    """A model of some tens of megabytes."""
    folder = tmp_path_factory.mktemp("large")
    gguf.quantize_file(tiny(request.param, folder, SHAPE), folder / "q8.gguf", "Q8_0")
    return folder / "q8.gguf"


@pytest.mark.sweep(1)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("share", [2, 4])
def test_resident_memory_keeps_to_the_budget(path, share):
    """Beside what a process holds that has done the same before, and has let its model go."""
    budget = path.stat().st_size // share
    code = textwrap.dedent(CHILD)
    root = str(Path(__file__).parents[2])
    run = subprocess.run(
        [sys.executable, "-c", code, str(path), str(budget), root],
        capture_output=True, text=True, check=False, cwd=root,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    held, mapped, beside, faults = map(int, run.stdout.split())
    assert faults > 0
    assert held <= (budget + beside) * 1.1
    assert mapped <= path.stat().st_size // 20
