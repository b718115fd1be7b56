"""Work of a parser grows with the text alone: lines of Python that are run, for texts that look like many things."""

import sys
from pathlib import Path

import pytest

from oxillama.chat.calls import ToolCall
from oxillama.chat.format import ChatFormat
from oxillama.errors import GrammarError
from tests.chat.templates import TEMPLATES

FOLDER = str(Path(sys.modules[ChatFormat.__module__].__file__).parent)
TEXT = {"type": "string"}
WRITE = {"type": "object", "properties": {"path": TEXT, "content": TEXT, "o": {}}, "required": ["path"]}


def tools_of(n):
    """One tool, with as many more arguments."""
    properties = {**WRITE["properties"], **{f"p{i}": TEXT for i in range(n)}}
    return [{"name": "write", "parameters": {**WRITE, "properties": properties}}]


def arguments(n, one):
    return "".join(one.replace("KEY", f"p{i}") for i in range(n))


TAGGED, NESTED, KEYS = "<do>\n<fn=write>\n", '@<do>\n@<run name="write">', "<do>write\n"
HEAD = '{"name": "write", "arguments": {'
# Of formats by name: texts with n times something.
CASES = {
    "half heads": ("tagged", lambda n: "\n<fn=write" * n),
    "heads": ("tagged", lambda n: "\n<fn=write>" * n),
    "heads of no tool": ("tagged", lambda n: "\n<fn=other>" * n),
    "outer marks": ("tagged", lambda n: "<do>" * n),
    "outer heads": ("tagged", lambda n: "<do>\n<fn=write " * n),
    "calls": ("tagged", lambda n: "\n<fn=write>\n<arg=path>\na\n</arg>\n</fn>" * n),
    "open arguments": ("tagged", lambda n: TAGGED + "<arg=path>\na\n" * n),
    "near openings": ("tagged", lambda n: f"{TAGGED}<arg=path>\n" + "\n<arg=pathx>" * n + "\n</arg>\n</fn>\n</do>"),
    "half openings": ("tagged", lambda n: f"{TAGGED}<arg=path>\n" + "\n<arg=" * n + "\n</arg>\n</fn>\n</do>"),
    "closed often": ("tagged", lambda n: f"{TAGGED}<arg=path>\na" + "\n</arg>" * n + "\n</fn>\n</do>"),
    "closed often, and then text": ("tagged", lambda n: f"{TAGGED}<arg=path>\na" + "\n</arg>" * n + "x"),
    "ended often": ("tagged", lambda n: f"{TAGGED}<arg=path>\na\n</arg>" + "\n</fn>" * n + "\n</do>"),
    "ended often, and then text": ("tagged", lambda n: f"{TAGGED}<arg=path>\na\n</arg>" + "\n</fn>" * n + "x"),
    "ends in a value": ("tagged", lambda n: f"{TAGGED}<arg=path>\na" + "\n</fn>" * n + "x\n</arg>\n</fn>\n</do>"),
    "ends with text": ("tagged", lambda n: f"{TAGGED}<arg=path>\na" + "\n</fn>\n</do> x" * n),
    "left over": ("tagged", lambda n: f"{TAGGED}<arg=path>\na\n</arg>\n</fn>" + "\n</do>" * n + "x"),
    "line breaks": ("tagged", lambda n: f"{TAGGED}<arg=path>\na\n</arg>" + "\n" * n + "</fn>\n</do>" + "\n" * n),
    "sections": ("tagged", lambda n: f"{TAGGED}<arg=path>\n<![CDATA[" + "]]>" * n + "</arg>\n</fn>\n</do>"),
    "arguments": ("tagged", lambda n: TAGGED + arguments(n, "<arg=KEY>\na\n</arg>\n") + "</fn>\n</do>"),
    "many open arguments": ("tagged", lambda n: TAGGED + arguments(n, "<arg=KEY>\na\n") + "</fn>\n</do>"),
    "names": ("tagged-keys", lambda n: "\nwrite" * n),
    "keys": ("tagged-keys", lambda n: f"{KEYS}<k>path</k>\n<v>" + "\n<k>" * n + "</v></do>"),
    "json in json": ("tagged-keys", lambda n: f"{KEYS}<k>o</k>\n<v>" + '{"a":' * n + "</v></do>"),
    "json with marks": ("tagged-keys", lambda n: KEYS + '<k>o</k>\n<v>{"a": "' * n),
    "heads of json": ("object", lambda n: f"\n{HEAD}" * n),
    "heads in json": ("object", lambda n: f'\n{HEAD}"a":' * n),
    "objects": ("object", lambda n: f"\n{HEAD}}}}}" * n),
    "objects and text": ("object", lambda n: f"\n{HEAD}}}}} x" * n),
    "texts in objects": ("object", lambda n: f'\n{HEAD}"a": "x' * n),
    "lists": ("list", lambda n: f"\n[{HEAD}}}}}," * n),
    "calls of tags": ("nested", lambda n: "@<do>\n" + '@<run name="write">@<path>a@</path>@</run>' * n),
    "near tags": ("nested", lambda n: f"{NESTED}@<path>" + "@<x>" * n + "@</path>@</run>\n@</do>"),
    "half tags": ("nested", lambda n: f"{NESTED}@<path>" + "@<" * n + "@</path>@</run>\n@</do>"),
    "tags closed often": ("nested", lambda n: f"{NESTED}@<path>a" + "@</path>" * n + "@</run>\n@</do>"),
    "ends in a tag": ("nested", lambda n: f"{NESTED}@<path>a" + "@</run>" * n + "x@</path>@</run>\n@</do>"),
    "tags": ("nested", lambda n: NESTED + arguments(n, "@<KEY>a") + "@</run>\n@</do>"),
    "heads of a section": ("named-in-section", lambda n: "<|call|>tools.write:0" * n),
    "half calls": ("named-in-section", lambda n: "<|call|>tools.write:0<|args|>{" * n),
}


def lines(run):
    """The number of lines of the package that are run."""
    count = 0

    def within(frame, event, argument):
        nonlocal count
        count += event == "line"
        return within

    def begin(frame, event, argument):
        return within if frame.f_code.co_filename.startswith(FOLDER) else None

    before = sys.gettrace()
    sys.settrace(begin)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


def parse(form, tools, text, size):
    parser = form.parser(tools, "<|assistant|>\n")
    for start in range(0, len(text), size):
        parser.push(text[start : start + size])
    return parser.finish()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [5, 1 << 20], ids=["pieces", "whole"])
def test_twice_the_text_takes_twice_the_work(case, size):
    name, make = CASES[case]
    form = ChatFormat.of_template(TEMPLATES[name])
    counts = []
    for n in (100, 200, 400):
        tools, text = tools_of(n), make(n)
        form.parser(tools, "<|assistant|>\n")  # what is kept of tools
        counts.append(lines(lambda tools=tools, text=text: parse(form, tools, text, size)))
    assert counts[2] - counts[1] < 2.2 * (counts[1] - counts[0]) + 200, counts


@pytest.mark.parametrize(
    ("name", "case"), [("tagged", "arguments"), ("tagged", "many open arguments"), ("nested", "tags")]
)
def test_ten_thousand_arguments(name, case):
    form, text = ChatFormat.of_template(TEMPLATES[name]), CASES[case][1](10_000)
    (call,) = parse(form, tools_of(10_000), text, 4096).tool_calls
    assert isinstance(call, ToolCall)
    assert call.arguments == {f"p{i}": "a" for i in range(10_000)}


def test_a_grammar_of_ten_thousand_arguments_is_refused_by_its_budget():
    form = ChatFormat.of_template(TEMPLATES["tagged"])
    with pytest.raises(GrammarError, match="budget"):
        form.grammar(tools_of(10_000), "required")
    text = CASES["arguments"][1](200)
    assert not form.grammar(tools_of(200), "required").accepts(text)  # path must be there
