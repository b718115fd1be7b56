"""Requests on a tiny model, served in every way at random; each must give the bits that it gives alone."""

import functools
import tempfile
import weakref
import zlib
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import oxillama.gguf as gguf
from oxillama.config import EngineConfig
from oxillama.core.generation_request import GenerationRequest
from oxillama.core.loading import EngineParts
from oxillama.core.request import ResultQueue
from oxillama.core.runner import Runner
from oxillama.engine import Engine
from oxillama.layer_state import KvShape, RecurrentShape, largest_window
from oxillama.models import load_model
from tests.fakes import PENALISED, assert_idle, core_of, factory_of, options, session_of
from tests.models.letters import Letters
from tests.models.tiny import Shape, tiny

BLOCK = 16
CONTEXT = 160
MAX_STEPS = 20_000  # more than all rules of an example can need, each token sent back many times
# Prompts begin with one of these, so that many begin alike.
BEGINNINGS = [[(7 * i + 3 * j) % 29 + 3 for i in range(CONTEXT)] for j in range(2)]
# Attention, states, and both; windows alone, and beside attention to all, with a type of KV.
NAMES = ("llama", "mamba", "jamba", "llama-window", "gemma2", "gemma2 q4_0")
WINDOW = 20


@functools.cache
def model_of(name):
    with tempfile.TemporaryDirectory() as folder:
        path = tiny(name.split()[0], Path(folder), Shape(window=WINDOW))
        with gguf.open(path) as file:
            return load_model(file, num_threads=2)


def engine_of(name, n_blocks, n_slots, n_windowed, num_threads=1, **fields):
    model = model_of(name)
    kv_type = name.split()[1] if " " in name else "f16"
    config = EngineConfig(kv_block_size=BLOCK, kv_type=kv_type, **fields)
    kept = [shape for layer in model.spec.states for shape in layer]
    window = largest_window(model.spec.states)
    sizes = {
        "n_blocks": n_blocks * any(isinstance(s, KvShape) and not s.window for s in kept),
        "n_slots": n_slots * any(isinstance(s, RecurrentShape) for s in kept),
        "n_windowed": n_windowed * (window > 0),
    }
    runner = Runner(model, num_threads=num_threads, kv_type=kv_type, kv_block_size=BLOCK, **sizes)
    return Engine(
        config, parts=EngineParts(runner, Letters(), model.spec, CONTEXT, **sizes, window=window, sampling=PENALISED)
    )


ROWS = weakref.WeakKeyDictionary()  # of requests, which have slots


class Recorded(GenerationRequest):
    """A request that keeps a checksum of every row of logits that it draws from."""

    __slots__ = ()

    @property
    def rows(self):
        return ROWS.setdefault(self, [])

    def draw(self, row):
        self.rows.append(zlib.crc32(row.tobytes()))
        return super().draw(row)


def recorded(request):
    request.__class__ = Recorded
    return request


ALONE = {}


def alone(name, prompt, n, seed):
    """(tokens, checksums of logits) of a request on a fresh engine."""
    key = (name, tuple(prompt), n, seed)
    if key not in ALONE:
        engine = engine_of(name, CONTEXT // BLOCK, 2, CONTEXT // BLOCK, prefix_cache=False)
        outbox = ResultQueue(1)
        request = recorded(factory_of(engine).request(prompt, options(max_tokens=n, seed=seed), outbox))
        core_of(engine).run([request], outbox)
        ALONE[key] = request.sequence.tokens[len(prompt) :], request.rows
    return ALONE[key]


PROMPTS = st.builds(
    lambda which, n, tail: BEGINNINGS[which][:n] + tail,
    st.integers(0, 1),
    st.sampled_from([0, 5, 16, 24, 32, 40, 48, 70, 100]),
    st.lists(st.integers(3, 6), min_size=1, max_size=3),
)
LENGTHS = st.sampled_from([1, 2, 17, 33, 50])
SERVED = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 1),
        "priority": st.integers(0, 2),
        "cache_salt": st.sampled_from([None, None, None, "a"]),
        "cache_prompt": st.sampled_from([True, True, True, False]),
    }
)
OWNERS = st.sampled_from([None, None, "a", "b"])  # of the requests of one call


class Serving(RuleBasedStateMachine):
    name = "llama"
    debug = True

    @initialize(
        n_blocks=st.integers(3, 9),
        n_slots=st.integers(2, 9),
        n_windowed=st.integers(4, 9),
        chunk=st.sampled_from([1, 3, 16, 20, 64, 512]),
        threads=st.integers(1, 3),
        prefix=st.sampled_from([True, True, False]),
    )
    def begin(self, n_blocks, n_slots, n_windowed, chunk, threads, prefix):
        self.engine = engine_of(
            self.name, n_blocks, n_slots, n_windowed, threads, prefill_chunk_size=chunk, prefix_cache=prefix
        )
        self.core = core_of(self.engine)
        self.core.scheduler.debug = self.debug
        self.bound_steps(MAX_STEPS)
        self.room = min(self.core.scheduler.capacity, CONTEXT)
        self.jobs, self.tickets = [], []
        self.talk = self.engine.conversation()

    def bound_steps(self, left):
        """A request that never ends is a failure, and not a test that hangs."""
        scheduler, schedule = self.core.scheduler, self.core.scheduler.step

        def bounded(*given):
            nonlocal left
            left -= 1
            assert left > 0, "a request never ends"
            return schedule(*given)

        scheduler.step = bounded

    @rule(jobs=st.lists(st.tuples(PROMPTS, LENGTHS, SERVED), min_size=1, max_size=5), owner=OWNERS)
    def submit(self, jobs, owner):
        for prompt, n, served in jobs:
            n = min(n, self.room - len(prompt) + 1)
            if n > 0:
                outbox = ResultQueue(1)
                request = recorded(factory_of(self.engine).request(prompt, options(max_tokens=n, **served), outbox))
                request.sequence.owner = owner
                self.tickets.append(self.core.submit([request]))
                self.jobs.append((request, outbox, alone(self.name, prompt, n, served["seed"])))

    @precondition(lambda self: self.jobs)
    @rule(n=st.integers(1, 40))
    def step(self, n):
        for _ in range(n):
            self.core.step()
        self.check()

    @precondition(lambda self: self.jobs)
    @rule(i=st.integers(0, 9))
    def cancel(self, i):
        request, outbox, (tokens, rows) = self.jobs.pop(i % len(self.jobs))
        self.core.cancel([request])
        self.core.cancel([request])
        assert outbox.n_open == 0
        got = request.sequence.tokens[request.n_prompt :]
        assert got == tokens[: len(got)]
        assert request.rows == rows[: len(request.rows)]

    @rule(prompt=PROMPTS, n=st.integers(1, 5), seed=st.integers(0, 1))
    def converse(self, prompt, n, seed):
        if len(prompt) + n - 1 <= self.room:
            chunks = list(self.talk.stream(prompt, options(max_tokens=n, seed=seed)))
            assert [t for c in chunks for t in c.token_ids] == alone(self.name, prompt, n, seed)[0]

    @rule(prompt=PROMPTS, at=st.integers(0, 60))
    def prefill(self, prompt, at):
        at = min(at, self.engine.position)
        if at + len(prompt) <= self.room and at + len(prompt) <= CONTEXT:
            row = self.engine.forward_prefill(prompt, at)
            tokens = session_of(self.engine).tokens
            assert [zlib.crc32(row.tobytes())] == alone(self.name, tokens, 1, 0)[1] if len(tokens) < CONTEXT else True

    @rule(prompt=PROMPTS)
    def branch(self, prompt):
        n = self.engine.position + len(prompt)
        if n <= self.room and n < CONTEXT:
            with self.engine.fork() as twin:
                row = twin.prefill(prompt)
                assert [zlib.crc32(row.tobytes())] == alone(self.name, twin.tokens, 1, 0)[1]

    def check(self):
        for request, outbox, (tokens, rows) in list(self.jobs):
            assert outbox.error is None
            got = request.sequence.tokens[request.n_prompt :]
            assert got == tokens[: len(got)]
            assert request.rows == rows[: len(request.rows)]
            if request.finish_reason is not None:
                assert got == tokens
                assert request.rows == rows

    def teardown(self):
        if not hasattr(self, "jobs"):
            return
        while any(outbox.n_open for _, outbox, _ in self.jobs):
            self.core.step()
        self.check()
        self.talk.close()
        self.engine.reset()
        assert_idle(self.engine)
        for pool in (self.core.pool.blocks, self.core.pool.windowed, self.core.pool.slots):
            assert pool.n_free == pool.n - pool.n_kept
            assert pool.n_idle == pool.n_kept


def machine(name, **changes):
    return type(f"Serving_{name}", (Serving,), {"name": name, **changes})


QUICK = settings(
    max_examples=60, stateful_step_count=25, suppress_health_check=list(HealthCheck), derandomize=True,
)  # fmt: skip
