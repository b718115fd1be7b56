"""Random conversations, with templates of every shape: all that was said is there, or an error says what is not."""

import copy
import json
from pathlib import Path
from random import Random

import pytest

from oxillama.chat import ChatTemplate
from oxillama.errors import ChatTemplateError
from tests.chat.shapes import CALLS, LAST, OPENED, REASONS, by_role, calls_as

RECORDED = json.loads((Path(__file__).parent / "data" / "templates.json").read_text(encoding="utf-8"))
SHAPES = {
    "calls": CALLS,
    "text arguments": calls_as("'=' + c.function.arguments"),
    "reasoning": REASONS("reasoning"),
    "opened": OPENED,
    "last": LAST,
    "users and answers": by_role(user="<u>{{ m.content }}", assistant="<a>{{ m.content }}"),
    "parts": "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}",
    "alternating": "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('alternate') }}{% endif %}{{ m.content | trim }}\n{% endfor %}",
}
TEMPLATES = {case["name"]: case["template"] for case in RECORDED} | SHAPES
WORDS = (
    "alpha",
    "beta <b>",
    "gamma\n\n",
    '"quoted"',
    "日本語",
    '{"a": 1}',
    "x",
    "oxmark",
    "  pad ",
    "{{ x }}",
    "\ue000",
)


def text(random):
    return " ".join(random.choice(WORDS) for _ in range(random.randint(1, 3)))


def content(random):
    if random.random() < 0.7:
        return text(random)
    return [{"type": "text", "text": text(random)} for _ in range(random.randint(1, 2))]


def called(random):
    """A message with calls, and what they returned."""
    arguments = [{"city": text(random)} if random.random() < 0.8 else {} for _ in range(random.randint(1, 2))]
    calls = [
        {"id": f"call_{i}", "type": "function", "function": {"name": "look", "arguments": given}}
        for i, given in enumerate(arguments)
    ]
    message = {"role": "assistant", "tool_calls": calls}
    if random.random() < 0.5:
        message["content"] = random.choice((None, "", "say"))
    if random.random() < 0.5:
        message[random.choice(("reasoning", "reasoning_content", "thinking"))] = "thought"
    return [message, *({"role": "tool", "content": text(random), "tool_call_id": call["id"]} for call in calls)]


def conversation(random):
    messages = []
    if random.random() < 0.5:
        messages.append({"role": random.choice(("system", "developer")), "content": content(random)})
    for _ in range(random.randint(1, 3)):
        messages.append({"role": "user", "content": content(random)})
        if random.random() < 0.3:
            messages += called(random)
        if random.random() < 0.8:
            messages.append({"role": "assistant", "content": text(random)})
    return messages


def with_text(messages):
    """The same with arguments as JSON text."""
    found = copy.deepcopy(messages)
    for message in found:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return found


@pytest.mark.parametrize("source", TEMPLATES.values(), ids=TEMPLATES)
def test_what_was_said_is_in_the_prompt(source):
    template, random, n_made = ChatTemplate(source), Random(7), 0
    for _ in range(60):
        messages = conversation(random)
        before = copy.deepcopy(messages)
        try:
            prompt = template.render(messages)
        except ChatTemplateError:
            with pytest.raises(ChatTemplateError):
                template.render(with_text(messages))
            continue
        n_made += 1
        assert template.render(with_text(messages)) == prompt
        assert messages == before
        for message in messages:
            said = message.get("content") or ""
            for one in [said] if isinstance(said, str) else [part["text"] for part in said]:
                escaped = json.dumps(one.strip(), ensure_ascii=False)[1:-1]
                beside_calls = "tool_calls" in message
                assert beside_calls or one.strip() in prompt or escaped in prompt
    assert n_made
