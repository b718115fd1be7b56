"""Coding agents: every request of a conversation of theirs is answered, and computes only what is new in it."""

import json
import re
from pathlib import Path

import pytest

import oxillama as ox
from oxillama import server
from oxillama.server import ServerConfig, create_app
from tests.server.agents.record import longest
from tests.server.agents.shapes import body, shape, turns
from tests.server.client import Client

# What each asks for that no model here can do, as the header says it.
AGENTS = {
    "claude-code-2.1.197": "output_config.effort",
    "codex-0.171.0": "tools[4].description, tools[8].type=web_search, reasoning.summary",
    "opencode-1.18.33": None,
    "pi-0.73.1": None,
}
SCALE = 32  # of texts, which are tens of thousands of tokens
CONTEXT = 16_000
MOST = ("max_tokens", "max_completion_tokens", "max_output_tokens")
CALLS = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    '{% for c in m.tool_calls %}<tool_call>{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}</tool_call>{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="module")
def engine():
    with ox.load(num_threads=1, context_size=CONTEXT, overrides={"llama.context_length": CONTEXT}) as loaded:
        yield loaded


@pytest.fixture
def client(engine, tmp_path):
    (tmp_path / "calls.jinja").write_text(CALLS)
    settings = ServerConfig(chat_template=str(tmp_path / "calls.jinja"), served_model_name="*")
    return Client(create_app({"tiny": engine}, settings))


def used(answer):
    """(tokens of the prompt, those found in the prefix cache) of a stream of any dialect."""
    found = {}
    for _, data in answer.events:
        if isinstance(data, dict):
            said = data.get("response") or data.get("message") or data
            found = said.get("usage") or found
    details = found.get("prompt_tokens_details") or found.get("input_tokens_details") or {}
    cached = details.get("cached_tokens", found.get("cache_read_input_tokens", 0))
    prompt = found.get("prompt_tokens", found.get("input_tokens"))
    return (prompt + cached if "cache_read_input_tokens" in found else prompt), cached


@pytest.mark.parametrize("agent", AGENTS)
def test_a_conversation_is_answered_and_computes_what_is_new(client, engine, agent):
    before = 0
    requests = list(turns(agent, SCALE))
    assert len(requests) >= 7
    for path, asked in requests:
        most = next((name for name in asked if name in MOST), "max_output_tokens")
        answer = client.post(path, {**asked, "temperature": 0, most: 8})
        assert answer.status == 200, answer.body
        assert answer.headers.get("x-oxillama-left-out") == AGENTS[agent]
        assert answer.headers["content-type"].startswith("text/event-stream")
        prompt, cached = used(answer)
        assert cached >= before - 8  # the answer that it has is not the one that was given
        before = prompt
    assert before < CONTEXT


def test_tokens_of_its_prompt_are_counted(client):
    *_, (path, asked) = turns("claude-code-2.1.197", SCALE)
    counted = {name: asked[name] for name in ("model", "messages", "system", "tools")}
    n = client.post(f"{path}/count_tokens?beta=true", counted).json["input_tokens"]
    answer = client.post(f"{path}?beta=true", {**asked, "stream": False, "max_tokens": 1}).json
    assert sum(answer["usage"][name] for name in ("input_tokens", "cache_read_input_tokens")) == n


def test_a_prompt_that_is_too_long_is_told_in_words_that_the_agent_compacts_by(client):
    *_, (path, asked) = turns("claude-code-2.1.197")
    answer = client.post(path, asked)
    assert answer.status == 400
    assert answer.json["error"]["message"].startswith("prompt is too long: ")
    assert f"tokens > {CONTEXT} maximum" in answer.json["error"]["message"]


@pytest.mark.parametrize("agent", AGENTS)
def test_the_page_of_recipes_says_what_is_left_out(agent):
    name, _, version = agent.rpartition("-")
    page = (Path(server.__file__).parent / "CLIENTS.md").read_text()
    (row,) = re.findall(
        rf"^\| ({name.replace('-', ' ')} {re.escape(version)} \|.*)$", page, re.MULTILINE | re.IGNORECASE
    )
    said = AGENTS[agent]
    assert "nothing" in row if said is None else all(f"`{one}`" in row for one in said.split(", "))


def test_recorded_bodies_hold_no_text():
    made = {
        "messages": [
            {"role": "user", "content": "a secret"},
            {
                "role": "assistant",
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "f", "arguments": json.dumps({"path": "a secret"})},
                    }
                ],
            },
        ]
    }
    found = longest([("/v1/chat/completions", {"messages": made["messages"][:1]}), ("/v1/chat/completions", made)])
    assert "secret" not in json.dumps(found)
    assert found["turns"] == [1, 2]
    again = body(found["body"])
    assert shape(again) == found["body"]
    assert len(again["messages"][0]["content"]) == len("a secret")
    assert json.loads(again["messages"][1]["tool_calls"][0]["function"]["arguments"]) == {"path": "the fox "}
