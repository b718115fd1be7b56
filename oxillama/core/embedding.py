"""Embeddings of whole texts, by the pooling of their hidden states, and their logits."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from oxillama._util.checks import check_bool, check_choice, check_int, check_keywords
from oxillama.core.context import EngineContext
from oxillama.core.options import ServingOptions
from oxillama.core.prompts import Side, Truncate, check_truncate, read_prompts
from oxillama.core.request import Bell, LogitsRequest, Request, ResultQueue, Want
from oxillama.core.results import FinishReason
from oxillama.errors import ConfigError, GenerateError, UnsupportedModelError
from oxillama.gguf import Metadata
from oxillama.lora import check_wanted
from oxillama.models.classifier import Classifier
from oxillama.models.linear import Deltas, no_deltas
from oxillama.scheduling.sequence import Sequence

__all__ = [
    "DTYPES",
    "POOLINGS",
    "EmbedOptions",
    "EmbedPooling",
    "EmbeddingBatch",
    "EmbeddingRequest",
    "Embeddings",
    "PoolingSettings",
    "choose_pooling",
    "embedding_requests",
    "logits_of",
    "logits_request",
    "pool",
    "read_pooling",
    "result_of",
]

# Poolings that give one vector for a text.
EmbedPooling = Literal["mean", "last", "cls", "max", "rank"]
Embeddings = NDArray[Any] | list[NDArray[Any]]


class EmbedOptions(TypedDict, total=False):
    """Keywords of `Engine.embed` beside the texts and their pooling."""

    normalize: bool | None
    dimensions: int | None
    dtype: str
    truncate: Truncate
    lora: Any


EMBED_KEYWORDS = ("input", "pooling", *EmbedOptions.__annotations__)


class EmbeddingRequest(Request):
    """Hidden states after the final norm, pooled over the tokens of one text; `result` when finished."""

    want: Want = "hidden"

    def __init__(
        self,
        tokens: list[int],
        settings: PoolingSettings,
        outbox: ResultQueue,
        *,
        cache_key: Hashable = None,
        n_source: int = 0,
        **options: Any,
    ) -> None:
        """`n_source`: tokens of it that an encoder reads."""
        sequence = Sequence(tokens, len(tokens), cache_key=cache_key, n_source=n_source, n_encoded=n_source)
        super().__init__(sequence, outbox, **options)
        self.result: NDArray[Any] = np.empty(0, np.float32)
        self._settings = settings
        self._n_added = 0
        self._kept: Kept = []

    def absorb(self, rows: NDArray[np.float32]) -> FinishReason | None:
        end, n_tokens = self.sequence.n_computed, len(self.sequence.tokens)
        if end > self._n_added:  # of those sent back, rows come again
            self._kept = pool(self._kept, rows[self._n_added - end :], self._settings)
            self._n_added = end
        if self._n_added < n_tokens:
            return None
        self.result = result_of(self._kept, n_tokens, self._settings, self.loras.deltas)
        return "stop"


class EmbeddingBatch:
    """Texts of one call as token ids, and their results, of which requests are made a part at a time: sixty thousand
    at once would be a million objects.

    Texts of like length are computed together, whatever their order. n_tokens: of all texts. n_truncated: texts of
    which some was left out. rows: results in the order of the texts, as far as they were taken.
    """

    def __init__(self, context: EngineContext, input: Any, pooling: str | None, options: Mapping[str, Any], *,
                 name: str = "input", size: int | None = None) -> None:  # fmt: skip
        """size: tokens of a text that is cut; None: those of the context.

        Raises what `embed` raises, but for what is wrong with the model's numbers.
        """
        check_keywords("embed", options, EMBED_KEYWORDS)
        context.core.check_open()
        fields = dict(options)
        self._loras = loras = context.loras.select(check_wanted("lora", fields.pop("lora", None)))
        self._settings = settings = choose_pooling(
            context.pooling, context.classifier, context.spec.n_embd, pooling=pooling, **fields
        )
        self._single, named = read_prompts(name, input)
        # Pairs that a decoder scores begin alike, and of all their hidden states it reads the last alone.
        shares = settings.classifier is not None and not settings.classifier.of_first
        self._key = ServingOptions().cache_key(context.factory.kv_type, loras) if shares else None
        self._encodes = context.spec.decoder_start is not None
        cut = [context.factory.cut(part, prompt, settings.truncate, size) for part, prompt in named]
        self._ids, self.n_truncated = [ids for ids, _ in cut], sum(shorter for _, shorter in cut)
        self._order = sorted(range(len(self._ids)), key=lambda i: len(self._ids[i]), reverse=True)
        self.n_tokens = sum(map(len, self._ids))
        self.rows: list[NDArray[Any]] = [_NO_ROW] * len(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def requests(self, start: int, end: int, outbox: ResultQueue) -> list[EmbeddingRequest]:
        """Requests of a part of the texts, in the order in which they are computed; to be made once."""
        return [self._request(i, outbox) for i in self._order[start:end]]

    def _request(self, i: int, outbox: ResultQueue) -> EmbeddingRequest:
        ids, self._ids[i] = self._ids[i], []
        return EmbeddingRequest(
            ids, self._settings, outbox, index=i, loras=self._loras, cache_key=self._key,
            n_source=len(ids) * self._encodes,
        )  # fmt: skip

    def take(self, requests: list[EmbeddingRequest]) -> None:
        """Takes the results of requests that are finished."""
        for request in requests:
            self.rows[request.index] = request.result

    def result(self) -> Embeddings:
        """All of them, as `embed` returns them."""
        if self._single:
            return self.rows[0]
        return self.rows if self._settings.pooling == "none" else np.stack(self.rows)


_NO_ROW: NDArray[Any] = np.empty(0, np.float32)


def embedding_requests(
    context: EngineContext, input: Any, pooling: str | None, options: Mapping[str, Any], bell: Bell | None = None, *,
    name: str = "input",
) -> tuple[list[EmbeddingRequest], ResultQueue, Callable[[], Embeddings]]:  # fmt: skip
    """Requests of `Engine.embed`, their outbox, and what gives the results when they are finished.

    Raises what `EmbeddingBatch` raises.
    """
    batch = EmbeddingBatch(context, input, pooling, options, name=name)
    outbox = ResultQueue(len(batch), bell)
    requests = batch.requests(0, len(batch), outbox)

    def results() -> Embeddings:
        batch.take(requests)
        return batch.result()

    return requests, outbox, results


def logits_request(
    context: EngineContext,
    ids: SequenceOf[int],
    decoder_tokens: SequenceOf[int] | None = None,
    lora: Any = None,
    bell: Bell | None = None,
) -> LogitsRequest:
    """The request of `Engine.forward_logits`."""
    context.core.check_logits()
    if isinstance(ids, str):
        raise ConfigError("ids must be token ids, not text: tokenize() it first")
    loras = context.loras.select(check_wanted("lora", lora))
    tokens, fields = logits_tokens(context, ids, decoder_tokens)
    sequence = Sequence(tokens, len(tokens), **fields)
    return LogitsRequest(sequence, context.spec.n_vocab, ResultQueue(1, bell), loras=loras)


def logits_of(
    context: EngineContext, ids: SequenceOf[int], decoder_tokens: SequenceOf[int] | None, lora: Any
) -> NDArray[np.float32]:
    """The result of `Engine.forward_logits`: decoder_tokens begin with the `decoder_start` of the model's spec."""
    request = logits_request(context, ids, decoder_tokens, lora)
    context.core.run([request], request.outbox)
    return request.out


def logits_tokens(
    context: EngineContext, ids: SequenceOf[int], decoder_tokens: SequenceOf[int] | None
) -> tuple[list[int], dict[str, Any]]:
    """Tokens of a sequence whose logits are wanted, and its fields."""
    arch, factory = context.spec.arch, context.factory
    if (decoder_tokens is None) != (context.spec.decoder_start is None):
        what = "needs" if decoder_tokens is None else "has no place for"
        raise ConfigError(f"architecture {arch} {what} decoder_tokens, the tokens after a prompt that an encoder reads")
    found = factory.fitting("ids", ids)
    if decoder_tokens is None:
        return found, {}
    tokens, fields = factory.place(found, {})
    after = factory.fitting("decoder_tokens", decoder_tokens)
    return factory.fitting("ids with decoder_tokens", tokens[:-1] + after), fields


POOLINGS = ("mean", "last", "cls", "max", "none", "rank")
DTYPES = ("float32", "int8", "binary")
# What files say by number.
FILE_POOLINGS = ("none", "mean", "cls", "last", "rank")

Kept = list[NDArray[Any]]


@dataclass(frozen=True, slots=True)
class PoolingSettings:
    """Settings of how a text's hidden states become its vector; `choose_pooling` checks and makes one."""

    pooling: str = "mean"
    normalize: bool = True
    dimensions: int | None = None
    dtype: str = "float32"
    truncate: Side | None = None
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
    truncate: Truncate = False,
) -> PoolingSettings:
    """Options of `embed`, checked against each other and what the model can do.

    pooling: "mean", "max", "last" or "cls" (first token); "none" gives [tokens, d], and a list of these for a list.
        "rank" gives the scores of the model's classifier, [labels] for each text; see `labels`. None is what the
        model's file says (`pooling_type`), or "mean".
    normalize: divide by the Euclidean length (for "none", each row by its own); None: yes, but for "rank".
    dimensions: keep the first so many values only, before dividing: of models trained for it (Matryoshka).
    dtype: "int8" gives round(127 * x / max|x|) of each vector, whose cosines need no scale; "binary" uint8
        [ceil(d / 8)], a bit for each value above zero, the first in the highest bit.
    truncate: "end" or "start": what a text has more than the context is left out there, between the special tokens
        that begin and end it; False refuses such texts.

    Raises ConfigError; UnsupportedModelError for "rank" without a classifier.
    """
    chosen = check_choice("pooling", of_file if pooling is None else pooling, POOLINGS)
    check_choice("dtype", dtype, DTYPES)
    side = check_truncate(truncate)
    if chosen == "rank":
        if classifier is None:
            said = 'the model\'s pooling_type is 4 ("rank"), which needs' if pooling is None else 'pooling "rank" needs'
            raise UnsupportedModelError(f"{said} a classifier, and its file has none: give another pooling")
        if normalize or dimensions is not None or dtype != "float32":
            raise ConfigError('normalize, dimensions and dtype are for embeddings; pooling "rank" gives scores')
        return PoolingSettings(chosen, False, None, dtype, side, classifier)
    if dimensions is not None:
        check_int("dimensions", dimensions, 1, n_embd)
    divides = check_bool("normalize", True if normalize is None else normalize)
    return PoolingSettings(chosen, divides, dimensions, dtype, side)


def pool(kept: Kept, rows: NDArray[np.float32], settings: PoolingSettings) -> Kept:
    """Sum that is kept of a text after some more of its rows.

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
    """Result of all rows of a text. deltas: what adapters add to the classifier. Raises GenerateError for rows of
    NaN."""
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
