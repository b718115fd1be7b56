"""Engines in the worker processes of others: pools, joblib, data loaders, gunicorn and Ray.

Each answers with the tokens of its parent, each computes with the cores that it has, and none hangs: every program has
a time limit.
"""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import urllib.request
from pathlib import Path

import pytest

import oxillama as ox

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

PROMPTS = ["The cat", "Once upon a time", "A", "The red ball", "Hello"]
SAME = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}

HEAD = f"""
    import json, os, sys
    sys.path.insert(0, {str(ROOT)!r})
    import oxillama as ox

    PROMPTS, SAME = {PROMPTS!r}, {SAME!r}
    engine = None

    def tokens(prompt):
        "Of the engine that the process found."
        return engine.generate(prompt, **SAME).token_ids

    def tokens_of(given, prompt):
        "Of an engine that came along; with the process and its threads."
        return given.generate(prompt, **SAME).token_ids, os.getpid(), given.num_threads

    def load(**options):
        global engine
        engine = ox.load(num_threads=2, **options)
"""


@pytest.fixture(scope="module")
def expected():
    with ox.load(num_threads=1) as engine:
        return [engine.generate(prompt, **SAME).token_ids for prompt in PROMPTS]


def start(program, *arguments, **environment):
    """A program in a session of its own, so that it ends with all its workers."""
    return subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", str(program), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=program.parent,
        env={k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"} | environment,
    )  # fmt: skip


def run(folder, code, seconds=120, **environment):
    """What a program prints as JSON; it fails if it takes longer."""
    program = folder / "program.py"
    program.write_text(textwrap.dedent(HEAD) + textwrap.dedent(code))
    process = start(program, **environment)
    try:
        out, said = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"it hangs: {process.communicate()[1][-3000:]}")
    assert process.returncode == 0, said[-5000:]
    return json.loads(out.splitlines()[-1])


# ---- pools of the standard library


@pytest.mark.sweep(1)
@pytest.mark.parametrize("used", [True, False], ids=["after", "before"])
@pytest.mark.parametrize("pool", ["Pool(2)", "ProcessPoolExecutor(2, get_context())"])
def test_forked_pools_find_the_engine_of_their_parent(tmp_path, expected, pool, used):
    """It was loaded before the fork, and has computed with two threads or not."""
    code = f"""
    import multiprocessing
    from multiprocessing import Pool, get_context
    from concurrent.futures import ProcessPoolExecutor

    multiprocessing.set_start_method("fork")
    load()
    if {used}:
        engine.generate("a", max_tokens=2)
    with {pool} as pool:
        print(json.dumps(list(pool.map(tokens, PROMPTS))))
    """
    assert run(tmp_path, code) == expected


@pytest.mark.sweep(1)
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pools_open_the_engine_that_their_tasks_bring(tmp_path, expected, method):
    code = f"""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    if __name__ == "__main__":
        load()
        with ProcessPoolExecutor(2, multiprocessing.get_context({method!r})) as pool:
            found = list(pool.map(tokens_of, [engine] * len(PROMPTS), PROMPTS))
        assert os.getpid() not in {{pid for _, pid, _ in found}}
        print(json.dumps([tokens for tokens, _, _ in found]))
    """
    assert run(tmp_path, code) == expected


@pytest.mark.long
def test_an_initializer_opens_it_where_it_is_used(tmp_path, expected):
    code = """
    from concurrent.futures import ProcessPoolExecutor
    import multiprocessing

    if __name__ == "__main__":
        with ProcessPoolExecutor(2, multiprocessing.get_context("spawn"), initializer=load) as pool:
            print(json.dumps(list(pool.map(tokens, PROMPTS))))
    """
    assert run(tmp_path, code) == expected


@pytest.mark.long
@pytest.mark.parametrize(("limit", "n"), [("1", 1), ("2", 2), ("1,4", 1)])
def test_an_engine_without_a_number_of_threads_takes_that_of_the_worker(tmp_path, limit, n):
    """Its pickle doesn't carry that of its parent."""
    code = f"""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    def limited():
        os.environ["OMP_NUM_THREADS"] = {limit!r}

    if __name__ == "__main__":
        engine = ox.load()
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=limited) as pool:
            n = pool.submit(tokens_of, engine, "A").result()[2]
        print(json.dumps([engine.num_threads, n]))
    """
    here, there = run(tmp_path, code)
    assert there == min(n, len(os.sched_getaffinity(0)))
    assert here >= there


@pytest.mark.long
def test_a_worker_on_one_core_computes_with_one_thread(tmp_path):
    code = """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    def pinned():
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    if __name__ == "__main__":
        with ox.load() as engine, ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), initializer=pinned
        ) as pool:
            print(json.dumps(pool.submit(tokens_of, engine, "A").result()[2]))
    """
    assert run(tmp_path, code) == 1


# ---- joblib


@pytest.mark.long
@pytest.mark.parametrize("backend", ["loky", "multiprocessing", "threading"])
def test_joblib(tmp_path, expected, backend):
    pytest.importorskip("joblib")
    code = f"""
    from joblib import Parallel, delayed

    if __name__ == "__main__":
        load()
        engine.generate("a", max_tokens=2)
        found = Parallel(2, backend={backend!r})(delayed(tokens_of)(engine, prompt) for prompt in PROMPTS)
        assert (os.getpid() in {{pid for _, pid, _ in found}}) == ({backend!r} == "threading")
        print(json.dumps([tokens for tokens, _, _ in found]))
    """
    assert run(tmp_path, code) == expected


@pytest.mark.long
def test_joblib_says_how_many_threads_its_workers_have(tmp_path):
    """loky sets OMP_NUM_THREADS; an engine that was given none follows it."""
    pytest.importorskip("joblib")
    code = """
    from joblib import Parallel, delayed, parallel_config

    if __name__ == "__main__":
        engine = ox.load()
        with parallel_config("loky", inner_max_num_threads=1):
            found = Parallel(2)(delayed(tokens_of)(engine, prompt) for prompt in PROMPTS)
        print(json.dumps(sorted({n for _, _, n in found})))
    """
    assert run(tmp_path, code) == [1]


# ---- PyTorch


@pytest.mark.long
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_workers_of_a_data_loader(tmp_path, expected, method, warm):
    """PyTorch brings an OpenMP library of its own."""
    pytest.importorskip("torch")
    code = f"""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Answers(Dataset):
        def __init__(self, engine):
            self.engine = engine

        def __len__(self):
            return len(PROMPTS)

        def __getitem__(self, i):
            (torch.ones(300, 300) @ torch.ones(300, 300)).sum()
            return self.engine.generate(PROMPTS[i], **SAME).token_ids

    def together(items):
        return items

    if __name__ == "__main__":
        load()
        if {warm}:
            engine.generate("a", max_tokens=2)
            (torch.ones(600, 600) @ torch.ones(600, 600)).sum()
        loader = DataLoader(
            Answers(engine), batch_size=2, num_workers=2, multiprocessing_context={method!r}, collate_fn=together
        )
        print(json.dumps([tokens for batch in loader for tokens in batch]))
    """
    assert run(tmp_path, code, 300) == expected


# ---- gunicorn


APP = """
import os
import oxillama as ox
from oxillama.server import create_app
from starlette.responses import PlainTextResponse

engine = ox.load(num_threads=2)
if os.environ["USED"]:
    engine.generate("a", max_tokens=2)
served = create_app({"tiny": engine})

async def app(scope, receive, send):
    if scope["type"] == "http" and scope["path"] == "/pid":
        await PlainTextResponse(str(os.getpid()))(scope, receive, send)
    else:
        await served(scope, receive, send)
"""


def call(place, body=None):
    request = urllib.request.Request(place, None if body is None else json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=120) as answer:
        return answer.read().decode()


def address(process):
    """Where gunicorn listens, once it does."""
    for line in process.stderr:
        if "Listening at: " in line:
            return line.split("Listening at: ")[1].split()[0]
    pytest.fail("gunicorn ended")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("used", ["", "1"], ids=["before", "after"])
def test_gunicorn_with_preload(tmp_path, expected, used):
    """Loaded once, in the process that forks the workers; a worker that is killed has a successor."""
    pytest.importorskip("gunicorn")
    (tmp_path / "served_app.py").write_text(APP)
    (tmp_path / "run.py").write_text("from gunicorn.app.wsgiapp import run; run()")
    process = start(
        tmp_path / "run.py", "--preload", "-w", "2", "-k", "uvicorn.workers.UvicornWorker", "-b", "127.0.0.1:0",
        "served_app:app", USED=used, PYTHONPATH=f"{ROOT}:{tmp_path}",
    )  # fmt: skip
    try:
        place = address(process)
        first = {call(f"{place}/pid") for _ in range(30)}
        assert answers(place) == expected
        killed = first.pop()
        os.kill(int(killed), signal.SIGKILL)
        time.sleep(1)
        assert answers(place) == expected
        assert killed not in {call(f"{place}/pid") for _ in range(30)}
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.communicate(timeout=120)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()


def answers(place):
    asked = [{"prompt": prompt, "return_token_ids": True, **SAME} for prompt in PROMPTS]
    texts = [call(f"{place}/v1/completions", fields) for fields in asked]
    return [json.loads(text)["choices"][0]["token_ids"] for text in texts]
