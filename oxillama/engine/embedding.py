"""Numbers of whole texts: hidden states of all tokens, pooled to embeddings, and logits of every position."""

from collections.abc import Callable, Hashable
from collections.abc import Sequence as SequenceOf
from typing import Any, Literal, TypedDict, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from oxillama.checks import check_keywords
from oxillama.engine.core import EngineCore
from oxillama.engine.options import Prompt
from oxillama.engine.pooling import Kept, PoolingSettings, choose_pooling, pool, result_of
from oxillama.engine.prompts import read_prompts
from oxillama.engine.request import Bell, LogitsRequest, Outbox, Request, Want
from oxillama.engine.results import FinishReason
from oxillama.engine.sequence import Sequence
from oxillama.engine.serving import ServingOptions
from oxillama.engine.texts import TextMaker
from oxillama.errors import ConfigError
from oxillama.lora import check_wanted
from oxillama.models import ModelSpec
from oxillama.models.classifier import Classifier

__all__ = ["EMBED_KEYWORDS", "EmbedOptions", "EmbedPooling", "EmbeddingRequest", "Embeddings", "NumberMethods"]

# Poolings that give one vector for a text.
EmbedPooling = Literal["mean", "last", "cls", "max", "rank"]
Embeddings = NDArray[Any] | list[NDArray[Any]]


class EmbedOptions(TypedDict, total=False):
    """What `Engine.embed` takes beside the texts and their pooling."""

    normalize: bool | None
    dimensions: int | None
    dtype: str
    lora: Any


EMBED_KEYWORDS = ("input", "pooling", *EmbedOptions.__annotations__)


class EmbeddingRequest(Request):
    """Hidden states after the final norm, pooled over the tokens of one text; `result` when finished."""

    want: Want = "hidden"

    def __init__(
        self,
        tokens: list[int],
        settings: PoolingSettings,
        outbox: Outbox,
        *,
        cache_key: Hashable = None,
        **options: Any,
    ) -> None:
        super().__init__(Sequence(tokens, len(tokens), cache_key=cache_key), outbox, **options)
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


class NumberMethods:
    """Methods of the engine that compute whole texts."""

    _core: EngineCore
    _maker: TextMaker
    _pooling: str
    _classifier: Classifier | None
    model_config: ModelSpec
    n_vocab: int

    # A text is also a sequence of texts to the type system; the first signature that fits counts.
    @overload
    def embed(self, input: Prompt, *, pooling: str | None = None, **options: Unpack[EmbedOptions]) -> NDArray[Any]: ...

    @overload
    def embed(
        self, input: SequenceOf[Prompt], *, pooling: EmbedPooling, **options: Unpack[EmbedOptions]
    ) -> NDArray[Any]: ...

    @overload
    def embed(
        self, input: SequenceOf[Prompt], *, pooling: str | None = None, **options: Unpack[EmbedOptions]
    ) -> Embeddings: ...

    def embed(
        self,
        input: Prompt | SequenceOf[Prompt],
        *,
        pooling: Any = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        dtype: str = "float32",
        lora: Any = None,
        **unknown: object,
    ) -> Embeddings:
        """Hidden states after the final norm, pooled over tokens: float32 [d] for one text, [n, d] for a list.

        pooling: "mean", "max", "last" or "cls" (first token); "none" gives [tokens, d], and a list of these for a list.
            "rank" gives the scores of the model's classifier, [labels] for each text; see `labels`. None is what the
            model's file says (`pooling_type`), or "mean".
        normalize: divide by the Euclidean length (for "none", each row by its own); None: yes, but for "rank".
        dimensions: keep the first so many values only, before dividing: of models trained for it (Matryoshka).
        dtype: "int8" gives round(127 * x / max|x|) of each vector, whose cosines need no scale; "binary" uint8
            [ceil(d / 8)], a bit for each value above zero, the first in the highest bit.
        lora: adapters, as for `generate`.
        Texts of like length are computed together, whatever their order. Raises ConfigError, TokenizerError,
        ContextOverflowError; UnsupportedModelError for "rank" without a classifier; GenerateError if the model
        computes NaN or infinity.
        """
        check_keywords("embed", unknown, EMBED_KEYWORDS)
        options = {"normalize": normalize, "dimensions": dimensions, "dtype": dtype}
        requests, outbox, results = self._embedding(input, pooling, options, lora)
        self._core.run(requests, outbox)
        return results()

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the scores that pooling "rank" gives; empty if the model has no classifier, or nameless ones."""
        return () if self._classifier is None else self._classifier.labels

    def _embedding(
        self,
        input: Any,
        pooling: str | None,
        options: dict[str, Any],
        lora: Any,
        bell: Bell | None = None,
        *,
        name: str = "input",
    ) -> tuple[list[EmbeddingRequest], Outbox, Callable[[], Embeddings]]:
        """Requests, their outbox, and what gives the results when they are finished."""
        self._core.check_open()
        n_embd = self.model_config.n_embd
        settings = choose_pooling(self._pooling, self._classifier, n_embd, pooling=pooling, **options)
        single, named = read_prompts(name, input)
        outbox, loras = Outbox(len(named), bell), self._maker.loras.select(check_wanted("lora", lora))
        # Pairs that a decoder scores begin alike, and of all their hidden states it reads the last alone.
        shares = settings.classifier is not None and not settings.classifier.of_first
        key = ServingOptions().cache_key(self._maker.kv_type, loras) if shares else None
        requests = [
            EmbeddingRequest(self._maker.fitting(part, p), settings, outbox, index=i, loras=loras, cache_key=key)
            for i, (part, p) in enumerate(named)
        ]

        def results() -> Embeddings:
            found = [request.result for request in requests]
            return found[0] if single else found if settings.pooling == "none" else np.stack(found)

        return sorted(requests, key=lambda r: len(r.sequence.tokens), reverse=True), outbox, results

    def forward_logits(self, ids: SequenceOf[int], *, lora: Any = None) -> NDArray[np.float32]:
        """Logits of every position, float32 [len(ids), n_vocab], from an empty context; no state is kept.

        lora: adapters, as for `generate`.
        Raises TokenizerError, ConfigError (no ids), ContextOverflowError; GenerateError if the model is an encoder.
        """
        request = self._logits(ids, lora)
        self._core.run([request], request.outbox)
        return request.out

    def _logits(self, ids: SequenceOf[int], lora: Any, bell: Bell | None = None) -> LogitsRequest:
        self._core.check_generates()
        if isinstance(ids, str):
            raise ConfigError("ids must be token ids, not text: tokenize() it first")
        loras = self._maker.loras.select(check_wanted("lora", lora))
        return LogitsRequest(self._maker.fitting("ids", ids), self.n_vocab, Outbox(1, bell), loras=loras)
