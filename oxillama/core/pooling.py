"""Pooling of hidden states to embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oxillama._util.checks import check_bool, check_choice, check_int
from oxillama.errors import ConfigError, GenerateError, UnsupportedModelError
from oxillama.gguf import Metadata
from oxillama.models.classifier import Classifier
from oxillama.models.linear import Deltas, no_deltas

__all__ = [
    "DTYPES",
    "POOLINGS",
    "PoolingSettings",
    "choose_pooling",
    "pool",
    "read_pooling",
    "result_of",
]

POOLINGS = ("mean", "last", "cls", "max", "none", "rank")
DTYPES = ("float32", "int8", "binary")
# What files say by number.
FILE_POOLINGS = ("none", "mean", "cls", "last", "rank")

Kept = list[NDArray[Any]]


@dataclass(frozen=True, slots=True)
class PoolingSettings:
    """What becomes of a text's hidden states; `choose_pooling` checks and makes one."""

    pooling: str = "mean"
    normalize: bool = True
    dimensions: int | None = None
    dtype: str = "float32"
    classifier: Classifier | None = None


def read_pooling(metadata: Metadata) -> str:
    """The pooling that a model was trained for; "mean" if its file doesn't say.

    Raises UnsupportedModelError, which names the key, for a number that means nothing.
    """
    key = f"{metadata.arch}.pooling_type"
    number = metadata.get_int(key, FILE_POOLINGS.index("mean"))
    if not 0 <= number < len(FILE_POOLINGS):
        known = ", ".join(f"{i} ({name})" for i, name in enumerate(FILE_POOLINGS))
        raise UnsupportedModelError(f"{key} is {number}; known are {known}")
    return FILE_POOLINGS[number]


def choose_pooling(
    of_file: str,
    classifier: Classifier | None,
    n_embd: int,
    *,
    pooling: str | None = None,
    normalize: bool | None = None,
    dimensions: int | None = None,
    dtype: str = "float32",
) -> PoolingSettings:
    """Options of `embed`, checked against each other and what the model can do.

    pooling: "mean", "max", "last" or "cls" (first token); "none" gives [tokens, d], and a list of these for a list.
        "rank" gives the scores of the model's classifier, [labels] for each text; see `labels`. None is what the
        model's file says (`pooling_type`), or "mean".
    normalize: divide by the Euclidean length (for "none", each row by its own); None: yes, but for "rank".
    dimensions: keep the first so many values only, before dividing: of models trained for it (Matryoshka).
    dtype: "int8" gives round(127 * x / max|x|) of each vector, whose cosines need no scale; "binary" uint8
        [ceil(d / 8)], a bit for each value above zero, the first in the highest bit.

    Raises ConfigError; UnsupportedModelError for "rank" without a classifier.
    """
    chosen = check_choice("pooling", of_file if pooling is None else pooling, POOLINGS)
    check_choice("dtype", dtype, DTYPES)
    if chosen == "rank":
        if classifier is None:
            said = 'the model\'s pooling_type is 4 ("rank"), which needs' if pooling is None else 'pooling "rank" needs'
            raise UnsupportedModelError(f"{said} a classifier, and its file has none: give another pooling")
        if normalize or dimensions is not None or dtype != "float32":
            raise ConfigError('normalize, dimensions and dtype are for embeddings; pooling "rank" gives scores')
        return PoolingSettings(chosen, False, None, dtype, classifier)
    if dimensions is not None:
        check_int("dimensions", dimensions, 1, n_embd)
    return PoolingSettings(chosen, check_bool("normalize", True if normalize is None else normalize), dimensions, dtype)


def pool(kept: Kept, rows: NDArray[np.float32], settings: PoolingSettings) -> Kept:
    """What is remembered of a text after some more of its rows.

    They are added one by one in double, so that the mean doesn't depend on how the text was divided into chunks.
    """
    match place(settings):
        case "none":
            return [*kept, rows.copy()]
        case "cls":
            return kept or [rows[0].copy()]
        case "last":
            return [rows[-1].copy()]
        case "max":
            return [np.maximum.reduce([*kept, *rows])]
    total = kept[0] if kept else np.zeros(rows.shape[1], np.float64)
    for row in rows:
        total += row
    return [total]


def place(settings: PoolingSettings) -> str:
    """The pooling of rows; of "rank", that of the token that the classifier reads."""
    if settings.classifier is None:
        return settings.pooling
    return "cls" if settings.classifier.of_first else "last"


def result_of(kept: Kept, n_tokens: int, settings: PoolingSettings, deltas: Deltas = no_deltas) -> NDArray[Any]:
    """Of all rows of a text. deltas: what adapters add to the classifier. Raises GenerateError for rows of NaN."""
    pooled = np.concatenate(kept) if settings.pooling == "none" else kept[0]
    if settings.classifier is not None:
        return finite("scores", settings.classifier.scores(pooled, deltas))
    if settings.pooling == "mean":
        pooled = pooled / n_tokens
    pooled = finite("hidden states", pooled[..., : settings.dimensions])
    if settings.normalize:
        wide = pooled.astype(np.float64)
        length = np.sqrt((wide * wide).sum(axis=-1, keepdims=True))
        pooled = np.divide(wide, length, out=np.zeros_like(wide), where=length > 0)
    return in_dtype(pooled.astype(np.float32), settings.dtype)


def finite(what: str, values: NDArray[Any]) -> NDArray[Any]:
    """The values. Raises GenerateError, which shows the first, if one is NaN or infinite."""
    bad = values[~np.isfinite(values)]
    if len(bad):
        raise GenerateError(f"{len(bad)} of the model's {values.size} {what} are {bad[0]}: the weights are damaged")
    return values


def in_dtype(vectors: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    """Vectors [..., n]; as int8 [..., n], codes round(127 * x / max|x|) of each; or as bits, uint8 [..., ceil(n / 8)].

    A value above zero is a bit that is set, and the first value of eight the highest bit.
    """
    coded: NDArray[Any] = vectors
    if dtype == "int8":
        largest = np.abs(vectors).max(axis=-1, keepdims=True).astype(np.float64)
        codes = np.divide(127.0 * vectors, largest, out=np.zeros(vectors.shape), where=largest > 0)
        coded = np.rint(codes).astype(np.int8)
    elif dtype == "binary":
        coded = np.packbits(vectors > 0, axis=-1)
    return coded
