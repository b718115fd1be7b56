"""Messages as clients send them, in the form that a template prints."""

import json

import pytest

from oxillama.chat import ChatTemplate
from oxillama.chat.repairs import together
from oxillama.errors import ChatTemplateError, MessageError
from tests.chat.shapes import CALLS, LAST, REASONS, by_role, calls_as

USER = {"role": "user", "content": "hello"}


def call(arguments, id="call00001", name="look"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def called(*calls, **fields):
    return {"role": "assistant", "content": "", "tool_calls": list(calls)} | fields


def result(text="sunny", **fields):
    return {"role": "tool", "content": text} | fields


ASKS = [USER, called(call({"b": 1, "a": [True, None, "é"]}))]
AS_TEXT = [USER, called(call('{"b":1,  "a": [true, null, "\\u00e9"]}'))]


@pytest.mark.parametrize("messages", [ASKS, AS_TEXT], ids=["objects", "text"])
@pytest.mark.parametrize("source", [
    CALLS,
    calls_as("c.function.arguments if c.function.arguments is string else c.function.arguments | tojson"),
    calls_as("c.function.arguments.items() | list | length ~ (c.function.arguments | tojson)"),
    calls_as("(c.function.arguments | from_json if c.function.arguments is string else c.function.arguments) | tojson"),
])  # fmt: skip
def test_arguments_as_text_and_as_objects_are_the_same(source, messages):
    text = ChatTemplate(source).render(messages)
    assert '{"b": 1, "a": [true, null, "é"]})' in text


@pytest.mark.parametrize("source", [calls_as("'=' + c.function.arguments"), calls_as("c.function.arguments")])
def test_objects_become_text_where_a_template_wants_text(source):
    """One that refuses objects, and one that would print them as Python does."""
    given = ChatTemplate(source).render(AS_TEXT)
    assert '{"b":1,  "a": [true, null, "\\u00e9"]})' in given
    assert '{"b": 1, "a": [true, null, "é"]})' in ChatTemplate(source).render(ASKS)


@pytest.mark.parametrize("none", ["", " ", {}])
def test_calls_without_arguments(none):
    assert "(call00001:look:{})" in ChatTemplate(CALLS).render([USER, called(call(none))])
    bare = {"id": "call00001", "type": "function", "function": {"name": "look"}}
    assert "(call00001:look:{})" in ChatTemplate(CALLS).render([USER, called(bare)])


WRONG = (
    "{",
    '{"path": "a", "{',
    "[1]",
    '"text"',
    "null",
    "5",
    '{"a": 1, "a": 2}',
    '{"a": 1e999}',
    '{"a": NaN}',
    '{"a": "\\ud83d"}',
    '{"a": ' + "[" * 64 + "]" * 64 + "}",
    '{"a": ' + "[" * 100000 + "]" * 100000 + "}",
)
AS_OBJECT = calls_as("c.function.arguments.items() | list | length ~ (c.function.arguments | tojson)")
AS_IT_IS = calls_as("c.function.arguments if c.function.arguments is string else c.function.arguments | tojson")
AS_STRING = calls_as("(c.function.arguments if c.function.arguments is string else {}) | tojson")
PARSED = calls_as("(c.function.arguments | from_json).items() | list | length ~ c.function.arguments")
NONE = by_role(user="<u>{{ m.content }}</u>", assistant="<a>{{ m.content }}</a>", tool="<t>{{ m.content }}</t>")


@pytest.mark.parametrize("text", WRONG, ids=[text[:20] for text in WRONG])
def test_arguments_that_are_no_object_are_shown_as_the_text_that_they_are(text):
    messages = [USER, called(call({})), result(), called(call({}, "call00002"), call(text, "call00003"))]
    raw = json.dumps({"_raw": text}, ensure_ascii=False)
    for source, shown in [
        (AS_IT_IS, text),
        (CALLS, raw),
        (AS_OBJECT, "1" + raw),
        (AS_STRING, json.dumps(text)),
        (calls_as("'=' + c.function.arguments"), "=" + text),
        (PARSED, "1" + raw),
    ]:
        assert f"(call00003:look:{shown})</a>" in ChatTemplate(source).render(messages)
    written = f'<tool_call>\n{{"name": "look", "arguments": {text}}}\n</tool_call>'
    assert f"<a>{written}</a>" in ChatTemplate(NONE).render(messages)
    said = [USER, called(call(text), content="I look.")]
    assert f"<a>I look.\n{written}</a>" in ChatTemplate(NONE).render(said)
    said = [USER, called(call(text), content=[{"type": "text", "text": "I look."}])]
    assert f"<a>I look.\n{written}</a>" in ChatTemplate(NONE).render(said)


@pytest.mark.parametrize("levels", [63, 64, 65, 500])
def test_objects_that_nest_too_deeply_are_text(levels):
    """64 levels are an object's; more are what no template, client or server can take."""
    value = {}
    for _ in range(levels - 1):
        value = {"a": value}
    text = json.dumps(value)
    shown = text if levels <= 64 else json.dumps({"_raw": text})
    for given in (value, text):
        assert f"(call00001:look:{shown})" in ChatTemplate(CALLS).render([USER, called(call(given))])
    bare = [USER, called({"name": "look", "arguments": value})]
    either = CALLS.replace("c.function.", "(c.function or c).")
    assert f"(:look:{shown})" in ChatTemplate(either).render(bare)


def test_objects_that_contain_themselves_are_refused():
    value = {}
    value["a"] = [value, value]
    with pytest.raises(MessageError, match=r"^messages\[1\]\.tool_calls\[0\] has arguments that are no JSON"):
        ChatTemplate(CALLS).render([USER, called(call(value))])


def test_wrong_arguments_that_a_template_drops_after_all_are_text():
    """What it prints for the probe says nothing of a call of this name."""
    drops = "('' if c.function.name == 'look' else c.function.arguments | tojson)"
    messages = [USER, called(call('{"a": "b')), result("sunny")]
    text = ChatTemplate(calls_as(drops)).render(messages)
    assert '<a><tool_call>\n{"name": "look", "arguments": {"a": "b}\n</tool_call></a>' in text
    assert "<u><tool_response>\nsunny\n</tool_response></u>" in text


def test_wrong_arguments_in_another_form_are_there():
    loud = calls_as("c.function.arguments['_raw'] | upper if '_raw' in c.function.arguments else {} | tojson")
    source = loud.replace("['_raw'] | upper", "['_raw'] | replace('l', '1')")
    assert '(call00001:look:{"a": "1ook)' in ChatTemplate(source).render([USER, called(call('{"a": "look'))])


@pytest.mark.parametrize("name", ["", " ", "no tool", "x" * 5000, 'a"b\n</tool_call>{%<|\x01 é'])
def test_names_are_what_a_model_wrote(name):
    assert f"(call00001:{name}:{{}})" in ChatTemplate(CALLS).render([USER, called(call({}, name=name)), result()])


def test_messages_stay_as_they_were():
    messages = [{"role": "developer", "content": "d"}, *AS_TEXT, result(), {"role": "assistant", "content": "a"}]
    before = json.dumps(messages)
    ChatTemplate(CALLS).render(messages)
    assert json.dumps(messages) == before


# ---- results


def test_results_get_the_id_and_the_name_of_their_call():
    calls = called(call({}, "call00001", "look"), call({}, "call00002", "hear"))
    full = [result("1", tool_call_id="call00001", name="look"), result("2", tool_call_id="call00002", name="hear")]
    expected = ChatTemplate(CALLS).render([USER, calls, *full])
    assert "<t call00001 look>1</t><t call00002 hear>2</t>" in expected
    for first, second in [
        ({}, {}),
        ({"tool_call_id": "call00001"}, {"tool_call_id": "call00002"}),
        ({"name": "look"}, {"name": "hear"}),
        ({"tool_call_id": "call00001"}, {}),
    ]:
        assert ChatTemplate(CALLS).render([USER, calls, result("1", **first), result("2", **second)]) == expected
    swapped = ChatTemplate(CALLS).render([USER, calls, result("2", name="hear"), result("1", name="look")])
    assert "<t call00002 hear>2</t><t call00001 look>1</t>" in swapped


def test_results_of_other_calls_stay_as_they_are():
    messages = [USER, called(call({})), result("1", tool_call_id="other0000", name="x")]
    assert "<t other0000 x>1</t>" in ChatTemplate(CALLS).render(messages)
    nameless = [USER, called(call({})), result("1", tool_call_id="other0000"), result("2", tool_call_id="call00001")]
    assert "<t other0000 look>1</t><t call00001 look>2</t>" in ChatTemplate(CALLS).render(nameless)
    twice = [*nameless, result("3", tool_call_id="call00001"), result("4")]
    assert "<t call00001 look>3</t><t  look>4</t>" in ChatTemplate(CALLS).render(twice)
    assert "<t  >1</t>" in ChatTemplate(CALLS).render([USER, result("1")])


def test_ids_are_shortened_where_a_template_takes_nine_letters():
    refuses = "{% if c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}"
    source = CALLS.replace("({{ c.id }}", refuses + "({{ c.id }}")
    calls = called(call({}, "call_abcdefgh"), call({}, "call00000"), call({}, "call_other"))
    found = ChatTemplate(source).render([USER, calls, result(tool_call_id="call_other", name="x")])
    assert "(call00001:look:{})(call00000:look:{})(call00002:look:{})" in found
    assert "<t call00002 x>" in found
    assert "(call_abcdefgh:" in ChatTemplate(CALLS).render([USER, calls])
    bare = called({"type": "function", "function": {"name": "look"}}, call({}, "call00000"))
    found = ChatTemplate(source).render([USER, bare, result("1"), result("2"), USER, result("3")])
    assert "(call00001:look:{})(call00000:look:{})</a><t call00001 look>1</t><t call00000 look>2</t>" in found


# ---- roles


def test_a_developer_is_the_system_where_a_template_knows_none():
    messages = [{"role": "developer", "content": "careful"}, USER]
    assert ChatTemplate(CALLS).render(messages) == "<s>careful</s><u>hello</u><a>"
    for role, expected in [("m.role", "system"), ("m.role | capitalize", "System"), ("m.role[0]", "s")]:
        any_role = "{% for m in messages %}<{{ " + role + " }}>{{ m.content }}{% endfor %}"
        assert ChatTemplate(any_role).render(messages).startswith(f"<{expected}>careful<")
    knows = by_role(developer="<d>{{ m.content }}</d>", system="<s>{{ m.content }}</s>", user="<u>{{ m.content }}</u>")
    assert ChatTemplate(knows).render(messages) == "<d>careful</d><u>hello</u><a>"


def test_a_developer_beside_the_system():
    first = "<s>{{ messages[0].content }}</s>{% for m in messages[1:] %}<{{ m.role[0] }}>{{ m.content }}{% endfor %}"
    messages = [{"role": "system", "content": "s"}, {"role": "developer", "content": "d"}, USER]
    assert ChatTemplate(first).render(messages) == "<s>s\nd</s><u>hello"
    later = [USER, {"role": "developer", "content": "d"}]
    assert ChatTemplate(CALLS).render(later) == "<u>hello</u><s>d</s><a>"


NO_SYSTEM = by_role(
    system="{{ raise_exception('no system') }}", user="<u>{{ m.content }}</u>", assistant="<a>{{ m.content }}</a>"
)
DROPS_SYSTEM = by_role(user="<u>{{ m.content }}</u>", assistant="<a>{{ m.content }}</a>")


@pytest.mark.parametrize("source", [NO_SYSTEM, DROPS_SYSTEM])
def test_the_system_begins_the_next_message_where_a_template_knows_none(source):
    template = ChatTemplate(source)
    system = {"role": "system", "content": "careful"}
    answer = {"role": "assistant", "content": "a"}
    assert template.render([system, USER, answer, USER]) == "<u>careful\nhello</u><a>a</a><u>hello</u><a>"
    assert template.render([{"role": "developer", "content": "careful"}, USER]) == "<u>careful\nhello</u><a>"
    assert template.render([system, system | {"content": "kind"}, USER]) == "<u>careful\nkind\nhello</u><a>"
    within = "<system>\ncareful\n</system>"
    assert template.render([USER, answer, system, USER]) == f"<u>hello</u><a>a</a><u>{within}\nhello</u><a>"
    assert template.render([USER, system]) == f"<u>hello\n{within}</u><a>"
    assert template.render([system]) == "<u>careful</u><a>"
    assert template.render([system, answer]) == "<u>careful</u><a>a</a><a>"
    parts = [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]
    assert template.render([system, {"role": "user", "content": parts}]) == "<u>careful\nx\ny</u><a>"
    assert template.render([system | {"content": parts}, USER]) == "<u>x\ny\nhello</u><a>"


MIDST = [
    # the template's branch for the system, and how one in the midst is then printed
    ("<s>{{ m.content }}</s>", "<s>s</s><u>hello</u><a>a</a><s>note</s><u>hello</u><a>"),
    ("{% if loop.first %}<s>{{ m.content }}</s>{% endif %}", None),
    ("{% if loop.first %}<s>{{ m.content }}</s>{% else %}{{ raise_exception('only first') }}{% endif %}", None),
    ("{% if loop.last or loop.first %}<s>{{ m.content }}</s>{% else %}{{ raise_exception('ends') }}{% endif %}", None),
]


@pytest.mark.parametrize(("branch", "printed"), MIDST)
def test_a_system_message_in_the_midst(branch, printed):
    template = ChatTemplate(by_role(system=branch, user="<u>{{ m.content }}</u>", assistant="<a>{{ m.content }}</a>"))
    system, note = ({"role": "system", "content": text} for text in ("s", "note"))
    answer = {"role": "assistant", "content": "a"}
    within = "<system>\nnote\n</system>"
    wanted = printed or f"<s>s</s><u>hello</u><a>a</a><u>{within}\nhello</u><a>"
    assert template.render([system, USER, answer, note, USER]) == wanted
    if printed is None:
        # what was said stays where it was when the conversation goes on
        begun = template.render([system, USER, note], add_generation_prompt=False)
        assert begun == f"<s>s</s><u>hello\n{within}</u>"
        assert template.render([system, USER, note, answer, USER]).startswith(begun)
        assert template.render([system, note, USER]) == "<s>s\nnote</s><u>hello</u><a>"
        parts = note | {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
        assert "<system>\na\nb\n</system>" in template.render([system, USER, parts])


def test_a_system_message_between_a_call_and_what_follows():
    branches = {
        "user": "<u>{{ m.content }}</u>",
        "assistant": "<a>{{ m.content }}</a>",
        "tool": "<t>{{ m.content }}</t>",
    }
    first = "{% if loop.first %}<s>{{ m.content }}</s>{% endif %}"
    note = {"role": "system", "content": "note"}
    said = ChatTemplate(by_role(system=first, **branches)).render([USER, called(), result(), note])
    assert said == "<u>hello</u><a></a><t>sunny\n<system>\nnote\n</system></t><a>"


HOISTS = (
    "{% for m in messages %}{% if m.role == 'system' %}<s>{{ m.content }}</s>{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role != 'system' %}<{{ m.role[0] }}>{{ m.content }}{% endif %}{% endfor %}"
)


def test_a_system_message_changes_nothing_before_it_where_a_template_prints_all_at_the_beginning():
    template = ChatTemplate(HOISTS)
    system, more, note = ({"role": "system", "content": text} for text in ("s", "more", "note"))
    answer = {"role": "assistant", "content": "a"}
    turns = [system, more, USER, note, answer, note, USER, answer]
    for n in range(2, len(turns)):
        begun, longer = (template.render(turns[:k], add_generation_prompt=False) for k in (n, n + 1))
        assert longer.startswith(begun) or turns[n]["role"] == "user"  # a note before it is then in it
    assert longer == (
        "<s>s</s><s>more</s><u>hello\n<system>\nnote\n</system><a>a<u><system>\nnote\n</system>\nhello<a>a"
    )


def test_a_system_message_between_a_call_and_its_results_stands_behind_them():
    """Templates look for what calls gave right behind them."""
    refuses = (
        "{% for m in messages %}{% if m.role == 'tool' and not (loop.previtem.tool_calls or loop.previtem.role == "
        "'tool') %}{{ raise_exception('no call') }}{% endif %}<{{ m.role[0] }}>{{ m.content }}{% endfor %}"
    )
    note = {"role": "system", "content": "note"}
    said = [USER, called(call({})), note, result(), result(), {"role": "assistant", "content": "a"}]
    wanted = "<u>hello<a><t>sunny<t>sunny\n<system>\nnote\n</system><a>a"
    assert ChatTemplate(refuses).render(said) == wanted
    assert ChatTemplate(HOISTS).render(said) == wanted


def test_a_system_message_that_is_printed_at_times():
    """In the last message, if that is the user's: behind a call, it begins the question."""
    source = LAST.replace("ns.said if loop.last", "ns.said if loop.last and m.role == 'user'")
    template = ChatTemplate(source)
    system = {"role": "system", "content": "s"}
    assert template.render([system, USER]) == "<u>s|hello</u>"
    assert template.render([system, USER, called(), result()]) == "<u>s\nhello</u><a></a><t>sunny</t>"
    developer = system | {"role": "developer"}
    assert template.render([developer, USER, called(), result()]) == "<u>s\nhello</u><a></a><t>sunny</t>"
    begun = [system, USER, {"role": "assistant", "content": "x"}]
    assert template.render(begun, continue_final_message=True) == "<u>s\nhello</u><a>x"
    with pytest.raises(MessageError, match=r"^messages\[2\] is not in the prompt: .* 'critic', 'c'"):
        ChatTemplate(CALLS).render([system, USER, {"role": "critic", "content": "c"}])


# ---- reasoning


@pytest.mark.parametrize("read", ["reasoning_content", "reasoning", "thinking"])
@pytest.mark.parametrize("given", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_stands_under_the_name_that_a_template_reads(read, given):
    messages = [USER, called(call({}), **{given: "I look."}), result()]
    assert "<a><think>I look.</think>(look)</a>" in ChatTemplate(REASONS(read)).render(messages)
    assert "<think>" not in ChatTemplate(REASONS(read)).render([*messages, USER])


def test_reasoning_is_printed_once_where_a_template_reads_two_names():
    source = REASONS("reasoning").replace("{{ m.content }}{% for c", "{{ m.thinking }}{{ m.content }}{% for c")
    messages = [USER, called(call({}), reasoning_content="I look.")]
    assert ChatTemplate(source).render(messages).count("I look.") == 1


def test_reasoning_as_a_part_of_the_content():
    parts = (
        "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
        "{{ '[T]' ~ p.thinking ~ '[/T]' if p.type == 'thinking' else p.text }}{% endfor %}{% endif %}"
    )
    template = ChatTemplate(by_role(user="<u>{{ m.content }}</u>", assistant=f"<a>{parts}</a>"))
    message = {"role": "assistant", "content": "It is.", "reasoning": "I know."}
    assert template.render([USER, message, USER]) == "<u>hello</u><a>[T]I know.[/T]It is.</a><u>hello</u><a>"
    assert (
        template.render([USER, message | {"content": ""}, USER]) == "<u>hello</u><a>[T]I know.[/T]</a><u>hello</u><a>"
    )


def test_reasoning_is_left_out_beside_content_and_calls_where_a_template_refuses_it():
    refuses = "{% if m.thinking and m.content and m.tool_calls %}{{ raise_exception('both') }}{% endif %}"
    source = REASONS("thinking").replace("<a>{% if", "<a>" + refuses + "{% if")
    messages = [USER, called(call({}), content="Well.", reasoning_content="I look.")]
    assert "<a>Well.(look)</a>" in ChatTemplate(source).render(messages)
    assert "<think>I look.</think>" in ChatTemplate(source).render([USER, messages[1] | {"content": ""}])


def test_reasoning_that_is_given_twice_is_an_error():
    message = {"role": "assistant", "content": "a", "reasoning": "x", "thinking": "y"}
    with pytest.raises(MessageError, match=r"messages\[1\]\.reasoning and messages\[1\]\.thinking"):
        ChatTemplate(CALLS).render([USER, message])
    ChatTemplate(CALLS).render([USER, message | {"thinking": "x"}])
    ChatTemplate(CALLS).render([USER, message | {"thinking": ""}])
    with pytest.raises(MessageError, match=r"messages\[1\]\.thinking must be a string or None"):
        ChatTemplate(CALLS).render([USER, message | {"thinking": ["y"]}])


# ---- tools


def test_tools_are_left_out_when_there_are_none():
    shows = "{{ tools is defined }}{{ tools is none }}{% for t in tools %}{{ t }}{% endfor %}{{ tools | length }}"
    for tools in (None, []):
        assert ChatTemplate(shows + "{{ tools | tojson }}").render([USER], tools=tools) == "FalseTrue0null"
    assert ChatTemplate("{{ tools is defined }}{{ tools is none }}").render([USER], tools=[{}]) == "TrueFalse"


def test_tools_that_a_template_does_not_print_are_in_the_log(caplog):
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    ChatTemplate(CALLS + "{% for t in tools %}{{ t.function.name }}{% endfor %}").render([USER], tools=tools)
    assert caplog.records == []
    for _ in range(2):  # once for a template, not for every request
        ChatTemplate(CALLS + "{# of its own #}").render([USER], tools=tools)
    assert [record.message for record in caplog.records] == [
        "the chat template doesn't print tools: the model will not know of them"
    ]


def test_calls_that_a_template_does_not_print_are_in_the_log(caplog):
    ChatTemplate(CALLS).render(ASKS)
    assert caplog.records == []
    for _ in range(2):
        ChatTemplate(NONE + "{# of its own #}").render(ASKS)
    assert [record.message for record in caplog.records] == [
        "the chat template doesn't print calls: those of earlier answers are left out of the prompt"
    ]


SPINS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize("test", [
    "m.role == 'system'", "m.role == 'developer'", "m.tool_calls", "m.tool_calls and m.tool_calls[0].id == 'callprobe'",
    "m.reasoning", "m.thinking", "m.content is not string", "tools",
])  # fmt: skip
def test_a_template_that_hangs_while_it_is_looked_at(test):
    """Or in the conversation itself: either is an error within its time."""
    template = ChatTemplate(
        CALLS.replace("{% if", "{% if " + test + " %}" + SPINS + "{% endif %}{% if", 1), max_work=100_000
    )
    parts = [{"type": "text", "text": "x"}]
    messages = [{"role": "developer", "content": parts}, USER, called(call({}), reasoning="x"), result()]
    with pytest.raises(ChatTemplateError, match="more than"):
        template.render(messages, tools=[{"type": "function", "function": {"name": "f"}}])


@pytest.mark.parametrize("source", [
    "{{ raise_exception('never') }}",
    "{% if messages | length == 1 %}{{ messages[0].content }}{% else %}{{ raise_exception('one alone') }}{% endif %}",
    "{% for m in messages %}{{ m.content if m.content is string else raise_exception('no parts') }}"
    "{% if m.role != 'user' %}{{ raise_exception('users alone') }}{% endif %}{% endfor %}",
])  # fmt: skip
def test_a_template_that_refuses_everything(source):
    with pytest.raises(ChatTemplateError, match=r"never|alone"):
        ChatTemplate(source).render([{"role": "system", "content": "s"}, USER, called(call("{}")), result(), USER])


def test_a_template_that_needs_variables_is_looked_at_with_them():
    source = "{{ 1 // (wanted | length) }}" + calls_as("'=' + c.function.arguments")
    assert '={"b": 1' in ChatTemplate(source).render(ASKS, wanted="x")
    with pytest.raises(ChatTemplateError, match="division"):
        ChatTemplate(source).render(ASKS)


def test_order_of_the_system_is_the_template_s():
    messages = [
        {"role": "system", "content": "s"},
        USER,
        {"role": "assistant", "content": "a"},
        USER | {"content": "x"},
    ]
    assert ChatTemplate(LAST).render(messages) == "<u>hello</u><a>a</a><u>s|x</u>"


@pytest.mark.parametrize("role", ["system", "developer", "user"])
def test_messages_in_a_row_are_joined_once(monkeypatch, role):
    """Not one after another, which takes the square of their number."""
    joined = []

    def counting(contents):
        joined.append(len(contents))
        return together(contents)

    for name in ("repairs", "recast"):
        monkeypatch.setattr(f"oxillama.chat.{name}.together", counting)
    turns = "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% endif %}"
    template = ChatTemplate("{% for m in messages %}" + turns + "<{{ m.role }}>{{ m.content }}{% endfor %}")
    counts = []
    for n in (20, 40):
        joined.clear()
        said = template.render([*({"role": role, "content": f"m{i}"} for i in range(n)), USER])
        assert said.count("m") == n
        counts.append(sum(joined))
    assert counts[1] < 2.5 * counts[0]
