"""Embeddings of Ollama's API."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from oxillama._util.float_text import json_of
from oxillama.core.embedding import EmbeddingBatch
from oxillama.core.prompts import check_length
from oxillama.engine.engine import Engine
from oxillama.server.embedding_run import check_count, computed
from oxillama.server.errors import bad_value
from oxillama.server.exchange import PART, Exchange, dumped
from oxillama.server.field_types import Values
from oxillama.server.fields_ollama import EMBED, EMBEDDINGS
from oxillama.server.json_pieces import Body, in_parts
from oxillama.server.ollama.names import nanoseconds
from oxillama.server.routes.ollama import chosen_model, find_model, residing

__all__ = ["embed", "embeddings", "fitting_ids"]

CHARACTERS = 8  # of a text for each token of the context: so many of a longer text are tokenised first
MARGIN = 64  # tokens by which the part of a text that is tokenised is longer than what is kept of it


async def embed(exchange: Exchange) -> None:
    """POST /api/embed"""
    values = await exchange.fields(EMBED)
    given = values.get("input", "")
    texts = [given] * bool(given) if isinstance(given, str) else given

    def shape(vectors: Iterable[bytes], n_tokens: int, load: float) -> list[bytes]:
        head = dumped({"model": values["model"]})[:-1]
        elapsed = time.perf_counter() - exchange.began
        times = {"total_duration": nanoseconds(elapsed), "load_duration": nanoseconds(load)}
        rest = dumped({**times, "prompt_eval_count": n_tokens})[1:]
        listed = (b"," * (i > 0) + vector for i, vector in enumerate(vectors))
        return in_parts(chain((head, b',"embeddings":['), listed, (b"],", rest)), PART)

    await embedded(exchange, values, "input" if isinstance(given, str) else "input[{}]", texts, shape)


async def embeddings(exchange: Exchange) -> None:
    """POST /api/embeddings: the older path, for one text."""
    values = await exchange.fields(EMBEDDINGS)
    texts = [values["prompt"]] if values.get("prompt") else []

    def shape(vectors: Iterable[bytes], n_tokens: int, load: float) -> list[bytes]:
        return [b'{"embedding":%b}' % next(iter(vectors), b"[]")]

    await embedded(exchange, values, "prompt", texts, shape)


async def embedded(exchange: Exchange, values: Values, name: str, texts: list[str], shape: Any) -> None:
    """Answers with what `shape` makes of the vectors of texts, as JSON, their tokens, and the seconds of loading.

    name: of a text in errors, with the place of its number.
    """
    model = find_model(exchange, values)
    stay = residing(exchange, model, values)
    began = time.perf_counter()
    chosen = await chosen_model(exchange, values)
    load = time.perf_counter() - began
    if stay is not None:
        exchange.service.residence.keep(model, stay)
    engine = chosen.model.ready.engine
    check_count(name.partition("[")[0], len(texts), chosen)
    options: Body = {} if chosen.adapter is None else {"lora": [chosen.adapter]}
    if values.get("dimensions"):
        options["dimensions"] = checked_dimensions(values["dimensions"], engine)
    size = limit_of(values, engine, exchange)

    def cut(place: str) -> None:
        exchange.reading.leave_out(place, f"it has more than {size} tokens")

    def make() -> EmbeddingBatch:
        truncate = values.get("truncate", True)
        ids = [fitting_ids(engine, name.format(i), text, size, truncate, cut) for i, text in enumerate(texts)]
        pooling = "mean" if engine.context.pooling in ("none", "rank") else None
        return EmbeddingBatch(engine.context, ids, pooling, options, name=name.partition("[")[0])

    if texts:
        body = await computed(exchange, chosen, make, lambda vectors, n: shape(map(json_of, vectors), n, load))
    else:
        body = shape([], 0, load)
    await exchange.answer(body, "application/json")
    await exchange.service.residence.leave(model)


def checked_dimensions(wanted: int, engine: Engine) -> int:
    """Raises ApiError for more values than the model gives."""
    most = engine.context.spec.n_embd
    if wanted > most:
        raise bad_value("dimensions", f"dimensions must be at most {most}, which the model has, not {wanted}")
    return wanted


def limit_of(values: Values, engine: Engine, exchange: Exchange) -> int:
    """Tokens of a text, at most: those of the context, or fewer where `num_ctx` says so."""
    size, wanted = engine.context_size, values.get("options", {}).get("num_ctx", 0)
    if wanted > size:
        exchange.reading.leave_out("options.num_ctx", f"the context has {size} tokens")
    return min(wanted, size) if wanted else size


def fitting_ids(
    engine: Engine, name: str, text: str, size: int, truncate: bool, cut: Callable[[str], object]
) -> list[int]:
    """Tokens of a text, of which there is room for `size`; those at its end are left out, but for the one that closes
    texts, and cut(name) is called. Raises ApiError, in Ollama's words, where they may not be."""
    tokenizer = engine.tokenizer
    if not truncate:
        check_length(tokenizer, name, text, size)
    n = len(text) if not truncate else CHARACTERS * size
    while True:
        ids = tokenizer.encode(text[:n])
        if n >= len(text) or len(ids) >= size + MARGIN:
            break
        n *= 2
    if len(ids) <= size:
        return ids
    if not truncate:
        raise bad_value(name, f"{name}: the input length exceeds the context length", "context_length_exceeded")
    cut(name)
    ends = tokenizer.encode("")[-1:]
    closing = ends if ends and ids[-1:] == ends and ends != ids[:1] else []
    return ids[: size - len(closing)] + closing
