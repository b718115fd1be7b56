"""A text as an answer of some format: it is divided alike however it comes, and nothing of it is lost.

The first byte says which format it is, the second whether the prompt has opened the reasoning.
"""

import json
import re
import zlib
from functools import cache
from random import Random

from oxillama.chat.calls import ToolCall
from oxillama.chat.format import ChatFormat
from tests.chat.templates import OPENED, TEMPLATES, THINKING
from tests.fuzz.mutate import TEXT, with_word
from tests.fuzz.target import Target, told

HARMONY = (
    "{% for m in messages %}<|start|>{{ m.role }}<|channel|>final<|message|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
SOURCES = [*TEMPLATES.values(), *THINKING.values(), OPENED, HARMONY]
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "array"}, "n": {"type": "number"}},
}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
WORD = re.compile(r"\w+")


@cache
def form_of(number):
    return ChatFormat.of_template(SOURCES[number])


def run(data):
    if len(data) < 2:
        return ["empty"]
    form, opened = form_of(data[0] % len(SOURCES)), data[1] % 2
    prompt = form.marks_of("auto").begin if opened else ""
    text = data[2:].decode("utf-8", "replace")
    draw = Random(zlib.crc32(data))
    whole = summed(form, prompt, [text])
    cut = sorted(draw.randrange(len(text) + 1) for _ in range(draw.randrange(6)))
    pieces = [text[a:b] for a, b in zip([0, *cut], [*cut, len(text)], strict=True)]
    assert summed(form, prompt, pieces) == whole
    if len(text) < 300:
        assert summed(form, prompt, list(text)) == whole
    reasoning, content, _, found = whole
    kept = " ".join([reasoning, content, *(call.raw for call in found)])
    thought = form.marks_of("auto")
    marks = " ".join([*form.layout.texts, "think start assistant end", thought.begin, thought.end])
    rest = WORD.findall(kept + " " + marks)
    lost = [word for word in WORD.findall(text) if not any(word in other for other in rest)]
    assert form.harmony or not lost, lost
    kinds = [f"{type(call).__name__} {told(ValueError(getattr(call, 'error', '')))}" for call in found]
    return kinds or [str(bool(reasoning))]


def summed(form, prompt, pieces):
    """What the deltas of a text in pieces add up to, checked against the message."""
    parser = form.parser(TOOLS, prompt)
    deltas = [delta for piece in pieces for delta in parser.push(piece)]
    message = parser.finish()
    deltas += message.deltas
    calls = {}
    for delta in deltas:
        piece = delta.tool_call
        if piece is not None and piece.name is not None:
            assert piece.index not in calls
            assert not piece.arguments
            calls[piece.index] = [piece.id, piece.name, ""]
        elif piece is not None:
            calls[piece.index][2] += piece.arguments
    for i, call in enumerate(message.tool_calls):
        if isinstance(call, ToolCall):
            assert calls[i][:2] == [call.id, call.name]
            assert json.loads(calls[i][2]) == call.arguments
    assert "".join(delta.content for delta in deltas) == message.content
    assert "".join(delta.reasoning for delta in deltas).strip() == message.reasoning
    return message.reasoning, message.content, calls, message.tool_calls


TEXTS = [
    "It is sunny.",
    '<call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</call>',
    '{"name": "weather", "parameters": {"city": "Rome"}}',
    '<calls>[{"name": "weather", "arguments": {"city": "Rome"}}, {"name": "f"}]</calls> so',
    '<|begin_calls|>[{"weather": {"city": "Rome", "n": 1e3}}]<|end_calls|>',
    '[CALLS][{"id": "0", "tool": "weather", "parameters": {}}]',
    'I look.[CALL]weather[ARGS]{"city": "Rome"}[CALL]weather[ARGS]{}',
    '[CALL]weather[ID]callnum00[ARGS]{"city": "\\u00e9"}',
    '<|calls|><|call|>tools.weather:0<|args|>{"city": "Rome"}<|call_end|><|calls_end|>',
    '<fn=weather>{"city": "Rome"}</fn>',
    "<do>\n<fn=weather>\n<arg=city>\nRome\n</arg>\n<arg=n>\n3\n</arg>\n</fn>\n</do>",
    "<do>weather\n<k>city</k>\n<v>Rome</v>\n</do>",
    '<runs>\n<run name="weather">\n<with key="city" text="yes">Rome</with>\n</run>\n</runs>',
    "<|py|>[weather(city='Rome', days=[1, 'a', {'b': None}]), weather()]<|py_end|>",
    "<|do|>call:weather{city:<|q|>Rome<|q|>,days:[1,{a:true}]}<do|>",
    '@<do>\n@<run name="weather">@<city>Rome@</city>@<days>@<item>1@</item>@</days>@</run>\n@</do>',
    "<think>\nHm.\n</think>\n\nSunny.",
    "Hm.\n</think>\n\nSunny.",
    "[MUSE]Hm.[/MUSE]Sunny.",
    "<|START_MUSING|>Hm.<|END_MUSING|><|START_DO|>[",
    "<|muse>aloud\nHm.\n<muse|>Sunny.",
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Sunny.",
    '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Rome"}<|call|>',
    '```json\n{"name": "weather", "arguments": {"city": "Rome"}}\n```\n{"name": "weather", "arguments": {}}',
    '<tools>[{"type": "function", "function": {"name": "weather", "parameters": "{\\"n\\": 1}"}}]</tools>',
]
WORDS = sorted({word for text in TEXTS for word in re.findall(r"<[^<>]*>|\[/?[A-Z]+\]|[{}\[\]\",:]+|\w+", text)})
# Openings without an outer mark, and marks that end arguments and calls.
WORDS += [
    "\n<fn=weather>", "\n</fn>", "\n<arg=n>", "\nweather\n<k>", "\nweather<k>", "</v>", '\n<run name="weather">',
    "</with>", "@<city>", "@</city>", "@</run>", '\n{"name": "weather", "arguments": {', "}}\n</call>",
    '\n[{"name": "weather", "arguments": {', "}}]</calls>", "<|call|>tools.weather:0<|args|>", "\nweather[ARGS]{",
    "\n[weather(", "\ncall:weather{",
]  # fmt: skip
WORDS += ["```", "~~~\n", "<![CDATA[", "]]>", "\\", "'", "True", "null", "1e999", "\n", " "]


def seeds():
    found = [bytes([number, 0]) + text.encode() for number in range(len(SOURCES)) for text in TEXTS[:2]]
    return found + [bytes([number, 1]) + text.encode() for number, text in enumerate(TEXTS)]


def other_format(draw, data, other):
    """The same text in another format."""
    return bytes([draw.randrange(len(SOURCES)), draw.randrange(2)]) + data[2:]


def glued(draw, data, other):
    """A text of another kind behind this one, or a part of it before."""
    text = draw.choice(TEXTS).encode()
    at = 2 + draw.randrange(max(1, len(data) - 1))
    return data[:at] + text + data[at:]


LISTED = [word.encode() for word in WORDS]
TARGET = Target(
    "chat",
    run,
    seeds,
    (*TEXT, with_word(LISTED), with_word(LISTED), with_word(LISTED), other_format, glued),
    words=LISTED,
    max_bytes=2000,
    work=(4_000_000, 20_000),
    memory=(64 << 20, 20_000),
)
