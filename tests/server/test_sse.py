"""Writers of streams: signs of life in silence, and clients that are cut off."""

import asyncio

import pytest

from oxillama.server.errors import ClientGone
from oxillama.server.routes.messages import MessageDialect
from oxillama.server.sse import SSE, EventWriter, JsonLines


def writer_of(send, aborted, **changed):
    options = {"stall": 60.0, "most": 1 << 20, "ping": 60.0, "behind": lambda: 0, "alive": SSE.alive} | changed
    return EventWriter(send, abort=lambda: aborted.append(True), **options)


def empty():
    return None, {"done": False}


@pytest.mark.parametrize(
    ("format", "filling"),
    [
        (SSE, b": keep-alive\n\n"),
        (MessageDialect.stream_format, b'event: ping\ndata: {"type": "ping"}\n\n'),
        (JsonLines(empty), b'{"done":false}\n'),
    ],
)
def test_silence_is_filled(format, filling):
    sent = []

    async def send(message):
        sent.append(message["body"])

    async def main():
        async with writer_of(send, [], ping=0.03, alive=format.alive) as writer:
            await writer.write(b"one")
            await asyncio.sleep(0.12)
            await writer.write(b"two")

    asyncio.run(main())
    assert sent[0] == b"one"
    assert sent[-1] == b"two"
    assert len(sent) >= 3
    assert set(sent[1:-1]) == {filling}


@pytest.mark.parametrize("changed", [{"stall": 0.05}, {"behind": lambda: 1 << 21, "stall": 60.0, "ping": 0.05}])
def test_a_client_that_reads_nothing_is_cut_off(changed):
    aborted = []

    async def send(message):
        await asyncio.sleep(60)

    async def main():
        with pytest.raises(ClientGone):
            async with writer_of(send, aborted, **changed) as writer:
                await writer.write(b"one")
        assert asyncio.current_task().cancelling() == 0

    asyncio.run(main())
    assert aborted == [True]


def test_other_cancellations_pass():
    async def send(message):
        await asyncio.sleep(60)

    async def write():
        async with writer_of(send, []) as writer:
            await writer.write(b"one")

    async def main():
        task = asyncio.ensure_future(write())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_events_are_whole_lines():
    first = 'data: {"a":"é\\n\u2028"}\n\n'.encode()
    assert SSE.encoded([(None, {"a": "é\n\u2028"})]) == SSE.encoded([(None, '{"a":"é\\n\u2028"}')]) == first
    assert SSE.encoded([(None, {"a": "é\n\u2028"}), ("x.y", {})]) == first + b"event: x.y\ndata: {}\n\n"


def test_objects_are_lines():
    lines = JsonLines(empty)
    assert lines.encoded([(None, {"a": "é\n\u2028"}), (None, '{"b":1}')]) == '{"a":"é\\n\u2028"}\n{"b":1}\n'.encode()
    assert lines.headers["Content-Type"] == "application/x-ndjson"
    assert {**lines.headers, **SSE.headers} == SSE.headers  # but for its type, they are the same


def test_signs_of_life_are_numbered_in_the_order_in_which_they_are_written():
    """An event may be written between the moment when a sign of life is wanted and the one when it is written."""
    sent, made = [], []

    def numbered():
        made.append(0)
        return b"%d" % len(made)

    async def send(message):
        sent.append(message["body"])

    async def main():
        async with writer_of(send, [], alive=numbered) as writer:
            writer._show_life()
            await writer.write(numbered())
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    asyncio.run(main())
    assert sent == [b"1", b"2"]
