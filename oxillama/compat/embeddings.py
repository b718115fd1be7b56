"""Embeddings as lists and dicts."""

from __future__ import annotations

from typing import Any

from oxillama._util.checks import check_bool
from oxillama.compat.model import LlamaLike
from oxillama.errors import ConfigError, GenerateError

__all__ = ["NotForEmbeddingError", "created", "embedded"]


class NotForEmbeddingError(GenerateError, RuntimeError):
    """The model was loaded without `embedding=True`: a RuntimeError, as the replaced package raises it."""


def embedded(llama: LlamaLike, input: Any, normalize: bool, truncate: bool, return_count: bool) -> Any:
    """Embeds texts, and returns what `Llama.embed` returns."""
    for name, value in (("normalize", normalize), ("truncate", truncate), ("return_count", return_count)):
        check_bool(name, value)
    if not llama.for_embedding:
        raise NotForEmbeddingError("Llama model must be created with embedding=True to call this method")
    texts = [input] if isinstance(input, str) else input
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"input must be a str or a list of them, not {input!r:.60}")
    ids = [llama.prompt_ids(text) for text in texts]
    if truncate:
        ids = [one[: llama.n_batch] for one in ids]
    for one in ids:
        if len(one) > llama.n_batch:
            raise ConfigError(f"Requested tokens ({len(one)}) exceed batch size of {llama.n_batch}")
    found = []
    if ids:
        scaled = normalize and llama.pooling != "rank"
        found = [row.tolist() for row in llama.engine.embed(ids, pooling=llama.pooling, normalize=scaled)]
    count = sum(len(one) for one in ids)
    output = found[0] if isinstance(input, str) else found
    return (output, count) if return_count else output


def created(llama: LlamaLike, input: Any, model: str | None) -> dict[str, Any]:
    """Embeds texts, and returns what `Llama.create_embedding` returns."""
    rows, count = embedded(llama, [input] if isinstance(input, str) else input, False, True, True)
    return {
        "object": "list",
        "data": [{"object": "embedding", "embedding": row, "index": i} for i, row in enumerate(rows)],
        "model": llama.model_path if model is None else model,
        "usage": {"prompt_tokens": count, "total_tokens": count},
    }
