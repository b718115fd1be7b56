"""Detection of calls: written calls are found in order, however the text is cut, and broken ones are not lost."""

import itertools
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.chat.json_scan import JsonError, JsonScanner
from oxillama.errors import ConfigError, ToolFormatError
from oxillama.tools import FORMATS, BrokenToolCall, ToolCall, ToolCallDetector, ToolFormat

CUSTOM = ToolFormat("<<call>>", "<</call>>", arguments="parameters")
ALL = {**FORMATS, "custom": CUSTOM, "no end": ToolFormat("CALL:")}
FORMAT_NAMES = sorted(ALL)
DELIMITERS = [d.strip() for f in ALL.values() for d in (f.begin, f.end, f.between) if d.strip()]


def found(format, text, cuts=()):
    """All events of a text, texts joined where nothing stands between them."""
    detector = ToolCallDetector(format)
    places = [0, *sorted(min(c, len(text)) for c in cuts), len(text)]
    events = [e for a, b in itertools.pairwise(places) for e in detector.push(text[a:b])]
    joined = []
    for event in events + detector.finish():
        if isinstance(event, str) and joined and isinstance(joined[-1], str):
            joined[-1] += event
        else:
            joined.append(event)
    return joined


def plain(events):
    """Calls as (name, arguments), broken ones as their text."""
    return [
        (e.name, e.arguments) if isinstance(e, ToolCall) else [e.raw] if isinstance(e, BrokenToolCall) else e
        for e in events
    ]


def written(format, calls, dumps=json.dumps):
    """Calls as a model writes them that was trained on the format."""
    f = ALL[format]
    if f.shape == "list":
        return f.begin + dumps([{"name": n, "arguments": a} for n, a in calls]) + f.end
    if f.shape == "named":
        return "".join(f.begin + n + f.between + dumps(a) + f.end for n, a in calls)
    texts = [dumps({"name": n, f.arguments: a}) for n, a in calls]
    return f.separator.join(text if f.bare else f.begin + text + f.end for text in texts)


# Strings that hold delimiters, quotes, backslashes, braces and every kind of character.
STRINGS = st.lists(
    st.one_of(
        st.sampled_from([*DELIMITERS, '"', "\\", "{", "}", "[", "]", "\n", "</", "é", "😀"]), st.text(max_size=3)
    ),
    max_size=4,
).map("".join)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(-1e300, 1e300), STRINGS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STRINGS, inner, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(
    st.tuples(st.from_regex(r"[a-z_][a-z_0-9.-]{0,8}", fullmatch=True), st.dictionaries(STRINGS, VALUES, max_size=3)),
    min_size=1,
    max_size=3,
)
CUTS = st.lists(st.integers(0, 400), max_size=12)
WORDS = st.sampled_from(["", "Let me look.\n", "a < b, [1] {x} \\ 😀 ", "<tool", "tool_call> ", "  \n"])


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(FORMAT_NAMES), CALLS, WORDS, WORDS, st.booleans(), st.sampled_from([None, 2]), CUTS)
def test_written_calls_are_found(format, calls, before, after, escaped, indent, cuts):
    f = ALL[format]
    if f.bare:
        before = before if not before.strip() else ""  # a bare call comes first
    text = before + written(format, calls, lambda v: json.dumps(v, ensure_ascii=escaped, indent=indent)) + after
    events = found(f, text, cuts)
    assert plain(events) == [*([before] if before.strip() else []), *calls, *([after] if after.strip() else [])]
    offsets = {len(before) if before.strip() else 0}
    assert {e.offset for e in events if isinstance(e, ToolCall)} == offsets


PIECES = st.lists(
    st.sampled_from([*DELIMITERS, '{"name": "f", "arguments": {"a": [1, "x"]}}', '{"name": "f", "parameters": {}}', '"',
                     "{", "}", "[", "]", ",", ":", "\\", '"name": ', "\n", " ", ";", "1", "text", "é", "{}", "f"]),
    max_size=14,
).map("".join)  # fmt: skip


@settings(deadline=None, max_examples=600)
@given(st.sampled_from(FORMAT_NAMES), PIECES, CUTS)
def test_where_the_text_is_cut_changes_nothing(format, text, cuts):
    """For text that is mostly wrong too; and nothing is lost but what stands between calls."""
    whole = found(ALL[format], text)
    assert found(ALL[format], text, cuts) == whole
    assert found(ALL[format], text, range(len(text))) == whole
    if ALL[format].shape == "object":  # calls of a list have one text in common
        between = str.maketrans("", "", " \n;")
        rest = "".join(event if isinstance(event, str) else event.raw for event in whole)
        assert rest.translate(between) == text.translate(between)


def test_a_call_comes_when_it_is_complete():
    detector = ToolCallDetector("hermes")
    text = 'Well: <tool_call>\n{"name": "f", "arguments": {"a": "}"}}\n</tool_call>'
    for c in text[:-1]:
        assert all(isinstance(e, str) for e in detector.push(c))
    assert plain(detector.push(text[-1])) == [("f", {"a": "}"})]
    assert detector.finish() == []


def test_text_is_not_held_back():
    detector = ToolCallDetector("hermes")
    assert detector.push("Let me ") == ["Let me "]
    assert detector.push("see <") == ["see "]
    assert detector.push("b>") == ["<b>"]


def test_ids_of_calls():
    text = written("hermes", [("f", {}), ("g", {})])
    assert [e.id for e in found("hermes", text)] == ["call00000", "call00001"]
    detector = ToolCallDetector("hermes", first_id=7)
    assert [e.id for e in detector.push(text)] == ["call00007", "call00008"]
    detector.finish()
    assert [e.id for e in detector.push(text)] == ["call00009", "call00010"]
    own = '[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "D681PevKs"}, {"name": "g", "arguments": {}}]'
    assert [e.id for e in found("mistral", own)] == ["D681PevKs", "call00000"]
    named = "[TOOL_CALLS]f[CALL_ID]D681PevKs[ARGS]{}[TOOL_CALLS]g[ARGS]{}"
    assert [(e.name, e.id) for e in found("mistral-args", named)] == [("f", "D681PevKs"), ("g", "call00000")]


@pytest.mark.parametrize(
    ("format", "text", "expected"),
    [
        # ways in which models are known to differ from their templates
        ("hermes", '<tool_call>{"name":"f"}</tool_call>', [("f", {})]),
        ("hermes", '<tool_call>\n[{"name": "f"}, {"name": "g"}]</tool_call>', [("f", {}), ("g", {})]),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', [("f", {"a": 1})]),
        ("hermes", '<tool_call>{"type": "function", "function": {"name": "f"}}</tool_call>', [("f", {})]),
        ("hermes", '<tool_call>{"name": "f"}', [("f", {})]),
        ("hermes", '<tool_call>{"name": "f"}\n</tool_', [("f", {})]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"\\u00e9\\ud83d\\ude00": "é😀"}}', [("f", {"é😀": "é😀"})]),
        ("mistral", '[TOOL_CALLS]{"name": "f", "arguments": {}}', [("f", {})]),
        ("mistral", '[TOOL_CALLS]f{"a": 1}', [("f", {"a": 1})]),
        ("mistral-args", '[TOOL_CALLS][{"name": "f"}] done', [("f", {}), " done"]),
        ("llama3", '\n\n{"type": "function", "name": "f", "parameters": {}}', [("f", {})]),
        ("llama3", '<|python_tag|>{"name": "f", "parameters": {}}', [("f", {})]),
        ("llama3", '<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}',
         [("f", {}), ("g", {})]),
        # text that only looks like calls
        ("llama3", '{"a": 1}', ['{"a": 1}']),
        ("llama3", '{"name": "Bob", "age": 5}', ['{"name": "Bob", "age": 5}']),
        ("llama3", "{x} and {y}", ["{x} and {y}"]),
        ("llama3", '{"a": ', ['{"a": ']),
        ("llama3", 'So: {"name": "f", "parameters": {}}', ['So: {"name": "f", "parameters": {}}']),
        ("hermes", '{"name": "f", "arguments": {}}', ['{"name": "f", "arguments": {}}']),
        ("hermes", "<tool_calls> </tool_call> <tool_call", ["<tool_calls> </tool_call> <tool_call"]),
        ("hermes", "", []),
        ("hermes", "  \n", ["  \n"]),
    ],
)  # fmt: skip
def test_forms_of_calls(format, text, expected):
    assert plain(found(format, text)) == expected


@pytest.mark.parametrize(
    ("format", "text", "error", "expected"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "x"y"}}</tool_call>!', "'y' where a comma", ["!"]),
        # A quote that was forgotten: the string reaches into the next call, which is found all the same.
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "x}}</tool_call><tool_call>{"name": "g"}</tool_call>',
         "where a comma", [("g", {})]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "}\n</tool_call><tool_call>{"name": "g"}</tool_call>',
         "control character", [("g", {})]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}}}</tool_call>', "after its JSON", []),
        ("hermes", "<tool_call>f(1)</tool_call> so", "'f' where a call should be", [" so"]),
        ("hermes", "<tool_call></tool_call>", "'<' where a call should be", []),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>', "no name", []),
        ("hermes", '<tool_call>{"name": 3}</tool_call>', "no name", []),
        ("hermes", '<tool_call>{"name": ""}</tool_call>', "no name", []),
        ("hermes", "<tool_call>[]</tool_call>", "no name", []),
        ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "arguments are no object", []),
        ("hermes", '<tool_call>{"name": "f", "arguments": "1"}</tool_call>', "arguments are no object", []),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{"}</tool_call>', "a string that is no JSON", []),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}, "parameters": {}}</tool_call>', "both", []),
        ("hermes", '<tool_call>{"name": "f", "name": "g"}</tool_call>', "same key twice", []),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1e999}}</tool_call>', "too large", []),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>', "'N' where a value", []),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 01}}</tool_call>', "'01' is no value", []),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}</tool_call>', "surrogate", []),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "\\x"}}</tool_call>', "unknown escape", []),
        ("mistral", "[TOOL_CALLS] what now? [TOOL_CALLS][{\"name\": \"g\"}]", "name of a function", [("g", {})]),
        ("mistral-args", "[TOOL_CALLS]f[OTHER]{}", "name of a function", []),
        ("llama3", '{"name": "f", "parameters": {x}}', "'x' where a key", []),
        ("llama3", "<|python_tag|>print(1)", "'p' where a call", []),
    ],
)  # fmt: skip
def test_calls_that_cannot_be_read(format, text, error, expected):
    broken, *rest = found(format, text)
    assert isinstance(broken, BrokenToolCall)
    assert error in broken.error
    assert broken.complete
    assert plain(rest) == expected
    assert text.startswith(broken.raw)


@pytest.mark.parametrize("format", FORMAT_NAMES)
def test_a_text_that_ends_inside_a_call(format):
    text = "" if ALL[format].bare else "So: "
    whole = text + written(format, [("look_up", {"key": "some <text>"})])
    for end in range(len(whole)):
        events = found(ALL[format], whole[:end])
        assert "".join(e if isinstance(e, str) else e.raw for e in events).strip() == whole[:end].strip()
        if whole[:end].count('"') > 4:
            *_, last = events
            if isinstance(last, BrokenToolCall):
                assert not last.complete
                assert "ends inside" in last.error
            else:
                assert plain([last]) == [("look_up", {"key": "some <text>"})]
                assert whole[:end].count("}") == whole.count("}")


def test_hostile_texts_take_linear_time():
    """Counted in characters looked at: at most five times the text."""
    unit = '</tool_call><tool_call>["," ","'
    for text in [
        "<tool_call>" * 5000,
        '<tool_call>{"a": "' * 5000,
        '<tool_call>["' + unit * 3000 + "x",
        "<tool_call>" + "[" * 100_000,
        "<tool_call>" + '{"a":' * 50_000 + "</tool_call>",
        "<" * 20_000,
        "<tool_call" * 10_000,
    ]:
        detector = ToolCallDetector("hermes")
        detector.push(text)
        assert detector._n_fed <= 5 * len(text)
        detector.finish()


def test_deep_nesting_is_an_error_and_no_crash():
    text = '<tool_call>{"name": "f", "arguments": {"a": ' + "[" * 50_000 + "]" * 50_000 + "}}</tool_call>ok"
    broken, rest = found("hermes", text)
    assert "nests too deeply" in broken.error
    assert rest == "ok"


def test_an_endless_number_is_an_error():
    (broken,) = found("hermes", '<tool_call>{"name": "f", "arguments": {"a": ' + "1" * 10_000 + "}}</tool_call>")
    assert "no JSON" in broken.error


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ToolCallDetector("xml"), "must be one of 'hermes'.*not 'xml'"),
        (lambda: ToolCallDetector(None), "not None"),
        (lambda: ToolFormat(""), "begin must be"),
        (lambda: ToolFormat(" \n"), "begin must be"),
        (lambda: ToolFormat(3), "begin must be a str"),
        (lambda: ToolFormat("a" * 300), "at most 256"),
        (lambda: ToolFormat("a", " "), "end must be"),
        (lambda: ToolFormat("a", "}"), "no part of JSON"),
        (lambda: ToolFormat("a", shape="xml"), "shape must be one of"),
        (lambda: ToolFormat("a", arguments="args"), "arguments must be one of"),
        (lambda: ToolFormat("a", bare=1), "bare must be True or False"),
    ],
)
def test_bad_formats_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
    assert issubclass(ToolFormatError, ConfigError)


# ---- the scanner, against Python's own parser


def end_of_json(text):
    """Index after the value, -1 while it is incomplete, None if it is wrong."""
    scanner = JsonScanner()
    try:
        return next((i + 1 for i, c in enumerate(text) if scanner.step(c)), -1)
    except JsonError:
        return None


@settings(deadline=None, max_examples=300)
@given(st.lists(VALUES, max_size=3) | st.dictionaries(STRINGS, VALUES, max_size=3), st.sampled_from([None, 1]))
def test_the_scanner_takes_what_json_writes(value, indent):
    text = json.dumps(value, indent=indent)
    assert end_of_json(text + "}]") == len(text)
    assert all(end_of_json(text[:i]) == -1 for i in range(1, len(text)))


@settings(deadline=None, max_examples=500)
@given(st.dictionaries(STRINGS, VALUES, max_size=3), st.randoms())
def test_the_scanner_refuses_what_json_refuses(value, rng: random.Random):
    text = list(json.dumps(value))
    for _ in range(rng.randint(1, 3)):
        text[rng.randrange(len(text))] = rng.choice('{}[]",:\\ eE+-.019utfn\x01x')
    text = "".join(text)
    if text[0] not in "{[":
        return
    end = end_of_json(text)
    try:
        _, expected = json.JSONDecoder(parse_constant=lambda name: 1 / 0).raw_decode(text)
    except (ValueError, ZeroDivisionError):
        expected = None
    assert (end if end != -1 else None) == expected
