"""Texts of messages that a template leaves out."""

import json

import pytest

from oxillama.chat import ChatTemplate
from oxillama.errors import ChatTemplateError, ConfigError, MessageError
from tests.chat.shapes import CALLS, LAST, OPENED, by_role

USER = {"role": "user", "content": "hello"}
ANSWER = {"role": "assistant", "content": "so"}


@pytest.mark.parametrize(("source", "messages", "place"), [
    (CALLS, [USER, {"role": "critic", "content": "hello"}], 1),
    (CALLS, [{"role": "critic", "content": "e"}, USER], 0),
    (by_role(user="{{ m.content }}"), [USER, ANSWER, USER], 1),
    (by_role(user="{{ m.content }}", assistant="{{ m.content }}"), [USER, {"role": "critic", "content": "l"}], 1),
    ("{{ messages[-1].content }}", [USER, ANSWER, USER | {"content": "last"}], 0),
    ("{{ messages[0].content }}", [USER, ANSWER | {"content": [{"type": "text", "text": "next"}]}], 1),
    ("{{ messages[0].content }}", [USER | {"content": "same"}, ANSWER | {"content": "same"}], 1),
])  # fmt: skip
def test_a_message_that_is_left_out_is_named(source, messages, place):
    with pytest.raises(MessageError, match=rf"^messages\[{place}\] is not in the prompt") as caught:
        ChatTemplate(source).render(messages)
    assert isinstance(caught.value, ConfigError)
    assert isinstance(caught.value, ChatTemplateError)


@pytest.mark.parametrize(
    "text", ["", " \n", "x", '{"a": "é\\n\\""}', 'quoted " and \n\t\\', "a</think>b", "  spaces  "]
)
@pytest.mark.parametrize("source", [
    CALLS, LAST, OPENED,
    "{% for m in messages %}{{ m.content | trim | tojson }}{% endfor %}",
    "{% for m in messages %}{{ m.content | tojson(ensure_ascii=true) }}{% endfor %}",
    "{% for m in messages %}{{ m.content | replace('l', '1') }}{% endfor %}",
    "{% for m in messages | reverse %}{{ m.content }}{% endfor %}",
])  # fmt: skip
def test_what_is_printed_in_another_form_is_there(source, text):
    messages = [{"role": "system", "content": text}, USER, {"role": "assistant", "content": text}, USER]
    assert ChatTemplate(source).render(messages)


def test_results_that_must_be_json():
    source = CALLS.replace("name }}>{{ m.content }}", "name }}>{{ (m.content | from_json).temperature }}")
    asked = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    messages = [USER, asked, {"role": "tool", "content": json.dumps({"temperature": 21, "sky": "sunny"})}]
    assert ">21</t>" in ChatTemplate(source).render(messages)
    text = ChatTemplate(source).render([*messages[:2], {"role": "tool", "content": "sunny"}])  # the user's, then
    assert "<u><tool_response>\nsunny\n</tool_response></u>" in text
    with pytest.raises(ChatTemplateError, match="from_json"):
        ChatTemplate(source.replace("user'", "asker'")).render([*messages[:2], {"role": "tool", "content": "sunny"}])


def test_what_is_said_beside_calls_may_be_left_out():
    source = CALLS.replace("<a>{{ m.content }}", "<a>{{ m.content if not m.tool_calls }}")
    said = {"role": "assistant", "content": "I look.", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    assert "I look." not in ChatTemplate(source).render([USER, said])
    with pytest.raises(MessageError, match=r"messages\[1\] is not"):
        ChatTemplate(by_role(user="{{ m.content }}")).render([USER, {"role": "assistant", "content": "I look."}])


def test_a_long_conversation_is_rendered_twice_at_most():
    """However many of its messages are in another form."""
    template = ChatTemplate(
        "{% for m in messages %}{{ m.content | replace('l', '1') | replace('s', '5') }}{% endfor %}"
    )
    template.render([USER, ANSWER])
    counted = []
    output = template._output
    template._output = lambda variables: counted.append(len(variables["messages"])) or output(variables)
    template.render([USER, ANSWER] * 500)
    assert counted == [1000, 1000]
