"""Tools for templates that show none: described in a message, with calls and results of the history as text."""

import json
import logging

import pytest

from oxillama.chat import tool_display
from oxillama.chat.format import ChatFormat
from oxillama.chat.messages import checked_messages
from oxillama.chat.template import ChatTemplate, Prints
from oxillama.chat.tool_display import answer_format, note_of, shown_by
from oxillama.chat.tool_format import FORMATS, ToolFormat
from oxillama.errors import ChatTemplateError, MessageError, ToolFormatError
from tests.chat.templates import TEMPLATES

# In the manner of SmolLM2, of Gemma 3 and of Phi 3: any role; roles in turn, without the system's; three roles alone.
ANY = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system\nBe good.<|im_end|>\n"
    "{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TURNS = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "<turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<turn>model\n{% endif %}"
)
THREE = (
    "{% for m in messages %}{% if m.role in ('system', 'user', 'assistant') %}"
    "<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
SHOWN = ANY + "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
BY_VARIABLE = ANY + "{% for tool in xml_tools or [] %}{{ tool | tojson }}{% endfor %}"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {}}}}}
LISTED = json.dumps(TOOL)
ASK = {"role": "user", "content": "Look!"}
CALL = {"id": "callnum01", "type": "function", "function": {"name": "look", "arguments": '{"at": "a"}'}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "callnum01", "content": "far"}
WRITTEN = '<tool_call>\n{"name": "look", "arguments": {"at": "a"}}\n</tool_call>'
EXAMPLE = '<tool_call>\n{"name": "FUNCTION_NAME", "arguments": {"PARAMETER": "VALUE"}}\n</tool_call>'
RETURNED = "<tool_response>\nfar\n</tool_response>"


def prompt(source, messages, **options):
    template = ChatTemplate(source)
    return shown_by(
        template, checked_messages(messages), options, lambda said, tools: template.render(said, tools=tools)
    )


def described():
    return (
        "# Tools\n\nYou may call one or more functions to answer the user. You are provided with their descriptions, "
        f"with the JSON Schema of their parameters, within <tools></tools> tags:\n<tools>\n{LISTED}\n</tools>\n\n"
        "For each function call, write the function's name and its arguments in this form, and nothing else:\n"
        f"{EXAMPLE}\n\n"
        "What a function returns comes in the next message, within <tool_response></tool_response> tags."
    )


def test_descriptions_stand_in_a_system_message():
    assert prompt(ANY, [ASK], tools=[TOOL]) == (
        f"<|im_start|>system\n{described()}<|im_end|>\n<|im_start|>user\nLook!<|im_end|>\n<|im_start|>assistant\n"
    )
    for role in ("system", "developer"):
        said = prompt(THREE, [{"role": role, "content": "Be brief."}, ASK], tools=[TOOL])
        assert said == f"<|system|>\nBe brief.\n\n{described()}<|end|>\n<|user|>\nLook!<|end|>\n<|assistant|>\n"
    parts = [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]
    said = prompt(THREE, [{"role": "system", "content": parts}, ASK], tools=[TOOL])
    assert said.startswith(f"<|system|>\nBe\nbrief.\n{described()}<|end|>\n")


def test_descriptions_stand_in_the_users_message_where_there_is_no_system():
    assert prompt(TURNS, [ASK], tools=[TOOL]) == f"<turn>user\n{described()}\nLook!<end>\n<turn>model\n"
    said = prompt(TURNS, [{"role": "system", "content": "Be brief."}, ASK], tools=[TOOL])
    assert said == f"<turn>user\nBe brief.\n\n{described()}\nLook!<end>\n<turn>model\n"


@pytest.mark.parametrize("source", [ANY, TURNS, THREE])
@pytest.mark.parametrize("tools", [[TOOL], None])
def test_calls_and_results_are_text(source, tools):
    text = prompt(source, [ASK, CALLED, RESULT], tools=tools)
    assert text.count(WRITTEN) == 1
    assert text.index(WRITTEN) < text.index(RETURNED)
    assert ("# Tools" in text) is (tools is not None)
    assert text.count("\ntool\n") == text.count("|tool|") == 0
    thanks = {"role": "user", "content": "Thanks."}
    two = [
        ASK,
        CALLED | {"content": "I look.", "tool_calls": [CALL, CALL]},
        RESULT,
        RESULT | {"content": "near"},
        thanks,
    ]
    text = prompt(source, two, tools=tools)
    assert f"I look.\n{WRITTEN}\n{WRITTEN}" in text
    assert f"{RETURNED}\n<tool_response>\nnear\n</tool_response>\n\nThanks." in text  # one turn of the user


def test_histories_that_are_cut_or_in_parts():
    cut = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": "a'}}
    none = {"id": "1", "type": "function", "function": {"name": "look", "arguments": ""}}
    parts = [{"type": "text", "text": "I "}, {"type": "text", "text": "look. "}]
    text = prompt(ANY, [ASK, {"role": "assistant", "content": parts, "tool_calls": [cut, none]}])
    assert 'I \nlook. \n<tool_call>\n{"name": "look", "arguments": {"at": "a}\n</tool_call>\n<tool_call>\n' in text
    assert '{"name": "look", "arguments": {}}' in text
    result = RESULT | {"content": [{"type": "text", "text": "fa"}, {"type": "text", "text": "r"}]}
    assert "<tool_response>\nfa\nr\n</tool_response>" in prompt(ANY, [ASK, CALLED, result])


@pytest.mark.parametrize("name", FORMATS)
def test_a_named_format_is_that_of_description_and_history(name):
    text = prompt(ANY, [ASK, CALLED, RESULT], tools=[TOOL], tool_format=name)
    form = FORMATS[name].chat_format
    assert LISTED in text
    assert RETURNED in text
    parser = form.parser([TOOL])
    parser.push(text.partition("<|im_start|>assistant\n")[2].partition("<|im_end|>")[0])
    (call,) = parser.finish().tool_calls
    assert (call.name, call.arguments) == ("look", {"at": "a"})
    parser = form.parser()
    parser.push(text.partition("and nothing else:\n")[2].partition("\n\nWhat a function")[0])
    assert [call.name for call in parser.finish().tool_calls] == ["FUNCTION_NAME"]
    given = ToolFormat("<a>", "</a>"), ChatFormat.of_template(TEMPLATES["tagged"])
    for form, written in zip(given, ('<a>{"name": "FUNC', "<do>\n<fn=FUNCTION_NAME>\n<arg=PARAMETER>"), strict=True):
        assert written in prompt(ANY, [ASK], tools=[TOOL], tool_format=form)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_that_shows_calls_alone_has_tools_described_in_its_own_format(name):
    """And prints calls and results of the history itself."""
    source, form = TEMPLATES[name], ChatFormat.of_template(TEMPLATES[name])
    text = prompt(source, [ASK, CALLED, RESULT], tools=[TOOL])
    system, _, rest = text.partition("<|end|>\n")
    assert rest == ChatTemplate(source).render([ASK, CALLED, RESULT])
    assert LISTED in system
    parser = form.parser([TOOL])
    parser.push(system.partition("and nothing else:\n")[2].partition("\n\nWhat a function")[0])
    assert [call.name for call in parser.finish().tool_calls] == ["FUNCTION_NAME"]
    assert prompt(source, [ASK, CALLED, RESULT]) == rest
    assert note_of(ChatTemplate(source), {"tools": [TOOL]}) == tool_display._DESCRIBED
    other = prompt(source, [ASK, CALLED, RESULT], tools=[TOOL], tool_format="mistral-args")
    assert '[TOOL_CALLS]look[ARGS]{"at": "a"}' in other
    assert "<|tool|>" not in other


def test_templates_that_show_tools_are_left_alone():
    template = ChatTemplate(SHOWN)
    for form in (None, "hermes", "text", "none"):
        text = prompt(SHOWN, [ASK, RESULT], tools=[TOOL], tool_format=form)
        assert text == template.render([ASK, RESULT], tools=[TOOL])
    assert answer_format(template, {"tools": [TOOL]}).calls is None
    assert note_of(template, {"tools": [TOOL]}) == ""
    forced = prompt(SHOWN, [ASK, CALLED, RESULT], tools=[TOOL], tool_format="generic")
    assert forced.startswith(f"<|im_start|>system\n{described()}")
    assert forced.count(LISTED) == 1
    assert WRITTEN in forced
    options = {"tools": [TOOL], "template_kwargs": {"xml_tools": [TOOL]}}
    text = prompt(BY_VARIABLE, [ASK], **options)
    assert (text, note_of(ChatTemplate(BY_VARIABLE), options)) == (prompt(BY_VARIABLE, [ASK]), "")
    beside_a_system = THREE.replace("{{ m.content }}", "{{ m.content }}{{ tools if m.role == 'system' }}")
    assert ChatTemplate(beside_a_system).prints() == Prints(tools=True, calls=False)


def test_formats_that_show_nothing():
    for form in ("text", "none"):
        assert prompt(ANY, [ASK, RESULT], tools=[TOOL], tool_format=form) == ChatTemplate(ANY).render([ASK, RESULT])
    for tools in (None, []):
        assert prompt(ANY, [ASK], tools=tools) == ChatTemplate(ANY).render([ASK])
    channels = ChatTemplate(
        "{% for m in messages %}<|start|>{{ m.role }}"
        "{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>{{ m.content }}<|end|>{% endfor %}"
    )
    assert prompt(channels.source, [ASK], tools=[TOOL]) == channels.render([ASK])
    with pytest.raises(ToolFormatError, match="'generic' for a model that answers in channels"):
        answer_format(channels, {"tools": [TOOL], "tool_format": "generic"})


def test_errors_name_the_messages_that_were_given():
    with pytest.raises(MessageError, match=r"^messages\[4\] is not in the prompt.* of the role 'odd'"):
        prompt(THREE, [ASK, CALLED, RESULT, RESULT, {"role": "odd", "content": "x"}], tools=[TOOL])
    with pytest.raises(ChatTemplateError, match="tools must be a list of dicts"):
        prompt(ANY, [ASK], tools=["look"])
    with pytest.raises(ChatTemplateError, match="tools must be JSON"):
        prompt(ANY, [ASK], tools=[TOOL | {"x": {1}}])


def test_a_template_that_exceeds_its_bounds_is_left_alone():
    loops = ChatTemplate(
        "{% if tools %}{{ 'a' * 10 ** 9 }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    assert loops.prints() == Prints(tools=True, calls=True)
    assert answer_format(loops, {"tools": [TOOL]}).calls is None


def test_the_note_is_logged_once(caplog):
    template, options = ChatTemplate(THREE + "{# once #}"), {"tools": [TOOL]}
    note = "the chat template shows no tools: they are described in a system message, and calls are JSON"
    with caplog.at_level(logging.INFO, "oxillama"):
        assert [note_of(template, options) for _ in range(3)] == [note] * 3
    assert [record.getMessage() for record in caplog.records] == [note]
    assert note_of(template, options | {"tool_format": "generic"}) == ""
    assert note_of(template, options | {"tool_format": "text"}).endswith("the model doesn't see them")
    assert note_of(template, {"tool_format": "text"}) == note_of(template, {}) == ""
