"""Ollama's own clients on a real socket, of Python and of Node. Those that aren't installed are skipped."""

import asyncio
import json
import shutil
import subprocess
from datetime import datetime

import numpy as np
import pytest

import oxillama as ox
from oxillama.server.models import ServedModel
from tests.server.client import HI, serving

GREEDY = {"temperature": 0, "num_predict": 9}
SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["age"],
}
KEY = "a-long-secret"


def add(a: int, b: int = 1) -> int:
    """Adds two numbers.

    Args:
        a: one of them
        b: the other
    """
    return a + b


@pytest.fixture(scope="module")
def port(engine):
    later = ServedModel("later", load=lambda: ox.load(num_threads=1), at_start=False)
    with serving({"tiny": engine, "later": later}, tool_format="hermes", ollama=True) as (_, port):
        yield port


@pytest.fixture(scope="module")
def module():
    return pytest.importorskip("ollama", reason="the package ollama is missing: pip install '.[clients]'")


@pytest.fixture(scope="module")
def python(port, module):
    client = module.Client(host=f"http://127.0.0.1:{port}")
    yield client
    client._client.close()


def test_python_chats(python, engine):
    alone = engine.chat(HI, max_tokens=9, temperature=0)
    answer = python.chat("tiny", HI, options=GREEDY)
    assert (answer.message.content, answer.done_reason, answer.eval_count) == (alone.text, "length", 9)
    assert answer.total_duration >= answer.eval_duration > 0
    parts = list(python.chat("tiny:latest", HI, options=GREEDY, stream=True))
    assert "".join(part.message.content for part in parts) == alone.text
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]


def test_python_generates(python, engine):
    alone = engine.chat(HI, max_tokens=9, temperature=0).text
    first = python.generate("tiny", "hi", options=GREEDY)
    assert first.response == alone
    second = python.generate("tiny", "hi", context=first.context, options=GREEDY, system="Be brief.")
    assert list(second.context[: len(first.context)]) == list(first.context)
    assert "".join(part.response for part in python.generate("tiny", "hi", options=GREEDY, stream=True)) == alone
    raw = python.generate("tiny", "Once", raw=True, options=GREEDY)
    assert raw.response == engine.generate("Once", max_tokens=9, temperature=0).text


def test_python_holds_schemas_and_gives_tools(python):
    answer = python.chat("tiny", HI, format=SCHEMA, options={"temperature": 0})
    assert json.loads(answer.message.content)["age"] in range(100)
    answer = python.chat("tiny", HI, tools=[add], think=False, options=GREEDY)
    assert answer.message.role == "assistant"


def test_python_sends_calls_and_their_results_back(python):
    told = [
        *HI,
        {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}]},
        {"role": "tool", "tool_name": "add", "content": "2"},
    ]
    assert python.chat("tiny", told, options={"num_predict": 4}).message.content  # calls and results are text


def test_python_embeds(python, engine):
    found = python.embed("tiny", ["a", "b"])
    assert np.float32(found.embeddings).tolist() == engine.embed(["a", "b"]).tolist()
    assert np.float32(python.embeddings("tiny", "a").embedding).tolist() == engine.embed("a").tolist()


def test_python_sees_models(python):
    assert [one.model for one in python.list().models] == ["tiny:latest", "later:latest"]
    shown = python.show("tiny")
    assert (shown.details.family, shown.capabilities[0]) == ("llama", "completion")
    assert shown.modelinfo["llama.context_length"] == 1024
    assert isinstance(shown.modified_at, datetime)
    assert python.generate("later").done_reason == "load"
    assert "later:latest" in [one.model for one in python.ps().models]
    assert python.generate("later", keep_alive=0).done_reason == "unload"
    assert [one.model for one in python.ps().models] == ["tiny:latest"]


def test_python_knows_errors(python, module):
    calls = (
        (404, "model 'other' not found", lambda: python.chat("other", HI)),
        (404, "model 'other' not found", lambda: list(python.chat("other", HI, stream=True))),
        (400, "messages[0].images: pictures are not read",
         lambda: python.chat("tiny", [{**HI[0], "images": [b"picture"]}])),
        (501, "models are files", lambda: python.pull("llama3.2")),
        (501, "models are files", lambda: list(python.pull("llama3.2", stream=True))),
        (501, "models are files", lambda: python.delete("tiny")),
        (501, "models are files", lambda: python.copy("tiny", "other")),
        (501, "models are files", lambda: python.create("mine", from_="tiny", system="x")),
    )  # fmt: skip
    for status, said, call in calls:
        with pytest.raises(module.ResponseError) as raised:
            call()
        assert raised.value.status_code == status
        assert said in raised.value.error


def test_python_waits_for_many(module, port, engine):
    alone = engine.chat(HI, max_tokens=9, temperature=0).text

    async def main():
        client = module.AsyncClient(host=f"http://127.0.0.1:{port}")
        answers = await asyncio.gather(*(client.chat("tiny", HI, options=GREEDY) for _ in range(4)))
        texts = [part.message.content async for part in await client.chat("tiny", HI, options=GREEDY, stream=True)]
        await client._client.aclose()
        return {answer.message.content for answer in answers}, "".join(texts)

    assert asyncio.run(main()) == ({alone}, alone)


def test_python_sends_keys(module, engine):
    with serving({"tiny": engine}, api_key=KEY) as (_, port):
        for headers, known in (({"Authorization": f"Bearer {KEY}"}, True), ({}, False)):
            client = module.Client(host=f"http://127.0.0.1:{port}", headers=headers)
            if known:
                assert client.chat("tiny", HI, options=GREEDY).done
            else:
                with pytest.raises(module.ResponseError, match="a key is missing"):
                    client.list()
            client._client.close()


SCRIPT = """
import { Ollama } from 'ollama'
const ollama = new Ollama({ host: process.argv[2] })
const options = { temperature: 0, num_predict: 9 }, messages = [{ role: 'user', content: 'hi' }]
const found = {}
found.chat = await ollama.chat({ model: 'tiny', messages, options })
found.parts = []
for await (const part of await ollama.chat({ model: 'tiny', messages, options, stream: true })) found.parts.push(part)
found.texts = []
for await (const part of await ollama.generate({ model: 'tiny', prompt: 'hi', options, stream: true })) {
  found.texts.push(part.response)
}
found.generate = await ollama.generate({ model: 'tiny', prompt: 'hi', options })
found.embed = await ollama.embed({ model: 'tiny', input: ['a', 'b'] })
found.embeddings = await ollama.embeddings({ model: 'tiny', prompt: 'a' })
found.list = (await ollama.list()).models.map((one) => one.name)
found.show = (await ollama.show({ model: 'tiny' })).capabilities
found.ps = (await ollama.ps()).models.length
found.version = await ollama.version()
found.errors = []
for (const call of [
  () => ollama.chat({ model: 'other', messages }),
  () => ollama.pull({ model: 'other' }),
  () => ollama.delete({ model: 'other' }),
  () => ollama.chat({ model: 'tiny', messages: [{ ...messages[0], images: [new Uint8Array([1, 2])] }] }),
]) {
  try { await call(); found.errors.push(null) } catch (error) { found.errors.push([error.status_code, error.message]) }
}
const endless = { num_predict: 900, ignore_eos: true }
const long = await ollama.chat({ model: 'tiny', messages, options: endless, stream: true })
setTimeout(() => ollama.abort(), 50)
try { for await (const _ of long); found.aborted = false } catch (error) { found.aborted = error.name === 'AbortError' }
console.log(JSON.stringify(found))
"""


def test_node(port, engine, tmp_path):
    """The package is found where Node finds it from the folder of the tests: npm install ollama, or NODE_PATH."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is missing")
    asked = [node, "-p", "require.resolve('ollama')"]
    resolved = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=False)
    if resolved.returncode:
        pytest.skip("Node's package ollama is missing: npm install ollama, here or in a folder of NODE_PATH")
    package = resolved.stdout.strip().rpartition("/ollama/")[0]
    (tmp_path / "node_modules").symlink_to(package)
    script = tmp_path / "script.mjs"
    script.write_text(SCRIPT)
    host = f"http://127.0.0.1:{port}"
    done = subprocess.run([node, script, host], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    alone = engine.chat(HI, max_tokens=9, temperature=0).text
    assert found["chat"]["message"] == {"role": "assistant", "content": alone}
    assert "".join(part["message"]["content"] for part in found["parts"]) == alone
    assert (found["parts"][-1]["done"], found["parts"][-1]["eval_count"]) == (True, 9)
    assert "".join(found["texts"]) == found["generate"]["response"] == alone
    assert np.float32(found["embed"]["embeddings"]).tolist() == engine.embed(["a", "b"]).tolist()
    assert np.float32(found["embeddings"]["embedding"]).tolist() == engine.embed("a").tolist()
    assert found["list"] == ["tiny:latest", "later:latest"]
    assert (found["show"], found["ps"] >= 1) == (["completion", "tools"], True)
    assert found["version"]["version"]
    assert found["aborted"] is True
    (chat, pull, delete, picture) = found["errors"]
    assert (chat, pull[0], delete[0]) == ([404, "model 'other' not found"], 501, 501)
    assert picture == [400, "messages[0].images: pictures are not read"]
