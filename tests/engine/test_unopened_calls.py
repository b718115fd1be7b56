"""Calls without their outer mark through the engine: found, and held to schemas from their inner opening on."""

import numpy as np
import pytest

import oxillama as ox
from tests.chat.templates import TEMPLATES
from tests.fakes import assert_idle

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}, "note": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}]
ASK = [{"role": "user", "content": "How much is 1 and 2?"}]
TAGGED = ox.ChatFormat.of_template(TEMPLATES["tagged"])
# Marks that are control tokens of the shipped model.
SECTION = ox.ChatFormat.of_template(
    TEMPLATES["named-in-section"].replace("<|calls|>", "<|begin|>").replace("<|call|>", "<|system|>")
)


@pytest.fixture(scope="module")
def engine():
    with ox.load(num_threads=1) as engine:
        yield engine
        assert_idle(engine)


def saying(engine, text):
    """A processor that leaves the tokens of a text alone."""
    ids = [*engine.tokenizer.encode(text, add_special=False, parse_special=True), next(iter(engine.tokenizer.eog_ids))]
    start = []

    def hold(tokens, logits):
        start.append(len(tokens))
        wanted = ids[min(len(tokens) - start[0], len(ids) - 1)]
        logits[np.arange(len(logits)) != wanted] = -np.inf

    return hold


def ask(engine, form, text, **options):
    return engine.chat(
        ASK, tools=TOOLS, tool_format=form, logits_processors=[saying(engine, text)], seed=1, max_tokens=400, **options
    )


CALLS = {
    "behind text": (TAGGED, "I add.\n<fn=add>\n<arg=a>\n1\n</arg>\n</fn>\n</do>", "I add.\n"),
    "without any mark": (TAGGED, "<fn=add>\n<arg=a>\n1\n</arg>\n</fn>", ""),
    "control tokens": (SECTION, 'I add: <|system|>tools.add:0<|args|>{"a": 1}<|call_end|>', "I add:"),
    "JSON": ("hermes", 'I add.\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', "I add.\n"),
}


@pytest.mark.parametrize("kind", CALLS)
def test_a_call_is_found(engine, kind):
    form, text, content = CALLS[kind]
    answer = ask(engine, form, text)
    assert (answer.text.rstrip(" "), answer.finish_reason) == (content, "stop")
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [("add", {"a": 1})]
    chunks = list(ask(engine, form, text, stream=True))
    assert "".join(chunk.text for chunk in chunks) == answer.text
    assert [call for chunk in chunks for call in chunk.tool_calls] == answer.tool_calls


@pytest.mark.parametrize("kind", CALLS)
def test_a_call_is_held(engine, kind):
    form, text, _ = CALLS[kind]
    if kind == "JSON":  # what is told by its end alone is free until then, and no call if it doesn't fit
        answer = ask(engine, form, text.replace("1", "77"))
        assert (answer.text, answer.tool_calls) == (text.replace("1", "77"), [])
        return
    with pytest.raises(ox.GenerateError, match="all that the grammar allows are banned"):
        ask(engine, form, text.replace("1", "77"))
    free = ask(engine, form, text.replace("1", "77"), constrain_tools=False)
    assert free.text.strip()


def test_a_value_holds_no_mark_of_the_next_argument(engine):
    head = "<do>\n<fn=add>\n<arg=a>\n1\n</arg>\n<arg=note>\n"
    tail = "\n</arg>\n</fn>\n</do>"
    answer = ask(engine, TAGGED, f"{head}b <arg=a>\n<arg=c>{tail}")
    assert [call.arguments for call in answer.tool_calls] == [{"a": 1, "note": "b <arg=a>\n<arg=c>"}]
    with pytest.raises(ox.GenerateError, match="all that the grammar allows are banned"):
        ask(engine, TAGGED, f"{head}b\n<arg=a>{tail}")


def test_names_of_no_tool_are_text(engine):
    text = "See\n<fn=sub>\n<arg=a>\n1\n</arg>\n</fn> and <fn=add> there"
    answer = ask(engine, TAGGED, text)
    assert (answer.text, answer.tool_calls) == (text, [])
