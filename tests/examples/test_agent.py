"""The agent's loop: calls are answered, faults of tools are text for the model, and it ends."""

import json

import pytest

from oxillama.examples import agent


def test_the_loop_looks_something_up_and_ends_with_an_answer(engine):
    messages = agent.run(engine, "Is it warm?", chat_template=agent.PLAIN, max_tokens=80, parallel_tool_calls=False)
    roles = [message["role"] for message in messages]
    assert roles[:3] == ["user", "assistant", "tool"]
    assert roles[-1] == "assistant"
    assert not messages[-1].get("tool_calls")
    (call,) = messages[1]["tool_calls"]
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    assert json.loads(messages[2]["content"]) == {"temperature": agent.temperature, "difference": agent.difference}[
        name
    ](**arguments)


class Endless:
    """An engine whose model calls a tool whenever it may."""

    def __init__(self, call):
        self.call, self.choices = call, []

    def chat(self, messages, *, tool_choice, **options):
        self.choices.append(tool_choice)
        answer = type("Answer", (), {})()
        answer.tool_calls = [] if tool_choice == "none" else [self.call]
        answer.message = {"role": "assistant", "content": "so"}
        return answer


@pytest.mark.parametrize(("arguments", "result"), [
    ({"city": "Rome"}, '{"city": "Rome", "celsius": 27}'),
    ({"city": "Paris"}, "error: "),
    ({}, "error: "),
])  # fmt: skip
def test_a_model_that_only_calls_is_stopped_and_told_its_faults(arguments, result):
    from oxillama.chat.calls import ToolCall

    engine = Endless(ToolCall("temperature", arguments, id="1"))
    messages = agent.run(engine, "?", most_turns=4)
    assert engine.choices == ["required", "auto", "auto", "none"]
    assert [m["role"] for m in messages] == ["user", *["assistant", "tool"] * 3, "assistant"]
    assert all(m["content"].startswith(result) for m in messages if m["role"] == "tool")


def test_it_runs_with_the_model_that_ships(capsys):
    agent.main(["Is it warmer in Oslo?"])
    assert capsys.readouterr().out.startswith("user: Is it warmer in Oslo?\nassistant: ")
