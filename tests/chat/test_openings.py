"""Calls whose outer mark is missing: found where an inner opening names a tool, held to it by grammars, else text."""

import json
import re

import pytest

from oxillama.chat.calls import BrokenToolCall, ToolCall
from oxillama.chat.format import ChatFormat
from oxillama.chat.template import ChatTemplate
from tests.chat.templates import TEMPLATES, THINKING

TEXT = {"type": "string"}
SCHEMAS = {
    "look": {"type": "object", "properties": {"at": TEXT, "n": {"type": "integer"}}, "required": ["at"]},
    "ping": {"type": "object", "properties": {}, "additionalProperties": False},
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]
LOOK, PING = ("look", {"at": "Rome <b>", "n": 3}), ("ping", {})
# The outer marks of formats that have inner ones.
OUTER = {
    "object": "<call>\n",
    "list": "<calls>",
    "name-is-key": "<|begin_calls|>",
    "named": "[CALL]",
    "named-with-id": "[CALL]",
    "named-in-section": "<|calls|>",
    "tagged": "<do>\n",
    "tagged-keys": "<do>",
    "tagged-types": "<runs>\n",
    "python": "<|py|>",
    "braces": "<|do|>",
    "nested": "@<do>\n",
}
# Formats whose inner opening has a mark that templates write behind another one, and so anywhere.
ANYWHERE = ("named-in-section",)
# Formats in which nothing but the mark behind it shows that JSON is a call.
CLOSED = {"object": "\n</call>", "list": "</calls>", "name-is-key": "<|end_calls|>"}
WORD = re.compile(r"\w+")
CASES = [(name, calls) for name in OUTER for calls in ([LOOK], [PING], [LOOK, PING])]
IDS = [f"{name}-{'-'.join(called for called, _ in calls)}" for name, calls in CASES]


def form_of(name):
    return ChatFormat.of_template(TEMPLATES[name])


def written(name, calls):
    """What the template writes for an answer with these calls."""
    made = [
        {"type": "function", "id": f"callnum0{i}", "function": {"name": called, "arguments": arguments}}
        for i, (called, arguments) in enumerate(calls)
    ]
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": made}]
    text = ChatTemplate(TEMPLATES[name]).render(messages, add_generation_prompt=False, tools=TOOLS)
    return text.partition("<|assistant|>\n")[2].removesuffix("\n").removesuffix("<|end|>")


def unopened(name, calls):
    """The same without outer marks."""
    text = written(name, calls)
    assert OUTER[name] in text
    line = "\n" if name == "object" else ""  # since nothing but a line's beginning shows where JSON begins
    return text.replace(OUTER[name], line).removeprefix("\n")


def read(form, pieces, tools=TOOLS):
    parser = form.parser(tools, "<|assistant|>\n")
    deltas = [delta for piece in pieces for delta in parser.push(piece)]
    found = parser.finish()
    return found, deltas + found.deltas


def summed(found, deltas):
    """What the deltas add up to, which is the message."""
    calls = {}
    for delta in deltas:
        if delta.tool_call is not None:
            piece = delta.tool_call
            if piece.name is not None:
                assert piece.index not in calls
                calls[piece.index] = [piece.id, piece.name, ""]
            calls[piece.index][2] += piece.arguments
    for i, call in enumerate(found.tool_calls):
        if isinstance(call, ToolCall):
            assert calls[i][:2] == [call.id, call.name]
            assert json.loads(calls[i][2]) == call.arguments
    assert "".join(delta.content for delta in deltas) == found.content
    return found.content, calls, found.tool_calls


def cuts(text):
    yield list(text)
    for i in range(1, len(text), 2):
        yield [text[:i], text[i:]]
    for n in (2, 3, 7):
        yield [text[i : i + n] for i in range(0, len(text), n)]


def called(found):
    return [(call.name, call.arguments) for call in found.tool_calls]


@pytest.mark.parametrize(("name", "calls"), CASES, ids=IDS)
@pytest.mark.parametrize("content", ["", "I look it up.\n"])
def test_calls_without_their_outer_mark_are_read_for_every_cut(name, calls, content):
    form = form_of(name)
    text = content + unopened(name, calls)
    expected = summed(*read(form, [text]))
    assert called(read(form, [text])[0]) == calls
    assert expected[0] == content
    for pieces in cuts(text):
        assert summed(*read(form, pieces)) == expected


@pytest.mark.parametrize(("name", "calls"), CASES, ids=IDS)
def test_grammars_take_calls_without_their_outer_mark(name, calls):
    form = form_of(name)
    for content in ("", "I look it up.\n"):
        text = content + unopened(name, calls)
        for grammar in (
            form.grammar(TOOLS, "auto", parallel_tool_calls=True),
            form.grammar(TOOLS, "auto", parallel_tool_calls=True, lazy=False),
        ):
            assert grammar.accepts(text), text


@pytest.mark.parametrize("name", OUTER)
def test_calls_without_their_outer_mark_are_held_to_their_schemas(name):
    form = form_of(name)
    lazy, whole = form.grammar(TOOLS), form.grammar(TOOLS, lazy=False)
    for wrong in (("look", {"n": 3}), ("look", {"at": "Rome", "n": "three"}), ("ping", {"at": "Rome"})):
        text = f"I look.\n{unopened(name, [wrong])}"
        if name in CLOSED:  # no grammar can know by then that it is to be a call, and so it is none
            assert lazy.accepts(text)
            assert whole.accepts(text)
            for pieces in ([text], list(text)):
                found, deltas = read(form, pieces)
                assert summed(found, deltas) == (text, {}, [])
            continue
        assert not lazy.accepts(text), text
        assert not whole.accepts(text), text
    assert not form.grammar(TOOLS, "required").accepts(unopened(name, [LOOK]))  # there, marks must be


@pytest.mark.parametrize("name", OUTER)
def test_a_name_that_is_no_tool_stays_text(name):
    form = form_of(name)
    text = f"I look.\n{unopened(name, [('other', {'at': 'Rome'})])}"
    found, _ = read(form, [text])
    assert (found.content, found.tool_calls) == (text, [])
    for pieces in cuts(text):
        assert summed(*read(form, pieces)) == (text, {}, [])
    assert form.grammar(TOOLS).accepts(text)
    assert form.grammar(TOOLS, lazy=False).accepts(text)


@pytest.mark.parametrize("name", OUTER)
def test_without_tools_it_is_text(name):
    text = unopened(name, [LOOK])
    found, _ = read(form_of(name), [text], None)
    assert (found.content, found.tool_calls) == (text, [])


@pytest.mark.parametrize("name", OUTER)
def test_only_the_beginning_of_a_line_counts_where_no_other_mark_comes_before(name):
    form = form_of(name)
    text = f"I look: {unopened(name, [LOOK])}"
    found, _ = read(form, [text])
    if name in ANYWHERE:
        assert (found.content.strip(), called(found)) == ("I look:", [LOOK])
    else:
        assert (found.content, found.tool_calls) == (text, [])
    for grammar in (form.grammar(TOOLS), form.grammar(TOOLS, lazy=False)):
        assert grammar.accepts(text)
        assert grammar.accepts(text.replace("Rome", "Oslo"))


@pytest.mark.parametrize("name", CLOSED)
def test_json_without_any_mark_is_text(name):
    form = form_of(name)
    text = f"Such as:\n{unopened(name, [LOOK])}".removesuffix(CLOSED[name])
    for pieces in ([text], [f"{text}\nSo."], list(text)):
        found, deltas = read(form, pieces)
        assert (found.content, found.tool_calls) == ("".join(pieces), [])
        summed(found, deltas)


@pytest.mark.parametrize("name", OUTER)
def test_a_call_that_is_cut_is_told_once_its_opening_is_whole(name):
    form = form_of(name)
    text = unopened(name, [LOOK])
    head = text.index("Rome")
    for n in range(1, len(text)):
        for pieces in ([text[:n]], list(text[:n])):
            found, deltas = read(form, pieces)
            kept = " ".join([found.content, *(call.raw for call in found.tool_calls), *form.layout.texts])
            assert all(word in kept for word in WORD.findall(text[:n]))
            summed(found, deltas)
            if n > head and n <= head + len("Rome"):
                if any(opening.closed for opening in form.layout.inner):  # JSON that no mark closes
                    assert found.tool_calls == []
                    continue
                (call,) = found.tool_calls
                assert isinstance(call, BrokenToolCall)
                assert (call.name, call.complete) == ("look", False)


def test_calls_with_and_without_their_outer_mark_in_a_row():
    form = form_of("tagged")
    whole, bare = written("tagged", [LOOK]), unopened("tagged", [PING])
    for text in (f"{whole}\n{bare}", f"{bare}\n{whole}", f"{bare}\n{bare}", f"{bare}{whole}"):
        found, deltas = read(form, [text])
        assert len(found.tool_calls) == 2
        assert all(isinstance(call, ToolCall) for call in found.tool_calls)
        assert found.content == ""
        assert summed(found, deltas) == summed(*read(form, list(text)))
    found, _ = read(form, [f"A\n{bare} B\n{bare}\nC"])
    assert (found.content, called(found)) == ("A\n B\n\nC", [PING, PING])


def test_closing_marks_that_remain_are_no_content():
    form = form_of("tagged")
    bare = "<fn=ping>\n</fn>"
    for behind in ("\n</do>", "\n</do>\n</do>", "</do>", "\n</fn>\n</do>", "\n</d"):
        for pieces in ([bare + behind], list(bare + behind)):
            found, _ = read(form, pieces)
            assert (found.content, called(found)) == ("", [PING]), behind
    found, _ = read(form, [f"{bare}\n</do> So."])
    assert found.content == " So."
    assert read(form, ["It ends with </do>."])[0].content == "It ends with </do>."


def test_behind_reasoning_a_line_begins():
    form = ChatFormat.of_template(THINKING["think"])
    opening = '{"name": "look", "arguments": {"at": "Rome"}}\n</call>'
    for between in ("", "\n\n", "  "):
        text = f"<think>\nHm\n{opening}</think>{between}{opening}"
        found, _ = read(form, [text])
        assert (found.reasoning, found.content) == (f"Hm\n{opening}", "")
        assert called(found) == [("look", {"at": "Rome"})]
        for grammar in (form.grammar(TOOLS), form.grammar(TOOLS, lazy=False)):
            assert grammar.accepts(text) or grammar.lazy
        wrong = text.replace('"at": "Rome"}}\n</call>', '"at": 3}}\n</call>')
        assert read(form, [wrong])[0].tool_calls == []


def test_prefixes_of_names_and_names_in_others():
    form = form_of("tagged-keys")
    tools = [{"name": name, "parameters": SCHEMAS["look"]} for name in ("look", "look.up", "lo")]
    for name in ("look", "look.up", "lo"):
        text = f"I look.\n{name}\n<k>at</k>\n<v>Rome</v>\n</do>"
        for pieces in ([text], list(text)):
            found, _ = read(form, pieces, tools)
            assert called(found) == [(name, {"at": "Rome"})]
        assert form.grammar(tools, lazy=False).accepts(text)
    for name in ("loo", "look.u", "lookup", "l"):
        text = f"I look.\n{name}\n<k>at</k>\n<v>Rome</v>\n</do>"
        for pieces in ([text], list(text)):
            assert read(form, pieces, tools)[0].content == text
        assert form.grammar(tools, lazy=False).accepts(text)


def test_triggers_name_the_tools():
    assert form_of("tagged").grammar(TOOLS).triggers == ("<do>", "\n<fn=look>", "\n<fn=ping>")
    assert form_of("tagged-keys").grammar(TOOLS).triggers == (
        "<do>", "\nlook\n<k>", "\nlook<k>", "\nping\n<k>", "\nping<k>", "\nping\n</do>", "\nping</do>"
    )  # fmt: skip
    assert "<|call|>tools.look:" in form_of("named-in-section").grammar(TOOLS).triggers
    assert form_of("object").grammar(TOOLS).triggers == ("<call>",)
    assert form_of("named-attribute").grammar(TOOLS).triggers == ("<fn=",)  # one mark has no inner one


# ---- control tokens

TOKENS = {"<|calls|>": 1, "<|call|>": 2, "<|args|>": 3, "<|call_end|>": 4, "<|calls_end|>": 5, "<|other|>": 6}


def as_tokens(text):
    """Parts of a text, and the ids of control tokens."""
    found = [text]
    for mark, token in TOKENS.items():
        found = [
            part
            for piece in found
            for part in ([piece] if isinstance(piece, int) else [p for x in piece.split(mark) for p in (x, token)][:-1])
        ]
    return [part for part in found if part != ""]


def test_marks_that_are_control_tokens():
    form = form_of("named-in-section")
    grammar = form.grammar(TOOLS, "auto", parallel_tool_calls=True, token=TOKENS.get)
    assert not grammar.lazy or "<|calls|>" in grammar.triggers
    whole = form.grammar(TOOLS, "auto", parallel_tool_calls=True, token=TOKENS.get, lazy=False).grammar
    call, bad = '<|call|>tools.look:0<|args|>{"at": "Rome"}<|call_end|>', '<|call|>tools.look:0<|args|>{"n": 1}'
    for text, fits in (
        (call, True),
        (f"I look: {call}", True),
        (f"I look: {call}{call}<|calls_end|>", True),
        (f"I <|other|> look: {call}", True),
        (f"I <|call|> look: {call}", True),
        (f"<|calls|>{call}<|calls_end|>", True),
        ("I look <|other|> up.", True),
        ("<|call|>tools.other:0<|args|>{}", True),
        ('I look.\ntools.look:10<|args|>{"at": "Rome"}', True),
        (bad, False),
        (f"I look: {bad}<|call_end|>", False),
        (f"I look.\ntools.look:10<|args|>{bad.partition('<|args|>')[2]}", False),
    ):
        assert whole.accepts(as_tokens(text)) is fits, text


def test_spelled_control_tokens_are_no_marks():
    form = form_of("named-in-section")
    whole = form.grammar(TOOLS, "auto", token=TOKENS.get, lazy=False).grammar
    assert whole.accepts([1, 2, b"tools.ping:0", 3, b"{}", 4, 5])
    assert not whole.accepts([1, 2, b"tools.pong:0", 3, b"{}", 4, 5])
