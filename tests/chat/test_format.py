"""Chat formats: recognised from templates, parsers that read what the templates write, and grammars that allow it."""

import json
import re

import pytest

from oxillama.chat.calls import BrokenToolCall, ToolCall
from oxillama.chat.format import ChatFormat
from oxillama.chat.shapes import ReasoningFormat
from oxillama.chat.template import ChatTemplate
from oxillama.chat.tool_format import FORMATS, find_format
from oxillama.errors import ChatTemplateError, ConfigError, GrammarError, ToolFormatError
from tests.chat.templates import OPENED, TEMPLATES, THINKING

TEXT = {"type": "string"}
CITY = {"type": "object", "properties": {"city": TEXT, "unit": {"enum": ["celsius", "kelvin"]}}, "required": ["city"]}
TRIP = {
    "type": "object",
    "properties": {
        "budget": {"type": "number"},
        "people": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"age": {"type": "integer"}, "name": TEXT},
                "required": ["age", "name"],
            },
        },
        "sure": {"type": "boolean"},
    },
    "required": ["budget", "people"],
}
SCHEMAS = {"weather": CITY, "trip": TRIP, "ping": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]
WEATHER = ("weather", {"city": "Zürich <b> & 'x' {1} 日本"})
KELVIN = ("weather", {"city": "Rome", "unit": "kelvin"})
PEOPLE = (
    "trip",
    {"budget": 99.5, "people": [{"age": 30, "name": "Ann A. Öst"}, {"age": 7, "name": "Bo"}], "sure": True},
)
PING = ("ping", {})
ALL = {**TEMPLATES, **THINKING}
# The templates of these write values of Python and of JSON alike, but for texts with quotes.
ESCAPES = ("python",)


def message(content, calls, reasoning=""):
    made = {"role": "assistant", "content": content}
    if reasoning:
        made["reasoning_content"] = reasoning
    if calls:
        made["tool_calls"] = [
            {"type": "function", "id": f"callnum0{i}", "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in enumerate(calls)
        ]
    return made


def written(source, content, calls, reasoning=""):
    """What the template writes for an answer."""
    template = ChatTemplate(source)
    user = {"role": "user", "content": "Hello."}
    whole = template.render([user, message(content, calls, reasoning)], add_generation_prompt=False, tools=TOOLS)
    prompt = template.render([user], add_generation_prompt=False, tools=TOOLS)
    text = whole[len(prompt) :].removeprefix("<|assistant|>\n")
    return text.removesuffix("\n").removesuffix("<|end|>")


def read(form, pieces, prompt="<|assistant|>\n", **options):
    """(message, deltas) of a text in pieces."""
    parser = form.parser(TOOLS, prompt, **options)
    deltas = [delta for piece in pieces for delta in parser.push(piece)]
    found = parser.finish()
    return found, deltas + found.deltas


def summed(found, deltas):
    """What the deltas add up to."""
    calls = {}
    for delta in deltas:
        if delta.tool_call is not None:
            piece = delta.tool_call
            if piece.name is not None:
                assert piece.index not in calls
                assert piece.arguments == ""
                calls[piece.index] = [piece.id, piece.name, ""]
            calls[piece.index][2] += piece.arguments
    for i, call in enumerate(found.tool_calls):
        if isinstance(call, ToolCall):
            assert calls[i][:2] == [call.id, call.name]
            assert json.loads(calls[i][2]) == call.arguments
    assert "".join(delta.content for delta in deltas) == found.content
    assert "".join(delta.reasoning for delta in deltas).strip() == found.reasoning
    return found.reasoning, found.content, calls, found.tool_calls


def cuts(text):
    yield [text]
    yield list(text)
    for i in range(1, len(text)):
        yield [text[:i], text[i:]]
    for n in (2, 3, 7):
        yield [text[i : i + n] for i in range(0, len(text), n)]


def called(found):
    return [(call.name, call.arguments) for call in found.tool_calls]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "calls", [[WEATHER], [KELVIN], [PEOPLE], [PING]], ids=lambda calls: f"{calls[0][0]}{len(calls[0][1])}"
)
@pytest.mark.parametrize("content", ["", "I look it up."])
def test_calls_that_a_template_writes_are_read_for_every_cut(name, calls, content):
    if name in ESCAPES and calls == [WEATHER]:
        calls = [("weather", {"city": "Zürich <b> & {1} 日本"})]
    form = ChatFormat.of_template(ALL[name])
    text = written(ALL[name], content, calls)
    found, deltas = read(form, [text])
    assert called(found) == calls
    assert found.content.strip() == content
    expected = summed(found, deltas)
    for pieces in cuts(text):
        assert summed(*read(form, pieces)) == expected


@pytest.mark.parametrize("name", [name for name in ALL if name != "object-bare"])
def test_calls_in_a_row(name):
    form = ChatFormat.of_template(ALL[name])
    calls = [KELVIN, PEOPLE, PING]
    found, deltas = read(form, [written(ALL[name], "", calls)])
    assert called(found) == calls
    assert found.content.strip() == ""
    assert len({call.id for call in found.tool_calls}) == 3
    summed(found, deltas)


@pytest.mark.parametrize("name", ALL)
def test_grammar_of_required_calls(name):
    source = ALL[name]
    form = ChatFormat.of_template(source)
    grammar = form.grammar(TOOLS, "required")
    for call in (KELVIN, PEOPLE, PING):
        text = written(source, "", [call])
        assert grammar.accepts(text), text
        assert not grammar.accepts(text[: len(text) // 2])
        assert not grammar.accepts(text + " and more")
    for wrong in (
        ("weather", {"unit": "kelvin"}),
        ("weather", {"city": "Rome", "unit": "rankine"}),
        ("trip", {"budget": "cheap", "people": []}),
        ("other", {}),
    ):
        assert not grammar.accepts(written(source, "", [wrong])), wrong
    assert not grammar.accepts("It is sunny.")


@pytest.mark.parametrize("name", [name for name in ALL if name != "object-bare"])
def test_grammar_of_one_call_and_of_several(name):
    form = ChatFormat.of_template(ALL[name])
    text = written(ALL[name], "", [KELVIN, PING])
    assert form.grammar(TOOLS, "required", parallel_tool_calls=True).accepts(text)
    assert not form.grammar(TOOLS, "required").accepts(text)


@pytest.mark.parametrize("name", ALL)
def test_lazy_grammar_and_the_one_of_the_whole_answer(name):
    form = ChatFormat.of_template(ALL[name])
    lazy, whole = form.grammar(TOOLS), form.grammar(TOOLS, lazy=False)
    assert lazy.lazy
    assert lazy.triggers
    for content in ("", "I look it up."):
        text = written(ALL[name], content, [KELVIN])
        assert lazy.accepts(text)
        assert whole.accepts(text)
        wrong = written(ALL[name], content, [("other", {"city": "Rome"})])
        assert not lazy.accepts(wrong)
        assert not whole.accepts(wrong)
    assert lazy.accepts("It is sunny.")
    assert whole.accepts("It is sunny.")


@pytest.mark.parametrize("name", ["tagged", "tagged-keys", "tagged-types", "braces", "nested", "object", "python"])
def test_texts_meet_the_conditions_of_their_schemas(name):
    limits = {
        "word": {"type": "string", "minLength": 2, "maxLength": 4},
        "zone": {"type": "string", "pattern": "^[A-Z]{3}$"},
    }
    tools = [{"name": "time", "parameters": {"type": "object", "properties": limits, "required": ["zone"]}}]
    if name == "python":  # whose strings have escapes: patterns don't hold there
        limits["zone"] = {"enum": ["CET"]}
    grammar = ChatFormat.of_template(TEMPLATES[name]).grammar(tools, "required")
    for word, zone, fits in (
        ("", "CET", True),
        ("so", "CET", True),
        ("", "cet", False),
        ("", "CETS", False),
        ("s", "CET", False),
        ("solid", "CET", False),
    ):
        arguments = {**({"word": word} if word else {}), "zone": zone}
        assert grammar.accepts(written(TEMPLATES[name], "", [("time", arguments)])) is fits, arguments


@pytest.mark.parametrize("name", ["tagged", "tagged-keys", "tagged-types", "braces", "nested", "object"])
@pytest.mark.parametrize("pattern", [
    "^(?:[a-c]*)$", "^(?:(?:ab)?|x{2})$", "^$", "^a?b?$", "^(?:|\\n\\n|a\\n)$", "^$|^ab$",
    "^(?=a|$)a?$", "^(?!ab)[a-c]*$", "^(?=[ab]*$)(?!b)[a-c]*$",
])  # fmt: skip
def test_texts_meet_patterns_that_may_be_empty(name, pattern):
    properties = {"input": {"type": "string", "pattern": pattern}}
    tools = [{"name": "run", "parameters": {"type": "object", "properties": properties, "required": ["input"]}}]
    form = ChatFormat.of_template(TEMPLATES[name])
    grammar = form.grammar(tools, "required")
    for text in ("", "a", "ab", "abc", "cab", "d", "xx", "x", "b", "\n\n", "a\n", "a\nb", " "):
        fits = re.fullmatch(pattern.removesuffix("$"), text) is not None
        answer = written(TEMPLATES[name], "", [("run", {"input": text})])
        assert grammar.accepts(answer) is fits, (text, answer)
        if fits:
            found, _ = read(form, [answer])
            assert [call.arguments for call in found.tool_calls] == [{"input": text}], answer


HIDDEN = {"type": "string", "pattern": "^x(?=y)y$"}


@pytest.mark.parametrize(("name", "properties", "place"), [
    ("tagged", {"a/b": HIDDEN}, "pattern at #/properties/a~1b"),
    ("tagged", {"of": {"type": "object", "properties": {"b": HIDDEN}}}, "the argument 'of': schema at #/properties/b"),
    ("braces", {"of": {"type": "array", "items": HIDDEN}}, "pattern at #/properties/of/items"),
    ("nested", {"of": {"type": "object", "properties": {"b": HIDDEN}}}, "pattern at #/properties/of/properties/b"),
    ("object", {"b": HIDDEN}, "the parameters of the tool 'run': schema at #/properties/b"),
])  # fmt: skip
def test_a_pattern_that_cannot_be_held_is_named_with_its_place(name, properties, place):
    tools = [{"name": "run", "parameters": {"type": "object", "properties": properties}}]
    with pytest.raises(GrammarError, match=f"^{place}: .*looking ahead"):
        ChatFormat.of_template(TEMPLATES[name]).grammar(tools, "required")


def test_choice_of_tools():
    form = ChatFormat.of_template(TEMPLATES["object"])
    weather, ping = (written(TEMPLATES["object"], "", [call]) for call in (KELVIN, PING))
    named = form.grammar(TOOLS, {"type": "function", "function": {"name": "ping"}})
    assert named.accepts(ping)
    assert not named.accepts(weather)
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "weather"}}]}
    some = form.grammar(TOOLS, {"type": "allowed_tools", "allowed_tools": allowed})
    assert some.accepts(weather)
    assert not some.accepts(ping)
    with pytest.raises(ConfigError, match="'nothing'"):
        form.grammar(TOOLS, "nothing")
    with pytest.raises(ConfigError, match="tool_choice must be"):
        form.grammar(TOOLS, {"type": "function"})
    with pytest.raises(ConfigError, match="at least one tool"):
        form.grammar(TOOLS, {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}})


# ---- reasoning


@pytest.mark.parametrize("name", THINKING)
@pytest.mark.parametrize("calls", [[], [KELVIN]], ids=["text", "call"])
def test_reasoning_is_taken_out_for_every_cut(name, calls):
    form = ChatFormat.of_template(THINKING[name])
    content = "" if calls else "It is sunny."
    text = written(THINKING[name], content, calls, "Which city?\nI look for <call> and {.")
    found, deltas = read(form, [text])
    assert found.reasoning == "Which city?\nI look for <call> and {."
    assert found.content == content
    assert called(found) == calls
    expected = summed(found, deltas)
    for pieces in cuts(text):
        assert summed(*read(form, pieces)) == expected
    grammar = form.grammar(TOOLS, "required")
    assert grammar.accepts(text) is bool(calls)


def test_reasoning_that_the_prompt_has_opened():
    form = ChatFormat.of_template(OPENED)
    text = "Hm.\n</think>\n\nIt is sunny."
    found, _ = read(form, [text], "<|assistant|>\n<think>\n")
    assert (found.reasoning, found.content) == ("Hm.", "It is sunny.")
    found, _ = read(form, ["It is sunny."], "<|assistant|>\n<think>\n\n</think>\n\n")
    assert (found.reasoning, found.content) == ("", "It is sunny.")
    found, _ = read(form, ["Hm. I"], "<|assistant|>\n<think>\n")
    assert (found.reasoning, found.content) == ("Hm. I", "")
    call = written(OPENED, "", [KELVIN])
    grammar = form.grammar(TOOLS, "required", generation_prompt="<|assistant|>\n<think>\n")
    assert grammar.accepts("Hm.\n</think>\n\n" + call)
    assert not grammar.accepts(call)
    schema = form.grammar(json_schema={"type": "integer"}, generation_prompt="<|assistant|>\n<think>\n")
    assert schema.accepts("Hm, 3.\n</think>\n\n17")
    assert not schema.accepts("Hm, 3.\n</think>\n\nmany")


def test_reasoning_stays_in_the_content():
    form = ChatFormat.of_template(THINKING["think"])
    text = written(THINKING["think"], "", [KELVIN], 'Which <call>\n{"name": ')
    found, deltas = read(form, [text], reasoning="none")
    assert found.reasoning == ""
    assert found.content == '<think>\nWhich <call>\n{"name": \n</think>\n\n'
    assert called(found) == [KELVIN]
    summed(found, deltas)
    own, _ = read(form, ["(hm) Sunny."], reasoning=ReasoningFormat("(", ")"))
    assert (own.reasoning, own.content) == ("hm", "Sunny.")


# ---- texts that aren't calls, and calls that can't be read


@pytest.mark.parametrize("name", TEMPLATES)
def test_mark_in_a_text_is_text(name):
    form = ChatFormat.of_template(TEMPLATES[name])
    call = written(TEMPLATES[name], "", [KELVIN])
    mark = re.match(r'[^{"]*', call[: call.index("weather")])[0].strip() or '{"name": '
    text = f"Models write {mark} to call."
    for pieces in cuts(text):
        found, deltas = read(form, pieces)
        assert found.content == text
        assert found.tool_calls == []
        summed(found, deltas)


@pytest.mark.parametrize("name", TEMPLATES)
def test_call_that_is_cut_keeps_its_text(name):
    form = ChatFormat.of_template(TEMPLATES[name])
    text = written(TEMPLATES[name], "I look. ", [PEOPLE])
    at = text.index("Ann") + 2
    for pieces in cuts(text[:at]):
        found, _ = read(form, pieces)
        (call,) = found.tool_calls
        assert isinstance(call, BrokenToolCall)
        assert not call.complete
        assert found.content.rstrip() == "I look."
        assert text[:at].endswith(call.raw)
        assert call.raw in text
        assert not text[7 : at - len(call.raw)].strip()
        assert call.offset == len(found.content)


def test_text_behind_a_broken_call_stays():
    form = ChatFormat.of_template(TEMPLATES["object"])
    text = 'A <call>\n{"name": "weather", "arguments": {"city": Rome}}\n</call> B'
    for pieces in cuts(text):
        found, _ = read(form, pieces)
        (call,) = found.tool_calls
        assert call.complete
        assert call.raw == '<call>\n{"name": "weather", "arguments": {"city": Rome}}\n</call>'
        assert found.content == "A  B"


def test_arguments_in_other_spellings():
    form = ChatFormat.of_template(TEMPLATES["object"])
    for call in (
        '<call>{"arguments": {"city": "Rome"}, "name": "weather"}</call>',
        '<call> {"name": "weather", "arguments": "{\\"city\\": \\"Rome\\"}"} </call>',
        '<call>\n{"type": "function", "function": {"name": "weather", "parameters": {"city": "Rome"}}}\n</call>',
        '<call>\n{"name": "weather", "arguments": {"city": "Rome"}}',
    ):
        found, deltas = read(form, [call])
        assert called(found) == [("weather", {"city": "Rome"})], call
        summed(found, deltas)
    found, _ = read(form, ['<call>{"name": "weather", "arguments": {"city": 1, "city": 2}}</call>'])
    assert "same key twice" in found.tool_calls[0].error


def test_template_without_calls_says_why():
    plain = ChatFormat.of_template("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    assert plain.calls is None
    assert plain.reason == "the template shows no calls of tools"
    broken = ChatFormat.of_template(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}"
        "{% if m.tool_calls %}{{ raise_exception('no') }}{% endif %}\n{% endfor %}"
    )
    assert broken.calls is None
    assert broken.reason.startswith("the template can't render calls of tools")
    found, _ = read(plain, ["<call>x"])
    assert found.content == "<call>x"
    with pytest.raises(GrammarError, match="shows no calls"):
        plain.grammar(TOOLS, "required")
    with pytest.raises(ChatTemplateError):
        ChatFormat.of_template("{% for")


HOSTILE = {
    "loops": "{% for i in range(10 ** 9) %}{% endfor %}",
    "explodes": "{{ 'a' * 10 ** 9 }}",
    "is long": "{{ messages[-1].content }}{{ 'a<b>[C]' * 20000 }}{{ messages | tojson }}",
    "nests": "{% for m in messages %}{{ '{\"a\":[' * 3000 }}{{ m.content }}{{ m | tojson }}{% endfor %}",
    "says names alone": "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c.function.name }}"
    "{% endfor %}{% endfor %}",
    "shows half of a call": TEMPLATES["braces"].replace("<do|>", "").replace("dictsort", "dictsort | first"),
    "mixes calls": TEMPLATES["tagged"].replace("<arg={{ k }}>", "{{ v }}{{ k }}{{ v }}"),
    "says the opposite": "{% if messages | length > 1 %}{{ messages[0].content }}{% else %}{{ messages }}{% endif %}",
    "cuts calls": TEMPLATES["python"].replace("]<|py_end|>", "").replace("{% endfor %})", "{% endfor %}"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_give_a_format_and_lose_nothing(name):
    form = ChatFormat.of_template(HOSTILE[name])
    assert form.calls is not None or form.reason
    text = 'I look. <a> {"name": "weather"} [C]'
    found, deltas = read(form, list(text))
    summed(found, deltas)
    kept = found.content + "".join(call.raw for call in found.tool_calls)
    assert [word for word in re.findall(r"\w+", text) if word not in kept] == []


def test_wrong_options():
    form = ChatFormat.of_template(TEMPLATES["object"])
    with pytest.raises(ToolFormatError, match="generation_prompt must be a str"):
        form.parser(generation_prompt=3)
    with pytest.raises(ToolFormatError, match="reasoning must be"):
        form.parser(reasoning="some")
    with pytest.raises(ToolFormatError, match="parallel_tool_calls must be"):
        form.parser(parallel_tool_calls="yes")
    parser = form.parser()
    with pytest.raises(ToolFormatError, match="text must be a str"):
        parser.push(b"a")
    parser.finish()
    with pytest.raises(ToolFormatError, match="the text has ended"):
        parser.push("a")
    with pytest.raises(ToolFormatError, match="end must be what ends reasoning"):
        ReasoningFormat("<a>", " ")
    with pytest.raises(ToolFormatError, match="begin must be Unicode text"):
        ReasoningFormat("\ud800", "</a>")


def test_ids_are_those_of_the_template():
    form = ChatFormat.of_template(TEMPLATES["named-with-id"])
    found, _ = read(form, [written(TEMPLATES["named-with-id"], "", [KELVIN, PING])])
    assert [call.id for call in found.tool_calls] == ["callnum00", "callnum01"]
    form = ChatFormat.of_template(TEMPLATES["named-in-section"])
    found, _ = read(form, [written(TEMPLATES["named-in-section"], "", [KELVIN, PING])])
    assert [call.id for call in found.tool_calls] == ["tools.weather:0", "tools.ping:1"]
    form = ChatFormat.of_template(TEMPLATES["object"])
    found, _ = read(form, [written(TEMPLATES["object"], "", [KELVIN, PING])])
    assert [call.id for call in found.tool_calls] == ["call00000", "call00001"]


def test_channels_of_harmony():
    source = (
        "{% for m in messages %}<|start|>{{ m.role }}"
        "{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>"
        "{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
    )
    form = ChatFormat.of_template(source)
    assert form.harmony
    text = (
        "<|channel|>analysis<|message|>Look <|channel|> up.<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
        '{"city": "Rome"}<|call|>'
    )
    found, deltas = read(form, [text])
    assert (found.reasoning, found.content) == ("Look <|channel|> up.", "I look.")
    assert called(found) == [("weather", {"city": "Rome"})]
    expected = summed(found, deltas)
    for pieces in cuts(text):
        assert summed(*read(form, pieces)) == expected
    doubled = re.sub(r"<\|(?:end|call)\|>", lambda found: found.group() * 3, text)
    for pieces in cuts(doubled):
        assert summed(*read(form, pieces))[:3] == expected[:3]
    found, _ = read(form, [f"{text[:-8]}<|call|><|call|> so"])
    assert called(found) == [("weather", {"city": "Rome"})]
    grammar = form.grammar(TOOLS, "required")
    assert grammar.accepts('<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Rome"}')
    assert not grammar.accepts("<|channel|>final<|message|>Sunny.")


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("'a\n\tb'", "a\n\tb"),  # as templates write texts, without escapes
        ('"it\'s\nhere"', "it's\nhere"),
        (r"'a\nb'", "a\nb"),
        ("[true, {'a': null}, False]", [True, {"a": None}, False]),
        ("true", True),
    ],
)
def test_values_of_calls_in_pythons_syntax(written, value):
    form = ChatFormat.of_template(TEMPLATES["python"])
    begin = form.calls.opening[0]
    found, _ = read(form, [f"{begin}weather(city={written}){form.calls.end}"])
    assert [call.arguments for call in found.tool_calls] == [{"city": value}]


@pytest.mark.parametrize(("name", "cut"), [("object", 'Oslo"'), ("tagged", "Oslo")])
def test_a_call_that_is_cut_off_has_what_was_written(name, cut):
    form = ChatFormat.of_template(TEMPLATES[name])
    text = written(TEMPLATES[name], "", [("weather", {"city": "Oslo"})])
    text = text[: text.index(cut) + 3]
    found, deltas = read(form, [text])
    (call,) = found.tool_calls
    assert (call.name, call.complete) == ("weather", False)
    assert call.arguments == '{"city": "Osl'
    (shown,) = found.to_openai()["tool_calls"]
    assert shown == {"id": call.id, "type": "function", "function": {"name": "weather", "arguments": call.arguments}}
    assert found.to_openai()["content"] is None
    assert "".join(d.tool_call.arguments for d in deltas if d.tool_call) == call.arguments


@pytest.mark.parametrize("name", sorted(TEMPLATES.keys() - {"object-bare", "tagged-keys"}))
def test_a_call_that_is_cut_before_its_name_is_told_by_its_opening(name):
    form = ChatFormat.of_template(TEMPLATES[name])
    text = written(TEMPLATES[name], "", [KELVIN])
    at = text.index("weather")
    for n in range(at, at + len("weather") + 1):
        for pieces in ([text[:n]], list(text[:n])):
            found, deltas = read(form, pieces)
            (call,) = found.tool_calls
            assert (call.begun, call.complete, call.raw) == (False, False, text[:n].lstrip()), text[:n]
            assert found.content + "".join(delta.content for delta in deltas) == ""
    mark = text[:at]
    found, _ = read(form, [f"{mark} and so on"])
    assert found.content == f"{mark} and so on" or name in ("list", "list-with-ids", "name-is-key", "object")


@pytest.mark.parametrize("name", ["hermes", "mistral", "mistral-args", "llama3"])
def test_a_mark_that_is_cut_off_behind_a_call_is_no_content(name):
    form, marks = find_format(name), FORMATS[name]
    calls = {"object": f'{{"name": "f", "{marks.arguments}": {{"x": 1}}}}', "named": f'f{marks.between}{{"x": 1}}'}
    calls["list"] = f"[{calls['object']}]"
    opening = f"{marks.separator}{marks.begin}".rstrip() if marks.end and marks.shape == "object" else ""
    text = f"{marks.begin}{calls[marks.shape]}{marks.end}{opening}"
    n_ends = len(marks.end) + len(opening) or 1
    for n in range(len(text) - n_ends, len(text)):
        found, deltas = read(form, list(text[:n]))
        assert [call.name for call in found.tool_calls] == ["f"], text[:n]
        assert (found.content, "".join(delta.content for delta in deltas)) == ("", ""), text[:n]


@pytest.mark.parametrize("mark", ["think", "ponder"])
def test_reasoning_is_told_by_what_a_template_cuts(mark):
    source = (
        "{% for m in messages %}<|{{ m.role }}|>"
        "{% if m.role == 'assistant' and not loop.last and '</MARK>' in m.content %}"
        "{{ m.content.split('</MARK>')[-1] }}{% else %}{{ m.content }}{% endif %}{% endfor %}<|assistant|>"
    ).replace("MARK", mark)
    form = ChatFormat.of_template(source)
    assert form.reasoning == ReasoningFormat(f"<{mark}>", f"</{mark}>")
    # what isn't cut is no end of reasoning
    assert ChatFormat.of_template(f"{{# </{mark}ing> #}}" + TEMPLATES["object"]).reasoning is None


@pytest.mark.parametrize(
    ("told", "keys", "end"),
    [
        ('<fn>\n{"name": <its-name>, "arguments": <args-json>}\n</fn>', ["name", "arguments"], "</fn>"),
        ('[CALL]{"parameters": {...}, "function": "NAME"}[/CALL]', ["parameters", "function"], "[/CALL]"),
    ],
)
def test_calls_are_told_by_what_a_template_describes(told, keys, end):
    source = (
        "{% if tools %}Tools: {{ tools | tojson }}. Write calls as " + told + " please.{% endif %}"
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"
    )
    form = ChatFormat.of_template(source)
    assert [key for key, _, _ in form.calls.shape.keys] == keys
    assert form.calls.call_end == end
    values = {"name": '"weather"', "function": '"weather"', "arguments": '{"city": "A"}', "parameters": '{"city": "A"}'}
    begin = form.calls.call_begin[0]
    text = begin + "{" + ", ".join(f'"{key}": {values[key]}' for key in keys) + "}" + end
    found, _ = read(form, ["I look. ", text])
    assert [(call.name, call.arguments) for call in found.tool_calls] == [("weather", {"city": "A"})]
    assert form.grammar(TOOLS, "required").accepts(text)


_LOOP = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.tool_calls %}CALLS{% endif %}<|end|>{% endfor %}"
_ONE = "{% for c in m.tool_calls %}{% set f = c.function %}CALL{% endfor %}"
_PYTHON = (
    "{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}={{ v | tojson }}{{ ', ' if not loop.last }}{% endfor %})"
)


@pytest.mark.parametrize(
    "calls",
    [
        "<calls>{{ m.tool_calls | tojson }}</calls>",  # with type and id around the object
        _ONE.replace("CALL", "\nAction: {{ f.name }}\nAction Input: {{ f.arguments | tojson }}"),
        "<calls>\n" + _ONE.replace("CALL", _PYTHON + "{{ '\n' }}") + "</calls>",  # nothing but lines between
    ],
)
def test_calls_in_other_forms(calls):
    source = _LOOP.replace("CALLS", calls)
    form = ChatFormat.of_template(source)
    for wanted in ([PING], [KELVIN, PEOPLE]):
        text = written(source, "", wanted).removeprefix("<|assistant|>")
        found, _ = read(form, [text])
        assert [(call.name, call.arguments) for call in found.tool_calls] == wanted
        assert found.content == ""
        grammar = form.grammar(TOOLS, "required", parallel_tool_calls=len(wanted) > 1)
        assert grammar.accepts(text.strip())
