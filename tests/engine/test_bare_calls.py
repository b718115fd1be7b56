"""Calls without a mark through the engine: found when the answer is over, unless a form of the text was asked for."""

import asyncio
import json

import numpy as np
import pytest

import oxillama as ox
from tests.fakes import assert_idle

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}]
ASK = [{"role": "user", "content": "How much is 1 and 2?"}]
CALL = {"name": "add", "arguments": {"a": 1}}
FENCED = f"```json\n{json.dumps(CALL, indent=1)}\n```"
LISTED = json.dumps([CALL, {"name": "add", "parameters": {"a": 2}}])
WRONG = json.dumps({"name": "add", "arguments": {"a": "1"}})


@pytest.fixture(scope="module")
def engine():
    with ox.load(num_threads=1) as engine:
        yield engine
        assert_idle(engine)


def saying(engine, text, n_prompt=None):
    """A processor that leaves the tokens of a text alone: no constraint, which would say what the content is."""
    ids = [*engine.tokenize(text, add_special=False), next(iter(engine.tokenizer.eog_ids))]
    start = [] if n_prompt is None else [n_prompt]

    def hold(tokens, logits):
        start.append(len(tokens))
        wanted = ids[min(len(tokens) - start[0], len(ids) - 1)]
        logits[np.arange(len(logits)) != wanted] = -np.inf

    return hold


def ask(engine, text, **options):
    options = {"tools": TOOLS, "tool_format": "hermes", "seed": 1, **options}
    return engine.chat(ASK, logits_processors=[saying(engine, text)], **options)


@pytest.mark.parametrize(("text", "found"), [(FENCED, [1]), (LISTED, [1, 2])])
def test_an_answer(engine, text, found):
    answer = ask(engine, text)
    assert (answer.text, answer.finish_reason) == ("", "stop")
    assert [(call.name, call.arguments, call.raw) for call in answer.tool_calls] == [
        ("add", {"a": n}, text) for n in found
    ]
    choice = answer.to_openai()["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    chunks = list(ask(engine, text, stream=True))
    assert "".join(chunk.text for chunk in chunks) == ""
    assert [call for chunk in chunks for call in chunk.tool_calls] == answer.tool_calls
    assert chunks[0].token_ids == answer.token_ids  # nothing comes before the end
    pieces = [delta.arguments for chunk in chunks for delta in chunk.tool_call_deltas if not delta.index]
    assert json.loads("".join(pieces)) == {"a": 1}
    assert [token for chunk in chunks for token in chunk.token_ids] == answer.token_ids


def test_in_an_event_loop(engine):
    async def answer():
        loop = ox.AsyncEngine(engine)
        options = {"tools": TOOLS, "tool_format": "hermes", "logits_processors": [saying(engine, FENCED)], "seed": 1}
        return [chunk async for chunk in await loop.chat(ASK, stream=True, **options)]

    chunks = asyncio.run(answer())
    assert [call.arguments for chunk in chunks for call in chunk.tool_calls] == [{"a": 1}]


@pytest.mark.parametrize("text", [WRONG, f"Look: {FENCED}", f"{LISTED} ok", FENCED[:-9]])
def test_what_is_no_call_stays_text(engine, text):
    answer = ask(engine, text)
    assert (answer.text, answer.tool_calls) == (text, [])
    assert "".join(chunk.text for chunk in ask(engine, text, stream=True)) == text


def test_a_call_that_max_tokens_cut_off_is_text(engine):
    n = len(engine.tokenize(FENCED, add_special=False)) - 12
    answer = ask(engine, FENCED, max_tokens=n)
    assert (answer.finish_reason, answer.tool_calls) == ("length", [])
    assert FENCED.startswith(answer.text)
    assert answer.text


def test_a_form_of_the_text_that_was_asked_for_is_no_call(engine):
    """Nor is a text with calls as text, or where none are held to the tools."""
    for options in (
        {"json_schema": {"const": CALL}},
        {"choices": [LISTED]},
        {"grammar": "root ::= " + json.dumps(FENCED)},
    ):
        answer = engine.chat(ASK, tools=TOOLS, tool_format="hermes", seed=1, **options)
        assert (bool(answer.text), answer.tool_calls) == (True, [])
    for options in ({"tool_format": "text"}, {"tool_choice": "none"}, {"constrain_tools": False}):
        answer = ask(engine, LISTED, **options)
        assert (answer.text, answer.tool_calls) == (LISTED, [])


def test_behind_reasoning(engine):
    marks = ox.ReasoningFormat("<think>", "</think>")
    text = f"<think>Hm.</think>\n{FENCED}"
    answer = ask(engine, text, reasoning=marks)
    assert (answer.reasoning, answer.text) == ("Hm.", "")
    assert [call.arguments for call in answer.tool_calls] == [{"a": 1}]


def test_a_snapshot_goes_on(engine):
    """With an answer of which nothing was shown yet."""
    options = {"tools": TOOLS, "tool_format": "hermes", "seed": 1}
    n_prompt = len(engine.chat_tokens(ASK, tools=TOOLS, tool_format="hermes"))
    stream = engine.chat(ASK, logits_processors=[saying(engine, FENCED)], stream=True, **options)
    data = stream.snapshot_bytes()
    whole = [call for chunk in stream for call in chunk.tool_calls]
    resumed = list(engine.resume(data, logits_processors=[saying(engine, FENCED, n_prompt)]))
    assert [call for chunk in resumed for call in chunk.tool_calls] == whole
    assert ("".join(chunk.text for chunk in resumed), len(whole)) == ("", 1)
