"""Embeddings, logits and rankings of whole texts."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypedDict, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from oxillama._util.checks import check_int, check_keywords, check_type
from oxillama._util.json_values import fields_as_json
from oxillama.core.engine_core import EngineCore
from oxillama.core.options import Prompt, ServingOptions
from oxillama.core.pooling import Kept, PoolingSettings, choose_pooling, pool, result_of
from oxillama.core.prompts import plain, read_prompts
from oxillama.core.request import Bell, LogitsRequest, Request, ResultQueue, Want
from oxillama.core.request_factory import RequestFactory
from oxillama.core.results import FinishReason
from oxillama.errors import ConfigError, UnsupportedModelError
from oxillama.lora import check_wanted
from oxillama.models import ModelSpec
from oxillama.models.classifier import Classifier
from oxillama.scheduling.sequence import Sequence
from oxillama.tokenizer import Tokenizer

__all__ = [
    "EMBED_KEYWORDS",
    "EmbedOptions",
    "EmbedPooling",
    "EmbeddingRequest",
    "Embeddings",
    "NumberMethods",
    "RankMethods",
    "RankedDocument",
    "pair_ids",
]

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
        outbox: ResultQueue,
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
    _maker: RequestFactory
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
    ) -> tuple[list[EmbeddingRequest], ResultQueue, Callable[[], Embeddings]]:
        """Requests, their outbox, and what gives the results when they are finished."""
        self._core.check_open()
        n_embd = self.model_config.n_embd
        settings = choose_pooling(self._pooling, self._classifier, n_embd, pooling=pooling, **options)
        single, named = read_prompts(name, input)
        outbox, loras = ResultQueue(len(named), bell), self._maker.loras.select(check_wanted("lora", lora))
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
        return LogitsRequest(self._maker.fitting("ids", ids), self.n_vocab, ResultQueue(1, bell), loras=loras)


# The name under which files have the template of a query and a document, and its fields.
TEMPLATE, FIELDS = "rerank", ("{query}", "{document}")


@dataclass(frozen=True, eq=False)
class RankedDocument:
    """A document's place in the list that was given, and how well it answers.

    score: the classifier's first output; higher is better. scores: all of them, float32 [labels], as `Engine.labels`
    names them.
    """

    index: int
    score: float
    scores: NDArray[np.float32]

    def to_dict(self) -> dict[str, Any]:
        """index, score and scores, in the form that `json.dumps` takes."""
        return fields_as_json(self)

    def _key(self) -> tuple[int, float, bytes]:
        return self.index, self.score, self.scores.tobytes()

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, RankedDocument) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())


class RankMethods(NumberMethods):
    """The engine's method that ranks documents."""

    tokenizer: Tokenizer

    def rerank(
        self,
        query: str,
        documents: SequenceOf[str],
        *,
        top_n: int | None = None,
        template: str | None = None,
        lora: Any = None,
    ) -> list[RankedDocument]:
        """The documents, best first; of equal ones, the first that was given.

        Query and document are read together, as the model's file says (its chat template named "rerank"), or else as
        two texts with the encoder's separators. LogprobRecorder are the encoder's logits, or a decoder's probabilities.

        top_n: how many to return; None: all. template: text with {query} and {document} instead of the model's. Control
        tokens are read in the template alone. lora: adapters, as for `generate`.
        Raises ConfigError, ContextOverflowError (a pair is too long), TokenizerError; UnsupportedModelError if the
        model has no classifier, or no template and no separators.
        """
        requests, outbox, results = self._ranking(query, documents, top_n, template, lora)
        self._core.run(requests, outbox)
        return results()

    def _ranking(
        self, query: Any, documents: Any, top_n: Any, template: Any, lora: Any, bell: Bell | None = None
    ) -> tuple[list[EmbeddingRequest], ResultQueue, Callable[[], list[RankedDocument]]]:
        """Requests, their outbox, and what gives the documents when they are finished."""
        self._core.check_open()
        pairs = self._pairs(query, documents, template)
        n = len(pairs) if top_n is None else check_int("top_n", top_n, 1, 1 << 31)
        requests, outbox, scores = self._embedding(pairs, "rank", {}, lora, bell, name="documents")

        def results() -> list[RankedDocument]:
            found = [RankedDocument(i, float(row[0]), row) for i, row in enumerate(scores())]
            return sorted(found, key=lambda document: -document.score)[:n]

        return requests, outbox, results

    def _pairs(self, query: Any, documents: Any, template: Any) -> list[list[int]]:
        if self._classifier is None:
            raise UnsupportedModelError(
                "the model has no classifier that scores a pair of texts: load a reranker, or compare by embed()"
            )
        query, documents = check_type("query", plain("query", query), str), plain("documents", documents)
        if isinstance(documents, str | bytes) or not isinstance(documents, SequenceOf) or not documents:
            raise ConfigError(f"documents must be a list of at least one text, not {documents!r}")
        texts = [check_type(f"documents[{i}]", text, str) for i, text in enumerate(documents)]
        chosen = pair_template(self.tokenizer, self._classifier, template)
        check = self._maker.check_length
        return [
            pair_ids(self.tokenizer, chosen, query, text, partial(check, f"documents[{i}] with the query"))
            for i, text in enumerate(texts)
        ]


def pair_template(tokenizer: Tokenizer, classifier: Classifier, template: str | None) -> str | None:
    """The template that was given, or the file's; None for an encoder's separators."""
    if template is None:
        template = tokenizer.chat_templates.get(TEMPLATE)
    if template is None and not classifier.of_first:
        raise UnsupportedModelError(
            'the model\'s file has no chat template "rerank" that says how it reads a pair: give template='
        )
    if template is not None and not all(field in check_type("template", template, str) for field in FIELDS):
        raise ConfigError(f"template must have {' and '.join(FIELDS)} in it, not {template!r}")
    return template


def pair_ids(
    tokenizer: Tokenizer, template: str | None, query: str, document: str, check: Callable[[str], None] | None = None
) -> list[int]:
    """Tokens of a query and a document together; `check` sees each text before it is tokenised.

    Without a template, BERT's "[CLS] query [SEP] document [SEP]", or RoBERTa's "<s> query </s></s> document </s>".
    """
    fields = {"{query}": query, "{document}": document}
    for text in fields.values() if template is None else tokenizer.filled(template, fields):
        if check is not None and isinstance(text, str):
            check(text)
    if template is not None:
        return tokenizer.encode_template(template, fields)
    first, second = (tokenizer.encode(text, add_special=False) for text in (query, document))
    begin = tokenizer.cls_id if tokenizer.bos_id is None else tokenizer.bos_id
    end = tokenizer.sep_id if tokenizer.model == "bert" or tokenizer.eos_id is None else tokenizer.eos_id
    if begin is None or end is None:
        raise UnsupportedModelError("the tokenizer has no tokens to begin and to separate texts with: give template=")
    between = [end] if tokenizer.model == "bert" else [end, end]
    return [begin, *first, *between, *second, end]
