"""Clients that programs use, on a real socket. Those that aren't installed are skipped."""

import json
from typing import Literal

import pytest

from tests.server.client import HI, serving

TOOL = {"type": "function", "function": {"name": "add", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["a"],
    "additionalProperties": False,
}}}  # fmt: skip


@pytest.fixture(scope="module")
def port(engine):
    with serving({"tiny": engine}, api_key="a-long-secret", tool_format="hermes") as (_, port):
        yield port


@pytest.fixture(scope="module")
def openai(port):
    module = pytest.importorskip("openai")
    client = module.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="a-long-secret", max_retries=0)
    with client:
        yield client


def test_openai_answers(openai, engine):
    answer = openai.chat.completions.create(model="tiny", messages=HI, max_tokens=9, temperature=0, logprobs=True)
    assert answer.choices[0].message.content == engine.chat(HI, max_tokens=9, temperature=0).text
    assert len(answer.choices[0].logprobs.content) == answer.usage.completion_tokens == 9
    text = openai.completions.create(model="tiny", prompt="Once", max_tokens=4, temperature=0, echo=True, logprobs=1)
    assert text.choices[0].text == "Once" + engine.generate("Once", max_tokens=4, temperature=0).text


def test_openai_streams(openai, engine):
    with openai.chat.completions.create(
        model="tiny", messages=HI, max_tokens=9, temperature=0, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == engine.chat(HI, max_tokens=9, temperature=0).text
    assert chunks[-1].usage.completion_tokens == 9


def test_openai_puts_calls_together(openai):
    options = {
        "model": "tiny",
        "messages": HI,
        "tools": [TOOL],
        "tool_choice": "required",
        "seed": 2,
        "max_tokens": 200,
    }
    answer = openai.chat.completions.create(**options)
    with openai.chat.completions.stream(**options) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion()
    calls = [
        [(c.function.name, c.function.arguments) for c in a.choices[0].message.tool_calls] for a in (answer, streamed)
    ]
    assert calls[0] == calls[1]
    assert json.loads(calls[0][0][1])["a"] in range(10)


def test_openai_parses_answers(openai):
    pydantic = pytest.importorskip("pydantic")

    class Person(pydantic.BaseModel):
        age: int = pydantic.Field(ge=0, le=99)

    answer = openai.chat.completions.parse(model="tiny", messages=HI, response_format=Person, seed=1)
    assert 0 <= answer.choices[0].message.parsed.age <= 99


def test_openai_knows_errors(openai):
    import openai as module

    with pytest.raises(module.BadRequestError) as raised:
        openai.chat.completions.create(model="tiny", messages=HI, temperature=9)
    assert raised.value.param == "temperature"
    with pytest.raises(module.NotFoundError):
        openai.chat.completions.create(model="other", messages=HI)
    with pytest.raises(module.AuthenticationError):
        openai.with_options(api_key="wrong").models.list()
    assert [one.id for one in openai.models.list()] == ["tiny"]


def test_openai_reads_responses(openai, engine):
    answer = openai.responses.create(model="tiny", input="hi", max_output_tokens=9, temperature=0)
    assert answer.output_text == engine.chat(HI, max_tokens=9, temperature=0).text
    assert answer.usage.output_tokens == 9
    tool = {"type": "function", "strict": True, **TOOL["function"]}
    with openai.responses.stream(model="tiny", input="hi", tools=[tool], tool_choice="required") as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] in ("response.completed", "response.incomplete")
    assert final.output[0].name == "add"


def test_openai_embeds(openai, engine):
    found = openai.embeddings.create(model="tiny", input=["a", "b"])
    assert [list(one.embedding) for one in found.data] == engine.embed(["a", "b"]).tolist()


@pytest.fixture(scope="module")
def anthropic(port):
    module = pytest.importorskip("anthropic")
    with module.Anthropic(base_url=f"http://127.0.0.1:{port}", api_key="a-long-secret", max_retries=0) as client:
        yield client


def test_anthropic_answers(anthropic, engine):
    alone = engine.chat(HI, max_tokens=9, temperature=0).text
    options = {"model": "tiny", "messages": HI, "max_tokens": 9, "extra_body": {"temperature": 0}}
    answer = anthropic.messages.create(**options)
    assert (answer.content[0].text, answer.stop_reason) == (alone, "max_tokens")
    with anthropic.messages.stream(**options) as stream:
        assert "".join(stream.text_stream) == alone
        assert stream.get_final_message().usage.output_tokens == 9
    count = anthropic.messages.count_tokens(model="tiny", messages=HI)
    assert count.input_tokens == len(engine.chat_tokens(HI))


def test_anthropic_puts_calls_together(anthropic):
    tool = {"name": "add", "input_schema": TOOL["function"]["parameters"]}
    with anthropic.messages.stream(
        model="tiny", messages=HI, max_tokens=300, tools=[tool], tool_choice={"type": "tool", "name": "add"}
    ) as stream:
        final = stream.get_final_message()
    assert final.content[0].input["a"] in range(10)
    assert final.stop_reason == "tool_use"


CALLS = (
    "{{ tools | tojson }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    '{% for c in m.tool_calls %}<tool_call>{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}</tool_call>{% endfor %}{% endfor %}<|assistant|>"
)


def test_anthropic_runs_tools_though_no_thread_is_kept(engine, tmp_path):
    module = pytest.importorskip("anthropic", minversion="2")  # whose runners keep conversations by their ids
    (tmp_path / "calls.jinja").write_text(CALLS)
    given = []

    @module.beta_tool
    def add(a: Literal[1, 2, 3]) -> str:
        """Adds."""
        given.append(a)
        return str(a)

    with serving({"tiny": engine}, chat_template=str(tmp_path / "calls.jinja")) as (_, port):
        client = module.Anthropic(base_url=f"http://127.0.0.1:{port}", api_key="none", max_retries=0)
        runner = client.beta.messages.tool_runner(
            model="tiny", messages=HI, max_tokens=300, tools=[add], max_iterations=4,
            tool_choice={"type": "tool", "name": "add"},
        )  # fmt: skip
        with client:
            kinds = [[block.type for block in message.content] for message in runner]
    assert kinds == [["tool_use"]] * 4
    assert len(given) == 4
    assert set(given) <= {1, 2, 3}


def test_anthropic_knows_errors(anthropic):
    import anthropic as module

    with pytest.raises(module.BadRequestError, match="temperature"):
        anthropic.messages.create(model="tiny", messages=HI, max_tokens=9, extra_body={"temperature": 2})
    with pytest.raises(module.NotFoundError):
        anthropic.messages.create(model="other", messages=HI, max_tokens=9)
