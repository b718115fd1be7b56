"""Options of speculation, and refused ones."""

import asyncio
import gc
import logging
import weakref
from pathlib import Path

import pytest

import oxillama as ox
from oxillama.drafts.draft import SpecStats
from oxillama.drafts.grammar_draft import GrammarDraft
from oxillama.drafts.prompt_lookup import PromptLookup
from oxillama.engine.async_engine import AsyncEngine
from oxillama.errors import ConfigError
from tests.fakes import factory_of, make_engine
from tests.speculative.drafts import Oracle


class Unhashable(Oracle):
    __hash__ = None


class NoForget:
    def bind(self, target):
        pass

    def propose(self, tasks):
        return []


WRONG = [
    ({"draft": "guess"}, "draft must be one of lookup, grammar, not 'guess'; of a model's file, make a DraftModel"),
    (
        {"draft": "small.gguf"},
        r"draft is the path of a model's file, .* oxillama\.DraftModel\('small\.gguf'\), .*close",
    ),
    ({"draft": "./models/small"}, r"draft is the path .*DraftModel\('\./models/small'\)"),
    ({"draft": Path("small.gguf")}, r"draft is the path .*DraftModel\('small\.gguf'\)"),
    ({"draft": ["lookup", Path("a.gguf")]}, r"draft\[1\] is the path .*DraftModel\('a\.gguf'\), give that"),
    ({"draft": b"GGUF"}, "draft must be .* not b'GGUF'"),
    ({"draft": {"lookup": 4}}, "draft must be .* not {'lookup': 4}"),
    ({"draft": {"lookup", "grammar"}}, "draft must be "),  # which is first?
    ({"draft": 5}, "draft must be 'lookup', 'grammar', an Engine, or an object"),
    ({"draft": PromptLookup}, "draft must be 'lookup', 'grammar', an Engine, or an object"),
    ({"draft": ox.Engine}, "draft must be 'lookup', 'grammar', an Engine, or an object"),
    ({"draft": NoForget()}, "with the methods bind, propose and forget"),
    ({"draft": Unhashable([])}, "draft must be hashable"),
    ({"draft": []}, "a list of 1 to 8, not of 0"),
    ({"draft": ["lookup"] * 9}, "a list of 1 to 8, not of 9"),
    ({"draft": ["lookup", None]}, r"draft\[1\] must be"),
    ({"draft": ["lookup", "no"]}, r"draft\[1\] must be one of"),
    ({"draft": "lookup", "num_speculative": -1}, "num_speculative must be from 0 to 32, not -1"),
    ({"draft": "lookup", "num_speculative": 33}, "num_speculative must be from 0 to 32, not 33"),
    ({"draft": "lookup", "num_speculative": 2.5}, "num_speculative must be an integer"),
    ({"draft": "lookup", "acceptance": "guess"}, "acceptance must be one of"),
    ({"draft": "lookup", "adaptive": 1}, "adaptive must be True or False, not 1"),
    ({"num_speculative": 4}, "num_speculative is 4, but there is no draft"),
    ({"adaptive": False, "draft": None}, "adaptive is False, but there is no draft"),
    ({"acceptance": "match"}, "acceptance is 'match', but there is no draft"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_wrong_options_are_named(options, message):
    engine = make_engine()
    with pytest.raises(ConfigError, match=message):
        engine.generate("ab", **options)
    with pytest.raises(ConfigError, match=message):
        engine.stream("ab", **options)
    with pytest.raises(ConfigError, match=message):
        engine.batch(["ab"], **options)
    with pytest.raises(ConfigError, match=message):
        AsyncEngine(engine).stream("ab", **options)


@pytest.mark.parametrize("name", ["draft", "num_speculative", "acceptance", "adaptive"])
def test_beam_search_has_no_drafts(name):
    value = {"draft": "lookup", "num_speculative": 4, "acceptance": "match", "adaptive": True}[name]
    with pytest.raises(ConfigError, match=rf"{name} is not for beam_search\(\)"):
        make_engine().beam_search("ab", **{name: value})


def test_a_draft_that_does_not_fit_is_refused_before_anything_runs():
    class Foreign(Oracle):
        def bind(self, target):
            raise ConfigError(f"a vocabulary of {target.n_vocab} tokens is not mine")

    engine = make_engine()
    for _ in range(2):
        with pytest.raises(ConfigError, match="a vocabulary of 18 tokens is not mine"):
            engine.generate("ab", draft=Foreign([]))
    with pytest.raises(ConfigError, match="is not mine"):
        asyncio.run(AsyncEngine(engine).generate("ab", draft=Foreign([])))
    assert engine.metrics_snapshot().spec_rounds == 0


def test_chat_and_conversations_take_drafts():
    with ox.load(num_threads=1) as engine:
        messages, wanted = [{"role": "user", "content": "Tell me of a fox."}], {"max_tokens": 20, "seed": 1}
        template = "{% for m in messages %}{{ m.content }}{% endfor %}"
        plain = engine.chat(messages, chat_template=template, **wanted)
        got = engine.chat(messages, chat_template=template, **wanted, draft="lookup", adaptive=False)
        assert got.token_ids == plain.token_ids
        assert got.speculation is not None


def test_nothing_is_drafted_with_zero_tokens():
    engine, oracle = make_engine(), Oracle([])
    got = engine.generate("ab", max_tokens=9, draft=oracle, num_speculative=0)
    assert got.speculation == SpecStats(off="num_speculative is 0")
    assert oracle.calls == []
    assert len(oracle.bound) == 1


def test_statistics_say_why_speculation_is_off():
    engine = make_engine(context_size=300)
    whole = engine.generate([3], max_tokens=200, seed=1, ignore_eos=True).token_ids
    wrong = Oracle([[3, *whole]], every=1)
    got = engine.generate([3], max_tokens=200, seed=1, ignore_eos=True, draft=wrong, num_speculative=4)
    assert got.speculation.accepted == 0
    assert got.speculation.rounds < 40
    assert "draft tokens don't pay" in got.speculation.off


def test_an_engine_keeps_no_unused_draft():
    engine = make_engine()
    draft = Oracle([[3] * 20])
    engine.generate([3], max_tokens=9, seed=1, draft=draft, adaptive=False)
    gone = weakref.ref(draft)
    del draft
    gc.collect()
    assert gone() is None


def test_an_error_of_forget_is_logged(caplog):
    class Stubborn(Oracle):
        def forget(self, key):
            raise RuntimeError("never")

    engine = make_engine()
    with caplog.at_level(logging.ERROR, "oxillama"):
        got = engine.generate([3], max_tokens=9, seed=1, ignore_eos=True, draft=Stubborn([]), adaptive=False)
    assert len(got.token_ids) == 9
    assert "Stubborn failed to forget" in caplog.text


def test_named_drafts_are_those_of_the_engine():
    engine = make_engine()
    for _ in range(2):
        engine.generate([3, 4, 3], max_tokens=9, seed=1, draft=["lookup", "grammar"], adaptive=False)
    named = factory_of(engine)._drafts._named
    assert isinstance(named["lookup"], PromptLookup)
    assert isinstance(named["grammar"], GrammarDraft)
    assert named["lookup"]._own == {}  # every text was forgotten
