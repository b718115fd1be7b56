"""Calls that were cut off or are wrong in another way, sent back as part of a conversation: it goes on in any case."""

import json
from pathlib import Path

import pytest

from oxillama.chat import ChatTemplate
from oxillama.chat.calls import BrokenToolCall, read_argument_object
from oxillama.chat.dispatch import ToolFunctions
from oxillama.chat.format import ChatFormat
from tests.chat.shapes import CALLS, LAST, OPENED, REASONS, by_role, calls_as
from tests.chat.templates import TEMPLATES, THINKING

RECORDED = json.loads((Path(__file__).parent / "data" / "templates.json").read_text(encoding="utf-8"))
OWN = {
    "calls": CALLS,
    "as text": calls_as("'=' + c.function.arguments"),
    "parsed text": calls_as("(c.function.arguments | from_json) | tojson"),
    "items": calls_as("c.function.arguments | items | list"),
    "one of both": calls_as("(c.function.arguments | items | list) if c.function.arguments is mapping else ''"),
    "reasoning": REASONS("reasoning"),
    "opened": OPENED,
    "last": LAST,
    "users and answers": by_role(user="<u>{{ m.content }}", assistant="<a>{{ m.content }}"),
    "alternating": "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('alternate') }}{% endif %}{{ m.content | trim }}\n{% endfor %}",
}
ALL = {case["name"]: case["template"] for case in RECORDED} | OWN | TEMPLATES | THINKING
WRITTEN = {"path": "a 'b' <&>", "list": [1, {"x": None}], "n": -1.5, "text": 'é\n"q" {', "deep": {"_raw": "</call>"}}
FULL = json.dumps(WRITTEN, ensure_ascii=False)
OTHERS = (
    '"x"',
    "[1]",
    "null",
    "{}{}",
    '{"a": 1, "a": 2}',
    '{"a": NaN}',
    '{"a": ' + "[" * 300 + "]" * 300 + "}",
    "x" * 999,
)
PROPERTIES = {"path": {"type": "string"}, "n": {"type": "number"}, "text": {"type": "string"}}
TOOL = {"type": "function", "function": {"name": "write", "description": "Writes.", "parameters": {
    "type": "object", "properties": PROPERTIES, "required": ["path"]}}}  # fmt: skip
USER = {"role": "user", "content": "Write a file."}


def called(arguments, name="write"):
    call = {"id": "call00001", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def result(text="error: no JSON"):
    return {"role": "tool", "tool_call_id": "call00001", "content": text}


def is_object(text):
    try:
        return read_argument_object(text) is not None
    except ValueError:
        return False


def stands_in(text, prompt):
    escaped = (json.dumps(text, ensure_ascii=False)[1:-1], json.dumps(text)[1:-1], repr(text)[1:-1])
    return any(form in prompt for form in (text, *escaped))


@pytest.mark.parametrize("source", ALL.values(), ids=ALL)
def test_every_beginning_of_arguments_is_in_the_prompt(source):
    """With a result, without one, and with the tools described; so are texts that are JSON and no object."""
    template = ChatTemplate(source)
    for i, text in enumerate((*OTHERS, *(FULL[:n] for n in range(len(FULL) + 1)))):
        message, tools = called(text), (None, [TOOL])[i % 2]
        for messages in ([USER, message, USER], [USER, message, result(), USER], [USER, message])[: 1 if i % 5 else 3]:
            prompt = template.render(messages, tools=tools)
            assert is_object(text) or stands_in(text.strip(), prompt)


def answers(template, form):
    """What a model writes for a call and for text: what the template has behind the prompt."""
    asked = template.render([USER], tools=[TOOL])
    for message in (called(WRITTEN), called(WRITTEN) | {"content": "I write."}):
        text = template.render([USER, message], tools=[TOOL], add_generation_prompt=False)
        if text.startswith(asked):
            yield text[len(asked) :].removesuffix(form.frame.turn_end)


@pytest.mark.parametrize("name", [*TEMPLATES, *THINKING, next(name for name in ALL if "Nemo" in name)])
def test_every_beginning_of_an_answer_can_be_sent_back(name):
    """As the library gives it back, and as the server does in each of its dialects; with results of its calls too."""
    form, template = ChatFormat.of_template(ALL[name]), ChatTemplate(ALL[name])
    functions = ToolFunctions([TOOL], {"write": lambda **arguments: "done"})
    n_cut = 0
    for text in answers(template, form):
        for n in range(len(text) + 1):
            parser = form.parser([TOOL])
            parser.push(text[:n])
            found = parser.finish()
            n_cut += any(isinstance(call, BrokenToolCall) for call in found.tool_calls)
            results = [functions.dispatch(call).message for call in found.tool_calls]
            for message in (found.to_message(), found.to_openai(), of_messages(found.to_openai())):
                for rest in ([*results, USER], [USER], results)[: 1 if n % 3 else 3]:
                    template.render([USER, message | {"content": message["content"] or ""}, *rest], tools=[TOOL])
    assert n_cut > 10


def of_messages(message):
    """The answer as Anthropic's dialect has it: the input of a call that was cut off is {}."""
    made = []
    for call in message.get("tool_calls", ()):
        text = call["function"]["arguments"]
        arguments = json.dumps(read_argument_object(text) if is_object(text) else {})
        made.append({**call, "function": {**call["function"], "arguments": arguments}})
    return message | ({"tool_calls": made} if made else {})
