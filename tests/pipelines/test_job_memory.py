"""Memory of jobs: it doesn't grow with their rows, in any format, nor with prompts that fail in a batch."""

import gc
import json
import os
import subprocess
import sys
import weakref

import pytest

import oxillama as ox
from oxillama.core.results import BatchFailure

JOB = """
import gc, json, sys, tracemalloc
import oxillama as ox, oxillama.data as oxd
from oxillama.data.request_job import answer_file
from oxillama.data.table_job import map_file

source, output, n = sys.argv[1], sys.argv[2], int(sys.argv[3])

def write(name, n):
    if name == "requests.jsonl":
        lines = (json.dumps({"custom_id": f"request-{i}", "method": "POST", "url": "/v1/completions",
                             "body": {"prompt": 7}}) for i in range(n))
    elif name.endswith("jsonl"):
        lines = ('{"p": null, "n": %d}' % i for i in range(n))
    elif name.endswith("csv"):
        lines = ("p,n" if i < 0 else f",{i}" for i in range(-1, n))
    else:
        import pyarrow as pa, pyarrow.parquet as pq
        pq.write_table(pa.table({"p": pa.array([None] * n, pa.string()), "n": range(n)}), name)
        return
    open(name, "w").writelines(f"{line}\\n" for line in lines)

def run(engine, output, **more):
    if source == "requests.jsonl":
        return answer_file(engine, source, output, **more)
    one = oxd.Generate(engine, prompt="p", on_error="column", max_tokens=1)
    return map_file(one, source, output, **more)

with ox.load(num_threads=1) as engine:
    tracemalloc.start(1)
    peaks = []
    for i, rows in enumerate((100, n, 4 * n)):
        write(source, rows)
        gc.collect()
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        assert run(engine, f"{i}.{output}").n_rows == rows
        peaks.append(tracemalloc.get_traced_memory()[1] - before)
    print(json.dumps(peaks))
"""


@pytest.mark.sweep(3)
@pytest.mark.parametrize(("source", "output"), [
    ("in.jsonl", "jsonl"), ("in.csv", "csv"), ("in.parquet", "parquet"), ("in.jsonl", "parquet"), ("in.csv", "parquet"),
    ("in.parquet", "jsonl"), ("requests.jsonl", "jsonl"),
])  # fmt: skip
def test_memory_of_a_job_does_not_grow_with_its_rows(source, output, tmp_path):
    if "parquet" in source + output:
        pytest.importorskip("pyarrow")
    done = subprocess.run(
        [sys.executable, "-c", JOB, source, output, "2200"], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    _, less, more = json.loads(done.stdout)
    assert (more - less) / 6600 < 60, (less, more)  # bytes for each row that there are more


@pytest.mark.parametrize("errors", ["yield", "raise"])
def test_prompts_that_fail_are_freed_one_by_one(engine, errors):
    """Nothing that is kept of one refers to the one before: neither a traceback nor its frames."""

    def prompts():
        for i in range(40):
            yield 7 if i % 2 else "cat " * 9000  # of the wrong type, and beyond the context

    def next_failure(batch):
        try:
            found = next(batch)
        except ox.OxiLlamaError as error:
            return weakref.ref(error)
        assert isinstance(found, BatchFailure)
        return weakref.ref(found.error)

    gc.collect()
    gc.disable()
    try:
        with engine.batch(prompts(), max_tokens=1, errors=errors, max_in_flight=2) as batch:
            found = [next_failure(batch) for _ in range(40)]
            assert [one() for one in found[:-2]] == [None] * 38
    finally:
        gc.enable()


def test_a_failure_that_is_kept_holds_no_frames(engine):
    with engine.batch([7, None, "cat " * 9000], max_tokens=1, errors="yield") as batch:
        for failure in batch:
            error = failure.error
            while error is not None:
                assert error.__traceback__ is None
                error = error.__context__
