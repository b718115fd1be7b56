"""Numbers of whole texts over HTTP: requests of embeddings and pairs, computed like those for text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from oxillama.core.async_requests import Call, CoroutineBell
from oxillama.core.embedding import EmbeddingBatch
from oxillama.core.engine_core import EngineCore
from oxillama.core.request import ResultQueue
from oxillama.server.errors import ApiError, api_error, bad_value
from oxillama.server.exchange import Exchange
from oxillama.server.models import Chosen

__all__ = ["check_count", "check_size", "computed", "engine_errors"]

SLICE = 512  # requests of one answer that are made and queued at a time: others' come between them

T = TypeVar("T")
Answer = bytes | list[bytes]
Shape = Callable[[list[Any], int], Answer]


def engine_errors(make: Callable[[], T], chosen: Chosen, rename: dict[str, str] | None = None) -> T:
    """make(), whose errors that say something of the request are ApiErrors. rename: engine's words for fields."""
    try:
        return make()
    except Exception as error:
        found = api_error(error, chosen.model.ready.engine.context_size)
        if found is None or found is error:
            raise
        for old, new in (rename or {}).items():
            if found.param is not None and found.param.partition("[")[0] == old:
                found.param = new + found.param[len(old) :]
        raise found from None


def check_count(name: str, n: int, chosen: Chosen, each: int = 1) -> None:
    """Raises ApiError, before anything is tokenised, for more texts than can ever wait to be computed.

    each: requests that one of them takes.
    """
    most = chosen.model.ready.engine.context.core.scheduler.max_waiting // each
    if n > most:
        raise bad_value(name, f"{name} must have at most {most} texts with this model (max_queue_size), not {n}")


def check_size(name: str, n_characters: int, exchange: Exchange) -> None:
    """Raises ApiError for texts that are read once with each of many others, and so are more than a body may have."""
    most = exchange.service.config.max_body
    if n_characters > most:
        text = f"{name} has {n_characters} characters with a query before each of its texts: at most {most} are read"
        raise bad_value(name, f"{text} (--max-body): send fewer at a time")


async def computed(exchange: Exchange, chosen: Chosen, make: Callable[[], EmbeddingBatch], shape: Shape) -> Answer:
    """Computes results, and returns what `shape` makes of them and the number of tokens; both run in other threads.

    Raises ApiError for what the engine refuses, and when its time is over.
    """
    service, usage = exchange.service, exchange.usage
    core = chosen.model.ready.engine.context.core
    with chosen.in_use():
        async with service.gate.enter(exchange.key) as place:
            usage.queued, usage.model = time.perf_counter() - exchange.began, chosen.name
            try:
                batch = await exchange.elsewhere(lambda: engine_errors(make, chosen))
                place.expect(batch.n_tokens)
                usage.prompt_tokens, usage.n_truncated = batch.n_tokens, batch.n_truncated
                async with asyncio.timeout(service.config.request_timeout):
                    await _compute(exchange, core, batch)
                return await exchange.elsewhere(partial(_shaped, exchange, batch, shape))
            except TimeoutError:
                raise ApiError(504, "timeout", "the answer took longer than the server's --request-timeout") from None
            finally:
                place.spend(usage.prompt_tokens)


def _shaped(exchange: Exchange, batch: EmbeddingBatch, shape: Shape) -> Answer:
    try:
        return shape(batch.rows, exchange.usage.prompt_tokens)
    finally:
        exchange.hold(batch.rows)


async def _compute(exchange: Exchange, core: EngineCore, batch: EmbeddingBatch) -> None:
    """Returns when all requests are finished, of which few are made at a time; none stays when it is cancelled."""
    size = min(SLICE, core.scheduler.max_waiting)
    for start in range(0, len(batch), size):
        end = min(start + size, len(batch))
        bell = CoroutineBell(core.loop)
        outbox = ResultQueue(end - start, bell)
        part = await exchange.elsewhere(partial(batch.requests, start, end, outbox))
        for request in part:
            request.sequence.owner = exchange.key.owner
        call = Call(core, part, outbox, bell)
        try:
            await call.finish()
        finally:
            call.leave()
        batch.take(part)
