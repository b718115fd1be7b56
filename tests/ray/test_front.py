"""A front before replicas that fail, hang or are gone; Ray is imported for its errors alone."""

import asyncio
import json

import pytest

from oxillama.ray.front import ATTEMPTS, Front, _prompt
from oxillama.server import ServerConfig

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]

START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
JSON = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
PART = {"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True}
LAST = {"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False}


class Handle:
    """Replicas, each of which gives these lists of messages, or raises; what comes after the last hangs."""

    def __init__(self, *replicas):
        self.replicas, self.n_asked, self.n_left = list(replicas), 0, 0
        self.answer = self

    def remote(self, request):
        self.n_asked += 1
        return Stream(self, self.replicas.pop(0) if self.replicas else [])


class Stream:
    def __init__(self, handle, steps):
        self.handle, self.steps = handle, list(steps)

    def __aiter__(self):
        return self

    async def __anext__(self):
        step = self.steps.pop(0) if self.steps else "hang"
        if step == "hang":
            await asyncio.sleep(1000)
        if isinstance(step, Exception):
            raise step
        return step

    def cancel(self):
        self.handle.n_left += 1


@pytest.fixture
def lost():
    return pytest.importorskip("ray").exceptions.ActorDiedError()


def ask(*replicas, path="/v1/completions", leave=False, **settings):
    """(messages that were sent, handle)"""
    pytest.importorskip("ray.serve")
    front, sent = Front("Replica", ServerConfig(**settings)), []
    front._handle = handle = Handle(*replicas)
    came = [{"type": "http.request", "body": b'{"prompt": "a"}', "more_body": False}]

    async def receive():
        if came:
            return came.pop()
        await asyncio.sleep(0.05 if leave else 1000)
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": []}
    asyncio.run(asyncio.wait_for(front(scope, receive, send), 30))
    return sent, handle


def error_of(sent):
    assert sent[0]["status"] >= 400
    return sent[0]["status"], json.loads(sent[1]["body"])["error"]


END = StopAsyncIteration()


def test_a_request_of_which_nothing_was_sent_is_given_to_another(lost):
    sent, handle = ask([[], [START], lost], [lost], [[], [START, PART], [LAST], END])
    assert sent == [START, PART, LAST]
    assert handle.n_asked == handle.n_left == 3


def test_after_some_replicas_it_is_an_error(lost):
    sent, handle = ask(*[[lost]] * 9)
    status, error = error_of(sent)
    assert (status, error["code"], handle.n_asked) == (503, "replica_lost", ATTEMPTS)


def test_a_request_that_changes_a_replica_is_not_repeated(lost):
    sent, handle = ask([lost], [[], [JSON, LAST], END], path="/admin/drain")
    assert (error_of(sent)[0], handle.n_asked) == (503, 1)


def test_a_stream_that_had_begun_ends_with_an_error(lost):
    sent, handle = ask([[], [START, PART], lost], [[], [START, LAST], END])
    assert sent[:2] == [START, PART]
    assert sent[2]["body"].startswith(b'data: {"error"')
    assert (len(sent), handle.n_asked, sent[2].get("more_body", False)) == (3, 1, False)
    sent, _ = ask([[], [START, PART], lost], path="/v1/messages")
    assert sent[2]["body"].startswith(b"event: error\ndata: ")


def test_another_answer_that_had_begun_is_cut_off(lost):
    with pytest.raises(Exception, match="is gone"):  # the server closes the connection then
        ask([[], [JSON, PART], lost])


def test_replicas_that_take_nothing_in_time(lost):
    sent, _ = ask([], queue_timeout=0.05)
    assert error_of(sent)[1]["code"] == "queue_timeout"


def test_a_full_queue_is_a_429(lost):
    full = pytest.importorskip("ray.serve.exceptions").BackPressureError(num_queued_requests=9, max_queued_requests=9)
    sent, handle = ask([full])
    assert (error_of(sent)[0], handle.n_asked) == (429, 1)


def test_a_client_that_leaves_leaves_its_replica():
    sent, handle = ask([[], [START, PART], "hang"], leave=True)
    assert sent == [START, PART]
    assert handle.n_left == 1


def test_deep_bodies_are_the_replicas_to_refuse():
    for depth in (*range(700, 1000), 200_000):  # the parser has one limit, and what walks through the value another
        assert _prompt(b'{"prompt": ' + b"[" * depth + b"]" * depth + b"}") == ("", "")
