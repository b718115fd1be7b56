"""Reasoning and answers in parts, through the engine.

The shipped model thinks nothing by itself; a grammar makes it say what a model would that does.
"""

import copy
import json
import pickle

import pytest

import oxillama as ox
from tests.chat.templates import OPENED, THINKING
from tests.fakes import assert_idle

THINK = THINKING["think"]
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
ASK = [{"role": "user", "content": "How is the weather?"}]
THOUGHT = "Which city? <call>\n{ Rome."
SAID = (
    f'<think>\n{THOUGHT}\n</think>\n\nI look.\n<call>\n{{"name": "weather", "arguments": {{"city": "Rome"}}}}\n</call>'
)


@pytest.fixture(scope="module")
def engine():
    with ox.load(num_threads=1) as engine:
        yield engine
        assert_idle(engine)


def use(**options):
    return ox.ToolUse(ox.ChatFormat.of_template(THINK), **options)


def write(engine, text, **options):
    """An answer with this text: constraints of a format hold behind its reasoning, so the processor writes it."""
    ids = [*engine.tokenize(text, add_special=False), min(engine.tokenizer.eog_ids)]
    n_prompt = len(engine.tokenize("x"))

    def force(tokens, logits):
        logits[:] = -100.0
        logits[ids[min(len(tokens) - n_prompt, len(ids) - 1)]] = 100.0

    return engine.generate("x", logits_processors=[force], **options)


def test_reasoning_content_and_calls_are_apart(engine):
    answer = write(engine, SAID, tool_use=use())
    assert answer.finish_reason == "stop"
    assert answer.reasoning == THOUGHT
    assert answer.text == "I look.\n"
    assert answer.raw == SAID
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [("weather", {"city": "Rome"})]
    n_thought = len(engine.tokenize(SAID[: SAID.index("</think>") + 8], add_special=False))
    n_begin = len(engine.tokenize("<think>\n", add_special=False))
    assert n_thought - n_begin <= answer.usage.reasoning_tokens <= n_thought + 1
    assert answer.to_dict()["usage"]["reasoning_tokens"] == answer.reasoning_tokens
    assert answer.message == {
        "role": "assistant",
        "content": "I look.\n",
        "reasoning_content": THOUGHT,
        "tool_calls": [
            {"type": "function", "id": "call00000", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
        ],
    }


def test_chunks_add_up_and_calls_come_in_pieces(engine):
    ids = [*engine.tokenize(SAID, add_special=False), min(engine.tokenizer.eog_ids)]
    n_prompt = len(engine.tokenize("x"))

    def force(tokens, logits):
        logits[:] = -100.0
        logits[ids[min(len(tokens) - n_prompt, len(ids) - 1)]] = 100.0

    chunks = list(engine.stream("x", logits_processors=[force], tool_use=use()))
    whole = write(engine, SAID, tool_use=use())
    assert "".join(chunk.reasoning for chunk in chunks).strip() == whole.reasoning
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert "".join(chunk.raw for chunk in chunks) == SAID
    assert [token for chunk in chunks for token in chunk.token_ids] == whole.token_ids
    pieces = [piece for chunk in chunks for piece in chunk.tool_call_deltas]
    assert [(piece.index, piece.id, piece.name, piece.arguments) for piece in pieces[:1]] == [
        (0, "call00000", "weather", "")
    ]
    assert all(piece.name is piece.id is None for piece in pieces[1:])
    assert len(pieces) > 3
    assert json.loads("".join(piece.arguments for piece in pieces)) == {"city": "Rome"}
    assert chunks[-1].usage == whole.usage
    first = next(i for i, chunk in enumerate(chunks) if chunk.tool_call_deltas)
    assert not any(chunk.tool_calls for chunk in chunks[: first + 1])
    sent = [delta for i, chunk in enumerate(chunks) for delta in chunk.to_openai(role=not i, id="a")]
    assert all(part["object"] == "chat.completion.chunk" and part["id"] == "a" for part in sent)
    deltas = [part["choices"][0]["delta"] for part in sent]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("reasoning_content", "") for delta in deltas).strip() == THOUGHT
    assert "".join(delta.get("content", "") for delta in deltas) == "I look.\n"
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert calls[0] == {
        "index": 0, "id": "call00000", "type": "function", "function": {"name": "weather", "arguments": ""},
    }  # fmt: skip
    assert all(set(call) == {"index", "function"} for call in calls[1:])
    assert deltas[-1] == {}
    assert [part["choices"][0]["finish_reason"] for part in sent[-2:]] == [None, "stop"]


def test_openai_form_of_a_completion(engine):
    found = write(engine, SAID, tool_use=use()).to_openai(id="chatcmpl-1", model="m")
    assert (found["id"], found["model"], found["object"]) == ("chatcmpl-1", "m", "chat.completion")
    (choice,) = found["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "I look.\n"
    assert choice["message"]["reasoning_content"] == THOUGHT
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Rome"}
    assert found["usage"]["completion_tokens_details"]["reasoning_tokens"] > 5
    plain = write(engine, "Sunny.", tool_use=use()).to_openai()
    assert plain["choices"][0] == {
        "index": 0, "message": {"role": "assistant", "content": "Sunny."}, "finish_reason": "stop",
    }  # fmt: skip
    broken = write(engine, SAID[:-30], tool_use=use()).to_openai()["choices"][0]
    assert broken["message"]["content"] == "I look.\n"
    assert broken["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": "{"}  # as in a stream
    assert broken["finish_reason"] == "stop"


def test_reasoning_can_stay_in_the_text(engine):
    answer = write(engine, SAID, tool_use=use(reasoning="none"))
    assert answer.reasoning == ""
    assert answer.text == SAID[: SAID.rindex("<call>")]
    assert len(answer.tool_calls) == 1
    own = write(engine, "(hm) Sunny.", tool_use=use(reasoning=ox.ReasoningFormat("(", ")")))
    assert (own.reasoning, own.text) == ("hm", "Sunny.")


def test_budget_of_reasoning_forces_its_end(engine):
    ids = engine.tokenize("<think>\n", add_special=False)
    n_prompt = len(engine.tokenize("x"))

    def begins(tokens, logits):
        """The first tokens; what follows is the model's."""
        if len(tokens) - n_prompt < len(ids):
            logits[ids[len(tokens) - n_prompt]] = 1e4

    for budget in (0, 3, 12):
        asked = {"logits_processors": [begins], "max_tokens": 60, "seed": 5, "ignore_eos": True}
        answer = engine.generate("x", tool_use=use(reasoning_budget=budget), **asked)
        n_end = len(engine.tokenize("\n</think>\n\n", add_special=False))
        assert "</think>" in answer.raw
        assert answer.raw[8:].lstrip().startswith(answer.reasoning)
        assert budget <= answer.reasoning_tokens <= budget + n_end + len(ids)
        assert answer.text
        again = engine.generate("x", tool_use=use(reasoning_budget=budget), draft="lookup", **asked)
        assert again.token_ids == answer.token_ids


THREE = {a + b + c for a in "ab" for b in "ab" for c in "ab"}


def test_constraints_hold_behind_reasoning(engine):
    """Whatever the model thinks, what follows fits."""
    opened = ox.ToolUse(ox.ChatFormat.of_template(OPENED), prompt="<|assistant|>\n<think>\n", reasoning_budget=6)
    for seed in range(3):
        asked = {"tool_use": opened, "seed": seed, "max_tokens": 80, "temperature": 1.0}
        found = engine.generate("x", json_schema={"enum": ["sunny", "snow"]}, **asked)
        assert json.loads(found.text) in ("sunny", "snow")
        assert "</think>" in found.raw
        assert engine.generate("x", choices=["yes", "no"], **asked).text in ("yes", "no")
        assert engine.generate("x", regex="[ab]{3}", **asked).text in THREE
        assert engine.generate("x", grammar='root ::= "so" "!"', **asked).text == "so!"


def test_required_calls_come_behind_reasoning(engine):
    asked = {"tools": TOOLS, "chat_template": OPENED, "tool_choice": "required", "reasoning_budget": 5}
    for seed in range(3):
        answer = engine.chat(ASK, seed=seed, max_tokens=120, parallel_tool_calls=False, **asked)
        assert answer.text == ""
        (call,) = answer.tool_calls
        assert call.name == "weather"
        assert call.arguments["city"] in ("Rome", "Oslo")
        assert answer.finish_reason == "stop"
        assert answer.raw.count("<call>") - answer.reasoning.count("<call>") == 1
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "weather"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    answer = engine.chat(ASK, seed=1, max_tokens=120, parallel_tool_calls=False, **(asked | {"tool_choice": choice}))
    assert {call.name for call in answer.tool_calls} == {"weather"}


def test_marks_that_are_control_tokens(engine):
    """They are no text otherwise, and the budget ends reasoning with the token itself."""
    marks = ox.ReasoningFormat("<|user|>", "<|system|>")
    opened = ox.ToolUse("hermes", tools=TOOLS, choice="weather", prompt="<|user|>", reasoning=marks, reasoning_budget=7)
    end = engine.tokenizer.token_to_id("<|system|>")
    for seed in range(3):
        answer = engine.generate("x", tool_use=opened, seed=seed, max_tokens=120, temperature=1.0)
        assert answer.token_ids.count(end) == 1
        assert answer.token_ids.index(end) <= 7
        assert answer.reasoning_tokens == answer.token_ids.index(end) + 1
        assert answer.raw.count("<|system|>") == 1
        assert [call.name for call in answer.tool_calls] == ["weather"]
        assert answer.text == ""
    with_schema = engine.generate(
        "x", tool_use=ox.ToolUse("hermes", prompt="<|user|>", reasoning=marks, reasoning_budget=3), choices=["so", "no"]
    )
    assert with_schema.text in ("so", "no")


def test_chat_finds_reasoning_by_its_template(engine):
    answer = engine.chat(ASK, chat_template=OPENED, reasoning_budget=4, max_tokens=40, seed=2, ignore_eos=True)
    assert answer.reasoning
    assert answer.raw.startswith(answer.reasoning)
    plain = engine.chat(ASK, max_tokens=20, seed=2)
    assert (plain.reasoning, plain.raw, plain.reasoning_tokens) == ("", "", 0)


def test_saved_request_goes_on_with_its_reasoning(engine):
    asked = {"max_tokens": 60, "seed": 5, "ignore_eos": True}
    opened = ox.ToolUse(
        ox.ChatFormat.of_template(OPENED), tools=TOOLS, prompt="<|assistant|>\n<think>\n", reasoning_budget=9
    )
    whole = engine.generate("Once", tool_use=opened, **asked)
    for n in (1, 4, 8):
        running = engine.stream("Once", tool_use=opened, **asked)
        chunks = [next(running) for _ in range(n)]
        data = running.snapshot_bytes()
        running.close()
        chunks += list(engine.resume(data))
        assert "".join(chunk.reasoning for chunk in chunks).strip() == whole.reasoning
        assert "".join(chunk.text for chunk in chunks) == whole.text
        assert "".join(chunk.raw for chunk in chunks) == whole.raw
        assert [token for chunk in chunks for token in chunk.token_ids] == whole.token_ids
        assert chunks[-1].usage.reasoning_tokens == whole.reasoning_tokens


def test_formats_can_be_copied_and_sent():
    for form in (ox.ChatFormat.of_template(THINK), ox.ToolFormat("<a>", "</a>").chat_format):
        assert copy.deepcopy(form) is form
        for made in (form, form.without_calls):
            again = pickle.loads(pickle.dumps(made))
            assert again == made
            assert hash(again) == hash(made)
            assert (again.calls is None) is (made.calls is None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reasoning": "some"}, "reasoning must be 'auto', 'none' or a ReasoningFormat"),
        ({"reasoning_budget": -1, "chat_template": OPENED}, "reasoning_budget must be"),
        ({"reasoning_budget": 5}, "it isn't known how the model writes reasoning"),
        ({"parallel_tool_calls": True}, "parallel_tool_calls is given without tools"),
        ({"tools": TOOLS, "chat_template": THINK, "parallel_tool_calls": 1}, "parallel_tool_calls must be"),
        ({"tool_use": ox.ToolUse("hermes"), "echo": True}, "echo"),
    ],
)
def test_bad_options(engine, options, message):
    with pytest.raises(ox.ConfigError, match=message):
        engine.chat(ASK, **options)


@pytest.mark.parametrize("options", [{"regex": "yes|no"}, {"tools": TOOLS, "tool_choice": "required"}])
def test_constraints_hold_from_the_first_token_on_where_the_prompt_ended_the_reasoning(engine, options):
    """Templates end it there for a model that is not to think."""
    closed = THINK + "{% if add_generation_prompt %}<think>\n\n</think>\n\n{% endif %}"
    for seed in range(6):
        answer = engine.chat(ASK, chat_template=closed, max_tokens=60, seed=seed, temperature=1.5, **options)
        assert answer.reasoning == ""
        assert answer.tool_calls if "tools" in options else answer.text in ("yes", "no")


def test_no_budget_is_no_reasoning(engine):
    answer = engine.chat(ASK, chat_template=OPENED, max_tokens=20, seed=1, reasoning_budget=0)
    assert answer.reasoning == ""


def test_content_that_is_gone_on_with_is_behind_the_reasoning(engine):
    said = [*ASK, {"role": "assistant", "content": "Well,"}]
    for seed in range(6):
        answer = engine.chat(
            said, chat_template=THINK, continue_final_message=True, regex=" yes| no", seed=seed, temperature=1.5
        )
        assert (answer.reasoning, answer.text in (" yes", " no")) == ("", True)
