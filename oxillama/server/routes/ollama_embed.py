"""Embeddings of Ollama's API."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from oxillama._util.float_text import json_of
from oxillama.core.embedding import EmbeddingBatch
from oxillama.core.prompts import check_length, cut_text
from oxillama.engine.engine import Engine
from oxillama.server.embedding_run import check_count, computed
from oxillama.server.errors import bad_value
from oxillama.server.exchange import PART, Exchange, dumped
from oxillama.server.field_types import Values
from oxillama.server.fields_ollama import EMBED, EMBEDDINGS
from oxillama.server.json_pieces import Body, in_parts
from oxillama.server.ollama.names import nanoseconds, read_name
from oxillama.server.routes.ollama import read_chosen, read_served, read_stay

__all__ = ["embed", "embeddings", "fitting_ids"]


async def embed(exchange: Exchange) -> None:
    """POST /api/embed"""
    values = await exchange.fields(EMBED)
    texts, place = read_texts(values)

    def shape(vectors: Iterable[bytes], n_tokens: int, load: float) -> list[bytes]:
        head = dumped({"model": read_name(values)})[:-1]
        elapsed = time.perf_counter() - exchange.began
        times = {"total_duration": nanoseconds(elapsed), "load_duration": nanoseconds(load)}
        rest = dumped({**times, "prompt_eval_count": n_tokens})[1:]
        listed = (b"," * (i > 0) + vector for i, vector in enumerate(vectors))
        return in_parts(chain((head, b',"embeddings":['), listed, (b"],", rest)), PART)

    await embedded(exchange, values, place, texts, shape)


def read_texts(values: Values) -> tuple[list[str], str]:
    """Reads texts to embed, and the place of each, with that of its number."""
    given = values.get("input", "")
    return ([given] * bool(given), "input") if isinstance(given, str) else (given, "input[{}]")


async def embeddings(exchange: Exchange) -> None:
    """POST /api/embeddings: the older path, for one text."""
    values = await exchange.fields(EMBEDDINGS)

    def shape(vectors: Iterable[bytes], n_tokens: int, load: float) -> list[bytes]:
        return [b'{"embedding":%b}' % next(iter(vectors), b"[]")]

    await embedded(exchange, values, "prompt", read_prompt(values), shape)


def read_prompt(values: Values) -> list[str]:
    """Reads the one text of the older path, if there is one."""
    return [values["prompt"]] if values.get("prompt") else []


async def embedded(exchange: Exchange, values: Values, name: str, texts: list[str], shape: Any) -> None:
    """Answers with what `shape` makes of the vectors of texts, as JSON, their tokens, and the seconds of loading.

    name: of a text in errors, with the place of its number.
    """
    model = read_served(exchange, values)
    stay = read_stay(exchange, model, values)
    began = time.perf_counter()
    chosen = await read_chosen(exchange, values)
    load = time.perf_counter() - began
    if stay is not None:
        exchange.service.residence.keep(model, stay)
    engine = chosen.model.ready.engine
    check_count(name.partition("[")[0], len(texts), chosen)
    options: Body = {} if chosen.adapter is None else {"lora": [chosen.adapter]}
    dimensions, truncate = read_options(values, engine)
    if dimensions:
        options |= {"dimensions": dimensions}
    size = read_limit(values, engine, exchange)

    def cut(place: str) -> None:
        exchange.reading.leave_out(place, f"it has more than {size} tokens")

    def make() -> EmbeddingBatch:
        ids = [fitting_ids(engine, name.format(i), text, size, truncate, cut) for i, text in enumerate(texts)]
        pooling = "mean" if engine.context.pooling in ("none", "rank") else None
        return EmbeddingBatch(engine.context, ids, pooling, options, name=name.partition("[")[0])

    if texts:
        body = await computed(exchange, chosen, make, lambda vectors, n: shape(map(json_of, vectors), n, load))
    else:
        body = shape([], 0, load)
    await exchange.answer(body, "application/json")
    await exchange.service.residence.leave(model)


def read_options(values: Values, engine: Engine) -> tuple[int, bool]:
    """Reads how many values of a vector are wanted, 0 for all, and whether the end of a text may be left out.

    Raises ApiError for more values than the model gives.
    """
    wanted, most = values.get("dimensions", 0), engine.context.spec.n_embd
    if wanted > most:
        raise bad_value("dimensions", f"dimensions must be at most {most}, which the model has, not {wanted}")
    return wanted, values.get("truncate", True)


def read_limit(values: Values, engine: Engine, exchange: Exchange) -> int:
    """Tokens of a text, at most: those of the context, or fewer where `num_ctx` says so."""
    size, wanted = engine.context_size, values.get("options", {}).get("num_ctx", 0)
    if wanted > size:
        exchange.reading.leave_out("options.num_ctx", f"the context has {size} tokens")
    return min(wanted, size) if wanted else size


def fitting_ids(
    engine: Engine, name: str, text: str, size: int, truncate: bool, cut: Callable[[str], object]
) -> list[int]:
    """Tokens of a text, of which there is room for `size`; those at its end are left out, but for those that close
    texts, and cut(name) is called. Raises ApiError, in Ollama's words, where they may not be."""
    if truncate:
        ids, shorter = cut_text(engine.tokenizer, text, size, "end")
        if shorter:
            cut(name)
        return ids
    check_length(engine.tokenizer, name, text, size)
    ids = engine.tokenizer.encode(text)
    if len(ids) > size:
        raise bad_value(name, f"{name}: the input length exceeds the context length", "context_length_exceeded")
    return ids
