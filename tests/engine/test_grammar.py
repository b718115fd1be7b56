"""Grammars through the engine, on the shipped model: the text always follows them, however it was asked for."""

import asyncio
import json
import re
from dataclasses import replace

import pytest

import oxillama as ox
from oxillama.chat.arguments import faults
from oxillama.chat.schema_check import check_schema
from oxillama.config import SamplerConfig
from oxillama.core import request_factory
from oxillama.sampling import Sampler
from tests.fakes import assert_idle, factory_of

NUMBERS = 'root ::= "[" [1-9] [0-9]{0,3} (", " [1-9] [0-9]{0,3}){2,6} "]"'
NAMES = 'root ::= " " [A-Z] [a-z]{2,8} (" and " [A-Z] [a-z]{2,8})* "."'
PERSON = r"""
root ::= "{\"name\": " string ", \"age\": " [1-9] [0-9]? ", \"friends\": [" (string (", " string){0,2})? "]}"
string ::= "\"" [^"\\\x7F\x00-\x1F]{1,12} "\""
"""
PROMPTS = ["Once upon a time", "The cat", "In the morning, the old man went to the"]


@pytest.fixture(scope="module")
def engine():
    with ox.load(num_threads=1) as engine:
        yield engine
        assert_idle(engine)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.0}, {"temperature": 5.0, "top_k": 0, "top_p": 1.0}])
def test_texts_follow_their_grammar(engine, options):
    for seed in range(3):
        text = engine.generate("The numbers are ", grammar=NUMBERS, seed=seed, **options).text
        assert re.fullmatch(r"\[[1-9]\d{0,3}(, [1-9]\d{0,3}){2,6}\]", text)
        person = json.loads(engine.generate("A person: ", grammar=PERSON, seed=seed, **options).text)
        assert list(person) == ["name", "age", "friends"]
        assert 0 < person["age"] < 100


def test_an_end_comes_only_where_the_grammar_may_end(engine):
    for seed in range(5):
        done = engine.generate("They were", grammar=NAMES, seed=seed, max_tokens=200, temperature=1.5)
        assert done.finish_reason == "stop"
        assert ox.Grammar.parse(NAMES).accepts(done.text)
        cut = engine.generate("They were", grammar=NAMES, seed=seed, max_tokens=2, temperature=1.5)
        assert cut.finish_reason == "length"
        assert done.text.startswith(cut.text)


def test_a_batch_equals_each_alone(engine):
    alone = [engine.generate(p, grammar=PERSON, seed=5, max_tokens=60).token_ids for p in PROMPTS]
    assert [r.token_ids for r in engine.generate(PROMPTS, grammar=PERSON, seed=5, max_tokens=60)] == alone
    streamed = [list(engine.stream(p, grammar=PERSON, seed=5, max_tokens=60)) for p in PROMPTS]
    assert [[t for c in chunks for t in c.token_ids] for chunks in streamed] == alone


def test_requests_with_and_without_grammars_together(engine):
    streams = [engine.stream(p, grammar=g, seed=3, max_tokens=20) for p in PROMPTS for g in (None, NUMBERS, NAMES)]
    found = ["" for _ in streams]
    open_streams = dict(enumerate(streams))
    while open_streams:
        for i, stream in list(open_streams.items()):
            try:
                found[i] += next(stream).text
            except StopIteration:
                del open_streams[i]
    expected = [
        engine.generate(p, grammar=g, seed=3, max_tokens=20).text for p in PROMPTS for g in (None, NUMBERS, NAMES)
    ]
    assert found == expected


def test_a_grammar_that_allows_all_changes_nothing(engine):
    free = engine.generate(PROMPTS[0], seed=1, max_tokens=30)
    assert engine.generate(PROMPTS[0], seed=1, max_tokens=30, grammar="root ::= .*").token_ids == free.token_ids


def test_settings_can_hold_the_grammar(engine):
    config = replace(engine.sampling_defaults, seed=2, grammar=NUMBERS)
    assert engine.generate("x", sampler=config).text == engine.generate("x", grammar=NUMBERS, seed=2).text


def test_a_chat_can_be_held_to_a_grammar(engine):
    answer = engine.chat([{"role": "user", "content": "hi"}], grammar='root ::= "yes" | "no"', seed=1)
    assert answer.text in ("yes", "no")


def test_a_bad_grammar_is_refused_before_anything_runs(engine):
    with pytest.raises(ox.GrammarError, match="line 1, column 10"):
        engine.generate("x", grammar="root ::= (")
    with pytest.raises(ox.GrammarError, match="no token <nothing>"):
        engine.generate("x", grammar="root ::= <nothing>")
    with pytest.raises(ox.ConfigError, match="grammar must be GBNF as a str"):
        engine.generate("x", grammar=3)


def test_a_sampler_without_a_state_of_its_grammar_says_so(engine):
    row = engine.prefill(engine.tokenize("x"))
    engine.reset()
    with pytest.raises(ox.ConfigError, match="without a state"):
        Sampler(SamplerConfig(grammar=NUMBERS)).sample(row)


# ---- patterns and choices

FREE = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}


@pytest.mark.parametrize("seed", range(4))
def test_texts_match_their_pattern(engine, seed):
    pattern = r"(Mr|Mrs)\. [A-Z][a-z]{2,8}( and [A-Z][a-z]{2,8})?, \d{1,3} years"
    done = engine.generate("His name was ", regex=pattern, seed=seed, max_tokens=200, **FREE)
    assert done.finish_reason == "stop"
    assert re.fullmatch(pattern, done.text)
    cut = engine.generate("His name was ", regex=pattern, seed=seed, max_tokens=3, **FREE)
    assert cut.finish_reason == "length"
    assert done.text.startswith(cut.text)


@pytest.mark.parametrize("seed", range(4))
def test_texts_are_one_of_their_choices(engine, seed):
    choices = ["yes", "yes, of course", "no", "Ich weiß nicht 😀"]
    done = engine.generate("The answer is ", choices=choices, seed=seed, **FREE)
    assert done.finish_reason == "stop"
    assert done.text in choices
    cut = engine.generate("The answer is ", choices=["Ich weiß nicht 😀"], seed=seed, max_tokens=2)
    assert cut.finish_reason == "length"
    assert "Ich weiß nicht 😀".startswith(cut.text)


def test_every_way_to_ask(engine):
    expected = engine.generate(PROMPTS, regex="[a-z]{5,9}", seed=4)
    assert [r.token_ids for r in engine.batch(PROMPTS, regex="[a-z]{5,9}", seed=4)] == [r.token_ids for r in expected]
    streamed = "".join(chunk.text for chunk in engine.stream(PROMPTS[0], regex="[a-z]{5,9}", seed=4))
    assert streamed == expected[0].text
    assert (
        engine.generate(PROMPTS[0], sampler=replace(engine.sampling_defaults, regex="[a-z]{5,9}", seed=4)).text
        == streamed
    )
    message = [{"role": "user", "content": "hi"}]
    assert engine.chat(message, choices=("a", "b")).text in ("a", "b")


def test_every_way_to_ask_in_a_loop(engine):
    async def ask():
        loop = ox.AsyncEngine(engine)
        texts = [(await loop.generate("x", regex="[ab]{4}", seed=1)).text]
        texts.append("".join([chunk.text async for chunk in loop.stream("x", regex="[ab]{4}", seed=1)]))
        texts += [r.text async for r in loop.batch(["x"], regex="[ab]{4}", seed=1)]
        return texts

    assert set(asyncio.run(ask())) == {engine.generate("x", regex="[ab]{4}", seed=1).text}


def test_bad_patterns_and_choices_are_refused_before_anything_runs(engine):
    for use in (engine.generate, engine.stream):  # a stream too, before its first piece is asked for
        with pytest.raises(ox.GrammarError, match="column 1"):
            use("x", regex="(")
    with pytest.raises(ox.ConfigError, match="choices must hold at least one"):
        engine.stream("x", choices=[])
    with pytest.raises(ox.ConfigError, match="regex and choices are both given"):
        engine.generate("x", regex="a", choices=["a"])
    with pytest.raises(ox.ConfigError, match="grammar and regex are both given"):
        engine.generate("x", sampler=SamplerConfig(grammar=NUMBERS), regex="a")
    with pytest.raises(ox.ConfigError, match="regex is set, but this Sampler"):
        Sampler(SamplerConfig(regex="a")).sample(engine.forward_logits(engine.tokenize("x"))[0])


def bounded(engine, monkeypatch, **bounds):
    """The engine's cache of grammars, a new one with other bounds."""
    for name, bound in bounds.items():
        monkeypatch.setattr(request_factory, name, bound)
    cache = request_factory.GrammarCache(engine.tokenizer)
    monkeypatch.setattr(factory_of(engine), "_grammars", cache)
    return cache


def test_compiled_grammars_are_kept_in_bounds(engine, monkeypatch):
    cache = bounded(engine, monkeypatch, OWN_GRAMMARS=6, ALL_GRAMMARS=9)
    for i in range(12):
        engine.generate("x", choices=[str(i)], max_tokens=1)
        assert len(cache._kept) <= 6
    first = cache._kept.contents()[None]["choices", (str(i),)]
    engine.generate("x", choices=[str(i)], max_tokens=1)
    assert cache._kept.contents()[None]["choices", (str(i),)] is first
    for salt in "abcdefghijkl":
        engine.generate("x", choices=["salted"], max_tokens=1, cache_salt=salt)
        assert len(cache._kept) <= 9
        assert salt in cache._kept.contents()


def test_compiled_grammars_are_kept_for_one_owner(engine, monkeypatch):
    cache, known = bounded(engine, monkeypatch, OWN_GRAMMARS=6, ALL_GRAMMARS=7), ("regex", "own salt")
    for salt in ("a", "b", "a"):
        engine.generate("x", regex="own salt", max_tokens=1, cache_salt=salt)
    found = {owner: kept[known] for owner, kept in cache._kept.contents().items()}
    assert found.keys() == {"a", "b"}
    assert found["a"] is not found["b"]
    for i in range(20):
        engine.generate("x", choices=[f"own {i}"], max_tokens=1, cache_salt="a")
    kept = cache._kept.contents()
    assert kept["b"][known] is found["b"]  # those of many are not at the cost of others
    assert len(kept["a"]) == 6
    assert known not in kept["a"]


def test_a_grammar_that_is_refused_leaves_nothing_behind(engine):
    cache = factory_of(engine)._grammars
    cache.clear()
    for i in range(4):
        with pytest.raises(ox.GrammarError):
            engine.generate("a", regex="(", cache_salt=str(i))
        assert not cache._kept.contents()


def test_grammars_take_no_more_bytes_than_their_bounds(engine, monkeypatch):
    cache = factory_of(engine)._grammars
    cache.clear()
    engine.generate("x", regex="[a-z]{1,9}", max_tokens=1)
    (held,) = cache._kept.contents()[None].values()
    small = held[0].n_bytes()
    assert small > 1000
    engine.generate("x", regex="[a-z]{1,2000}", max_tokens=1)
    assert list(cache._kept.contents()[None].values())[-1][0].n_bytes() > 4 * small
    cache = bounded(engine, monkeypatch, OWN_BYTES=4 * small)
    engine.generate("x", regex="[a-z]{1,2000}", max_tokens=1)
    engine.generate("x", regex="[b-z]{1,9}", max_tokens=1)
    assert list(cache._kept.contents()[None]) == [("regex", "[b-z]{1,9}")]
    cache = bounded(engine, monkeypatch, ALL_BYTES=4 * small)
    for salt in "abcdef":
        engine.generate("x", regex="[b-z]{1,9}", max_tokens=1, cache_salt=salt)
    sizes = [held[0].n_bytes() for kept in cache._kept.contents().values() for held in kept.values()]
    assert sizes
    assert sum(sizes) <= 4 * small


def test_nothing_is_kept_of_texts_when_all_is_given_up(engine):
    text = "a text of many words that is kept " * 20
    asked = {"cache_salt": "mine", "max_tokens": 4, "regex": "[a-f]{1,3}", "seed": 1}
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    messages = [{"role": "user", "content": text}]
    before = engine.chat(messages, chat_template=template, **asked)
    kept, grammars = engine.tokenizer._kept._kept, factory_of(engine)._grammars._kept
    assert kept
    assert "mine" in grammars.contents()
    engine.shrink_to_fit(1 << 40)  # less is asked for
    assert kept
    assert "mine" in grammars.contents()
    engine.shrink_to_fit()
    assert not kept
    assert not grammars
    assert engine.chat(messages, chat_template=template, **asked).token_ids == before.token_ids


# ---- schemas

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "é"]}, "maxItems": 3},
        "size": {"anyOf": [{"type": "null"}, {"type": "number", "minimum": 0, "exclusiveMaximum": 10}]},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("seed", range(6))
def test_texts_follow_their_schema(engine, seed):
    done = engine.generate("A person: ", json_schema=SCHEMA, seed=seed, max_tokens=400, **FREE)
    assert done.finish_reason == "stop"
    check_schema(SCHEMA)
    assert list(faults(SCHEMA, json.loads(done.text))) == []
    cut = engine.generate("A person: ", json_schema=SCHEMA, seed=seed, max_tokens=4, **FREE)
    assert cut.finish_reason == "length"
    assert done.text.startswith(cut.text)


def test_schemas_in_every_form(engine):
    expected = engine.generate("x", json_schema=SCHEMA, seed=1).text
    assert engine.generate("x", json_schema=json.dumps(SCHEMA), seed=1).text == expected
    config = replace(engine.sampling_defaults, json_schema=SCHEMA, seed=1)
    assert engine.generate("x", sampler=config).text == expected
    assert "".join(chunk.text for chunk in engine.stream("x", json_schema=SCHEMA, seed=1)) == expected
    assert [r.text for r in engine.batch(["x"], json_schema=SCHEMA, seed=1)] == [expected]
    for seed in range(3):
        text = engine.generate("x", json_schema=True, seed=seed, max_tokens=300).text
        assert ox.JsonSchemaCompiler.compile(True).accepts(text) or len(engine.tokenize(text)) > 100


LEAVES = {"integer": {"type": "integer"}, "enum": {"enum": [7, 15, 300]}, "const": {"const": 15}}


def placed(leaf):
    """A schema with the leaf as the first property, one in the middle, the last one, and the last one of the last."""
    text = {"enum": ["a", "bc"]}
    return {
        "first": {"n": leaf, "s": text, "t": text},
        "middle": {"s": text, "n": leaf, "t": text},
        "last": {"s": text, "t": text, "n": leaf},
        "nested": {"s": text, "o": {"type": "object", "properties": {"n": leaf}, "required": ["n"]}},
    }


@pytest.mark.parametrize("kind", LEAVES)
def test_integers_are_written_as_integers_and_end(engine, kind):
    """As the model is, at any place of the property; a model that may write a point here never ends its zeros."""
    for properties in placed(LEAVES[kind]).values():
        schema = {"type": "object", "properties": properties, "required": list(properties)}
        prompts = [f"The number {i} in JSON: " for i in range(4)]
        for options in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 3}):
            for done in engine.batch(prompts, json_schema=schema, max_tokens=120, repetition_penalty=1.0, **options):
                value = json.loads(done.text)
                number = value.get("n", value.get("o", {}).get("n"))
                assert (done.finish_reason, type(number)) == ("stop", int), done.text
                assert kind == "integer" or number in (7, 15, 300)
                assert value.keys() == properties.keys()


def test_the_mode_of_schemas(engine):
    """Every way to give it, and both modes of the same schema beside each other."""
    schema = {"const": 15}
    assert engine.generate("x", json_schema=schema, seed=1).text == "15"
    options = {"json_schema": schema, "logit_bias": dict.fromkeys(engine.tokenize(".0", add_special=False), 20.0)}
    assert engine.generate("x", max_tokens=9, **options).text == "15"
    assert engine.generate("x", max_tokens=9, schema_mode="full", **options).text.startswith("15.0")
    found = engine.beam_search("x", beam_width=2, max_new_tokens=9, schema_mode="full", **options)
    assert found[0].text.startswith("15.0")
    assert engine.beam_search("x", beam_width=2, max_new_tokens=9, **options)[0].text == "15"
    with pytest.raises(ox.ConfigError, match=r"^schema_mode must be one of generate, full, not 'wide'"):
        engine.generate("x", json_schema=schema, schema_mode="wide")


@pytest.mark.parametrize("mode", ["generate", "full"])
def test_arguments_of_tools_in_each_mode(engine, mode):
    parameters = {
        "type": "object",
        "properties": {"n": {"const": 15}},
        "required": ["n"],
        "additionalProperties": False,
    }
    use = ox.ToolUse("hermes", tools=[{"name": "add", "parameters": parameters}], choice="add")
    bias = dict.fromkeys(engine.tokenize(".0", add_special=False), 20.0)
    done = engine.generate("x", tool_use=use, schema_mode=mode, logit_bias=bias, temperature=0.0, max_tokens=80)
    written = done.tool_calls[0].raw.partition('"n": ')[2]
    assert written.startswith("15.0" if mode == "full" else "15}}"), done


def test_schemas_that_cannot_be_honoured(engine):
    with pytest.raises(ox.GrammarError, match="#"):
        engine.generate("x", json_schema={"$ref": "https://example.org/remote"})
    with pytest.raises(ox.GrammarError):
        engine.stream("x", json_schema=False)
    with pytest.raises(ox.ConfigError, match="json_schema must be"):
        engine.generate("x", json_schema="{")
