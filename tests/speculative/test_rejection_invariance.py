"""With acceptance="rejection", a text is a function of prompt, seed, sampling options, model and draft alone.

The truth is the loop of `test_rejection_served.by_hand`, which knows of no steps, blocks, batches or other requests.
"""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import oxillama as ox
from oxillama.core import draft_options as speculation
from oxillama.errors import ConfigError
from tests.fakes import BOS, EOS, assert_idle, core_of, drawn, make_engine, requests_of
from tests.speculative.drafting import by_hand, idle, make_draft
from tests.speculative.drafts import Oracle

PROMPT = [BOS, 4, 5, 6, 9, 4, 5]
REJECTION = {"acceptance": "rejection", "num_speculative": 4}
WARM = {"temperature": 1.6, "banned_tokens": [EOS]}


def expected(prompt, seed, n=20, k=4, noise=1.0, **config):
    return by_hand(prompt, drawn(seed=seed, **WARM, **config), n, k, noise)


def served(engine, draft, prompts, seed, n=20, **options):
    options = {**REJECTION, "max_tokens": n, "sampler": drawn(seed=seed, **WARM), **options}
    return [r.token_ids for r in engine.generate(prompts, draft=draft, **options)]


ENGINES = {
    **{f"steps of {n}": {"prefill_chunk_size": n} for n in (1, 2, 3, 4, 5, 7)},
    "recurrent": {"n_slots": 12},
    "recurrent, steps of 1": {"n_slots": 12, "prefill_chunk_size": 1},
    "recurrent, steps of 3": {"n_slots": 12, "prefill_chunk_size": 3},
    "recurrent alone": {"n_slots": 12, "n_blocks": 0},
    "windows": {"windows": (12, 20)},
    "no prefix cache": {"prefix_cache": False},
    "larger blocks": {"kv_block_size": 64},
}


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", ENGINES)
def test_settings_of_the_engine_change_no_token(name):
    with make_draft(noise=1.0) as draft:
        engine = make_engine(**ENGINES[name])
        for seed in range(6):
            assert served(engine, draft, [PROMPT], seed) == [expected(PROMPT, seed)]
        assert_idle(engine)


@pytest.mark.parametrize("chunk", [1, 3, 16, 512])
def test_other_requests_change_no_token(chunk):
    """Of all kinds beside it, in steps that have no room for all draft tokens."""
    prompts = [[BOS, 3 + i, 4, 5 + i] * (1 + i) for i in range(5)]
    wanted = [expected(p, 3) for p in prompts]
    with make_draft(noise=1.0) as draft:
        engine = make_engine(prefill_chunk_size=chunk, n_blocks=64)
        assert served(engine, draft, prompts, 3) == wanted
        busy = [
            engine.stream([9] * 30, max_tokens=30, seed=1, ignore_eos=True),
            engine.stream([8] * 20, max_tokens=30, seed=1, ignore_eos=True, draft="lookup", adaptive=False),
            engine.stream([7] * 9, max_tokens=30, seed=1, ignore_eos=True, draft=draft, num_speculative=6),
        ]
        for stream in busy:
            next(stream)
        assert served(engine, draft, prompts, 3) == wanted
        for stream in busy:
            stream.close()
        assert_idle(engine)


@pytest.mark.parametrize("slots", [0, 8])
def test_preemption_changes_no_token(slots):
    prompts = [[BOS, 3 + i, 4, 5 + i] * 3 for i in range(5)]
    wanted = [expected(p, 1, n=30) for p in prompts]
    with make_draft(noise=1.0) as draft:
        engine = make_engine(n_blocks=5, n_slots=slots, prefix_cache=False)
        assert served(engine, draft, prompts, 1, n=30) == wanted
        assert core_of(engine).scheduler.n_preempted > 0
        assert_idle(engine)


DRAFTS = {
    "steps of 1": {"prefill_chunk_size": 1},
    "steps of 3": {"prefill_chunk_size": 3},
    "room for one text": {"n_blocks": 4},
    "recurrent, with slots for one text": {"n_slots": 2},
    "no prefix cache": {"prefix_cache": False},
}


@pytest.mark.parametrize("name", DRAFTS)
def test_settings_and_other_users_of_the_draft_change_no_token(name):
    prompts = [[BOS, 3 + i, 4, 5 + i] * (4 + i) for i in range(4)]
    wanted = [expected(p, 2) for p in prompts]
    with make_draft(noise=1.0, **DRAFTS[name]) as draft:
        engine = make_engine(n_blocks=64)
        assert served(engine, draft, prompts, 2) == wanted
        assert [served(engine, draft, [p], 2)[0] for p in prompts] == wanted
        idle(draft)
        with ox.SpeculativeDecoder(draft) as decoder:
            assert served(engine, decoder, prompts, 2) == wanted


def test_shorter_texts_are_prefixes_of_longer_ones():
    with make_draft(noise=1.0) as draft:
        engine = make_engine()
        for seed in range(4):
            whole = expected(PROMPT, seed, n=20)
            for n in range(1, 20):
                assert served(engine, draft, [PROMPT], seed, n=n) == [whole[:n]]
            # Up to the end of the model's context.
            small = make_engine(context_size=len(PROMPT) + 9)
            assert served(small, draft, [PROMPT], seed, n=20) == [whole[:9]]


def test_the_end_of_the_drafts_context():
    n = 30
    with make_draft(noise=1.0, context_size=16) as draft:
        runs = []
        for chunk, others in itertools.product((1, 3, 512), (0, 3)):
            engine = make_engine(prefill_chunk_size=chunk, n_blocks=64)
            runs.append(served(engine, draft, [PROMPT] + [[BOS, 3 + i] for i in range(others)], 5, n=n)[0])
        assert all(run == runs[0] for run in runs)
        assert len(runs[0]) == n


def test_stop_strings_and_streams():
    with make_draft(noise=1.0) as draft:
        for chunk in (1, 2, 512):
            engine = make_engine(prefill_chunk_size=chunk)
            options = {**REJECTION, "draft": draft, "sampler": drawn(seed=4, **WARM), "max_tokens": 30, "stop": ["a"]}
            found = engine.generate(PROMPT, **options)
            assert found.token_ids == expected(PROMPT, 4, n=30)[: len(found.token_ids)]
            streamed = [token for part in engine.stream(PROMPT, **options) for token in part.token_ids]
            assert streamed == found.token_ids
            assert found.finish_reason == "stop"


def test_lists_of_drafts_and_those_that_draw_nothing():
    text = PROMPT + expected(PROMPT, 7, noise=5.0)
    for make in (
        lambda: ["grammar", "lookup"],
        lambda: ox.PromptLookup(3, 1),
        lambda: [Oracle([text], every=3), "lookup"],
    ):
        runs = {
            tuple(served(make_engine(prefill_chunk_size=chunk, n_slots=slots), make(), [PROMPT], 7)[0])
            for chunk in (1, 2, 4, 512)
            for slots in (0, 12)
        }
        assert len(runs) == 1


def test_texts_depend_on_the_rest_of_a_round(monkeypatch):
    """That the tests above can fail: draft tokens for which a step has no room are dropped, as they once were."""

    class Forgetful(speculation.DraftRound):
        def choose(self, sampler, row):
            token, goes_on = super().choose(sampler, row)
            return token, goes_on and self.n_used < 2

    monkeypatch.setattr("oxillama.core.draft_scheduler.DraftRound", Forgetful)
    with make_draft(noise=1.0) as draft:
        engine = make_engine()
        assert any(served(engine, draft, [PROMPT], seed) != [expected(PROMPT, seed)] for seed in range(6))


# ---- snapshots


@settings(max_examples=20)
@given(st.sampled_from([1, 2, 3, 512]), st.sampled_from([1, 3, 512]), st.integers(0, 3), st.integers(1, 18))
def test_saved_in_the_middle_of_a_round(chunk, later, seed, k):
    """Saved in a narrow engine, where rounds take several steps, and resumed in another one."""
    with make_draft(noise=1.0) as draft, make_draft(noise=1.0) as twin:
        engine = make_engine(prefill_chunk_size=chunk)
        options = {**REJECTION, "max_tokens": 20, "sampler": drawn(seed=seed, **WARM)}
        stream = engine.stream(PROMPT, draft=draft, **options)
        while len(requests_of(stream)[0].sequence.tokens) < len(PROMPT) + k:
            next(stream)
        request = requests_of(stream)[0]
        begun = request.speculation.round.n_used if request.speculation.round else 0
        tokens = request.sequence.tokens[len(PROMPT) :]
        assume(len(tokens) < 20)  # the last round gave several
        assert tokens == expected(PROMPT, seed)[: len(tokens)]
        # What a snapshot keeps of it, without the rest: the fake model has no file.
        other = make_engine(prefill_chunk_size=later)
        resumed = other.stream(PROMPT, draft=twin, **options)
        copy = requests_of(resumed)[0]
        copy.go_on(tokens, request.sampler.state() | {"n_prompt": len(PROMPT)}, finished=False)
        copy.speculation.n_begun = begun
        shown = copy.progress()["n_shown"] - len(PROMPT)
        assert [t for part in resumed for t in part.token_ids] == expected(PROMPT, seed)[shown:]
        stream.close()


# ---- what is refused


def test_adaptive_is_refused():
    engine = make_engine()
    for call in (engine.generate, engine.stream):
        with pytest.raises(ConfigError, match="adaptive must be left out or False with acceptance='rejection'"):
            call(PROMPT, draft="lookup", acceptance="rejection", adaptive=True)
    with pytest.raises(ConfigError, match="adaptive must be left out"):
        ox.SpeculativeEngine(engine, "lookup", acceptance="rejection", adaptive=True)
    found = engine.generate(PROMPT, draft="lookup", acceptance="rejection", adaptive=False, max_tokens=3, seed=1)
    assert len(found.token_ids) <= 3


# ---- models


@pytest.fixture(scope="module")
def shipped():
    with ox.load(num_threads=1) as engine, ox.DraftModel(ox.shipped_draft(), num_threads=1) as draft:
        yield engine, draft


@pytest.mark.parametrize("fields", [{"prefill_chunk_size": 1}, {"prefill_chunk_size": 3}, {"num_threads": 2}], ids=str)
def test_the_shipped_model_and_its_draft(shipped, fields):
    engine, draft = shipped
    prompts = ["Once upon a time", "The little fox"]
    options = {"max_tokens": 30, "seed": 3, "draft": draft, "acceptance": "rejection", "temperature": 1.2}
    wanted = [engine.generate(prompt, **options).token_ids for prompt in prompts]
    with ox.load(**{"num_threads": 1, **fields}) as other:
        assert [r.token_ids for r in other.generate(prompts, **options)] == wanted
        stream = other.stream(prompts[0], **options)
        said = [next(stream) for _ in range(7)]
        rest = engine.resume(stream.snapshot(), draft=draft)
        stream.close()
        assert [t for part in [*said, *rest] for t in part.token_ids] == wanted[0]
    assert np.all([len(tokens) > 3 for tokens in wanted])
