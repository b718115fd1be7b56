"""Tools whose arguments no grammar can hold: in every format their calls may have any, and others are held."""

import pytest

from oxillama.chat import ChatTemplate
from oxillama.chat.format import ChatFormat
from oxillama.chat.tool_format import FORMATS
from oxillama.errors import GrammarError
from oxillama.grammar.automata.budget import UNITS
from tests.chat.templates import TEMPLATES, THINKING

UNIQUE = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}
TAG = {
    "type": "function",
    "function": {
        "name": "tag",
        "description": "Tags.",
        "parameters": {
            "type": "object",
            "properties": {"names": UNIQUE, "note": {"type": "string"}},
            "required": ["names"],
        },
    },
}
USER = {"role": "user", "content": "hi"}
SOURCES = TEMPLATES | THINKING


def written(source, *calls):
    """What a model writes for calls, as its template does."""
    template = ChatTemplate(source)
    asked = template.render([USER], tools=[ADD, TAG])
    said = [
        {"id": f"call0000{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": "", "tool_calls": said}
    text = template.render([USER, message], tools=[ADD, TAG], add_generation_prompt=False)
    return text[len(asked) :].removesuffix("<|end|>\n").lstrip("\n")


def of(source, **options):
    form = ChatFormat.of_template(source)
    return form, form.grammar([ADD, TAG], "required", parallel_tool_calls=True, **options)


@pytest.mark.parametrize("name", SOURCES)
def test_any_arguments_of_a_free_tool_are_accepted(name):
    form, grammar = of(SOURCES[name], free=["tag"])
    for arguments in (
        {"names": ["a", "a"]}, {"names": ["a"], "note": "b c"}, {"note": "b", "names": []}, {"other": 5}, {},
        {"names": "text", "flag": True, "none": None},
    ):  # fmt: skip
        text = written(SOURCES[name], ("tag", arguments))
        assert grammar.accepts(text), text
        parser = form.parser([ADD, TAG])
        parser.push(text)
        (call,) = parser.finish().tool_calls
        assert (call.name, set(call.arguments)) == ("tag", set(arguments))


@pytest.mark.parametrize("name", SOURCES)
def test_the_other_tools_are_held(name):
    form, grammar = of(SOURCES[name], free=["tag"])
    right, wrong = (written(SOURCES[name], ("add", arguments)) for arguments in ({"a": 5}, {"a": "x"}))
    assert grammar.accepts(right)
    assert not grammar.accepts(wrong)
    assert not grammar.accepts(written(SOURCES[name], ("sub", {"a": 5})))
    assert not grammar.accepts(written(SOURCES[name], ("add", {"a": 5, "b": 6})))
    if form.calls.parallel:
        assert grammar.accepts(written(SOURCES[name], ("tag", {"names": ["a", "a"]}), ("add", {"a": 5})))


@pytest.mark.parametrize("name", [*SOURCES, *FORMATS])
def test_faults_are_those_of_schemas_alone(name):
    form = ChatFormat.of_template(SOURCES[name]) if name in SOURCES else FORMATS[name].chat_format
    assert form.faults([ADD]) == {}
    found = form.faults([ADD, TAG])
    assert list(found) == ["tag"]
    assert found["tag"].startswith("the parameters of the tool 'tag': uniqueItems at ")
    with pytest.raises(GrammarError, match="must be of type object, not 'string'"):
        form.faults([{"name": "f", "parameters": {"type": "string"}}])


def test_work_is_bounded():
    """That of two grammars for all tools, however many are too large; what is small fits in between."""
    large = [{"name": f"t{i}", "parameters": {"properties": {"a": {"pattern": "b" * 500_000}}}} for i in range(40)]
    small = ADD["function"]
    found = FORMATS["hermes"].chat_format.faults([large[0], small, *large[1:]])
    assert list(found) == [tool["name"] for tool in large]
    limits = [int(reason.split("budget of ")[1].split()[0]) for reason in found.values()]
    assert limits[0] == UNITS
    assert sum(limits) < 2 * UNITS + len(large)
