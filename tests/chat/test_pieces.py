"""A text in pieces is read as the whole text is: names, values, ids, spaces and levels of any length, cut anywhere."""

import json
from random import Random

import pytest

from oxillama.chat.call_writer import WrittenCall, write_calls
from oxillama.chat.calls import ToolCall
from oxillama.chat.format import ChatFormat
from oxillama.chat.shapes import NestedTags, PythonCall, Tagged
from oxillama.chat.tool_format import FORMATS, find_format
from tests.chat.templates import TEMPLATES, THINKING

FORMS = {name: ChatFormat.of_template(source) for name, source in {**TEMPLATES, **THINKING}.items()}
FORMS |= {name: find_format(name) for name in FORMATS}
FORMS |= {"generic": ChatFormat.of_template("{{ messages[0].content }}").with_generic_calls}
HARMONY = ChatFormat.of_template(
    "{% for m in messages %}<|start|>{{ m.role }}"
    "{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>{{ m.content }}<|end|>{% endfor %}"
)
LONG = (255, 257, 509, 510, 511, 513, 700)  # about the bounds that readers have had
TEXT = {"type": "string"}


def tool(name="write", **properties):
    return {"name": name, "parameters": {"type": "object", "properties": properties}}


def read(form, tools, pieces):
    """Reasoning, content, calls and the text of arguments as they come."""
    parser, deltas = form.parser(tools), []
    for piece in pieces:
        deltas += parser.push(piece)
    message = parser.finish()
    written = {}
    for delta in (*deltas, *message.deltas):
        if delta.tool_call is not None:
            piece = delta.tool_call
            written[piece.index] = written.get(piece.index, "") + piece.arguments
    return message.reasoning, message.content, message.tool_calls, written


def cut(text, size):
    return [text[i : i + size] for i in range(0, len(text), size)]


def agreed(form, tools, text):
    """The calls of a text, which are the same for any pieces."""
    whole = read(form, tools, [text])
    assert all(read(form, tools, cut(text, size)) == whole for size in (1, 511)), text[:80]
    return whole[2]


def nested(levels, value=1):
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize("name", FORMS)
def test_an_argument_has_a_name_of_any_length(name):
    form = FORMS[name]
    for n in LONG:
        key = "k" * n
        text = write_calls(form.layout, [WrittenCall("write", {key: "abc"}, "callnum01")])
        calls = agreed(form, [tool(**{key: TEXT})], text)
        if n <= 256 or not isinstance(form.calls.shape if form.calls else None, PythonCall):
            assert [(call.name, call.arguments) for call in calls] == [("write", {key: "abc"})]
        unknown = agreed(form, [tool(path=TEXT)], text)
        if form.calls is not None and isinstance(form.calls.shape, Tagged):
            assert isinstance(unknown[0], ToolCall)
        agreed(form, [tool(path=TEXT)], text[: text.index("abc")])
        agreed(form, [tool(path=TEXT)], text.replace("k>", "k").replace('k"', "k"))


@pytest.mark.parametrize("name", FORMS)
def test_other_lengths(name):
    form = FORMS[name]
    for n in (256, 513):
        for own, key, id, value in (
            ("w" * n, "path", "callnum01", "abc"),
            ("write", "path", "i" * n, "abc"),
            ("write", "path", "callnum01", "<" * n),
            ("write", "path", "callnum01", "\n" * n),
        ):
            text = write_calls(form.layout, [WrittenCall(own, {key: value}, id)])
            agreed(form, [tool(), tool("w" * n, path=TEXT)], text)
            agreed(form, [tool(path=TEXT)], text.replace('text="yes"', f'text="{"y" * n}"'))
        text = write_calls(form.layout, [WrittenCall("write", {"path": "abc"}, "callnum01")])
        for mark in (">", "\n", ":", "{", "]"):
            agreed(form, [tool(path=TEXT)], text.replace(mark, mark + " " * n))
    for levels in (16, 33, 63, 64, 65, 101):
        text = write_calls(form.layout, [WrittenCall("write", {"path": nested(levels)}, "callnum01")])
        agreed(form, [tool(path={})], text)


@pytest.mark.parametrize("name", FORMS)
def test_random_texts(name):
    form, random = FORMS[name], Random(3)
    for _ in range(12):
        n = random.choice(LONG)
        given = {random.choice(("path", "k" * n)): random.choice(("v" * n, "", "</", nested(random.randrange(70))))}
        text = write_calls(form.layout, [WrittenCall(random.choice(("write", "w" * n)), given, "callnum01")])
        at, more = random.randrange(len(text)), random.choice(("x", "<", ">", "\n", "{", '"', "</", " ", ""))
        text = text[:at] + more + text[at + random.choice((0, 1, 5)) :]
        agreed(form, [tool(path={}, **{"k" * n: {}})], text[: random.choice((len(text), random.randrange(len(text))))])


@pytest.mark.parametrize("n", LONG)
def test_names_in_channels_and_in_nested_tags(n):
    text = f"<|channel|>commentary to=functions.{'w' * n} <|constrain|>json<|message|>{{}}<|call|>"
    (call,) = agreed(HARMONY, [tool("w" * n)], text)
    assert call.name == "w" * n
    agreed(HARMONY, [tool()], text)
    form = FORMS["nested"]
    assert isinstance(form.calls.shape, NestedTags)
    inner = {"type": "object", "properties": {"k" * n: TEXT}}
    given = {"path": {"k" * n: "abc"}}
    (call,) = agreed(form, [tool(path=inner)], write_calls(form.layout, [WrittenCall("write", given)]))
    assert call.arguments == given
    unclosed = f'@<do>\n@<run name="write">@<path>abc@<{"k" * n}>x@</{"k" * n}>@</run>\n@</do>'
    (call,) = agreed(form, [tool(path=TEXT, **{"k" * n: TEXT})], unclosed)
    assert call.arguments == {"path": "abc", "k" * n: "x"}


@pytest.mark.parametrize("n", LONG)
def test_calls_without_marks(n):
    form = FORMS["object"]
    for written in (json.dumps("w" * n), '"' + "\\u0077" * n + '"', json.dumps("x" * n)):
        text = f'{{"name": {written}, "arguments": {{"path": "a"}}}}'
        calls = agreed(form, [tool("w" * n, path=TEXT), tool()], text)
        assert len(calls) == ("x" not in written)
    agreed(form, [tool(path=TEXT)], f'{{"name": "write", "{"k" * n}": 1, "arguments": {{}}}}')
    agreed(form, [tool(path=TEXT)], f'{{"name": "write", "id": "{"i" * n}", "arguments": {{}}}}')
