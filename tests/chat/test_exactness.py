"""Random texts of grammars of calls are read as these calls: none is broken, each fits its schema, nothing is left."""

import re
from random import Random

import pytest

from oxillama.chat.arguments import faults
from oxillama.chat.calls import ToolCall
from oxillama.chat.format import ChatFormat
from oxillama.chat.openings import needs_arguments
from oxillama.chat.shapes import NestedTags, Tagged
from oxillama.chat.value_marks import argument_names, value_marks
from tests.chat.templates import TEMPLATES, THINKING

TEXT = {"type": "string"}
LAST = {"type": "string", "pattern": "^[^]*x$"}
CLOSED = {"type": "object", "additionalProperties": False}
INNER = {**CLOSED, "properties": {"k": TEXT, "path": TEXT}, "required": ["k"]}
ANY = {"n": {"type": "integer"}, "o": INNER, "any": {}, "l": {"type": "array", "items": TEXT}}
SCHEMAS = {
    "write": {
        **CLOSED,
        "properties": {"path": TEXT, "content": TEXT, "mode": {"enum": ["a", "w"]}},
        "required": ["path"],
    },
    "set": {**CLOSED, "properties": {**ANY, "u": {"anyOf": [TEXT, {"type": "null"}]}}},
    "held": {
        **CLOSED,
        "properties": {"w": {"type": "string", "minLength": 1, "maxLength": 40}, "p": LAST},
        "required": ["w"],
    },
    "ping": {**CLOSED, "properties": {}},
}
FORMS = {**TEMPLATES, **THINKING}
# Bare objects are opened in more ways than their grammar knows; strings of Python are held to no pattern.
LOOSE = ("object-bare",)


def tools_of(name):
    schemas = SCHEMAS
    if name == "python":
        held = {**SCHEMAS["held"], "properties": {**SCHEMAS["held"]["properties"], "p": TEXT}}
        schemas = {**SCHEMAS, "held": held}
    return [{"type": "function", "function": {"name": tool, "parameters": schema}} for tool, schema in schemas.items()]


def words_of(form):
    """Marks of a format and parts of them, and other words."""
    words = {
        "\n",
        " ",
        "a",
        "x",
        "1",
        "{",
        "}",
        '"',
        "\\",
        "null",
        "write",
        "ping",
        "path",
        "<![CDATA[",
        "]]>",
        "Text. ",
    }
    for text in (*form.layout.texts, *form.layout.closers):
        words |= {text, text.strip(), *text.split()}
    for opening in form.layout.inner:
        for name, schema in SCHEMAS.items():
            words |= set(list(opening.spellings(name, empty=not needs_arguments(schema)))[:4])
    if form.calls is not None and isinstance(form.calls.shape, Tagged | NestedTags):
        marks = value_marks(form.calls)
        opened = [mark for schema in SCHEMAS.values() for mark in marks.openings(argument_names(schema))]
        words |= {line + mark for mark in (*opened, *marks.next_call) for line in ("", "\n")}
    return sorted(word.encode() for word in words if word)


def walk(grammar, words, random, most=50):
    """A random text of a grammar, which goes on by whole words where it may; None for one that finds no end."""
    stacks, text = grammar._stacks, b""
    node = stacks.root
    for step in range(400):
        if stacks.is_end(node) and (step > most or random.random() < 0.4):
            return text.decode("utf-8", "replace")
        tried = [random.choice(words) for _ in range(12 if step <= most else 0)]
        word = next((word for word in tried if stacks.step_bytes(node, word)), b"") or stacks.forced(node, 200)
        if not word:
            fit = [byte for byte in map(chr, range(128)) if stacks.step_bytes(node, byte.encode())]
            ends = [byte for byte in fit if byte in '<>/]}"\n[`|'] if step > most else []
            word = random.choice(ends or fit or [""]).encode()
            if not word:
                return None
        node = stacks.step_bytes(node, word)
        text += word
    return None


def read(form, tools, pieces):
    parser = form.parser(tools, "<|assistant|>\n")
    for piece in pieces:
        parser.push(piece)
    return parser.finish()


def sound(form, tools, text):
    """The message of a text, whose calls are sound, for any cut."""
    found = read(form, tools, [text])
    assert read(form, tools, list(text)).tool_calls == found.tool_calls
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    for call in found.tool_calls:
        assert isinstance(call, ToolCall), (text, call)
        assert list(faults(schemas[call.name], call.arguments)) == [], (text, call)
    return found


@pytest.mark.parametrize("name", FORMS)
def test_required_calls(name):
    form, tools, random = ChatFormat.of_template(FORMS[name]), tools_of(name), Random(5)
    words, n_made = words_of(form), 0
    grammars = [form.grammar(tools, choice).grammar for choice in ("write", "set", "held", "required")]
    grammars.append(form.grammar(tools, "required", parallel_tool_calls=True).grammar)
    for number in range(30):
        grammar = grammars[number % len(grammars)]
        text = walk(grammar, words, random)
        if text is not None and not text.lstrip().startswith("<think>"):
            assert grammar.accepts(text)
            found = sound(form, tools, text)
            assert found.tool_calls
            assert not found.content.strip()
            n_made += 1
    assert n_made > 4


@pytest.mark.parametrize("name", [name for name in FORMS if name not in LOOSE])
def test_texts_with_calls(name):
    """Of the grammar itself, of words, and of calls that miss a mark."""
    form, tools, random = ChatFormat.of_template(FORMS[name]), tools_of(name), Random(7)
    words = words_of(form)
    whole = form.grammar(tools, "auto", parallel_tool_calls=True, lazy=False)
    calls = [form.grammar(tools, choice).grammar for choice in ("write", "set", "ping")]
    n_calls = 0
    for number in range(90):
        if number % 3 == 0:
            text = walk(whole.grammar, words, random)
        elif number % 3 == 1:
            text = b"".join(random.choice(words) for _ in range(random.randint(1, 12))).decode()
        else:
            call = walk(random.choice(calls), words, random, 20) or ""
            pieces = [piece for piece in re.split(r"(<[^<>]*>|\n|\[[A-Z]+\])", call) if piece]
            for _ in range(min(len(pieces), random.randint(1, 3))):
                pieces.pop(random.randrange(len(pieces)))
            text = random.choice(("", "Text.\n", "Text ")) + "".join(pieces)
        if text is not None and whole.accepts(text):
            n_calls += len(sound(form, tools, text).tool_calls)
    assert n_calls > 2
