"""Numbers of whole texts over HTTP: requests of embeddings and pairs, computed like those for text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from oxillama.core.async_requests import Call, CoroutineBell
from oxillama.core.embedding import EmbeddingRequest
from oxillama.core.request import ResultQueue
from oxillama.server.errors import ApiError, api_error
from oxillama.server.exchange import Exchange
from oxillama.server.models import Chosen

__all__ = ["computed", "engine_errors"]

T = TypeVar("T")
Made = tuple[list[EmbeddingRequest], ResultQueue, Callable[[], T]]


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


async def computed(
    exchange: Exchange, chosen: Chosen, make: Callable[[CoroutineBell], Made[T]], shape: Callable[[T, int], bytes]
) -> bytes:
    """What `shape` makes of the results and the number of tokens; both run in other threads.

    Raises ApiError for what the engine refuses, and when its time is over.
    """
    service, tally = exchange.service, exchange.tally
    core = chosen.model.ready.engine.context.core
    with chosen.in_use():
        async with service.gate.enter(exchange.key) as place:
            tally.queued, tally.model = time.perf_counter() - exchange.began, chosen.name
            bell = CoroutineBell(core.loop)
            call = None
            try:
                requests, outbox, results = await exchange.elsewhere(lambda: engine_errors(lambda: make(bell), chosen))
                n_tokens = sum(request.n_prompt for request in requests)
                place.expect(n_tokens)
                tally.prompt_tokens = n_tokens
                for request in requests:
                    request.sequence.owner = exchange.key.owner
                call = Call(core, requests, outbox, bell)
                async with asyncio.timeout(service.config.request_timeout):
                    await call.finish()
                return await exchange.elsewhere(lambda: shape(results(), tally.prompt_tokens))
            except TimeoutError:
                raise ApiError(504, "timeout", "the answer took longer than the server's --request-timeout") from None
            finally:
                if call is not None:
                    call.leave()
                place.spend(tally.prompt_tokens)
