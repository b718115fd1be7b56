"""What is imported late, and children that are forked meanwhile. In processes of their own, which import afresh."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

HEAD = """
    import asyncio, importlib.machinery, os, signal, sys, tempfile, threading, traceback
    import oxillama as ox

    def in_child(act):
        "How it ended: killed, if it hangs."
        pid = os.fork()
        if not pid:
            signal.alarm(30)
            status = 1
            try:
                act()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(status, file=sys.stderr)
        return status

    class Slow:
        "Imports one module slowly."
        def __init__(self, name):
            self.name, self.begun, self.go_on = name, threading.Event(), threading.Event()
            sys.meta_path.insert(0, self)

        def find_spec(self, name, path=None, target=None):
            if name != self.name:
                return None
            spec = importlib.machinery.PathFinder.find_spec(name, path)
            execute = spec.loader.exec_module

            def slowly(module):  # where it is found, Python itself would keep others from forking
                self.begun.set()
                assert self.go_on.wait(60)
                execute(module)

            spec.loader.exec_module = slowly
            return spec

        def importing(self, seconds=0.3):
            "A thread that is in the middle of it, and will go on after so long."
            thread = threading.Thread(target=importlib.import_module, args=(self.name,))
            thread.start()
            assert self.begun.wait(60)
            timer = threading.Timer(seconds, self.go_on.set)
            timer.daemon = True
            timer.start()
            return thread
"""


def run(code, head=HEAD):
    whole = textwrap.dedent(head) + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", whole],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_child_imports_nothing():
    """Whatever it uses of an engine that its parent loaded. With zstandard, if that is installed."""
    code = """
    engine = ox.load(num_threads=1, kv_type="f32")
    folder, late = tempfile.mkdtemp(), []

    class Spy:
        def find_spec(self, name, path=None, target=None):
            late.append(name)

    async def serve():
        async with ox.AsyncEngine(engine) as serving:
            return await serving.generate("Once", max_tokens=2)

    def use():
        sys.meta_path.insert(0, Spy())
        engine.generate("Once", max_tokens=2, logprobs=2, prompt_logprobs=2, n=2)
        engine.generate("Once", max_tokens=4, grammar='root ::= "a"+')
        engine.generate("Once", max_tokens=4, json_schema={"properties": {"a": {"pattern": "^[a-z]+$"}}})
        engine.generate("Once", max_tokens=4, json_schema={"type": "string", "format": "date-time"})
        engine.chat([{"role": "user", "content": "hi"}], max_tokens=2)
        engine.embed("Once")
        engine.beam_search("Once", max_new_tokens=2)
        engine.generate("Once", max_tokens=4, draft=ox.PromptLookup())
        engine.generate("Once", max_tokens=4, draft=ox.SpeculativeDecoder(ox.shipped_draft(), num_threads=1))
        engine.prefill(engine.tokenize("Once"))
        for name, options in {"plain": {}, "shared": {"shared": True}, "version 1": {"format": 1}}.items():
            place = os.path.join(folder, name)
            engine.snapshot(place, **options)
            ox.snapshot.snapshot_info(place)
            engine.resume(place)
            ox.Engine.restore(place).close()
        engine.metrics_snapshot().prometheus({})
        draft = ox.synthesise_draft(engine, "Q2_K", destination=os.path.join(folder, "draft"))
        with ox.SpeculativeEngine(engine, draft) as speculative:
            speculative.generate("Once", max_tokens=2)
        ox.load(num_threads=1, offload=2_000_000).close()
        asyncio.run(serve())  # and closes the engine
        assert late == [], late

    assert in_child(use) == 0
    """
    run(code)


@pytest.mark.parametrize("module", ["oxillama.snapshot.v1_convert", "oxillama.chat.sandbox", "jinja2"])
def test_a_fork_waits_for_an_import(module):
    run(f"""
    engine = ox.load(num_threads=1)
    engine.prefill(engine.tokenize("Once"))
    saved = engine.snapshot_bytes()
    thread = Slow({module!r}).importing()

    def use():
        engine.resume(saved).close()
        engine.snapshot_bytes(format=1)
        engine.chat([{{"role": "user", "content": "hi"}}], max_tokens=2)

    assert in_child(use) == 0
    thread.join()
    use()
    """)


def test_a_module_that_nobody_waits_for_stays_locked():
    """So the tests above are tests."""
    run("""
    slow = Slow("xml.dom.minidom")
    thread = slow.importing(seconds=60)

    def use():
        signal.alarm(2)
        importlib.import_module("xml.dom.minidom")

    assert in_child(use) == -signal.SIGALRM
    slow.go_on.set()
    thread.join()
    """)


def test_before_any_engine_is_there():
    run("""
    thread = Slow("oxillama.gguf").importing()
    assert in_child(lambda: ox.gguf.quantize) == 0
    thread.join()
    assert "oxillama.engine" not in sys.modules
    """)


def test_a_fork_from_within_an_import():
    run("""
    engine = ox.load(num_threads=1)
    found = []

    class Forks:
        def find_spec(self, name, path=None, target=None):
            if name == "oxillama.snapshot.v1_convert" and not found:
                found.append(0)
                found[0] = in_child(lambda: ox.snapshot.snapshot_info)

    sys.meta_path.insert(0, Forks())
    importlib.import_module("oxillama.snapshot.v1_convert")
    assert found == [0]
    """)


def test_what_cant_be_imported_keeps_nobody_from_forking():
    run("""
    engine = ox.load(num_threads=1)

    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name in ("jinja2", "oxillama.hub"):
                raise ImportError(name)

    sys.meta_path.insert(0, Broken())
    assert in_child(lambda: engine.generate("Once", max_tokens=2)) == 0
    assert "oxillama.snapshot.v1_convert" in sys.modules
    """)


def test_ctrl_c_meanwhile_leaves_nothing_out():
    """Python drops what a hook raises, and forks: threads must be held up all the same."""
    code = """
    engine = ox.load(num_threads=1)
    from oxillama._util import fork

    class Held:
        found = []
        def stop(self, *, wait): pass
        def before_fork(self): self.found.append("before")
        def after_fork_in_parent(self): self.found.append("after")
        def after_fork_in_child(self): os.write(1, b"child ")

    held, kind = Held(), fork.ForkRegistry(fork.READS)
    kind.add(held)
    real = importlib.import_module

    def interrupted(name):
        importlib.import_module = real
        signal.raise_signal(signal.SIGINT)
        return real(name)

    importlib.import_module = interrupted
    assert in_child(lambda: engine.generate("Once", max_tokens=2)) == 0
    assert held.found == ["before", "after"], held.found
    assert "oxillama.hub" in sys.modules
    """
    assert run(code) == "child "


def test_the_package_itself_is_waited_for():
    """While it is imported, not all that it will import has begun."""
    code = """
    before = Slow("oxillama.config")
    thread = threading.Thread(target=importlib.import_module, args=("oxillama",))
    thread.start()
    assert before.begun.wait(60)
    begun = sys.modules["oxillama._util.fork"]._begun()
    assert {"oxillama", "oxillama.config"} <= set(begun), begun
    before.go_on.set()
    thread.join()
    assert sys.modules["oxillama._util.fork"]._begun() == []
    """
    run(code, HEAD.replace("import oxillama as ox", ""))
