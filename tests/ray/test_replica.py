"""A replica by itself, without Ray."""

import asyncio
import json

import pytest

import oxillama as ox
from oxillama.ray.prefix import ForwardedRequest
from oxillama.ray.replica import Replica
from oxillama.server import ServerConfig


@pytest.fixture(scope="module")
def replica():
    made = Replica(ox.EngineConfig(num_threads=1, context_size=512), ServerConfig(), "tiny")
    yield made
    made.engine.close()


def request_of(path, **fields):
    scope = {
        "type": "http", "method": "POST" if fields else "GET", "path": path, "raw_path": path.encode(),
        "query_string": b"", "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "root_path": "", "http_version": "1.1", "scheme": "http", "client": None, "server": None,
    }  # fmt: skip
    return ForwardedRequest(scope, json.dumps(fields).encode() if fields else b"", "-", "-")


async def whole(replica, request):
    lists = [messages async for messages in replica.answer(request)]
    assert lists[0] == []
    start, *bodies = [message for messages in lists for message in messages]
    return start["status"], b"".join(message["body"] for message in bodies)


def test_it_answers_as_its_engine_does(replica):
    status, body = asyncio.run(
        whole(replica, request_of("/v1/completions", prompt="Once", temperature=0, max_tokens=9))
    )
    assert status == 200
    expected = replica.engine.generate("Once", temperature=0, max_tokens=9).text
    assert json.loads(body)["choices"][0]["text"] == expected
    assert asyncio.run(whole(replica, request_of("/v1/completions", promt="Once")))[0] == 400


def test_a_caller_that_leaves_ends_its_request(replica):
    async def leave():
        fields = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True}
        answer = replica.answer(request_of("/v1/completions", **fields))
        async for messages in answer:
            if any(message.get("body") for message in messages):
                break
        assert replica.engine.metrics_snapshot().running == 1
        await answer.aclose()
        assert not replica.app.service.open
        while replica.engine.metrics_snapshot().running:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(leave(), 60))


def test_its_health_is_what_ready_says(replica):
    assert asyncio.run(whole(replica, request_of("/ready")))[0] == 200
    asyncio.run(replica.check_health())
    replica.app.service.draining = True
    try:
        assert asyncio.run(whole(replica, request_of("/ready")))[0] == 503
        with pytest.raises(RuntimeError, match="tiny is draining"):
            asyncio.run(replica.check_health())
    finally:
        replica.app.service.draining = False


def test_a_model_that_cannot_be_loaded_is_no_replica(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(ox.GGUFError):
        Replica(ox.EngineConfig(tmp_path / "m.gguf"), ServerConfig(), "")
