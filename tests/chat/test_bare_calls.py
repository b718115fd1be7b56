"""Calls without a mark: answers that are JSON alone, whole and in pieces, and the texts that only look like them."""

import json
import sys

import pytest

from oxillama.chat.format import ChatFormat
from oxillama.chat.shapes import ReasoningFormat
from oxillama.chat.tool_format import FORMATS, find_format
from tests.chat.templates import OPENED, TEMPLATES, THINKING

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "kelvin"]}},
    "required": ["city"],
}
OWN = {"type": "object", "properties": {"code": {"type": "string", "x-editor": "vi"}}, "required": ["code"]}
SCHEMAS = {"weather": CITY, "ping": {}, "run": OWN | {"additionalProperties": False}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]
ROME = {"name": "weather", "arguments": {"city": "Rome"}}
OSLO = {"name": "weather", "parameters": {"unit": "kelvin", "city": "Oslo"}}
PING = {"name": "ping", "arguments": {}}
IN_ROME, IN_OSLO, PINGED = ("weather", {"city": "Rome"}), ("weather", {"unit": "kelvin", "city": "Oslo"}), ("ping", {})
HARMONY = (
    "{% for m in messages %}<|start|>{{ m.role }}"
    "{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>{{ m.content }}<|end|>{% endfor %}"
)
FORMS = {name: ChatFormat.of_template(source) for name, source in {**TEMPLATES, **THINKING, "harmony": HARMONY}.items()}
FORMS |= {name: find_format(name) for name in FORMATS}
OBJECT = FORMS["object"]


def text_of(call, **options):
    return json.dumps(call, ensure_ascii=False, **options)


one, other, ping = map(text_of, (ROME, OSLO, PING))
pretty = text_of(ROME, indent=2)
wrapped = {"id": "call_7", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
CALLS = {
    "an object": (one, [IN_ROME]),
    "with parameters": (other, [IN_OSLO]),
    "over lines, with spaces around": (f"\n\n {pretty}\n", [IN_ROME]),
    "arguments first": ('{"arguments": {"city": "Rome"}, "name": "weather"}', [IN_ROME]),
    "arguments in a string": (text_of(wrapped["function"]), [IN_ROME]),
    "no arguments": ('{"name": "ping", "arguments": null}', [PINGED]),
    "a wrapper": (text_of({"function": ROME}), [IN_ROME]),
    "a wrapper with type and id": (text_of(wrapped), [IN_ROME]),
    "type beside name": (text_of({"type": "function", **OSLO}), [IN_OSLO]),
    "function is the name": ('{"function": "weather", "arguments": {"city": "Rome"}}', [IN_ROME]),
    "one under tool_call": (text_of({"tool_call": ROME}), [IN_ROME]),
    "a list under tool_calls": (text_of({"tool_calls": [ROME, PING]}), [IN_ROME, PINGED]),
    "a list": (text_of([ROME, OSLO, PING], indent=1), [IN_ROME, IN_OSLO, PINGED]),
    "objects in a row": (f"{one}\n\n{other}\n{ping}", [IN_ROME, IN_OSLO, PINGED]),
    "objects with commas": (f"{one}, {other}; {ping}", [IN_ROME, IN_OSLO, PINGED]),
    "a fence": (f"```json\n{pretty}\n```", [IN_ROME]),
    "a fence without a language": (f"```\n{one}\n```\n", [IN_ROME]),
    "a fence of tildes around a list": (f"~~~ JSON\n{text_of([ROME, PING])}\n~~~", [IN_ROME, PINGED]),
    "a fence on one line": (f"```{one}```", [IN_ROME]),
    "a fence that isn't closed": (f"```json\n{one}\n", [IN_ROME]),
    "fences in a row": (f"```json\n{one}\n```\n\n```json\n{other}\n```", [IN_ROME, IN_OSLO]),
    "objects in a fence": (f"````tool_call\n{one}\n{other}\n````", [IN_ROME, IN_OSLO]),
    "other tags": (f"<tools>\n{one}\n{ping}\n</tools>", [IN_ROME, PINGED]),
    "tags in a fence": (f"```xml\n<function_call>\n{one}\n</function_call>\n```", [IN_ROME]),
    "text like marks in a string": (
        text_of({"name": "run", "arguments": {"code": '<call>\n{"name": "ping"} </call> ``` } ] é 😀'}}),
        [("run", {"code": '<call>\n{"name": "ping"} </call> ``` } ] é 😀'})],
    ),
}
TEXTS = {
    "text before": f"Here it is: {one}",
    "text behind": f"{one}\nThis asks for Rome.",
    "text behind a fence": f"```json\n{one}\n```\nThis asks for Rome.",
    "text in a fence": f"```json\n// a call\n{one}\n```",
    "another language": "```python\nprint([1])\n```",
    "an unknown tool": '{"name": "weathers", "arguments": {"city": "Rome"}}',
    "another tool in a list": text_of([ROME, {"name": "x", "arguments": {}}]),
    "arguments of another type": '{"name": "weather", "arguments": {"city": 3}}',
    "a value that isn't listed": '{"name": "weather", "arguments": {"city": "Rome", "unit": "feet"}}',
    "no city": '{"name": "weather", "arguments": {}}',
    "no arguments at all": '{"name": "ping"}',
    "arguments that are a list": '{"name": "ping", "arguments": [1]}',
    "arguments that are half JSON": '{"name": "ping", "arguments": "{"}',
    "arguments twice": '{"name": "ping", "arguments": {}, "parameters": {}}',
    "a key twice": '{"name": "weather", "arguments": {"city": "Rome", "city": "Oslo"}}',
    "name and function": '{"name": "ping", "function": "ping", "arguments": {}}',
    "another key": '{"name": "ping", "arguments": {}, "answer": 42}',
    "another type": '{"type": "object", "name": "ping", "arguments": {}}',
    "a key that the schema forbids": '{"name": "run", "arguments": {"code": "1", "x": 2}}',
    "the description of a tool": text_of({"type": "function", "function": TOOLS[0]["function"]}),
    "a person": '{"name": "Ann", "age": 30}',
    "an object without keys": "{}",
    "a list without items": "[]",
    "a list of numbers": "[1, 2]",
    "a list with a comma too many": f"[{one},]",
    "a list in a list": f"[[{one}]]",
    "a list that isn't closed": f"[{one}",
    "a call that isn't closed": '{"name": "weather", "arguments": {"city": "Ro',
    "no JSON": '{"name": "weather", "arguments": {"city": Rome}}',
    "a line break in a string": '{"name": "run", "arguments": {"code": "1\n2"}}',
    "a fence in a fence in a fence": f"```\n<a>\n```\n{one}\n```\n</a>\n```",
    "a fence with a longer end": f"```json\n{one}\n````",
    "tags with another end": f"<tools>\n{one}\n</tool>",
    "half of a surrogate pair": '{"name": "weather", "arguments": {"city": "\\ud800"}}',
    "beginnings": "{",
    "a fence alone": "```",
    "a tag alone": "<b>",
    "code": "`x` is {name}",
}


def read(form, pieces, **options):
    parser = form.parser(TOOLS, **options)
    deltas = [delta for piece in pieces for delta in parser.push(piece)]
    n_pushed = len(deltas)
    found = parser.finish()
    deltas += found.deltas
    assert "".join(delta.content for delta in deltas) == found.content
    return found, deltas, n_pushed


def called(found):
    return [(call.name, call.arguments) for call in found.tool_calls]


def cuts(text):
    return [text], list(text), [text[i : i + 5] for i in range(0, len(text), 5)]


BRACES = ("object-bare", "llama3")  # whose own calls begin with a brace alone, and are read by their own rule
OTHERS = ("function is the name", "one under tool_call", "a list under tool_calls", "objects with commas")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", CALLS)
def test_calls_are_found(kind, form):
    if form in BRACES and kind in OTHERS:
        pytest.skip("the format's own rule")
    text, calls = CALLS[kind]
    for pieces in cuts(text):
        found, deltas, _ = read(FORMS[form], pieces)
        assert (called(found), found.content.strip()) == (calls, "")
        written = {}
        for piece in (delta.tool_call for delta in deltas if delta.tool_call):
            name, arguments = written.setdefault(piece.index, [piece.name, ""])
            written[piece.index] = [name, arguments + piece.arguments]
        assert [(name, json.loads(arguments)) for name, arguments in written.values()] == calls
        assert [delta.call for delta in deltas if delta.call] == found.tool_calls


def test_fields_of_calls():
    found, _, _ = read(OBJECT, [CALLS["a list"][0]], first_id=3)
    assert [call.id for call in found.tool_calls] == ["call00003", "call00004", "call00005"]
    assert {(call.raw, call.offset) for call in found.tool_calls} == {(CALLS["a list"][0], 0)}
    (call,) = read(OBJECT, [text_of(wrapped)])[0].tool_calls
    assert call.id == "call_7"


@pytest.mark.parametrize("form", [name for name in FORMS if name not in BRACES])
@pytest.mark.parametrize("kind", TEXTS)
def test_anything_else_stays_text(kind, form):
    text = TEXTS[kind]
    for pieces in cuts(text):
        found, _, _ = read(FORMS[form], pieces)
        assert (found.content, found.tool_calls) == (text, [])


def test_nothing_is_shown_before_the_end():
    """The whole answer decides, so that its last piece does; and what can't be calls goes out at once."""
    for text, _ in CALLS.values():
        _, deltas, n_pushed = read(OBJECT, list(text))
        assert (n_pushed, len(deltas) > 1) == (0, True)
    shown = {
        '{"n': "",
        '{"name": "Ann"': '{"name": "Ann"',
        '{"age"': '{"age"',
        '{"name": "weather", "arguments": {"city": "Rome"}} T': f"{one} T",
        '{"name": "weather", "arguments": {"city": 3}}': "",  # a mark behind it would make it a call
        '{"name": "weather", "arguments": {"city": 3}} T': '{"name": "weather", "arguments": {"city": 3}} T',
        "[1": "[1",
        "``": "",
        "`x": "`x",
        "```js": "",
        "```js\nx": "```js\nx",
        "```js!": "```js!",
        "```js x": "```js x",
        "<b>": "",
        "<b>x": "<b>x",
        "<b ": "<b",
    }
    for text, out in shown.items():
        parser = OBJECT.parser(TOOLS)
        assert "".join(delta.content for c in text for delta in parser.push(c)) == out, text


def test_marks_of_the_format_come_first():
    text = f"<call>\n{one}\n</call>"
    _, deltas, n_pushed = read(OBJECT, list(text))
    assert n_pushed == len(deltas)
    for pieces in cuts(f"{one}\n</call>"):  # its opening left out
        assert called(read(OBJECT, pieces)[0]) == [IN_ROME]
    for pieces in cuts(f"{one}\n{text}"):
        found, _, _ = read(OBJECT, pieces)
        assert (found.content.strip(), called(found)) == (one, [IN_ROME])
    for pieces in cuts(f"{one}<|end|>"):  # of the turn
        assert called(read(OBJECT, pieces)[0]) == [IN_ROME]
    for pieces in cuts(f"<|start|>assistant<|channel|>final<|message|>{one}<|end|>"):
        assert called(read(FORMS["harmony"], pieces)[0]) == [IN_ROME]


def test_behind_reasoning():
    think = FORMS["think"]
    text = f"<think>\nRome?\n</think>\n\n```json\n{one}\n```"
    for pieces in cuts(text):
        found, _, _ = read(think, pieces)
        assert (found.reasoning, found.content, called(found)) == ("Rome?", "", [IN_ROME])
        found, _, _ = read(think, pieces, reasoning="none")
        assert (found.content.strip(), called(found)) == ("<think>\nRome?\n</think>", [IN_ROME])
    opened = ChatFormat.of_template(OPENED)
    found, _, _ = read(opened, list(f"Rome?\n</think>\n{one}"), generation_prompt="<|assistant|>\n<think>\n")
    assert (found.reasoning, called(found)) == ("Rome?", [IN_ROME])
    found, _, _ = read(OBJECT, list(f"[A]{one}[/A]{other}"), reasoning=ReasoningFormat("[A]", "[/A]"))
    assert (found.reasoning, called(found)) == (one, [IN_OSLO])


def test_where_it_is_off():
    for options in ({"bare": False}, {"must_call": True}):
        assert OBJECT.parser(TOOLS, **options).finish().tool_calls == []
        found, _, _ = read(OBJECT, list(one), **options)
        assert (found.content, found.tool_calls) == (one, [])
    for form in (OBJECT.without_calls, ChatFormat.of_template("{% for m in messages %}{{ m.content }}{% endfor %}")):
        assert read(form, [one])[0].content == one
    parser = OBJECT.parser()  # without tools
    parser.push(one)
    assert parser.finish().content == one


def test_schemas_that_can_not_be_checked_are_checked_as_far_as_they_can():
    for fits, arguments in ((True, {"code": "1"}), (True, {"code": 1}), (False, {}), (False, {"code": "1", "b": 1})):
        found, _, _ = read(OBJECT, [text_of({"name": "run", "arguments": arguments})])
        assert bool(found.tool_calls) is fits, arguments


N = 2000
HOSTILE = {
    "braces": "{",
    "brackets": "[",
    "ticks": "`",
    "spaces": " ",
    "fences": "```json\n",
    "tags": "<a>",
    "objects": f"{one}\n",
    "calls in fences": f"```json\n{one}\n```\n",
    "behind the name": '{"name": "ping", "arguments": {}, "id": 1',
    "nesting": ("[", '{"name": "ping", "arguments": {"a": '),
    "a string": ("x", '{"name": "run", "arguments": {"code": "'),
    "backslashes": ("\\", '{"name": "run", "arguments": {"code": "'),
    "a name": ("x", '{"name": "'),
    "a key": ("x", '{"'),
    "an id": ("1", '{"id": '),
    "a list": ("1,", '{"name": "ping", "arguments": {"a": ['),
    "ends": ("</call>", one),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_answers_take_linear_time(kind):
    """Twice the text in twice as many pieces makes at most about twice the calls of functions."""
    piece, head = HOSTILE[kind] if isinstance(HOSTILE[kind], tuple) else (HOSTILE[kind], "")

    def work(n):
        count, parser = 0, FORMS["tagged"].parser(TOOLS)

        def add(*_):
            nonlocal count
            count += 1

        sys.setprofile(add)
        try:
            parser.push(head)
            for _ in range(n):
                parser.push(piece)
            parser.finish()
        finally:
            sys.setprofile(None)
        return count

    assert work(2 * N) < 2.2 * work(N) + 1000
