"""Embeddings of OpenAI's API, ranking of Jina's and Cohere's, and scores of vLLM's."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oxillama._util.float_text import json_of
from oxillama.core.context import EngineContext
from oxillama.core.embedding import EmbeddingBatch
from oxillama.core.prompts import Side
from oxillama.core.ranking import ranked, read_pairs
from oxillama.kernels import elementary
from oxillama.server.embedding_run import check_count, check_size, computed, engine_errors
from oxillama.server.errors import bad_value
from oxillama.server.exchange import PART, Exchange, dumped, new_id
from oxillama.server.field_types import Values
from oxillama.server.fields_numbers import CLASSIFY, EMBEDDINGS, RERANK, SCORE
from oxillama.server.json_pieces import Body, in_parts, written_parts
from oxillama.server.models import Chosen

__all__ = ["classify", "embeddings", "rerank", "score"]


class Truncation(NamedTuple):
    """Cut of texts that a request asks for: the side, None for none, and the tokens of a text at most."""

    side: Side | None
    size: int


def read_truncation(values: Values, size: int) -> Truncation:
    """Reads the fields of TEI, Cohere and vLLM that cut texts. size: that of the context. Raises ApiError."""
    wanted = values.get("truncate_prompt_tokens")
    if wanted is not None:
        if wanted > size:
            text = f"truncate_prompt_tokens must be at most {size}, which the context has, not {wanted}"
            raise bad_value("truncate_prompt_tokens", text)
        return Truncation("start" if values.get("truncation_side") == "left" else "end", size if wanted < 0 else wanted)
    match values.get("truncate", False):
        case False | "NONE":
            return Truncation(None, size)
        case "START":
            return Truncation("start", size)
        case "END":
            return Truncation("end", size)
    return Truncation("start" if values.get("truncation_direction") == "Left" else "end", size)


async def embeddings(exchange: Exchange) -> None:
    """POST /v1/embeddings"""
    values = await exchange.fields(EMBEDDINGS)
    chosen = await exchange.read_model(values)
    wanted = read_embedding(values)
    check_count("input", len(wanted.texts), chosen)

    def make() -> EmbeddingBatch:
        context = chosen.model.ready.engine.context
        if (n := wanted.options.get("dimensions", 0)) > context.spec.n_embd:
            text = f"dimensions must be at most {context.spec.n_embd}, which the model has, not {n}"
            raise bad_value("dimensions", text)
        pooling = "mean" if wanted.pooling is None and context.pooling in ("none", "rank") else wanted.pooling
        side, size = read_truncation(values, context.context_size)
        options = wanted.options | adapters_of(chosen) | {"truncate": side}
        return EmbeddingBatch(context, wanted.texts, pooling, options, size=size)

    def shape(vectors: Any, n_tokens: int) -> list[bytes]:
        usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
        rest = dumped({"model": chosen.name, "usage": usage} | cut_in(exchange))

        def pieces() -> Iterator[bytes]:
            yield b'{"object":"list","data":['
            for i, vector in enumerate(vectors):
                yield b"," * (i > 0)
                yield b'{"object":"embedding","index":%d,"embedding":%b}' % (i, wanted.written(vector))
            yield b"],%b" % rest[1:]

        return in_parts(pieces(), PART)

    await exchange.answer(await computed(exchange, chosen, make, shape), "application/json")


class WantedEmbedding(NamedTuple):
    """Embeddings that a request asks for. pooling: None for the model's. options: keywords of the engine. written: a
    vector as JSON."""

    texts: list[Any]
    pooling: str | None
    options: Body
    written: Callable[[NDArray[np.float32]], bytes]


def read_embedding(values: Values) -> WantedEmbedding:
    """Reads a request of embeddings. Raises ApiError."""
    options = {name: values[name] for name in ("dimensions", "normalize") if name in values}
    written = as_base64 if values.get("encoding_format") == "base64" else json_of
    return WantedEmbedding(texts_of(values["input"]), values.get("pooling"), options, written)


def texts_of(given: Any) -> list[Any]:
    """The texts of a request's `input`, or lists of token ids. Raises ApiError for a mixture."""
    kinds = {type(one) for one in given} if isinstance(given, list) else {str}
    if len(kinds) > 1:
        raise bad_value("input", "input must be a text, a list of token ids, or a list of either")
    return given if kinds != {int} and isinstance(given, list) else [given]


def as_base64(vector: NDArray[np.float32]) -> bytes:
    """A JSON string: base64 of the numbers' bytes."""
    return b'"%b"' % base64.b64encode(vector.astype("<f4", copy=False).data)


def adapters_of(chosen: Chosen) -> Body:
    return {} if chosen.adapter is None else {"lora": [chosen.adapter]}


def batch_of(
    context: EngineContext, ids: list[list[int]], n_cut: int, pooling: str | None, options: Body, name: str
) -> EmbeddingBatch:
    """A batch of token ids of which this many texts were cut before."""
    batch = EmbeddingBatch(context, ids, pooling, options, name=name)
    batch.n_truncated += n_cut
    return batch


def cut_in(exchange: Exchange) -> Body:
    """Part of an answer that says how many texts were cut; none if none was."""
    return {"oxillama": {"n_truncated": n}} if (n := exchange.usage.n_truncated) else {}


async def rerank(exchange: Exchange) -> None:
    """POST /v1/rerank"""
    values = await exchange.fields(RERANK)
    chosen = await exchange.read_model(values)
    query, documents, top_n, shows = read_ranking(values)
    check_count("documents", len(documents), chosen)

    def make() -> EmbeddingBatch:
        check_size("documents", len(query) * len(documents) + sum(map(len, documents)), exchange)
        context = chosen.model.ready.engine.context
        pairs, n_cut = read_pairs(context, query, documents, None, *read_truncation(values, context.context_size))
        return batch_of(context, pairs, n_cut, "rank", adapters_of(chosen), "documents")

    def shape(rows: list[Any], n_tokens: int) -> list[bytes]:
        best = ranked(rows, top_n)
        results: list[Body] = [{"index": one.index, "relevance_score": one.score} for one in best]
        if shows:
            for result in results:
                result["document"] = {"text": documents[result["index"]]}
        usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
        counted = {"tokens": {"input_tokens": n_tokens, "output_tokens": 0}}  # as Cohere's clients read it
        said = {"id": new_id("rerank-"), "model": chosen.name, "results": results, "usage": usage, "meta": counted}
        return written_parts(said | cut_in(exchange), PART)

    await exchange.answer(await computed(exchange, chosen, make, shape), "application/json")


def read_ranking(values: Values) -> tuple[str, list[str], int | None, bool]:
    """Reads the query, the documents, how many of them are wanted, and whether the answer has their texts."""
    documents = [one if isinstance(one, str) else one["text"] for one in values["documents"]]
    return values["query"], documents, values.get("top_n"), values.get("return_documents", False)


async def score(exchange: Exchange) -> None:
    """POST /score: of a model with a classifier its score of each pair, of others the cosine of their embeddings."""
    values = await exchange.fields(SCORE)
    chosen = await exchange.read_model(values)
    context = chosen.model.ready.engine.context
    ranks = context.classifier is not None
    pairs, are_listed = read_scored(values)
    if are_listed:
        check_count("text_2", len(pairs), chosen, 1 if ranks else 2)

    def make() -> EmbeddingBatch:
        check_size("text_2", sum(len(first) + len(second) for first, second in pairs), exchange)
        cut = read_truncation(values, context.context_size)
        if ranks:
            names = {"query": "text_1", "documents": "text_2"}
            found = engine_errors(lambda: [read_pairs(context, a, [b], None, *cut) for a, b in pairs], chosen, names)
            ids, n_cut = [ids for (ids,), _ in found], sum(n for _, n in found)
            return batch_of(context, ids, n_cut, "rank", adapters_of(chosen), "text_2")
        texts = [context.factory.cut(f"text_{i}", text, *cut) for pair in pairs for i, text in enumerate(pair, 1)]
        ids, n_cut = [ids for ids, _ in texts], sum(shorter for _, shorter in texts)
        return batch_of(context, ids, n_cut, None, {"normalize": True, **adapters_of(chosen)}, "input")

    def shape(rows: Any, n_tokens: int) -> list[bytes]:
        if ranks:
            scores = [float(row[0]) for row in rows]
        else:
            scores = [float((rows[i].astype(np.float64) * rows[i + 1]).sum()) for i in range(0, len(rows), 2)]
        data = [{"index": i, "object": "score", "score": value} for i, value in enumerate(scores)]
        usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
        head = {"id": new_id("score-"), "object": "list", "created": int(time.time()), "model": chosen.name}
        return written_parts({**head, "data": data, "usage": usage} | cut_in(exchange), PART)

    await exchange.answer(await computed(exchange, chosen, make, shape), "application/json")


async def classify(exchange: Exchange) -> None:
    """POST /classify: of a model with a classifier, the label of each text and the probabilities of all."""
    values = await exchange.fields(CLASSIFY)
    chosen = await exchange.read_model(values)
    context, listed = chosen.model.ready.engine.context, read_embedding(values).texts
    if context.classifier is None:
        raise bad_value("model", f"the model {chosen.name} has no classifier", "unsupported_parameter")
    head = context.classifier
    check_count("input", len(listed), chosen)

    def make() -> EmbeddingBatch:
        side, size = read_truncation(values, context.context_size)
        return EmbeddingBatch(context, listed, "rank", {"truncate": side, **adapters_of(chosen)}, size=size)

    def shape(rows: Any, n_tokens: int) -> list[bytes]:
        data = [labelled(i, probabilities(row, head.of_first), head.labels) for i, row in enumerate(rows)]
        usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens, "completion_tokens": 0}
        base = {"id": new_id("classify-"), "object": "list", "created": int(time.time()), "model": chosen.name}
        return written_parts({**base, "data": data, "usage": usage} | cut_in(exchange), PART)

    await exchange.answer(await computed(exchange, chosen, make, shape), "application/json")


def probabilities(scores: NDArray[np.float32], are_logits: bool) -> NDArray[np.float64]:
    """Probabilities of a classifier's scores: their softmax, of one alone its sigmoid; those of decoders are softmaxed
    there."""
    x = scores.astype(np.float64)
    if len(x) == 1:
        return 1 / (1 + elementary.exp(-x))
    powers = elementary.exp(x - x.max()) if are_logits else x
    return np.asarray(powers / powers.sum())


def labelled(index: int, found: NDArray[np.float64], labels: tuple[str, ...]) -> Body:
    """One entry of an answer; labels without names are called LABEL_0 and so on, as Transformers does."""
    best = int(found.argmax())
    name = labels[best] if labels else f"LABEL_{best}"
    return {"index": index, "label": name, "probs": found.tolist(), "num_classes": len(found)}


def read_scored(values: Values) -> tuple[list[tuple[str, str]], bool]:
    """Reads each text of one side with that of the other, and whether the other is a list; one text goes with all.

    Raises ApiError for unequal numbers.
    """
    given = values["text_1"], values["text_2"]
    first, second = ([one] if isinstance(one, str) else one for one in given)
    if len(first) != len(second) and len(first) != 1:
        text = f"text_1 must have one text or as many as text_2, which has {len(second)}, not {len(first)}"
        raise bad_value("text_1", text)
    pairs = [(first[i if len(first) > 1 else 0], other) for i, other in enumerate(second)]
    return pairs, isinstance(given[1], list)
