"""Failing drafts, and abandoned or failing rounds: other requests are unaffected, and nothing stays behind."""

import numpy as np
import pytest

from oxillama.core.results import CancelToken
from oxillama.drafts.draft import Proposal
from oxillama.errors import GenerateError, GrammarError
from tests.fakes import N_VOCAB, assert_idle, core_of, make_engine, runner_of
from tests.speculative.drafting import same
from tests.speculative.drafts import Oracle


class Broken(Oracle):
    """Fails with the n-th call: raises, or proposes something that is no proposal."""

    def __init__(self, n, what):
        super().__init__([])
        self.n, self.what = n, what

    def propose(self, tasks):
        self.n -= 1
        if self.n > 0:
            return super().propose(tasks)
        if isinstance(self.what, Exception):
            raise self.what
        return self.what(tasks)


WRONG = {
    "too few": (lambda tasks: [], "one for each task"),
    "no list": (lambda tasks: None, "one for each task"),
    "no proposal": (lambda tasks: [[1]] * len(tasks), "must propose a Proposal"),
    "too many": (lambda tasks: [Proposal([3] * 99)] * len(tasks), "where 3 were wanted"),
    "more than it was asked for": (
        lambda tasks: [setattr(task, "n", 99) or Proposal([3] * 99) for task in tasks],
        "where 3 were wanted",
    ),
    "no token": (lambda tasks: [Proposal([N_VOCAB])] * len(tasks), "ids are integers below"),
    "negative": (lambda tasks: [Proposal([-1])] * len(tasks), "ids are integers below"),
    "a float": (lambda tasks: [Proposal([3.0])] * len(tasks), "ids are integers below"),
    "a bool": (lambda tasks: [Proposal([True])] * len(tasks), "ids are integers below"),
    "numpy's bool": (lambda tasks: [Proposal([np.bool_(True)])] * len(tasks), "ids are integers below"),
    "numpy's, too large": (lambda tasks: [Proposal([np.int64(N_VOCAB)])] * len(tasks), "ids are integers below"),
    "into the text": (lambda tasks: [task.tokens.append(3) or Proposal([3]) for task in tasks], "may only read them"),
    "other probs": (lambda tasks: [Proposal([3], [])] * len(tasks), "numbers of probs"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_draft_that_is_wrong_fails_its_own_requests_alone(what):
    answer, message = WRONG[what]
    engine = make_engine(n_blocks=40)
    expected = engine.generate([5, 6], max_tokens=20, seed=1, ignore_eos=True)
    stream = engine.stream([5, 6], max_tokens=20, seed=1, ignore_eos=True)
    pieces = [next(stream)]
    with pytest.raises(GenerateError, match=message):
        engine.generate([3], max_tokens=20, ignore_eos=True, draft=Broken(3, answer), num_speculative=3, adaptive=False)
    pieces += list(stream)
    assert [t for c in pieces for t in c.token_ids] == expected.token_ids
    assert_idle(engine)


@pytest.mark.parametrize("kind", [np.int64, np.uint16, np.intc])
def test_draft_tokens_may_be_numpys(kind):
    engine = make_engine(n_blocks=40)
    expected = engine.generate([5, 6], max_tokens=12, seed=1, ignore_eos=True).token_ids
    text = [5, 6, *expected]

    def right(tasks):
        return [Proposal([kind(token) for token in text[len(task.tokens) :][: task.n]]) for task in tasks]

    found = engine.generate([5, 6], max_tokens=12, seed=1, ignore_eos=True, draft=Broken(0, right), adaptive=False)
    assert found.token_ids == expected
    assert all(type(token) is int for token in found.token_ids)
    assert found.speculation.accepted > 0


def test_a_draft_that_raises_ends_its_requests_alone():
    engine = make_engine()
    with pytest.raises(ZeroDivisionError):
        engine.generate([3], max_tokens=20, ignore_eos=True, draft=Broken(2, ZeroDivisionError()), adaptive=False)
    assert_idle(engine)
    assert engine.generate([3], max_tokens=2).finish_reason == "length"


def test_a_draft_that_changes_the_sampler_changes_no_text():
    class Player(Oracle):
        def propose(self, tasks):
            for task in tasks:
                task.sampler.memory.rng.uniform()
                task.sampler.accept(3)
                task.sampler.accept(4)
            return super().propose(tasks)

    engine = make_engine()
    expected = engine.generate([3], max_tokens=30, seed=1, ignore_eos=True)
    player = Player([[3, *expected.token_ids]], 4)
    got = engine.generate([3], max_tokens=30, seed=1, ignore_eos=True, draft=player, adaptive=False)
    assert same(got, expected)


def test_a_forward_that_fails_in_the_middle_of_a_round():
    def fail(runner, spans, poll):
        if any(len(s.tokens) > 3 and s.start for s in spans):
            raise MemoryError("no more")

    engine = make_engine(n_blocks=40)
    whole = engine.generate([3], max_tokens=30, seed=1, ignore_eos=True)
    other = engine.stream([5, 6], max_tokens=20, seed=1, ignore_eos=True)
    alone = engine.generate([5, 6], max_tokens=20, seed=1, ignore_eos=True).token_ids
    first = next(other).token_ids
    runner_of(engine).hook = fail
    oracle = Oracle([[3, *whole.token_ids]])
    failed = "a step of the engine failed: MemoryError: no more"  # of which no single request is the cause
    with pytest.raises(GenerateError, match=failed):
        engine.generate([3], max_tokens=30, seed=1, ignore_eos=True, draft=oracle, num_speculative=6, adaptive=False)
    runner_of(engine).hook = None
    with pytest.raises(GenerateError, match=failed):
        list(other)
    assert oracle.forgotten
    assert_idle(engine)
    assert engine.generate([3], max_tokens=30, seed=1, ignore_eos=True).token_ids == whole.token_ids
    assert alone[: len(first)] == first


def interrupted(engine):
    """Steps until Ctrl-C comes in the middle of one."""
    try:
        for _ in range(9):
            core_of(engine).step()
    except KeyboardInterrupt:
        return True
    return False


@pytest.mark.parametrize("n_slots", [0, 8])
def test_an_abandoned_round_is_repeated(n_slots):
    """Ctrl-C in the middle of a forward, which comes again: as if nothing had been."""
    token, rounds = CancelToken(), []

    def give_up(runner, spans, poll):
        if any(len(s.tokens) > 3 and s.start for s in spans):
            rounds.append([list(s.tokens) for s in spans])
            if len(rounds) in (2, 3):
                raise KeyboardInterrupt

    engine = make_engine(n_blocks=0 if n_slots else 40, n_slots=n_slots, context_size=100)
    whole = engine.generate([3], max_tokens=30, seed=1, ignore_eos=True)
    stream = engine.stream(
        [3], max_tokens=30, seed=1, ignore_eos=True, cancel_token=token,
        draft=Oracle([[3, *whole.token_ids]]), num_speculative=6, adaptive=False,
    )  # fmt: skip
    first = next(stream).token_ids
    runner_of(engine).hook = give_up
    request = core_of(engine)._live()[0]
    for _ in range(2):
        assert interrupted(engine)
    before = list(request.sequence.tokens)
    assert rounds[1] == rounds[2]
    rest = [t for c in stream for t in c.token_ids]
    assert first + rest == whole.token_ids
    assert request.sequence.tokens[: len(before)] == before
    assert_idle(engine)


def test_a_request_cancelled_in_the_middle_of_a_round_leaves_nothing():
    token = CancelToken()

    def cancel(runner, spans, poll):
        if len(runner.steps) == 4:
            token.cancel()

    engine = make_engine()
    whole = engine.generate([3], max_tokens=40, seed=1, ignore_eos=True)
    runner_of(engine).steps.clear()
    runner_of(engine).hook = cancel
    got = engine.generate(
        [3], max_tokens=40, seed=1, ignore_eos=True, cancel_token=token, cache_prompt=False,
        draft=Oracle([[3, *whole.token_ids]]), num_speculative=5, adaptive=False,
    )  # fmt: skip
    assert got.finish_reason == "cancelled"
    assert got.token_ids == whole.token_ids[: 1 + 3 * 6]
    assert_idle(engine)


def test_a_grammar_that_comes_to_its_end_in_the_middle():
    """The error, and the tokens before it, are those without drafts."""
    engine = make_engine()
    grammar = 'root ::= "abcdefgh" <[0]>'  # a special token, which the text can't be drawn to go on after

    def run(**guessing):
        pieces = []
        try:
            pieces += engine.stream([3], max_tokens=30, seed=1, grammar=grammar, ignore_eos=True, **guessing)
        except GrammarError as error:
            return [t for c in pieces for t in c.token_ids], str(error)
        return [t for c in pieces for t in c.token_ids], ""

    expected = run()
    for k in range(1, 9):
        assert run(draft="grammar", num_speculative=k, adaptive=False) == expected
