"""A key, or an address, beside another one that has filled places, queue and steps: counts of steps, no times."""

import asyncio
import contextlib
import json
import sys
from collections import Counter

import pytest

import oxillama as ox
from oxillama.server import ServerConfig, create_app
from tests.fakes import core_of
from tests.server.client import Client, serving

ANN, BOB = "ann-secret-key", "bob-secret-key"
LONG = "the cat sat on a mat and saw how many ships went over the sea while rain fell in the old town " * 8
STEPS = 3  # until the first token: the step under way, its own, and one more of another owner

FLOODS = {
    "long answers": ("/v1/completions", {"prompt": "Once", "max_tokens": 500, "ignore_eos": True, "stream": True}),
    "many choices": ("/v1/completions", {"prompt": "Once", "max_tokens": 500, "ignore_eos": True, "n": 8}),
    "lists of long prompts": ("/v1/completions", {"prompt": [LONG] * 16, "max_tokens": 400, "ignore_eos": True}),
    "conversations": ("/api/chat", {"model": "tiny", "messages": [{"role": "user", "content": LONG}],
                                    "options": {"num_predict": 500}}),
    "texts to embed": ("/v1/embeddings", {"input": [f"{i} {LONG}" for i in range(128)]}),
}  # fmt: skip
ASKS = {
    "/v1/completions": {"prompt": "The old", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "stream": True},
    "/v1/messages": {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    "/v1/responses": {"input": "hi", "max_output_tokens": 2},
    "/api/generate": {"model": "tiny", "prompt": "hi", "stream": False, "options": {"num_predict": 2}},
    "/v1/embeddings": {"input": "a red ball"},
    "/tokenize": {"prompt": "a red ball"},
}


@pytest.fixture(scope="module")
def small():
    """An engine whose KV cache holds few of the flood's texts."""
    with ox.load(num_threads=1, kv_budget=4 << 20, context_size=1024) as loaded:
        yield loaded


@pytest.fixture
def waited(small, monkeypatch):
    """Steps in which each sequence of an owner was live and had no token, by (owner, id)."""
    scheduler, seen = core_of(small).scheduler, Counter()
    step = scheduler.step

    def counted(*given):
        plan = step(*given)
        for s in scheduler.live.values():
            seen[s.owner, s.id] += len(s.tokens) == s.n_prompt
        return plan

    monkeypatch.setattr(scheduler, "step", counted)
    return seen


@contextlib.asynccontextmanager
async def flooded(app, ask, **who):
    """A server whose places and queue are full of one owner's requests, of which others follow as they end."""
    client = Client(app)
    path, body = ask
    data, headers = json.dumps(body).encode(), {"content-type": "application/json", **who.pop("headers", {})}
    tasks = []

    async def again():
        while True:
            await client.acall("POST", path, data, headers, **who)
            await asyncio.sleep(0)

    gate = app.service.gate
    while gate.waiting < app.service.config.max_queue:
        tasks.append(asyncio.ensure_future(again()))
        await asyncio.sleep(0.001)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def asked(app, path, **who):
    headers = {"content-type": "application/json", **who.pop("headers", {})}
    return await Client(app).acall("POST", path, json.dumps(ASKS[path]).encode(), headers, **who)


@pytest.mark.parametrize("max_running", [1, 4])
@pytest.mark.parametrize("name", FLOODS)
def test_a_key_beside_a_flood_of_another(small, waited, tmp_path, name, max_running):
    keys = tmp_path / "keys"
    keys.write_text(f"ann:{ANN}\nbob:{BOB}\n")
    config = ServerConfig(api_key_file=str(keys), max_running=max_running, max_queue=4)
    app = create_app({"tiny": small}, config)

    async def main():
        async with flooded(app, FLOODS[name], headers={"x-api-key": ANN}):
            return [(await asked(app, path, headers={"x-api-key": BOB})).status for path in ASKS]

    assert asyncio.run(main()) == [200] * len(ASKS)
    assert max(n for (owner, _), n in waited.items() if owner == "key bob") <= STEPS


def test_an_address_beside_a_flood_of_another_where_there_are_no_keys(small, waited):
    app = create_app({"tiny": small}, ServerConfig(max_running=2, max_queue=4))

    async def main():
        async with flooded(app, FLOODS["long answers"], peer="192.0.2.1"):
            return [(await asked(app, path, peer="192.0.2.2")).status for path in ASKS]

    assert asyncio.run(main()) == [200] * len(ASKS)
    assert max(n for (owner, _), n in waited.items() if owner == "peer 192.0.2.2") <= STEPS


def test_what_is_written_beside_a_flood_is_what_is_written_alone(small):
    app = create_app({"tiny": small}, ServerConfig(max_running=2, max_queue=4))
    body = json.dumps({"prompt": LONG, "max_tokens": 40, "seed": 3, "temperature": 1.0}).encode()
    headers = {"content-type": "application/json"}

    async def text():
        answer = await Client(app).acall("POST", "/v1/completions", body, headers, peer="192.0.2.2")
        return answer.json["choices"][0]["text"]

    async def main():
        async with flooded(app, FLOODS["many choices"], peer="192.0.2.1"):
            return await asyncio.gather(*(text() for _ in range(3)))

    alone = asyncio.run(text())
    assert asyncio.run(main()) == [alone] * 3


def test_the_event_loop_waits_little_for_other_threads(small):
    before = sys.getswitchinterval()
    with serving({"tiny": small}):
        while sys.getswitchinterval() == before:
            pass
        assert sys.getswitchinterval() < 0.001
    assert sys.getswitchinterval() == before
