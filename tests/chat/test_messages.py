"""Messages as OpenAI's clients send them: what is taken, and the place that an error names in others."""

from dataclasses import dataclass
from types import MappingProxyType

import pytest

from oxillama.chat import ChatTemplate
from oxillama.chat.messages import checked_messages
from oxillama.errors import ChatTemplateError, ConfigError, MessageError

HI = {"role": "user", "content": "hi"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


class Message:
    """A model of pydantic's, as the openai package gives messages."""

    def __init__(self, content=None, tool_calls=None):
        self.fields = {
            "role": "assistant",
            "content": content,
            "refusal": None,
            "audio": None,
            "tool_calls": tool_calls,
        }

    def model_dump(self):
        return self.fields


@dataclass
class Plain:
    role: str
    content: str


def user(content):
    return [HI, {"role": "user", "content": content}]


def asks(**changes):
    return [HI, {"role": "assistant", "content": None, "tool_calls": [CALL | changes]}]


def function(**changes):
    return asks(function=CALL["function"] | changes)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages is empty: a conversation needs at least one message"),
        (None, "messages must be a list of dicts with 'role' and 'content', not None"),
        ("hi", "messages must be a list of dicts with 'role' and 'content', not str 'hi'"),
        (b"hi", "messages must be a list of dicts .*, not bytes"),
        (HI, "messages must be a list of dicts .*, not dict"),
        (iter([HI]), "messages must be a list of dicts .*, not list_iterator"),
        ([HI, "hi"], r"messages\[1\] must be a dict with 'role' and 'content', not str 'hi'"),
        ([Message()], r"messages\[0\] must be a dict .*, not Message .*: give its \.model_dump\(\)"),
        ([Message], r"messages\[0\] must be a dict .*, not type <class '.*'>$"),
        ([Plain("user", "hi")], r"messages\[0\] must be a dict .*, not Plain .*: give dataclasses\.asdict"),
        ([{"content": "x"}], r"messages\[0\]\.role must be a string of at least one character, not None"),
        ([{"role": 3, "content": "x"}], r"messages\[0\]\.role must be a string .*, not int 3"),
        ([{"role": "", "content": "x"}], r"messages\[0\]\.role must be a string .*, not str ''"),
        ([HI, {"role": "user"}], r"messages\[1\] must have a content .* or tool_calls: it has role$"),
        (
            user(None),
            r"messages\[1\] must have a content .* or tool_calls: its content is None, and it has role, content$",
        ),
        ([HI, {"role": "assistant", "tool_calls": []}], r"messages\[1\] must have a content"),
        ([HI, {"role": "assistant", "content": None, "refusal": "no"}], r"messages\[1\] must have a content"),
        (user(3), r"messages\[1\]\.content must be text or a list of text parts, not int 3"),
        (user(3.5), r"messages\[1\]\.content must be text or a list of text parts, not float 3\.5"),
        (user(True), r"messages\[1\]\.content must be text or a list of text parts, not bool True"),
        (user(b"hi"), r"messages\[1\]\.content must be text or a list of text parts, not bytes b'hi'"),
        (user({"type": "text", "text": "a"}), r"messages\[1\]\.content must be text or a list .*, not dict"),
        (user(Message()), r"messages\[1\]\.content must be .*, not Message .*: give its \.model_dump\(\)"),
        (user(["x"]), r"messages\[1\]\.content\[0\] must be a dict, .*, not str 'x'"),
        (user([{"type": "text", "text": "a"}, None]), r"messages\[1\]\.content\[1\] must be a dict, .*, not None"),
        (user([{"type": "text"}]), r"messages\[1\]\.content\[0\]\.text must be a string, not None"),
        (user([{"type": "text", "text": 3}]), r"messages\[1\]\.content\[0\]\.text must be a string, not int 3"),
        (user([{"text": "a"}]), r"messages\[1\]\.content\[0\]\.type must be 'text', not None"),
        ([HI | {"name": 3}], r"messages\[0\]\.name must be a string or None, not int 3"),
        ([HI | {"reasoning_content": []}], r"messages\[0\]\.reasoning_content must be a string or None, not list"),
        ([{"role": "tool", "content": "", "tool_call_id": 7}], r"messages\[0\]\.tool_call_id must be a string"),
        ([HI | {"tool_calls": CALL}], r"messages\[0\]\.tool_calls must be a list of dicts, not dict"),
        ([HI | {"tool_calls": "f"}], r"messages\[0\]\.tool_calls must be a list of dicts, not str 'f'"),
        ([HI | {"tool_calls": [CALL, 1]}], r"messages\[0\]\.tool_calls\[1\] must be a dict with 'function', not int 1"),
        (asks(type="custom"), r"messages\[1\]\.tool_calls\[0\]\.type must be 'function', not str 'custom'"),
        (asks(id=1), r"messages\[1\]\.tool_calls\[0\]\.id must be a string or None, not int 1"),
        (asks(function="f"), r"messages\[1\]\.tool_calls\[0\]\.function must be a dict with .*, not str 'f'"),
        (function(name=None), r"messages\[1\]\.tool_calls\[0\]\.function\.name must be a string, not None"),
        (function(arguments=[1]), r"tool_calls\[0\]\.function\.arguments must be a dict, or its JSON text, not list"),
        (function(arguments=None), r"tool_calls\[0\]\.function\.arguments must be a dict, or its JSON text, not None"),
        ([HI | {"tool_calls": [{"name": 5}]}], r"messages\[0\]\.tool_calls\[0\]\.name must be a string"),
    ],
)
def test_error_names_the_place(messages, message):
    with pytest.raises(MessageError, match=f"^.*{message}"):
        ChatTemplate("x").render(messages)


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video", "refusal", "input_text", None, 5])
@pytest.mark.parametrize(
    "source", ["{{ messages[0].content }}", "{% for p in messages[0].content %}{{ p }}{% endfor %}"]
)
def test_other_parts_than_text_are_refused_at_their_place(kind, source):
    parts = [{"type": "text", "text": "What is this?"}, {"type": kind, "text": "x", kind: {"url": "data:,"}}]
    with pytest.raises(MessageError, match=r"messages\[0\]\.content\[1\]\.type must be 'text', not .*not supported"):
        ChatTemplate(source).render([{"role": "user", "content": parts}])


def test_error_is_of_both_families():
    assert issubclass(MessageError, ConfigError)
    assert issubclass(MessageError, ChatTemplateError)


def test_what_the_client_dumps_is_taken():
    found = checked_messages([HI, Message("hi").model_dump(), Message(tool_calls=[CALL]).model_dump()])
    assert found == [
        HI,
        {"role": "assistant", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
    ]


def test_callers_messages_are_not_changed():
    messages = (MappingProxyType({"role": "assistant", "content": None, "tool_calls": (CALL,), "name": None}),)
    (found,) = checked_messages(messages)
    assert found == {"role": "assistant", "content": "", "tool_calls": (CALL,)}
    assert messages[0]["content"] is None


@pytest.mark.parametrize(
    "call", [CALL, {"function": {"name": "f", "arguments": {"x": 1}}}, {"name": "f", "arguments": {}}, {"name": "f"}]
)
def test_calls_in_all_their_forms(call):
    messages = [{"role": "assistant", "tool_calls": [call]}]
    assert ChatTemplate("{{ messages[0].tool_calls[0] is mapping }}").render(messages) == "True"


def test_no_template_prints_none():
    """Templates print what they find: None is Python's word for it."""
    source = "{% for m in messages %}{{ m.content }}{{ m.name }}{% if m.tool_calls %}{{ m.tool_calls | length }}"
    source += "{% endif %}{% endfor %}"
    messages = [HI | {"name": None, "tool_calls": None}, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
    assert ChatTemplate(source).render(messages) == "hi1"
