"""A real model served in every way: each request gives the bits that it gives alone, and nothing leaks.

Random requests share beginnings, are cancelled and sent back in caches that are much too small, beside a session and a
dialogue that rewind into shared blocks. Faults are planted too, and must be found.
"""

import dataclasses
import zlib

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

import oxillama.gguf as gguf
from oxillama.config import EngineConfig
from oxillama.engine import Engine, core
from oxillama.engine.holdings import Holdings
from oxillama.engine.loading import EngineParts
from oxillama.engine.request import Outbox
from oxillama.engine.runner import Runner
from oxillama.engine.scheduler import Scheduler
from oxillama.errors import OxiLlamaError
from oxillama.kv_cache import KvCachePool
from oxillama.models import load_model
from tests.engine.fakes import assert_idle
from tests.engine.test_conversation import options
from tests.engine.test_recurrent_models import Letters
from tests.models.tiny import tiny

BLOCK = 16
CONTEXT = 160
MAX_STEPS = 20_000  # more than all rules of an example can need, each token sent back many times
# Prompts begin with one of these, so that many begin alike.
BEGINNINGS = [[(7 * i + 3 * j) % 29 + 3 for i in range(CONTEXT)] for j in range(2)]
MODELS = {}


@pytest.fixture(scope="module", autouse=True)
def model(tmp_path_factory):
    with gguf.open(tiny("llama", tmp_path_factory.mktemp("models"))) as file:
        MODELS["llama"] = load_model(file, num_threads=2)
    yield
    MODELS.clear()


def engine_of(n_blocks, num_threads=1, **fields):
    model = MODELS["llama"]
    config = EngineConfig(kv_block_size=BLOCK, **fields)
    runner = Runner(model, num_threads=num_threads, n_blocks=n_blocks, kv_block_size=BLOCK)
    return Engine(config, parts=EngineParts(runner, Letters(), model.spec, CONTEXT, n_blocks, 0))


def recorded(request):
    """The request, which keeps a checksum of every row of logits that it gets."""
    request.rows, absorb = [], request.absorb

    def absorb_and_record(rows):
        request.rows.append(zlib.crc32(rows.tobytes()))
        return absorb(rows)

    request.absorb = absorb_and_record
    return request


ALONE = {}


def alone(prompt, n, seed):
    """(tokens, checksums of logits) of a request on a fresh engine."""
    key = (tuple(prompt), n, seed)
    if key not in ALONE:
        engine = engine_of(CONTEXT // BLOCK, prefix_cache=False)
        outbox = Outbox(1)
        request = recorded(engine._maker.request(prompt, options(max_tokens=n, seed=seed), outbox))
        engine._core.run([request], outbox)
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


class Serving(RuleBasedStateMachine):
    debug = True

    @initialize(
        n_blocks=st.integers(3, 9),
        chunk=st.sampled_from([1, 3, 16, 20, 64, 512]),
        threads=st.integers(1, 3),
        prefix=st.sampled_from([True, True, False]),
    )
    def begin(self, n_blocks, chunk, threads, prefix):
        self.engine = engine_of(n_blocks, threads, prefill_chunk_size=chunk, prefix_cache=prefix)
        self.core = self.engine._core
        self.core.scheduler.debug = self.debug
        self.bound_steps(MAX_STEPS)
        self.room = n_blocks * BLOCK
        self.jobs = []
        self.talk = self.engine.conversation()

    def bound_steps(self, left):
        """A request that never ends is a failure, and not a test that hangs."""
        scheduler, schedule = self.core.scheduler, self.core.scheduler.step

        def bounded(*given):
            nonlocal left
            left -= 1
            assert left, "a request never ends"
            return schedule(*given)

        scheduler.step = bounded

    @rule(jobs=st.lists(st.tuples(PROMPTS, LENGTHS, SERVED), min_size=1, max_size=5))
    def submit(self, jobs):
        for prompt, n, served in jobs:
            n = min(n, self.room - len(prompt) + 1)
            if n > 0:
                outbox = Outbox(1)
                request = recorded(self.engine._maker.request(prompt, options(max_tokens=n, **served), outbox))
                self.core.submit([request])
                self.jobs.append((request, outbox, alone(prompt, n, served["seed"])))

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
            assert [t for c in chunks for t in c.token_ids] == alone(prompt, n, seed)[0]

    @rule(prompt=PROMPTS, at=st.integers(0, 60))
    def prefill(self, prompt, at):
        at = min(at, self.engine.position)
        if at + len(prompt) <= self.room and at + len(prompt) <= CONTEXT:
            row = self.engine.forward_prefill(prompt, at)
            tokens = self.engine._session.tokens
            assert [zlib.crc32(row.tobytes())] == alone(tokens, 1, 0)[1] if len(tokens) < CONTEXT else True

    @rule(prompt=PROMPTS)
    def branch(self, prompt):
        n = self.engine.position + len(prompt)
        if n <= self.room and n < CONTEXT:
            with self.engine.fork() as twin:
                row = twin.prefill(prompt)
                assert [zlib.crc32(row.tobytes())] == alone(twin.tokens, 1, 0)[1]

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
        prefix, blocks = self.core.scheduler.prefix, self.core.pool.blocks
        assert blocks.n_free == blocks.n - (prefix.n_blocks if prefix else 0)


QUICK = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True,
)  # fmt: skip


def test_any_way_of_serving_gives_the_same_bits():
    run_state_machine_as_test(Serving, settings=QUICK)


def test_storms_happen():
    """What the machine is for happens in it: otherwise it would show nothing."""
    seen = {"preempted": 0, "hits": 0}

    class Counting(Serving):
        def teardown(self):
            super().teardown()
            scheduler = self.core.scheduler
            seen["preempted"] += scheduler.n_preempted
            seen["hits"] += scheduler.prefix.hit_tokens if scheduler.prefix else 0

    run_state_machine_as_test(Counting, settings=settings(QUICK, max_examples=20))
    assert seen["preempted"] > 10
    assert seen["hits"] > 100


# ---- planted faults


def write_to_shared_blocks(patch):
    patch.setattr(KvCachePool, "n_shared", lambda pool, table, first, last: 0)
    patch.setattr(KvCachePool, "own", lambda pool, table, first, last: [])
    patch.setattr(Holdings, "has_room", lambda self, s: s.n_computed // BLOCK < len(s.block_table))


def forget_to_copy(patch):
    patch.setattr(Runner, "copy_block", lambda runner, source, target: None)


def keep_a_stale_table(patch):
    real, tables = core.span_of, {}

    def span(request, n):
        made = real(request, n)
        old = tables.get(request)
        if old is None or len(old) < len(made.block_table):
            old = tables[request] = list(made.block_table)
        return dataclasses.replace(made, block_table=old)

    patch.setattr(core, "span_of", span)


def count_one_too_many(patch):
    real = Scheduler.advance

    def advance(self, sequence, n):
        real(self, sequence, n + (n > 1 and sequence.n_computed + n < len(sequence.tokens) - 1))

    patch.setattr(Scheduler, "advance", advance)


def keep_what_was_drawn_last(patch):
    """A request that is sent back loses its last token."""
    real = Scheduler._preempt

    def preempt(self, sequence):
        if len(sequence.tokens) > sequence.n_prompt:
            sequence.tokens.pop()
        real(self, sequence)

    patch.setattr(Scheduler, "_preempt", preempt)


def leave_a_block_behind(patch):
    real = Scheduler._preempt

    def preempt(self, sequence):
        if len(sequence.block_table) > len(sequence.path):
            sequence.block_table.pop()
        real(self, sequence)

    patch.setattr(Scheduler, "_preempt", preempt)


@pytest.mark.parametrize(
    "plant",
    [
        write_to_shared_blocks,
        forget_to_copy,
        keep_a_stale_table,
        count_one_too_many,
        keep_what_was_drawn_last,
        leave_a_block_behind,
    ],
)
def test_planted_faults_are_found(plant, monkeypatch):
    class Blind(Serving):
        debug = False  # results alone must show it

    plant(monkeypatch)
    search = settings(QUICK, max_examples=300, phases=[Phase.generate])
    with pytest.raises((AssertionError, OxiLlamaError)):
        run_state_machine_as_test(Blind, settings=search)
