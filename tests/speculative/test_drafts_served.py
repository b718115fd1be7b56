"""Draft models in the engine: texts equal those without drafts, however bad the draft."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.config import SamplerConfig
from oxillama.drafts.draft import Proposal
from oxillama.engine import Engine
from oxillama.errors import EngineClosedError, GenerateError
from oxillama.speculative.async_draft import SpeculativeDecoder
from oxillama.speculative.draft_model import DraftModel
from tests.fakes import BOS, N_VOCAB, assert_idle, core_of, logits_of, make_engine
from tests.sampling.settings import WILDER
from tests.speculative.drafting import Recorder, idle, make_draft, runner_of, twice

GRAMMARS = [None, None, 'root ::= ("ab" | "the " [a-h] "!")+']
TARGETS = {
    "attention": {},
    "tight": {"n_blocks": 6},
    "recurrent": {"n_blocks": 0, "n_slots": 12},
    "hybrid": {"n_slots": 12},
    "windows": {"windows": (20, 20)},
}
PROMPT = [BOS, 4, 5, 6, 7]


def outcome(engine, prompts, options):
    """What is returned, or that nothing is left to draw: a ban may be of all that the grammar allows."""
    try:
        found = engine.generate(prompts, **options)
    except GenerateError as error:
        return str(error)[: len("no token is left")]
    return [(c.token_ids, c.text, c.finish_reason) for c in found]


@settings(max_examples=80)
@given(
    WILDER,
    st.integers(0, 8),
    st.sampled_from(GRAMMARS),
    st.lists(st.lists(st.integers(2, N_VOCAB - 1), min_size=1, max_size=20), min_size=1, max_size=8),
    st.sampled_from([0.0, 0.4, 2.0, 50.0]),
    st.sampled_from(sorted(TARGETS)),
    st.sampled_from(["attention", "recurrent", "windows"]),
    st.sampled_from([8, 64, 512]),
    st.booleans(),
)
def test_drafts_change_no_text(config, k, grammar, prompts, noise, target, kind, chunk, adaptive):
    kinds = {"attention": {}, "recurrent": {"n_blocks": 0, "n_slots": 20}, "windows": {"windows": (20, 20)}}
    if grammar:
        config = replace(config, banned_tokens=())  # which might be all that the grammar allows
    options = {"sampler": config, "max_tokens": 20, "stop": ["ab", "the e"], "grammar": grammar}
    engine = make_engine(prefill_chunk_size=chunk, **TARGETS[target])
    expected = outcome(engine, prompts, options)
    draft = make_draft(noise=noise, **kinds[kind])
    guessing = {"draft": draft, "num_speculative": k, "adaptive": adaptive}
    assert outcome(engine, prompts, options | guessing) == expected
    assert_idle(engine)
    idle(draft)


@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.5, 5.0])
def test_the_same_model_as_a_draft_is_always_accepted(k, temperature):
    for seed in range(4):
        engine, draft = make_engine(), make_draft()
        options = {"max_tokens": 40, "temperature": temperature, "seed": seed, "xtc_probability": 0.3}
        found = engine.generate(PROMPT, draft=draft, num_speculative=k, adaptive=False, **options)
        assert found.token_ids == engine.generate(PROMPT, **options).token_ids
        assert found.speculation.acceptance_rate == 1.0 or len(found.token_ids) < 3
        assert found.speculation.rejected == 0
        assert twice(draft) == 0  # draft tokens computed twice, though requests end in the middle of drafts


def test_rejected_tokens_are_dropped_in_model_and_draft():
    engine, draft = make_engine(context_size=64), make_draft(noise=2.0)
    computed = []
    core_of(engine).runner.hook = lambda runner, spans, poll: computed.append([len(s.tokens) for s in spans])
    found = engine.generate(
        PROMPT, max_tokens=40, seed=1, temperature=1.2, ignore_eos=True, draft=draft, num_speculative=4, adaptive=False
    )
    stats = found.speculation
    assert 0 < stats.accepted < stats.drafted
    # The prompt, and in each round the last token and its draft tokens: nothing twice.
    assert sum(map(sum, computed)) == len(PROMPT) + stats.rounds + stats.drafted + _plain_steps(computed)
    assert twice(draft) == 0
    assert_idle(engine)
    idle(draft)


def _plain_steps(computed):
    """Steps of one token, without draft tokens."""
    return sum(step == [1] for step in computed)


def test_two_engines_use_one_draft():
    draft, engines = make_draft(n_blocks=40), [make_engine(), make_engine()]
    expected = engines[0].generate([PROMPT, [BOS, 9]], max_tokens=20, seed=3).__getitem__
    for engine in engines:
        found = engine.generate([PROMPT, [BOS, 9]], max_tokens=20, seed=3, draft=draft)
        assert [c.token_ids for c in found] == [expected(i).token_ids for i in range(2)]
    idle(draft)


def test_adapters_are_not_applied_to_the_draft():
    """Texts of other weights of the model share nothing in the draft but the room."""
    engine, draft = make_engine(), make_draft()
    same = [BOS, *range(2, 18), 2, 3]
    engine.generate([same, same], max_tokens=3, seed=1, draft=draft, cache_salt="a")
    n = runner_of(draft).computed.count(tuple(same[:16]))
    engine.generate(same, max_tokens=3, seed=1, draft=draft, cache_salt="b")
    assert runner_of(draft).computed.count(tuple(same[:16])) == n + 1
    engine.generate(same, max_tokens=3, seed=2, draft=draft, cache_salt="b")
    assert runner_of(draft).computed.count(tuple(same[:16])) == n + 1


def test_a_closed_draft_ends_the_requests_that_use_it():
    engine, draft = make_engine(), make_draft()
    chunks = engine.stream(PROMPT, max_tokens=30, ignore_eos=True, draft=draft, adaptive=False)
    next(chunks)
    draft.close()
    with pytest.raises(EngineClosedError, match="the draft model is closed"):
        list(chunks)
    with pytest.raises(EngineClosedError, match="the draft model is closed"):
        make_engine().generate(PROMPT, max_tokens=3, draft=draft)
    assert len(engine.generate(PROMPT, max_tokens=4, ignore_eos=True).token_ids) == 4
    assert_idle(engine)


def test_a_damaged_draft_ends_the_requests_that_use_it():
    class Broken(Recorder):
        def row(self, past):
            return np.full(N_VOCAB, np.nan, np.float32)

    engine, draft = make_engine(), make_draft(runner=Broken)
    with pytest.raises(GenerateError, match="in the draft model: the model's logit of token 0 is nan"):
        engine.generate(PROMPT, max_tokens=9, ignore_eos=True, draft=draft, adaptive=False)
    assert len(engine.generate(PROMPT, max_tokens=4, ignore_eos=True).token_ids) == 4
    assert_idle(engine)
    idle(draft)


class Wrong:
    """Proposes whatever it is given; draws from the request's sampler on the way, and doesn't take it back."""

    def __init__(self, *made):
        self.made = list(made)

    def bind(self, target):
        pass

    def propose(self, tasks):
        for task in tasks:
            task.sampler.accept(task.sampler.sample(logits_of(task.tokens)))
        made = self.made[0]
        if isinstance(made, Exception):
            raise made
        return [made] * len(tasks)

    def forget(self, key):
        pass


BAD = {
    "it raises": Wrong(RuntimeError("no idea")),
    "an id below zero": Wrong(Proposal([-1])),
    "an id beyond the last": Wrong(Proposal([N_VOCAB])),
    "a float": Wrong(Proposal([3.0])),
    "numpy's float": Wrong(Proposal([np.float32(3)])),
    "a bool": Wrong(Proposal([True])),
    "too many": Wrong(Proposal([3] * 40)),
    "no list": Wrong(Proposal((3, 4))),
    "no proposal": Wrong([3, 4]),
}


@pytest.mark.parametrize("acceptance", ["match", "rejection"])
@pytest.mark.parametrize("what", BAD)
def test_drafts_that_don_t_keep_to_the_rules_end_their_requests_alone(what, acceptance):
    engine = make_engine(context_size=64, n_blocks=40)
    expected = engine.generate(PROMPT, max_tokens=20, seed=5, ignore_eos=True).token_ids
    beside = engine.stream(PROMPT, max_tokens=20, seed=5, ignore_eos=True)
    ids = list(next(beside).token_ids)
    with pytest.raises((GenerateError, RuntimeError)):
        engine.generate(PROMPT, max_tokens=9, ignore_eos=True, draft=BAD[what], acceptance=acceptance, adaptive=False)
    for chunk in beside:
        ids += chunk.token_ids
    assert ids == expected
    assert_idle(engine)


# ---- real models


@pytest.fixture(scope="module")
def engine():
    with Engine.load(context_size=256) as loaded:
        yield loaded


def test_the_shipped_model_with_itself_as_a_draft(engine):
    prompts = ["Once upon a time", "The little fox", "A"]
    with DraftModel(engine) as draft, SpeculativeDecoder(draft) as ahead:
        for config in (
            SamplerConfig.greedy(),
            SamplerConfig(temperature=0.8, repetition_penalty=1.1, seed=1),
            SamplerConfig(temperature=1.5, repetition_penalty=1.1, seed=2, mirostat=2),
            SamplerConfig(temperature=1.0, seed=3, top_k=0, min_p=0.05, dry_multiplier=0.8, xtc_probability=0.5),
        ):
            options = {"sampler": config, "max_tokens": 40}
            expected = [c.token_ids for c in engine.generate(prompts, **options)]
            for k, one in ((1, draft), (4, draft), (7, ahead)):
                found = engine.generate(prompts, draft=one, num_speculative=k, adaptive=False, **options)
                assert [c.token_ids for c in found] == expected
                assert config.mirostat or all(c.speculation.rejected == 0 for c in found)
    assert len(core_of(draft).sequences) == 0


def test_a_schema_is_kept_with_drafts(engine):
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "n": {"type": "integer"}}}
    options = {"json_schema": schema, "max_tokens": 60, "seed": 4}
    with DraftModel(engine) as draft:
        found = engine.generate("A cat as JSON:", draft=draft, adaptive=False, **options)
        assert found.token_ids == engine.generate("A cat as JSON:", **options).token_ids
        assert found.speculation.rejected == 0
