"""Generating over HTTP: a specification becomes a run, and its chunks an answer or a stream of any dialect."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Collection
from functools import partial
from typing import Protocol

from oxillama.core.results import Chunk
from oxillama.server.answers import Choice, DeltaReader
from oxillama.server.errors import ApiError, ClientGone
from oxillama.server.exchange import Exchange, failure
from oxillama.server.field_types import Record, Values
from oxillama.server.generation import GenerationRun, GenerationSpec, prepare
from oxillama.server.json_pieces import Body, in_pieces
from oxillama.server.logprob_bounds import n_entries
from oxillama.server.models import Chosen
from oxillama.server.prompting import warn
from oxillama.server.sse import Event, EventFormat, EventWriter

__all__ = ["Dialect", "answered", "choices_of", "respond", "running"]


SMALL = 4096  # tokens of an answer, with its prompts, that is written in the event loop
FEW = 256  # log-probabilities


class Dialect(Protocol):
    """Dialect of one API, in which the results of a run are told.

    choices: what is known of each. tail: what ends a stream.
    """

    choices: list[Choice]
    tail: bytes

    @property
    def stream_format(self) -> EventFormat:
        """Format of a stream's events."""

    def add(self, index: int, chunk: Chunk) -> None:
        """Takes a chunk of an answer that is no stream."""

    def begin(self) -> list[Event]:
        """The first events of a stream."""

    def step(self, index: int, chunk: Chunk) -> list[Event]:
        """Events of a chunk."""

    def end(self) -> list[Event]:
        """The last ones."""

    def failed(self, error: ApiError) -> list[Event]:
        """Last events after an error, in place of those of `end`."""

    def whole(self) -> Body:
        """The answer that is no stream."""


async def answered(
    exchange: Exchange,
    record: Record,
    read: Callable[[Values, Exchange, Chosen], GenerationSpec],
    dialect: Callable[[GenerationRun, Values], Dialect],
) -> None:
    """Answers a request: `record` checks its fields, `read` says what they ask for, `dialect` tells what it gives."""
    values = await exchange.fields(record)
    chosen = await exchange.read_model(values)
    async with running(exchange, chosen, lambda: prepare(read(values, exchange, chosen))) as run:
        await respond(exchange, run, dialect(run, values))


@contextlib.asynccontextmanager
async def running(
    exchange: Exchange, chosen: Chosen, make: Callable[[], GenerationRun]
) -> AsyncIterator[GenerationRun]:
    """The run that `make` prepares, when it is its turn; nothing of it stays behind. Raises what keeps it out."""
    service, usage = exchange.service, exchange.usage
    with chosen.in_use():
        async with service.gate.enter(exchange.key) as place:
            usage.queued, usage.model = time.perf_counter() - exchange.began, chosen.name
            run = None
            try:
                made = await exchange.elsewhere(make)
                for name, _ in made.requests[0].free_tools:
                    warn(exchange, f"the arguments of {name:.64} are held to no schema")
                place.expect(expected(made))
                note_cut(exchange, made)
                run, exchange.place = made, place
                usage.max_tokens = run.spec.text.max_tokens
                run.begin(exchange.key.owner)
                yield run
            finally:
                if run is not None:
                    run.leave()
                    count(exchange, run)


def expected(run: GenerationRun) -> int:
    """Tokens that a run takes at most: of its prompts, and of all that it may generate."""
    room = run.room
    given = run.spec.text.max_tokens
    n_each = len(run.requests) // len(run.prompts)
    most = room if given is None else given
    return sum(len(ids) + n_each * min(most, max(room - len(ids), 0)) for ids in run.prompts)


def note_cut(exchange: Exchange, run: GenerationRun) -> None:
    """Says that more tokens are asked for than there is room for, which bounds them."""
    given, names = run.spec.text.max_tokens, run.spec.names
    room = run.room - min(map(len, run.prompts))
    if given is not None and given > room:
        exchange.reading.say("max_completion_tokens" if "max_completion_tokens" in names else "max_tokens")


def count(exchange: Exchange, run: GenerationRun) -> None:
    """Counts what a run used, for the log and for its key."""
    usage = exchange.usage
    usage.prompt_tokens = sum(map(len, run.prompts))
    usage.cached_tokens = run.requests[0].sequence.n_cached or 0
    usage.completion_tokens = sum(request.usage.completion_tokens for request in run.requests)
    first = [request.clock.first_at for request in run.requests if request.clock.first_at]
    if first:
        usage.first_token = min(first) - exchange.began
    if exchange.place is not None:
        exchange.place.spend(usage.prompt_tokens + usage.completion_tokens)


def choices_of(run: GenerationRun, most_calls: int | None = None, custom: Collection[str] = ()) -> list[Choice]:
    """Empty choices of a run. custom: names of custom tools."""
    stop_ids = run.spec.text.stop_token_ids
    return [Choice(i, DeltaReader(most_calls, custom), stop_ids) for i in range(len(run.requests))]


async def respond(exchange: Exchange, run: GenerationRun, dialect: Dialect) -> None:
    """Sends what a run gives, as a stream or whole."""
    if run.spec.whole:
        while came := await run.next():
            for index, chunk in came:
                dialect.add(index, chunk)
        finish(exchange, dialect)
        count(exchange, run)  # before the headers, which say what is left
        if is_small(run, dialect):
            await exchange.json(dialect.whole())
        else:
            await exchange.answer(await exchange.written(dialect.whole), "application/json")
        return
    config = exchange.service.config
    written = dialect.stream_format
    await exchange.start(200, written.headers)
    writer = EventWriter(
        exchange.send, stall=config.stall_timeout, most=config.max_backlog, ping=config.sse_ping,
        behind=lambda: run.behind, abort=exchange.abort, alive=written.alive,
        on_half_closed=exchange.on_half_closed,
    )  # fmt: skip
    try:
        async with writer:
            await stream(exchange, run, dialect, writer)
    except asyncio.CancelledError:
        if exchange.gone or not exchange.service.draining:
            raise
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        exchange.usage.finish_reason = exchange.usage.failed = "draining"
        await writer.write(written.encoded(dialect.failed(ApiError(503, "draining", "the server ends"))))
    except ClientGone:
        exchange.gone = True
        raise
    exchange.ended = True
    await exchange.send({"type": "http.response.body", "body": b"", "more_body": False})


def is_small(run: GenerationRun, dialect: Dialect) -> bool:
    """Whether an answer is written in less time than other requests may wait."""
    n_tokens = sum(map(len, run.prompts)) + sum(len(choice.token_ids) for choice in dialect.choices)
    return run.requests[0].scores is None and n_tokens <= SMALL


async def stream(exchange: Exchange, run: GenerationRun, dialect: Dialect, writer: EventWriter) -> None:
    """Writes the body of a stream: all events of one step of the model together."""
    encoded = dialect.stream_format.encoded
    await writer.write(encoded(dialect.begin()))
    while True:
        try:
            came = await run.next()
            if n_entries(came) <= FEW:
                body = encoded([event for index, chunk in came for event in dialect.step(index, chunk)])
            else:
                body = await exchange.service.answering(partial(events_of, dialect, came))
        except Exception as error:
            found = failure(error, exchange)
            exchange.usage.finish_reason = exchange.usage.failed = found.code
            await writer.write(encoded(dialect.failed(found)))
            return
        if not came:
            break
        if body:
            await writer.write(body)
    finish(exchange, dialect)
    ending = partial(ending_of, dialect)
    await writer.write(ending() if is_small(run, dialect) else await exchange.service.answering(ending))


def events_of(dialect: Dialect, came: list[tuple[int, Chunk]]) -> bytes:
    """Events of chunks with many log-probabilities."""
    events = (event for index, chunk in came for event in dialect.step(index, chunk))
    return dialect.stream_format.encoded(events, in_pieces)


def ending_of(dialect: Dialect) -> bytes:
    """The last events of a stream, which may repeat all of it."""
    return dialect.stream_format.encoded(dialect.end(), in_pieces) + dialect.tail


def finish(exchange: Exchange, dialect: Dialect) -> None:
    """Notes what the log says of an answer."""
    usage = exchange.usage
    usage.finish_reason = dialect.choices[0].finish_reason or "-"
    if exchange.service.config.log_content:
        usage.content = "\n".join(choice.text for choice in dialect.choices)
