"""An engine and its draft as one: the calls of an engine, and the closing of both."""

import pytest

import oxillama as ox
from oxillama.core.loading import shipped_model
from oxillama.drafts.draft import Proposal
from oxillama.drafts.grammar_draft import GrammarDraft
from oxillama.drafts.prompt_lookup import PromptLookup
from tests.fakes import BOS, assert_idle, drawn, make_engine
from tests.speculative.drafting import idle, make_draft

PROMPT = [BOS, 4, 5, 6, 7]
OPTIONS = {"max_tokens": 30, "temperature": 1.2, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine():
    with ox.load(context_size=128) as loaded:
        yield loaded


def test_calls_return_the_engines_results():
    engine, draft = make_engine(), make_draft(noise=0.5)
    spec = ox.SpeculativeEngine(engine, draft, num_speculative=3, seed=5)
    expected = engine.generate(PROMPT, seed=5, **OPTIONS)
    found = spec.generate(PROMPT, **OPTIONS)
    assert (found.text, found.token_ids) == (expected.text, expected.token_ids)
    assert found.speculation.rounds > 0
    assert "".join(c.text for c in spec.stream(PROMPT, **OPTIONS)) == expected.text
    pair = engine.generate([PROMPT, [BOS, 3]], seed=5, **OPTIONS)
    assert [c.token_ids for c in spec.generate([PROMPT, [BOS, 3]], **OPTIONS)] == [c.token_ids for c in pair]
    assert [c.token_ids for c in spec.batch([PROMPT, [BOS, 3]], **OPTIONS)] == [c.token_ids for c in pair]
    assert [c.token_ids for c in spec.generate(PROMPT, n=2, **OPTIONS)] == [
        c.token_ids for c in engine.generate(PROMPT, n=2, seed=5, **OPTIONS)
    ]
    assert_idle(engine)
    idle(draft)


def test_chat_with_a_speculative_engine(engine):
    messages = [{"role": "user", "content": "Tell me a story about a cat."}]
    with ox.SpeculativeEngine(engine, engine, adaptive=False, seed=2) as spec:
        expected = engine.chat(messages, max_tokens=30, seed=2)
        found = spec.chat(messages, max_tokens=30)
        assert found.token_ids == expected.token_ids
        assert found.speculation.acceptance_rate == 1.0
        assert "".join(c.text for c in spec.chat(messages, max_tokens=30, stream=True)) == expected.text
    assert not engine.closed  # it was loaded elsewhere
    assert spec.draft.closed


def test_the_seed_decides_the_text():
    engine = make_engine()
    spec = ox.SpeculativeEngine(engine, make_draft(), seed=5)

    def ids(**options):
        return spec.generate(PROMPT, **OPTIONS, **options).token_ids

    def plain(seed):
        return engine.generate(PROMPT, seed=seed, **OPTIONS).token_ids

    assert ids() == ids() == plain(5) != plain(6)
    assert ids(seed=6) == plain(6)
    assert ids(sampler=drawn(seed=6)) == plain(6)
    assert ids(sampler=ox.SamplerChain.from_config(drawn(temperature=1.2, seed=6))) == plain(6)
    assert ids(sampler=drawn()) == plain(5)
    unseeded = ox.SpeculativeEngine(engine, make_draft())
    assert len({tuple(unseeded.generate(PROMPT, **OPTIONS).token_ids) for _ in range(5)}) > 1


def test_options_of_a_call_override_the_engines():
    spec = ox.SpeculativeEngine(make_engine(), make_draft(), num_speculative=4, adaptive=False)
    assert spec.generate(PROMPT, num_speculative=0, **OPTIONS).speculation.rounds == 0
    assert spec.generate(PROMPT, draft="lookup", **OPTIONS).speculation is not None
    most = spec.generate(PROMPT, **OPTIONS).speculation
    assert most.drafted > 3 * most.rounds - 4


def test_stats_cover_all_ended_requests():
    engine = make_engine()
    spec = ox.SpeculativeEngine(engine, make_draft(noise=0.5), adaptive=False)
    assert spec.stats == ox.SpecStats()
    one = spec.generate(PROMPT, seed=1, **OPTIONS).speculation
    assert spec.stats == one
    chunks = spec.stream(PROMPT, seed=2, **OPTIONS)
    next(chunks)
    assert spec.stats == one
    list(chunks)
    other = ox.SpeculativeEngine(engine, make_draft(), adaptive=False)
    other.generate(PROMPT, seed=3, **OPTIONS)
    both = spec.stats
    assert both.rounds > one.rounds
    assert both.drafted == both.accepted + both.rejected > one.drafted
    assert both.elapsed > one.elapsed
    assert other.stats.rejected == 0 < both.rejected


def test_random_drafts_change_no_text():
    engine, draft = make_engine(), make_draft(noise=0.5)
    spec = ox.SpeculativeEngine(engine, draft, seed=3, acceptance="rejection")
    one = spec.generate(PROMPT, **OPTIONS)
    assert one.token_ids == spec.generate(PROMPT, **OPTIONS).token_ids
    assert 0 < one.speculation.accepted < one.speculation.drafted
    with pytest.raises(ox.ConfigError, match="mirostat"):
        spec.generate(PROMPT, mirostat=2)


def test_a_call_may_do_without_the_draft_or_with_another():
    spec = ox.SpeculativeEngine(make_engine(), make_draft(), seed=3, adaptive=False)
    guessed, plain = spec.generate(PROMPT, **OPTIONS), spec.generate(PROMPT, draft=None, **OPTIONS)
    assert plain.token_ids == guessed.token_ids  # the seed is the same
    assert (plain.speculation, guessed.speculation.rounds > 0) == (None, True)
    other = spec.generate(PROMPT, draft=Never(), **OPTIONS)
    assert (other.token_ids, other.speculation.rounds) == (plain.token_ids, 0)
    with pytest.raises(ox.ConfigError, match="num_speculative is 2, but there is no draft"):
        spec.generate(PROMPT, draft=None, num_speculative=2)


class Never:
    def bind(self, target):
        pass

    def propose(self, tasks):
        return [Proposal([]) for _ in tasks]

    def forget(self, key):
        pass


def test_named_drafts_and_lists(engine):
    assert isinstance(ox.SpeculativeEngine(engine, "lookup").draft, PromptLookup)
    with ox.SpeculativeEngine(engine, ["grammar", "lookup", engine], adaptive=False) as spec:
        assert [type(d) for d in spec.draft] == [GrammarDraft, PromptLookup, ox.DraftModel]
        options = {"regex": "The little fox( [a-z]+){3} home again.", "max_tokens": 40, "seed": 1}
        found = spec.generate("Once upon a time", **options)
        assert found.token_ids == engine.generate("Once upon a time", **options).token_ids
        assert found.speculation.accepted > 0
        assert spec.stats == found.speculation
    assert spec.draft[2].closed


def test_close_closes_what_the_engine_loaded():
    with ox.SpeculativeEngine(None, shipped_model(), context_size=64, num_threads=1) as spec:
        assert (spec.engine.context_size, spec.engine.num_threads) == (64, 1)
        assert spec.generate("Once", max_tokens=5, seed=1).token_ids
    assert spec.closed
    assert spec.engine.closed
    assert spec.draft.closed
    spec.close()
    with pytest.raises(ox.EngineClosedError):
        spec.generate("Once")
    with pytest.raises(ox.EngineClosedError), spec:
        pass
    given = make_draft()
    ox.SpeculativeEngine(make_engine(), given).close()
    assert not given.closed
    assert "SpeculativeEngine of <Engine" in repr(spec)


def test_bad_input_is_refused(engine):
    for draft in (None, 7, ox.DraftModel, object()):
        with pytest.raises(
            ox.ConfigError, match="draft must be a GGUF file, an Engine, a Draft, 'lookup' or 'grammar'"
        ):
            ox.SpeculativeEngine(engine, draft)
    with pytest.raises(ox.ConfigError, match=r"draft\[1\] must be a GGUF file"):
        ox.SpeculativeEngine(engine, ["lookup", 7])
    with pytest.raises(ox.ConfigError, match="num_threads can't be given with a loaded Engine"):
        ox.SpeculativeEngine(engine, "lookup", num_threads=1)
    with pytest.raises(ox.ConfigError, match="num_speculative must be from 0 to 32, not 99"):
        ox.SpeculativeEngine(engine, "lookup", num_speculative=99)
    with pytest.raises(ox.ConfigError, match="seed must be"):
        ox.SpeculativeEngine(engine, "lookup", seed=-1)
    with pytest.raises(ox.ConfigError, match="acceptance must be one of"):
        ox.SpeculativeEngine(engine, "lookup", acceptance="typical")
    with pytest.raises(ox.ModelNotFoundError):
        ox.SpeculativeEngine(engine, "/no/such/file.gguf")
    with pytest.raises(ox.ConfigError, match="the draft's vocabulary is not the model's: token 0 is"):
        ox.SpeculativeEngine(engine, make_draft())


def test_a_draft_is_closed_if_the_target_can_t_be_loaded(monkeypatch):
    from oxillama.engine import speculative_engine

    made = []

    class Watched(ox.DraftModel):
        def __init__(self, *args, **fields):
            super().__init__(*args, **fields)
            made.append(self)

    monkeypatch.setattr(speculative_engine, "DraftModel", Watched)
    with pytest.raises(ox.ModelNotFoundError):
        ox.SpeculativeEngine("/no/such/file.gguf", shipped_model())
    assert [draft.closed for draft in made] == [True]


def test_completions_are_equal_however_they_were_served():
    options = {"max_tokens": 20, "seed": 1, "logprobs": 2}
    with ox.load(num_threads=1) as engine, ox.load(ox.shipped_draft(), num_threads=1) as draft:
        plain = engine.generate("Once upon a time", **options)
        guessed = engine.generate("Once upon a time", draft=draft, adaptive=False, **options)
        other = engine.generate("Once upon a time", **options | {"seed": 2})
    assert guessed.speculation.accepted > 0
    assert plain == guessed != other
