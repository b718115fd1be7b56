"""One tool that no grammar can hold, among others: it is free, they are held, and the result says so."""

import asyncio

import pytest

import oxillama as ox
from tests.chat.templates import TEMPLATES
from tests.fakes import factory_of

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}
UNHELD = {
    "unique items": {"properties": {"names": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}}},
    "looking behind": {"properties": {"names": {"type": "string", "pattern": "(?<=a)b"}}},
    "a reference elsewhere": {"properties": {"names": {"$ref": "https://example.org/names"}}},
    "too large": {"properties": {"names": {"type": "string", "pattern": "b" * 500_000}}},
}
HI = [{"role": "user", "content": "hi"}]
# Tools by their names alone: some of these have large schemas.
NAMES = (
    "{% for t in tools or [] %}{{ t.function.name }}\n{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"
)
CALL = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'


def tag(schema, **more):
    return {"type": "function", "function": {"name": "tag", "parameters": {"type": "object", **schema}, **more}}


TAG = tag(UNHELD["unique items"])


@pytest.fixture(scope="module")
def engine():
    with ox.load(num_threads=1) as engine:
        yield engine


def is_warned(result):
    (said,) = result.warnings
    return said.startswith("the arguments of the tool 'tag' are held to no schema: ")


@pytest.mark.parametrize("schema", UNHELD.values(), ids=UNHELD)
def test_the_others_are_held(engine, schema):
    tools = [ADD, tag(schema)]
    answer = engine.chat(HI, tools=tools, tool_format="hermes", chat_template=NAMES, max_tokens=3)
    assert is_warned(answer)
    assert answer.to_dict()["warnings"] == answer.warnings
    held = factory_of(engine)._grammars.held(ox.SamplerConfig(), ox.ToolUse("hermes", tools=tools))
    assert held.grammar.accepts(CALL.format("add", '{"a": 5}'))
    assert not held.grammar.accepts(CALL.format("add", '{"a": "5"}'))
    for arguments in ('{"names": ["a", "a"]}', '{"names": 5, "more": {}}', "{}"):
        assert held.grammar.accepts(CALL.format("tag", arguments))
    assert not held.grammar.accepts(CALL.format("tag", "[]"))
    assert not held.grammar.accepts(CALL.format("sub", "{}"))


@pytest.mark.parametrize("name", TEMPLATES)
def test_in_every_format(engine, name):
    form = ox.ChatFormat.of_template(TEMPLATES[name])
    answer = engine.chat(HI, tools=[ADD, TAG], tool_format=form, max_tokens=2)
    assert is_warned(answer)
    assert engine.chat(HI, tools=[ADD], tool_format=form, max_tokens=2).warnings == []
    with pytest.raises(ox.GrammarError, match="the parameters of the tool 'tag': uniqueItems"):
        engine.chat(HI, tools=[ADD, TAG], tool_format=form, tool_choice="required")


def test_what_is_asked_for_is_held_or_an_error(engine):
    options = {"tool_format": "hermes", "max_tokens": 2}
    allowed = {"type": "function", "function": {"name": "add"}}
    for choice in ("required", "tag"):
        with pytest.raises(ox.GrammarError, match="the parameters of the tool 'tag': uniqueItems"):
            engine.chat(HI, tools=[ADD, TAG], tool_choice=choice, **options)
    with pytest.raises(ox.GrammarError, match="the parameters of the tool 'tag': uniqueItems"):
        engine.chat(HI, tools=[ADD, tag(UNHELD["unique items"], strict=True)], **options)
    assert is_warned(engine.chat(HI, tools=[ADD, tag(UNHELD["unique items"], strict=False)], **options))
    assert engine.chat(HI, tools=[ADD, TAG], tool_choice="add", **options).warnings == []
    for mode in ("auto", "required"):
        only = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [allowed]}}
        assert engine.chat(HI, tools=[ADD, TAG], tool_choice=only, **options).warnings == []
    for free in ({"constrain_tools": False}, {"tool_choice": "none"}, {"tool_format": "text"}, {"regex": "[ab]+"}):
        assert engine.chat(HI, tools=[ADD, TAG], **{**options, **free}).warnings == []


def test_tools_that_are_too_large_together_are_all_free(engine, monkeypatch):
    """None has a fault of its own: only without their schemas they fit into a grammar."""
    grammar = ox.ChatFormat.grammar

    def bounded(self, tools, *args, free=(), **options):
        if len(free) < len(tools):
            raise ox.GrammarError("it is too large to compile")
        return grammar(self, tools, *args, free=free, **options)

    monkeypatch.setattr(ox.ChatFormat, "grammar", bounded)
    tools = [ADD, {"name": "sub", "parameters": {"title": "of its own"}}]
    for form in ("hermes", ox.ChatFormat.of_template(TEMPLATES["tagged"])):
        said = [f"the arguments of the tool '{name}' are held to no schema: it is too large" for name in ("add", "sub")]
        answer = engine.chat(HI, tools=tools, tool_format=form, max_tokens=2)
        assert [text.removesuffix(" to compile") for text in answer.warnings] == said
        with pytest.raises(ox.GrammarError, match="too large to compile"):
            engine.chat(HI, tools=tools, tool_format=form, tool_choice="required")


def test_streams_say_it_at_their_end(engine):
    chunks = list(engine.chat(HI, tools=[ADD, TAG], tool_format="hermes", max_tokens=3, stream=True))
    assert is_warned(chunks[-1])
    assert all(chunk.warnings == [] for chunk in chunks[:-1])
    both = engine.chat(HI, tools=[ADD, TAG], tool_format="hermes", max_tokens=3, n=2)
    assert all(map(is_warned, both))


def test_coroutines_say_it(engine):
    async def ask():
        return await ox.AsyncEngine(engine).chat(HI, tools=[ADD, TAG], tool_format="hermes", max_tokens=3)

    assert is_warned(asyncio.run(ask()))


def test_a_resumed_answer_says_it(engine):
    """Read or unread, and finished or not."""
    options = {"tools": [ADD, TAG], "tool_format": "hermes", "max_tokens": 4, "temperature": 0, "stream": True}
    whole = list(engine.chat(HI, **options))
    stream = engine.chat(HI, **options)
    first = next(stream)
    assert [first, *engine.resume(stream.snapshot_bytes())] == whole
    stream.close()
    stream = engine.chat(HI, **options)
    next(stream)
    data = stream.snapshot_bytes()
    rest = list(stream)
    assert is_warned(rest[-1])
    assert list(engine.resume(data)) == rest


def test_the_prompt_has_the_schema(engine):
    """The model sees what is wanted, whether or not it is held to it."""
    shows = "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}"
    ids = engine.chat_tokens(HI, tools=[ADD, TAG], chat_template=shows)
    assert '"uniqueItems": true' in engine.detokenize(ids)
