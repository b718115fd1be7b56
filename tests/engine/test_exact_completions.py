"""The machine that serves requests in every way, with more of each: log-probabilities, completions, and beams.

What it has beside tokens and rows must be that of a request alone too. A fault of forks is planted, and must be found.
"""

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyFailure
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from oxillama.core.request import ResultQueue
from oxillama.errors import KvCacheFullError, OxiLlamaError
from oxillama.scheduling.block_manager import BlockManager
from oxillama.scheduling.pools import KvCachePool
from oxillama.scheduling.prefix_cache import PrefixKvCache
from tests.engine.serving import BLOCK, CONTEXT, LENGTHS, PROMPTS, QUICK, SERVED, Serving, engine_of
from tests.fakes import factory_of, options

WIDTH = 3
ALONE = {}
BEAMS = {}


def fresh():
    return engine_of("llama", CONTEXT // BLOCK, 2, 0, prefix_cache=False)


def alone(prompt, n, seed):
    """(tokens, log-probabilities, those of the prompt) of a request on a fresh engine."""
    key = (tuple(prompt), n, seed)
    if key not in ALONE:
        r = fresh().generate(prompt, max_tokens=n, seed=seed, logprobs=2, prompt_logprobs=1)
        ALONE[key] = r.token_ids, r.logprobs, r.prompt_logprobs
    return ALONE[key]


def beams_alone(prompt, n):
    key = (tuple(prompt), n)
    if key not in BEAMS:
        BEAMS[key] = engine_of("llama", 4 * CONTEXT // BLOCK, 2, 0, prefix_cache=False).beam_search(
            prompt, beam_width=WIDTH, max_new_tokens=n
        )
    return BEAMS[key]


def is_beginning(found, of):
    return found is None or found == of[: len(found)]


class Completing(Serving):
    groups = ()

    @rule(
        prompt=PROMPTS, n=LENGTHS, served=SERVED, n_each=st.sampled_from([1, 2, 3, 3]),
        logprobs=st.sampled_from([None, 2]), prompt_logprobs=st.sampled_from([None, None, 1]),
    )  # fmt: skip
    def submit_group(self, prompt, n, served, n_each, logprobs, prompt_logprobs):
        n = min(n, self.room - len(prompt) + 1)
        if n > 0:
            asked = options(max_tokens=n, n=n_each, logprobs=logprobs, prompt_logprobs=prompt_logprobs, **served)
            outbox = ResultQueue(n_each)
            requests = factory_of(self.engine).group(prompt, asked, outbox)
            self.tickets.append(self.core.submit(requests))
            expected = [alone(prompt, n, served["seed"] + i) for i in range(n_each)]
            self.groups = [*self.groups, (list(zip(requests, expected, strict=True)), outbox, set())]

    @precondition(lambda self: self.groups)
    @rule(i=st.integers(0, 9), which=st.integers(-1, 2))
    def cancel_some(self, i, which):
        """All of a group, or the last one alone, or what the first computes for all."""
        group, _, cancelled = self.groups[i % len(self.groups)]
        chosen = [request for request, _ in group] if which < 0 else [group[-1][0]]
        cancelled.update(request for request in chosen if request.finish_reason is None)
        self.core.cancel(chosen)

    @precondition(lambda self: self.groups)
    @rule(n=st.integers(1, 40))
    def step_groups(self, n):
        for _ in range(n):
            self.core.step()
        self.check()

    @rule(prompt=PROMPTS, n=st.integers(1, 6))
    def search(self, prompt, n):
        try:
            found = self.engine.beam_search(prompt, beam_width=WIDTH, max_new_tokens=n)
        except KvCacheFullError:  # before anything is done
            return
        assert found == beams_alone(prompt, n)

    def check(self):
        super().check()
        for group, outbox, cancelled in self.groups:
            assert outbox.error is None
            for request, expected in group:
                scores = request.scores
                got = request.sequence.tokens[request.n_prompt :]
                parts = [got, *((scores.tokens, scores.prompt) if scores else (None, None))]
                assert all(map(is_beginning, parts, expected))
                if request.finish_reason is not None and request not in cancelled:
                    assert all(part is None or part == whole for part, whole in zip(parts, expected, strict=True))
                    assert request.finish_reason == "length"

    def teardown(self):
        if hasattr(self, "jobs"):
            while any(outbox.n_open for _, outbox, _ in self.groups):
                self.core.step()
            super().teardown()


def test_completions_and_their_logprobs_are_those_of_requests_alone():
    seen = {"preempted": 0, "forked": 0}

    class Watching(Completing):
        """What the machine is for happens in it: otherwise it would show nothing."""

        def teardown(self):
            if hasattr(self, "jobs"):
                seen["preempted"] += self.core.scheduler.n_preempted
                seen["forked"] += sum(len(group) > 1 and not cancelled for group, _, cancelled in self.groups)
            super().teardown()

    run_state_machine_as_test(Watching, settings=settings(QUICK, max_examples=30))
    assert seen["preempted"] > 5
    assert seen["forked"] > 5


# ---- a planted fault


def write_to_forked_blocks(patch):
    """A block that a fork shares is taken for the writer's own."""
    patch.setattr(
        PrefixKvCache, "match_partial", lambda *of: (-1, 0)
    )  # which is forked too, and would stand in the tree twice
    forked, fork, own = set(), KvCachePool.fork, KvCachePool.own

    def remember(pool, table):
        forked.update(table)
        return fork(pool, table)

    def n_shared(pool, table, first, last):
        return sum(pool.users[block] > 1 and block not in forked for block in table[first:last])

    def own_some(pool, table, first, last):
        mine = [i for i in range(first, min(last, len(table))) if table[i] not in forked]
        return [pair for i in mine for pair in own(pool, table, i, i + 1)]

    def has_room(holdings, s):
        i = s.n_computed // BLOCK
        return i < len(s.block_table) and not n_shared(holdings.pool.blocks, s.block_table, i, i + 1)

    patch.setattr(KvCachePool, "fork", remember)
    patch.setattr(KvCachePool, "n_shared", n_shared)
    patch.setattr(KvCachePool, "own", own_some)
    patch.setattr(BlockManager, "can_append", has_room)


@pytest.mark.parametrize("plant", [write_to_forked_blocks])
def test_planted_faults_are_found(plant, monkeypatch):
    class Blind(Completing):
        debug = False  # results alone must show it

    plant(monkeypatch)
    with pytest.raises((AssertionError, OxiLlamaError, FlakyFailure)):  # measured times decide what a step has
        run_state_machine_as_test(Blind, settings=settings(QUICK, max_examples=100, phases=[Phase.generate]))
