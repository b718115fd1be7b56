"""Arguments that aren't closed end where the next one begins; closing marks that come twice count once."""

import itertools
import json

import pytest

from oxillama.chat.calls import BrokenToolCall, ToolCall
from oxillama.chat.format import ChatFormat
from tests.chat.templates import TEMPLATES, chat

TEXT = {"type": "string"}
WRITE = {
    "type": "object",
    "properties": {
        "path": TEXT,
        "content": TEXT,
        "n": {"type": "integer"},
        "o": {"type": "object", "properties": {"a": {}}},
    },
    "required": ["path"],
}
READ = {"type": "object", "properties": {"file": TEXT}, "required": ["file"]}
SCHEMAS = {"write": WRITE, "read": READ}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]


class Written:
    """How a format writes calls: `open` before the name, `head` behind it, arguments, `end`, and `outer` around all.

    tight: it writes calls in one line.
    """

    def __init__(self, source, outer, open, head, key, close, end, outer_end, *, trail="", lead="", between="\n"):
        self.form = ChatFormat.of_template(source)
        self.outer, self.open, self.head, self.key, self.close = outer, open, head, key, close
        self.end, self.outer_end, self.trail, self.lead, self.between = end, outer_end, trail, lead, between

    def argument(self, key, value, close=None):
        opening = self.key.replace("KEY", key)
        closing = self.lead + self.close.replace("KEY", key) if close is None else close
        return f"{opening}{self.trail}{value}{closing}"

    def call(self, *arguments, name="write", end=None):
        """A call of these arguments, each as it stands in a text."""
        body = self.between.join([f"{self.open}{name}{self.head}", *arguments, self.end if end is None else end])
        return f"{self.outer}{body}{self.outer_end}"

    def closing(self, key):
        return self.close.replace("KEY", key)


VALUE = "{{ v if v is string else v | tojson }}"
ITEMS = "{% for k, v in c.arguments.items() %}"
LINED = chat(
    '<invoke name="{{ c.name }}">\n' + ITEMS + '<parameter name="{{ k }}">' + VALUE + "</parameter>\n{% endfor %}"
    "</invoke>\n",
    before="\n<x:calls>\n",
    after="</x:calls>",
)
TIGHT = chat("<do>{{ c.name }}" + ITEMS + "<k>{{ k }}</k><v>" + VALUE + "</v>{% endfor %}</do>")
FORMS = {
    "tagged": Written(
        TEMPLATES["tagged"], "<do>\n", "<fn=", ">", "<arg=KEY>", "</arg>", "</fn>", "\n</do>", trail="\n", lead="\n"
    ),
    "tagged-keys": Written(TEMPLATES["tagged-keys"], "", "<do>", "", "<k>KEY</k>\n<v>", "</v>", "</do>", ""),
    "tagged-types": Written(
        TEMPLATES["tagged-types"], "<runs>\n", '<run name="', '">', '<with key="KEY" text="yes">', "</with>", "</run>",
        "\n</runs>",
    ),
    "lined": Written(
        LINED, "<x:calls>\n", '<invoke name="', '">', '<parameter name="KEY">', "</parameter>", "</invoke>",
        "\n</x:calls>",
    ),
    "tight": Written(TIGHT, "", "<do>", "", "<k>KEY</k><v>", "</v>", "</do>", "", between=""),
    "nested": Written(
        TEMPLATES["nested"], "@<do>\n", '@<run name="', '">', "@<KEY>", "@</KEY>", "@</run>", "\n@</do>", between=""
    ),
}  # fmt: skip
TAGGED = [name for name in FORMS if name != "nested"]
SPACED = [name for name, made in FORMS.items() if made.between]  # which write arguments in lines of their own


def read(form, pieces):
    parser = form.parser(TOOLS, "<|assistant|>\n")
    deltas = [delta for piece in pieces for delta in parser.push(piece)]
    found = parser.finish()
    return found, deltas + found.deltas


def summed(found, deltas):
    calls = {}
    for delta in deltas:
        if delta.tool_call is not None:
            piece = delta.tool_call
            if piece.name is not None:
                calls[piece.index] = [piece.id, piece.name, ""]
            calls[piece.index][2] += piece.arguments
    for i, call in enumerate(found.tool_calls):
        if isinstance(call, ToolCall):
            assert json.loads(calls[i][2]) == call.arguments
    assert "".join(delta.content for delta in deltas) == found.content
    return found.content, calls, found.tool_calls


def read_for_every_cut(form, text):
    """The message, which is the same for every cut of the text."""
    found, deltas = read(form, [text])
    expected = summed(found, deltas)
    for pieces in (list(text), *([text[:i], text[i:]] for i in range(1, len(text), 3))):
        assert summed(*read(form, pieces)) == expected
    return found


def called(found):
    return [(call.name, call.arguments) for call in found.tool_calls]


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("value", ["a", "", "a\nb", "x < y", "<b>"])
def test_an_argument_that_is_not_closed_ends_where_the_next_one_begins(name, value):
    made = FORMS[name]
    rest = made.argument("content", "hello")
    for line in ("\n", *(() if name in SPACED else ("",))):
        text = made.call(
            made.argument("path", value, close=line if made.between == "" else "")
            if value
            else made.argument("path", "", close=""),
            rest,
        )
        found = read_for_every_cut(made.form, text)
        assert called(found) == [("write", {"path": value, "content": "hello"})], text
        assert found.content == ""
        assert not made.form.grammar(TOOLS, "required").accepts(text), text


@pytest.mark.parametrize("name", FORMS)
def test_the_last_argument_that_is_not_closed_ends_with_its_call(name):
    made = FORMS[name]
    open_end = made.argument("path", "a", close="" if made.between else "\n")
    text = made.call(open_end)
    assert called(read_for_every_cut(made.form, text)) == [("write", {"path": "a"})]
    other = made.call(made.argument("file", "b"), name="read")
    both = read_for_every_cut(made.form, f"{text}\n{other}")
    assert called(both) == [("write", {"path": "a"}), ("read", {"file": "b"})]
    for wrong in (text, f"{text}\n{other}"):
        assert not made.form.grammar(TOOLS, "required", parallel_tool_calls=True).accepts(wrong)
    behind = read_for_every_cut(made.form, f"{text} and so on")
    assert not any(isinstance(call, ToolCall) and "and so on" in str(call.arguments) for call in behind.tool_calls)


@pytest.mark.parametrize("name", FORMS)
def test_numbers_and_objects_that_are_not_closed(name):
    made = FORMS[name]
    if name == "tagged-types":  # whose marks tell texts from others
        made_type = made.key.replace("yes", "no")
        number, given = made_type.replace("KEY", "n") + "5", made_type.replace("KEY", "o") + '{"a": 1}'
    elif name == "nested":
        number, given = "@<n>5", "@<o>@<a>b@</a>"
    else:
        number, given = made.argument("n", "5", close=""), made.argument("o", '{"a": 1}', close="")
    text = made.call(made.argument("path", "a"), number, given, made.argument("content", "x"))
    expected = {"path": "a", "n": 5, "o": {"a": "b" if name == "nested" else 1}, "content": "x"}
    assert called(read_for_every_cut(made.form, text)) == [("write", expected)]


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("n", [2, 3, 50])
def test_marks_that_end_something_count_once(name, n):
    made = FORMS[name]
    for line in ("\n", ""):
        close = made.lead + line.join([made.closing("path")] * n)
        text = made.call(made.argument("path", "a", close=close), made.argument("content", "hello"))
        assert called(read_for_every_cut(made.form, text)) == [("write", {"path": "a", "content": "hello"})]
        text = made.call(made.argument("path", "a"), made.argument("content", "b"), end=line.join([made.end] * n))
        text += line.join(["", *[made.outer_end.strip()] * n]) if made.outer_end else ""
        found = read_for_every_cut(made.form, text)
        assert (found.content, called(found)) == ("", [("write", {"path": "a", "content": "b"})])


@pytest.mark.parametrize("name", FORMS)
def test_an_argument_that_comes_twice_makes_no_sound_call(name):
    made = FORMS[name]
    for close in (None, "" if made.between else "\n"):
        text = made.call(made.argument("path", "a", close=close), made.argument("path", "b"))
        (call,) = read_for_every_cut(made.form, text).tool_calls
        assert isinstance(call, BrokenToolCall)
        assert "same key twice" in call.error
        assert not made.form.grammar(TOOLS, "required").accepts(text)


@pytest.mark.parametrize("name", FORMS)
def test_a_key_that_is_not_closed_makes_no_sound_call(name):
    made = FORMS[name]
    broken = made.key.partition("KEY")[0] + "path\n"
    text = made.call(broken + made.argument("content", "hello"))
    calls = read_for_every_cut(made.form, text).tool_calls
    assert not any(isinstance(call, ToolCall) and len(call.arguments) < 2 and call.arguments for call in calls)


@pytest.mark.parametrize("name", FORMS)
def test_values_that_hold_other_marks(name):
    """Those of arguments that the tool doesn't have, and where a line doesn't begin."""
    made = FORMS[name]
    opening, grammar = made.key.replace("KEY", "other"), made.form.grammar(TOOLS, "required")
    values = [f"a\n{opening}b", f"a {opening}b"]
    if name in SPACED:
        values += [f"a {made.key.replace('KEY', 'content')}b", f"x{made.key.replace('KEY', 'path')}"]
    if name != "nested":
        values += [made.key.partition("KEY")[0], f"a\n{made.key.partition('KEY')[0]}", f"\n{made.end[:3]}"]
    for value, again in itertools.product(values, ([], [made.argument("content", "c")])):
        text = made.call(made.argument("path", value), *again)
        expected = {"path": value} | ({"content": "c"} if again else {})
        assert called(read_for_every_cut(made.form, text)) == [("write", expected)], text
        assert grammar.accepts(text), text


@pytest.mark.parametrize("name", TAGGED)
def test_a_section_of_xml_holds_any_mark(name):
    made = FORMS[name]
    inner = made.call(made.argument("path", "a"), made.argument("content", "b"))
    for value in (inner, f"a\n{made.key.replace('KEY', 'content')}b", made.close, "]]", "]]>", "]]>x", ""):
        for line in ("", "\n"):
            section = f"<![CDATA[{value}]]>{line}{made.close}"
            head = made.key.replace("KEY", "path") + made.trail
            text = made.call(head + section, made.argument("content", "c"))
            found = read_for_every_cut(made.form, text)
            assert called(found) == [("write", {"path": value, "content": "c"})], text
            assert made.form.grammar(TOOLS, "required").accepts(text), text
    unclosed = made.call(made.key.replace("KEY", "path") + made.trail + "<![CDATA[a]]>", made.argument("content", "c"))
    assert called(read_for_every_cut(made.form, unclosed)) == [("write", {"path": "a", "content": "c"})]
    assert not made.form.grammar(TOOLS, "required").accepts(unclosed)


@pytest.mark.parametrize("name", ["tight", "tagged-keys", "tagged"])
def test_strings_of_json_hold_any_mark(name):
    made = FORMS[name]
    value = {"k": f"{made.close}{made.end} {made.key.replace('KEY', 'content')}b", "l": [made.close]}
    text = made.call(made.argument("path", "a"), made.argument("o", json.dumps(value)), made.argument("content", "c"))
    found = read_for_every_cut(made.form, text)
    assert called(found) == [("write", {"path": "a", "o": value, "content": "c"})]


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("limits", [{"maxLength": 60}, {"minLength": 1}, {"pattern": "^[^]*$"}, {"pattern": "o$"}])
def test_texts_that_are_held_to_something_hold_no_marks_either(name, limits):
    made = FORMS[name]
    schema = {**WRITE, "properties": {**WRITE["properties"], "path": {"type": "string", **limits}}}
    grammar = made.form.grammar([{"name": "write", "parameters": schema}], "required")
    closed = made.call(made.argument("path", "foo"), made.argument("content", "foo"))
    assert grammar.accepts(closed)
    for text in (
        made.call(made.argument("path", "a", close="" if made.between else "\n"), made.argument("content", "foo")),
        made.call(made.argument("path", "a", close="" if made.between else "\n")),
    ):
        assert not grammar.accepts(text), text


def test_ends_of_nested_values_that_are_missing():
    made = FORMS["nested"]
    person = {"type": "object", "properties": {"name": TEXT, "age": {"type": "integer"}}, "required": ["name"]}
    trip = {"properties": {"people": {"type": "array", "items": person}, "sure": TEXT}, "required": ["people"]}
    tools = [{"name": "trip", "parameters": {"type": "object", **trip}}]
    expected = {"people": [{"name": "Ann", "age": 30}, {"name": "Bo"}], "sure": "x"}
    whole = (
        "@<people>@<item>@<name>Ann@</name>@<age>30@</age>@</item>@<item>@<name>Bo@</name>@</item>@</people>"
        "@<sure>x@</sure>"
    )
    marks = ["@</name>", "@</age>", "@</item>", "@</people>", "@</sure>"]
    grammar = made.form.grammar(tools, "required")
    for body in (whole, *(whole.replace(mark, "", 1) for mark in marks), *(whole.replace(m, m + m) for m in marks)):
        text = made.call(body, name="trip")
        for pieces in ([text], list(text)):
            parser = made.form.parser(tools)
            for piece in pieces:
                parser.push(piece)
            (call,) = parser.finish().tool_calls
            assert isinstance(call, ToolCall), (text, call)
            assert call.arguments == expected, text
        assert grammar.accepts(text) is (body == whole)
