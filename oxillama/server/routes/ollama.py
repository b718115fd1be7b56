"""Chat and generate of Ollama's API."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from oxillama.server.exchange import Exchange
from oxillama.server.field_types import Values
from oxillama.server.fields_ollama import CHAT, GENERATE
from oxillama.server.generation import GenerationRun
from oxillama.server.models import Chosen, ServedModel
from oxillama.server.ollama.conversations import prepared_chat
from oxillama.server.ollama.names import read_name, served_name
from oxillama.server.ollama.parts import OllamaDialect, Said, as_message, as_response, idle_answer
from oxillama.server.ollama.prompts import prepared_generate
from oxillama.server.respond import respond, running

__all__ = ["chat", "generate", "read_chosen", "read_served", "read_stay"]


async def chat(exchange: Exchange) -> None:
    """POST /api/chat"""
    values = await exchange.fields(CHAT)
    await answered(exchange, values, as_message, prepared_chat)


async def generate(exchange: Exchange) -> None:
    """POST /api/generate"""
    values = await exchange.fields(GENERATE)
    await answered(exchange, values, as_response, prepared_generate)


async def answered(
    exchange: Exchange,
    values: Values,
    said: Said,
    prepared: Callable[[Values, Exchange, Chosen], GenerationRun],
) -> None:
    """Answers a request, or loads or unloads its model where it asks for no text."""
    asks, name, model = read_asks(values), read_name(values), read_served(exchange, values)
    stay = read_stay(exchange, model, values)
    residence = exchange.service.residence
    if not asks and stay == 0:
        residence.keep(model, stay)
        await residence.leave(model)
        await exchange.json(idle_answer(name, said, "unload"))
        return
    began = time.perf_counter()
    chosen = await read_chosen(exchange, values)
    load = time.perf_counter() - began
    if stay is not None:  # also where the answer ends in an error
        residence.keep(model, stay)
    if asks:
        async with running(exchange, chosen, lambda: prepared(values, exchange, chosen)) as run:
            await respond(exchange, run, OllamaDialect(run, values, said, exchange.began, load))
    else:
        await exchange.json(idle_answer(name, said, "load"))
    await residence.leave(model)


def read_asks(values: Values) -> bool:
    """Reads whether a request asks for a text."""
    return any(values.get(name) for name in ("messages", "prompt", "suffix"))


def read_served(exchange: Exchange, values: Values) -> ServedModel:
    """The model that a request names, loaded or not. Raises ApiError."""
    models = exchange.service.models
    return models.find(served_name(models, read_name(values))).model


async def read_chosen(exchange: Exchange, values: Values) -> Chosen:
    """The model, or adapter, that a request names, when it is loaded. Raises ApiError."""
    models = exchange.service.models
    return await models.use(served_name(models, read_name(values)))


def read_stay(exchange: Exchange, model: ServedModel, values: Values) -> float | None:
    """Seconds that a request keeps its model in memory for; None where it says nothing.

    What it says is left out where the model stays in any case, and where others use the server with keys of their own.
    """
    seconds: float | None = values.get("keep_alive")
    service = exchange.service
    if seconds is None:
        return None
    if (service.keys or service.admins) and not exchange.is_admin:
        exchange.reading.leave_out("keep_alive", "it needs the key of an administrator")
        return None
    if model.load is None and not math.isinf(seconds):
        exchange.reading.leave_out("keep_alive", "the model was loaded by the program that serves it, and stays")
    return seconds
