"""Drafts of the text that a grammar forces."""

import json

import pytest

import oxillama as ox
from oxillama.drafts.draft import DraftTask, Target
from oxillama.drafts.grammar_draft import GrammarDraft
from oxillama.errors import ConfigError
from oxillama.sampling import Sampler
from tests.fakes import factory_of, make_engine

SCHEMA = {
    "type": "object",
    "properties": {"favourite_animal": {"enum": ["fox", "dog"]}, "friends": {"enum": [1, 2, 3]}},
    "required": ["favourite_animal", "friends"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def engine():
    with ox.load(num_threads=1) as engine:
        yield engine


def test_names_of_a_schema_are_drafted(engine):
    wanted = {"json_schema": SCHEMA, "seed": 1, "max_tokens": 60}
    plain = engine.generate("A child: ", **wanted)
    got = engine.generate("A child: ", **wanted, draft="grammar", num_speculative=8, adaptive=False)
    assert (got.text, got.token_ids) == (plain.text, plain.token_ids)
    assert json.loads(got.text)["favourite_animal"] in ("fox", "dog")
    assert got.speculation.drafted > 0


def test_draft_tokens_are_allowed_and_forced(engine):
    chain = ox.SamplerChain.from_config(ox.SamplerConfig(regex="(fox|dog) and the others"))
    draft = GrammarDraft()
    draft.bind(Target(engine.tokenizer, engine.n_vocab, engine.context_size))
    sampler = factory_of(engine).plain_sampler(chain)
    assert draft.propose([DraftTask(1, [5], 8, sampler)])[0].tokens == []  # two ways on
    for token in engine.tokenize("fox", add_special=False):
        sampler.accept(token)
    before = sampler.state()
    (found,) = draft.propose([DraftTask(1, [5], 3, sampler)])
    assert 0 < len(found.tokens) <= 3
    assert sampler.state() == before
    for token in found.tokens:
        sampler.accept(token)
    assert b" and the others".startswith(b"".join(map(engine.tokenizer.token_bytes, found.tokens)))


def test_nothing_is_drafted_without_a_grammar(engine):
    draft = GrammarDraft()
    draft.bind(Target(engine.tokenizer, engine.n_vocab, engine.context_size))
    assert draft.propose([DraftTask(1, [5], 8, Sampler())])[0].tokens == []
    draft.forget(1)
    assert engine.generate("ab", max_tokens=9, seed=1, draft="grammar").speculation.drafted == 0


def test_a_grammar_draft_serves_one_tokenizer(engine):
    draft = GrammarDraft()
    engine.generate("ab", max_tokens=1, draft=draft)
    with pytest.raises(ConfigError, match="another tokenizer"):
        make_engine().generate("ab", max_tokens=1, draft=draft)


class Spaced:
    """A tokenizer that puts a space before what it gets, as those of Llama 2 do."""

    model, add_space_prefix = "llama", True

    def encode(self, text, add_special=True, parse_special=False):
        return list(("▁" + text).encode())


def test_no_space_comes_into_the_middle_of_a_text(engine):
    sampler = factory_of(engine).plain_sampler(ox.SamplerChain.from_config(ox.SamplerConfig(regex="hello there")))
    draft = GrammarDraft()
    draft.bind(Target(Spaced(), 256, 100))
    assert bytes(draft.propose([DraftTask(1, [5], 32, sampler)])[0].tokens) == b"hello there"
