"""Programs that use an engine while the interpreter ends: each call works or raises, and the process ends."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAD = """
    import asyncio, atexit, gc, sys, threading
    import oxillama as ox
    from os import write

    DRAWN = {"max_tokens": 4, "seed": 1, "ignore_eos": True}

    async def coroutines():
        return (await ox.AsyncEngine(engine).generate("Once", **DRAWN)).token_ids

    calls = {
        "generate": lambda: engine.generate("Once", **DRAWN),
        "stream": lambda: next(engine.stream("Once", **DRAWN)),
        "batch": lambda: next(engine.batch(["Once"], **DRAWN)),
        "async": lambda: asyncio.run(coroutines()),
        "embed": lambda: engine.embed("Once"),
        "session": lambda: engine.session().prefill([3, 4]),
        "reset": lambda: engine.reset(),
        "metrics": lambda: engine.metrics_snapshot(),
        "shrink": lambda: engine.shrink_to_fit(),
        "close": lambda: engine.close(),
    }

    def tell(where, write=write):
        for name, call in calls.items():
            try:
                call()
                outcome = "works"
            except Exception as error:
                outcome = type(error).__name__
            write(1, f"{where} {name} {outcome}\\n".encode())
"""
DELETED = """
    class User:
        def __del__(self):
            tell("finalising" if sys.is_finalizing() else "collected")
"""
PROGRAMS = {
    "a global": """
    engine = ox.load(num_threads=1, context_size=64, kv_budget=1 << 20)
    user = User()
    """,
    "a cycle": """
    engine = ox.load(num_threads=1, context_size=64, kv_budget=1 << 20)
    user = User()
    user.engine, user.self = engine, user
    """,
    "after coroutines": """
    engine = ox.load(num_threads=1, context_size=64, kv_budget=1 << 20)
    user = User()
    asyncio.run(coroutines())
    """,
    "a thread in the middle of a step": """
    engine = ox.load(num_threads=1, context_size=64, kv_budget=1 << 20)
    user = User()
    inside = threading.Event()
    def hang(ids, logits):
        inside.set()
        threading.Event().wait()
    threading.Thread(
        target=lambda: engine.generate("Once", logits_processors=[hang], **DRAWN), daemon=True).start()
    inside.wait()
    """,
    "weights that are paged": """
    engine = ox.load(num_threads=1, context_size=64, kv_budget=1 << 20, offload=1 << 21)
    user = User()
    """,
    "at exit": """
    engine = ox.load(num_threads=1, context_size=64, kv_budget=1 << 20)
    atexit.register(tell, "at exit")
    """,
}


def outcomes(program):
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    told = [line.rsplit(" ", 2) for line in done.stdout.splitlines()]
    return {(where, name): outcome for where, name, outcome in told}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_uses_an_engine_at_its_end_ends(name):
    found = outcomes(textwrap.dedent(HEAD + DELETED + PROGRAMS[name]))
    found = {call: outcome for call, outcome in found.items() if outcome != "ImportError"}  # of asyncio's own
    assert set(found.values()) <= {"works", "GenerateError", "EngineClosedError"}
    if name == "a thread in the middle of a step" and not found:
        return  # which keeps the object from being deleted at all
    (where,) = {where for where, _ in found}
    if where == "finalising":
        assert found[where, "generate"] == found[where, "stream"] == found[where, "session"] == "GenerateError"
    else:
        assert found[where, "generate"] == found[where, "close"] == "works"


def test_handlers_that_were_registered_before_the_package_run_after_it():
    """Its threads are over then: what needs none of them works."""
    before = """
    import atexit
    atexit.register(lambda: tell("late"))
    """
    load = """
    engine = ox.load(num_threads=1, context_size=64, kv_budget=1 << 20)
    """
    found = outcomes(textwrap.dedent(before) + textwrap.dedent(HEAD + load))
    assert found["late", "generate"] == found["late", "session"] == found["late", "close"] == "works"
    assert found["late", "async"] == "GenerateError"


def test_an_object_in_a_cycle_with_its_engine_may_use_it_when_it_is_collected():
    collected = """
    class User:
        def __del__(self):
            assert len(self.engine.generate("Once", **DRAWN).token_ids) == 4
            write(1, b"collected generate works\\n")

    user = User()
    user.engine, user.self = ox.load(num_threads=1, context_size=64, kv_budget=1 << 20), user
    del user
    gc.collect()
    """
    assert outcomes(textwrap.dedent(HEAD + collected)) == {("collected", "generate"): "works"}
