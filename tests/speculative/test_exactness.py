"""A real model served at random with right and wrong drafts: each request gives the bits that it gives alone."""

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from oxillama.core import engine_core as core
from oxillama.core.request import ResultQueue
from oxillama.drafts.prompt_lookup import PromptLookup
from oxillama.errors import OxiLlamaError
from oxillama.scheduling.scheduler import Scheduler
from tests.engine.serving import LENGTHS, NAMES, PROMPTS, QUICK, SERVED, Serving, alone, recorded
from tests.fakes import factory_of, options
from tests.models.tiny import Shape
from tests.speculative.drafts import Oracle

DRAFTS = st.one_of(
    st.just(()),
    st.builds(lambda every, salt, stops: (Oracle, every, salt, stops), st.integers(0, 9), st.integers(0, 8),
              st.sampled_from([0, 0, 4])),
    st.just((PromptLookup,)),
)  # fmt: skip
GUESSES = st.tuples(DRAFTS, st.integers(0, 8), st.sampled_from([False, False, True]))


def drafted(kind, text, k, adaptive):
    """Options of a request, whose whole text is known."""
    if not kind:
        return {}
    which, *how = kind
    if which is Oracle:
        every, salt, stops = how
        draft = [Oracle([text], every, salt, Shape().n_vocab, stops), "lookup"]
    else:
        draft = which(max_ngram=3, min_ngram=1)
    return {"draft": draft, "num_speculative": k, "adaptive": adaptive}


class Guessing(Serving):
    timed = True  # whether draft tokens may depend on the clock

    @rule(
        jobs=st.lists(st.tuples(PROMPTS, LENGTHS, SERVED, GUESSES), min_size=1, max_size=5),
    )
    def submit(self, jobs):
        for prompt, n, served, (kind, k, adaptive) in jobs:
            n = min(n, self.room - len(prompt) + 1)
            if n > 0:
                expected = alone(self.name, prompt, n, served["seed"])
                guessing = drafted(kind, prompt + expected[0], k, adaptive and self.timed)
                outbox = ResultQueue(1)
                wanted = options(max_tokens=n, **served, **guessing)
                request = recorded(factory_of(self.engine).request(prompt, wanted, outbox))
                self.tickets.append(self.core.submit([request]))
                self.jobs.append((request, outbox, expected))

    @rule(prompt=PROMPTS, n=st.integers(1, 9), seed=st.integers(0, 1), guesses=GUESSES)
    def converse(self, prompt, n, seed, guesses):
        if len(prompt) + n - 1 <= self.room:
            expected = alone(self.name, prompt, n, seed)[0]
            kind, k, adaptive = guesses
            wanted = options(max_tokens=n, seed=seed, **drafted(kind, prompt + expected, k, adaptive and self.timed))
            assert [t for c in self.talk.stream(prompt, wanted) for t in c.token_ids] == expected

    def check(self):
        Serving.check(self)
        assert all(len(s.tokens) >= s.n_computed + s.n_recompute for s in self.core.scheduler.live.values())


def machine(name, **changes):
    return type(f"Guessing_{name}", (Guessing,), {"name": name, **changes})


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", NAMES)
def test_any_way_of_serving_with_drafts_gives_the_same_bits(name, monkeypatch):
    """And what the machine is for happens in it: otherwise it would show nothing."""
    seen = {"preempted": 0, "right": 0, "wrong": 0, "again": 0, "no room": 0}
    real = Scheduler.advance

    def advance(self, sequence, n):
        guessed = len(sequence.draft_tokens)
        real(self, sequence, n)
        seen["right"] += (n - 1) * bool(guessed)
        seen["wrong"] += (guessed + 1 - n) * bool(guessed)
        seen["again"] += sequence.n_recompute > 0

    affordable = Scheduler._n_affordable

    def count(self, sequence, budget):
        n = affordable(self, sequence, budget)
        seen["no room"] += n < min(len(sequence.draft_tokens), sequence.n_reserve - len(sequence.tokens))
        return n

    def teardown(self):
        Guessing.teardown(self)
        seen["preempted"] += self.core.scheduler.n_preempted

    monkeypatch.setattr(Scheduler, "advance", advance)
    monkeypatch.setattr(Scheduler, "_n_affordable", count)
    run_state_machine_as_test(machine(name, teardown=teardown), settings=QUICK)
    assert seen["right"] > 200
    assert seen["wrong"] > 200
    assert seen["no room"] > 5
    assert seen["preempted"] > 2 or name == "mamba"
    assert (seen["again"] > 50) == (name in ("mamba", "jamba"))


def take_a_guess_too_many(patch):
    patch.setattr(core, "n_common", lambda new, ahead: min(len(ahead), len(new)))


def take_guesses_unseen(patch):
    real = core.verify

    def verify(rows, ahead, request):
        if len(ahead) < 2:
            return real(rows, ahead, request)
        reason = request.draw(rows[0])
        if reason is None and request.sequence.tokens[-1] == ahead[0]:
            request.sequence.tokens[-1:] = ahead[:1]
            return request.draw(rows[2])  # the row of the draft token after next
        return reason

    patch.setattr(core, "verify", verify)


def keep_the_state_after_wrong_guesses(patch):
    def advance(self, sequence, n):
        sequence.draft_tokens = []
        real(self, sequence, n)

    real = Scheduler.advance
    patch.setattr(Scheduler, "advance", advance)


def forget_what_is_computed_again(patch):
    """The next step reads the old state, but skips the tokens between."""
    real = Scheduler.advance

    def advance(self, sequence, n):
        real(self, sequence, n)
        sequence.n_computed += sequence.n_recompute
        sequence.n_recompute = 0

    patch.setattr(Scheduler, "advance", advance)


FAULTS = {
    "llama": [take_a_guess_too_many, take_guesses_unseen],
    "mamba": [keep_the_state_after_wrong_guesses, forget_what_is_computed_again],
    "jamba": [keep_the_state_after_wrong_guesses, take_a_guess_too_many],
    "gemma2": [take_a_guess_too_many],
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("name", "plant"), [(name, plant) for name, plants in FAULTS.items() for plant in plants])
def test_planted_faults_are_found(name, plant, monkeypatch):
    """Results alone must show it."""
    plant(monkeypatch)
    search = settings(QUICK, max_examples=300, phases=[Phase.generate])
    with pytest.raises((AssertionError, OxiLlamaError)):
        run_state_machine_as_test(
            machine(name, debug=False, timed=False), settings=search
        )  # results alone must show it
