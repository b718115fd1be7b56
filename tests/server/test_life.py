"""Time limits, failures within answers, what runs in which thread, and the log."""

import asyncio
import json
import logging
import threading

import pytest

import oxillama.server.respond as generating
from oxillama.server import ServerConfig, answers, create_app
from tests.server.client import HI, Client

CHAT = "/v1/chat/completions"
LONG = {"messages": HI, "max_tokens": 900, "ignore_eos": True}


def test_answers_that_take_too_long(configured):
    client = configured(request_timeout=0.02)
    answer = client.post(CHAT, LONG)
    assert (answer.status, answer.error["code"], answer.error["type"]) == (504, "timeout", "server_error")
    *events, (_, last) = client.post(CHAT, LONG | {"stream": True}).events
    assert last["error"]["code"] == "timeout"
    assert all(data["choices"][0]["finish_reason"] is None for _, data in events)
    events = client.post("/v1/responses", input="hi", ignore_eos=True, max_output_tokens=900, stream=True).events
    assert events[-1][0] == "response.failed"


@pytest.mark.parametrize("stream", [False, True])
def test_a_fault_says_nothing_of_itself(configured, monkeypatch, caplog, stream):
    """It is in the log, under the id of the request."""
    client = configured()

    async def broken(self):
        raise RuntimeError("secret detail")

    monkeypatch.setattr(generating.GenerationRun, "next", broken)
    answer = client.post(CHAT, {**LONG, "stream": stream}, {"x-request-id": "mine"})
    error = answer.events[-1][1]["error"] if stream else answer.error
    assert answer.status == (200 if stream else 500)
    assert (error["code"], error["type"]) == ("internal_error", "server_error")
    assert "secret detail" not in answer.body.decode()
    assert "mine" in error["message"]
    assert any("mine" in record.message and record.exc_info for record in caplog.records)
    assert client.app.service.gate.running == 0


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
def test_a_stream_ends_in_an_error_event_where_a_step_cannot_be_encoded(client, monkeypatch, path):
    read = answers.DeltaReader.read

    def halved(self, chunk):
        found = read(self, chunk)
        found.text = "\ud800"
        return found

    monkeypatch.setattr(answers.DeltaReader, "read", halved)
    answer = client.post(path, messages=HI, max_tokens=9, stream=True)
    assert answer.events[-1][1]["error"]["type"] == ("server_error" if path == CHAT else "api_error")


def test_prompts_are_prepared_outside_of_the_event_loop(configured, monkeypatch):
    names = []
    prepare = generating.prepare

    def seen(ask):
        names.append(threading.current_thread().name)
        return prepare(ask)

    monkeypatch.setattr(generating, "prepare", seen)
    client = configured()
    for path, fields in {
        CHAT: {"messages": HI, "max_tokens": 1, "regex": "a"},
        "/v1/completions": {"prompt": "a", "max_tokens": 1},
        "/v1/messages": {"messages": HI, "max_tokens": 1},
        "/v1/responses": {"input": "a", "max_output_tokens": 1},
    }.items():
        assert client.post(path, fields).status == 200
    assert len(names) == 4
    assert all(name.startswith("oxillama-prepare") for name in names)


def test_other_requests_are_answered_while_a_grammar_is_compiled(configured, monkeypatch):
    entered, go_on = threading.Event(), threading.Event()
    prepare = generating.prepare

    def slow(ask):
        entered.set()
        assert go_on.wait(60)
        return prepare(ask)

    monkeypatch.setattr(generating, "prepare", slow)
    client = configured()

    async def main():
        body = json.dumps({"messages": HI, "max_tokens": 1}).encode()
        task = asyncio.ensure_future(client.acall("POST", CHAT, body, {"content-type": "application/json"}))
        while not entered.is_set():
            await asyncio.sleep(0.001)
        assert (await client.acall("GET", "/health", b"", {})).status == 200
        go_on.set()
        assert (await task).status == 200

    asyncio.run(main())


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "oxillama.access")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "oxillama.access"]


def test_a_line_for_each_request_without_its_text(configured, lines):
    client = configured(log_format="json")
    client.post(
        CHAT, {"messages": [{"role": "user", "content": "a secret"}], "max_tokens": 2}, {"x-request-id": "mine"}
    )
    client.get("/no thing\n")
    first, second = (json.loads(line) for line in lines())
    assert (first["id"], first["status"], first["model"]) == ("mine", 200, "tiny")
    assert (first["completion_tokens"], first["finish_reason"]) == (2, "length")
    assert first["prompt_tokens"] > 0
    assert 0 < first["ttft_ms"] <= first["total_ms"]
    assert (second["status"], second["finish_reason"]) == (404, "unknown_url")
    assert "secret" not in str(lines())


def test_lines_of_text_stay_lines(configured, lines):
    configured().get("/no thing\nid=forged")
    (line,) = lines()
    assert "\n" not in line
    assert 'path="/no thing\\nid=forged"' in line


def test_content_is_logged_where_it_is_asked_for(configured, lines, engine):
    configured(log_content=True).post(CHAT, messages=HI, max_tokens=5, temperature=0)
    assert engine.chat(HI, max_tokens=5, temperature=0).text.split()[0] in lines()[0]


@pytest.mark.parametrize("leave_after", [0, 1, 2, 4])
def test_clients_that_leave(engine, lines, leave_after):
    """They are counted, logged as 499, and nothing of them stays."""
    client = Client(create_app({"tiny": engine}, ServerConfig()))
    body = json.dumps(LONG | {"stream": True}).encode()

    async def main():
        headers = {"content-type": "application/json"}
        await client.acall("POST", CHAT, body, headers, leave_after=leave_after)
        async with asyncio.timeout(10):
            while engine.metrics_snapshot().running:
                await asyncio.sleep(0.002)

    asyncio.run(main())
    assert client.app.service.metrics.disconnects == 1
    assert "status=499" in lines()[0]
    assert not client.app.service.open
    assert client.app.service.gate.running == 0


def test_an_application_that_is_mounted_finds_its_paths(engine):
    from starlette.applications import Starlette
    from starlette.routing import Mount

    outer = Starlette(
        routes=[Mount("/models", app=create_app({"tiny": engine}, ServerConfig(api_key="a-long-secret")))]
    )
    client = Client(outer)
    assert client.get("/models/health").status == 200
    assert client.get("/models/v1/models").status == 401
    answer = client.post("/models" + CHAT, {"messages": HI, "max_tokens": 2}, {"x-api-key": "a-long-secret"})
    assert answer.json["usage"]["completion_tokens"] == 2


def test_a_key_has_half_of_the_threads(configured, tmp_path):
    file = tmp_path / "keys"
    file.write_text("ann:a-long-secret\nbob:another-secret\n")
    service = configured(api_key_file=str(file)).app.service

    async def main():
        held, running = threading.Event(), []

        def hold():
            running.append(1)
            held.wait(60)

        mine = [asyncio.ensure_future(service.elsewhere(hold, "ann")) for _ in range(6)]
        assert await service.elsewhere(lambda: len(running), "bob") <= 2
        assert await asyncio.wait_for(service.elsewhere(lambda: 5, "bob"), 30) == 5
        held.set()
        await asyncio.gather(*mine)
        assert len(running) == 6

    asyncio.run(main())
