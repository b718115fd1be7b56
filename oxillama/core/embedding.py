"""Embeddings, logits and rankings of whole texts, and texts that are denoised whole."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from oxillama._util.checks import check_bool, check_choice, check_int, check_keywords, check_type
from oxillama._util.json_values import fields_as_json
from oxillama.core.context import EngineContext
from oxillama.core.options import ServingOptions
from oxillama.core.prompts import check_length, check_token, plain, read_prompt, read_prompts
from oxillama.core.request import Bell, LogitsRequest, Request, ResultQueue, Want
from oxillama.core.results import CancelToken, Completion, FinishReason
from oxillama.errors import ConfigError, ContextOverflowError, GenerateError, UnsupportedModelError
from oxillama.gguf import Metadata
from oxillama.lora import check_wanted
from oxillama.models.classifier import Classifier
from oxillama.models.linear import Deltas, no_deltas
from oxillama.sampling.denoising import DiffusionSettings, MaskedText, OnStep
from oxillama.scheduling.sequence import Sequence
from oxillama.tokenizer import Tokenizer

__all__ = [
    "DTYPES",
    "POOLINGS",
    "DenoiseRequest",
    "Denoising",
    "DiffuseOptions",
    "EmbedOptions",
    "EmbedPooling",
    "EmbeddingRequest",
    "Embeddings",
    "PoolingSettings",
    "RankedDocument",
    "RerankOptions",
    "choose_pooling",
    "denoised",
    "embedding_requests",
    "logits_of",
    "logits_request",
    "pair_ids",
    "pool",
    "ranking_requests",
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
    lora: Any


class RerankOptions(TypedDict, total=False):
    """Keywords of `Engine.rerank` beside the query and the documents."""

    top_n: int | None
    template: str | None
    lora: Any


EMBED_KEYWORDS = ("input", "pooling", *EmbedOptions.__annotations__)
RERANK_KEYWORDS = ("query", "documents", *RerankOptions.__annotations__)


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


def embedding_requests(
    context: EngineContext,
    input: Any,
    pooling: str | None,
    options: Mapping[str, Any],
    bell: Bell | None = None,
    *,
    name: str = "input",
) -> tuple[list[EmbeddingRequest], ResultQueue, Callable[[], Embeddings]]:
    """Requests of `Engine.embed`, their outbox, and what gives the results when they are finished.

    Texts of like length are computed together, whatever their order. Raises what `embed` raises, but for what is wrong
    with the model's numbers.
    """
    check_keywords("embed", options, EMBED_KEYWORDS)
    context.core.check_open()
    fields = dict(options)
    loras = context.loras.select(check_wanted("lora", fields.pop("lora", None)))
    settings = choose_pooling(context.pooling, context.classifier, context.spec.n_embd, pooling=pooling, **fields)
    single, named = read_prompts(name, input)
    outbox, factory = ResultQueue(len(named), bell), context.factory
    # Pairs that a decoder scores begin alike, and of all their hidden states it reads the last alone.
    shares = settings.classifier is not None and not settings.classifier.of_first
    key = ServingOptions().cache_key(factory.kv_type, loras) if shares else None
    encodes = context.spec.decoder_start is not None
    requests = []
    for i, (part, prompt) in enumerate(named):
        ids = factory.fitting(part, prompt)
        n = len(ids) * encodes
        requests.append(EmbeddingRequest(ids, settings, outbox, index=i, loras=loras, cache_key=key, n_source=n))

    def results() -> Embeddings:
        found = [request.result for request in requests]
        return found[0] if single else found if settings.pooling == "none" else np.stack(found)

    return sorted(requests, key=lambda r: len(r.sequence.tokens), reverse=True), outbox, results


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


def ranking_requests(
    context: EngineContext, query: Any, documents: Any, options: Mapping[str, Any], bell: Bell | None = None
) -> tuple[list[EmbeddingRequest], ResultQueue, Callable[[], list[RankedDocument]]]:
    """Requests of `Engine.rerank`, their outbox, and what gives the documents when they are finished.

    top_n: how many to return; None: all.
    template: text with {query} and {document} instead of the model's. Control tokens are read in the template alone.
    lora: adapters, as for `generate`.
    """
    check_keywords("rerank", options, RERANK_KEYWORDS)
    context.core.check_open()
    top_n, lora = options.get("top_n"), options.get("lora")
    pairs = read_pairs(context, query, documents, options.get("template"))
    n = len(pairs) if top_n is None else check_int("top_n", top_n, 1, 1 << 31)
    requests, outbox, scores = embedding_requests(context, pairs, "rank", {"lora": lora}, bell, name="documents")

    def results() -> list[RankedDocument]:
        found = [RankedDocument(i, float(row[0]), row) for i, row in enumerate(scores())]
        return sorted(found, key=lambda document: -document.score)[:n]

    return requests, outbox, results


def read_pairs(context: EngineContext, query: Any, documents: Any, template: Any) -> list[list[int]]:
    """Token ids of the query with each document. Raises what `Engine.rerank` raises for what can't be read."""
    if context.classifier is None:
        raise UnsupportedModelError(
            "the model has no classifier that scores a pair of texts: load a reranker, or compare by embed()"
        )
    query, documents = check_type("query", plain("query", query), str), plain("documents", documents)
    if isinstance(documents, str | bytes) or not isinstance(documents, SequenceOf) or not documents:
        raise ConfigError(f"documents must be a list of at least one text, not {documents!r}")
    texts = [check_type(f"documents[{i}]", text, str) for i, text in enumerate(documents)]
    chosen = pair_template(context.tokenizer, context.classifier, template)
    check = partial(check_length, context.tokenizer, context_size=context.context_size)
    return [
        pair_ids(context.tokenizer, chosen, query, text, partial(check, f"documents[{i}] with the query"))
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

    Without a template, BERT's "[CLS] query [SEP] document [SEP]", or RoBERTa's "<s> query </s></s> document </s>", by
    the tokenizer's `separators`.
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
    second_mark = end if tokenizer.sep_id is None else tokenizer.sep_id
    between = [end, second_mark][: tokenizer.separators]
    return [begin, *first, *between, *second, end]


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


class DiffuseOptions(TypedDict, total=False):
    """Keywords of `Engine.diffuse`."""

    max_tokens: int
    steps: int | None
    order: str | None
    block_length: int | None
    eps: float | None
    temperature: float
    top_p: float
    top_k: int
    order_temperature: float
    cfg_scale: float
    seed: int | None
    mask_token: int | None
    shift_logits: bool | None
    on_step: OnStep | None
    cancel_token: CancelToken | None
    lora: Any


class DenoiseRequest(Request):
    """Logits of some positions of a whole text, float32 [len(wanted), n_vocab], in `out`."""

    want: Want = "all"

    def __init__(self, tokens: list[int], wanted: NDArray[np.intp], outbox: ResultQueue, **options: Any) -> None:
        super().__init__(Sequence(tokens, len(tokens)), outbox, **options)
        self.out: NDArray[np.float32] = np.empty((0, 0), np.float32)
        self._wanted = wanted

    def absorb(self, rows: NDArray[np.float32]) -> FinishReason | None:
        self.out = rows[self._wanted]  # all rows are there: such models compute texts whole
        return "stop"


class Denoising:
    """A text that is written by steps: compute what each of `rounds` gives before the next, and take `result`."""

    def __init__(self, context: EngineContext, prompt: Any, options: Mapping[str, Any]) -> None:
        """Raises what `Engine.diffuse` raises before its first step."""
        check_keywords("diffuse", options, DiffuseOptions.__annotations__)
        self.settings = settings = DiffusionSettings(**options)
        if settings.cancel_token is not None:
            check_type("cancel_token", settings.cancel_token, CancelToken)
        check_denoises(context)
        self.context, self.cancelled = context, False
        self.loras = context.loras.select(check_wanted("lora", settings.lora))
        mask = mask_of(context, settings)
        ids = read_masked(context, read_prompt("prompt", prompt, "diffuse() takes"), settings.max_tokens, mask)
        self.text = MaskedText(ids, mask, settings, context.spec.shifted)

    def rounds(self, bell: Callable[[], Bell] | None = None) -> Iterator[tuple[list[DenoiseRequest], ResultQueue]]:
        """The requests of each step, which are to be finished before the next is asked for. bell: of a coroutine."""
        text, token = self.text, self.settings.cancel_token
        for n, step in enumerate(text.steps(self.context.tokenizer.eog_ids), 1):
            outbox = ResultQueue(len(step.texts), None if bell is None else bell())
            requests = [
                DenoiseRequest(tokens, step.wanted, outbox, loras=self.loras, cancel_token=token)
                for tokens in step.texts
            ]
            yield requests, outbox
            self.cancelled = any(request.finish_reason == "cancelled" for request in requests)
            if self.cancelled:
                return
            text.fill(step, [request.out for request in requests])
            if self.settings.on_step is not None:
                self.settings.on_step(n, [None if token == text.mask else token for token in text.written])

    def result(self) -> Completion:
        """The text up to an end token; of one that was cancelled, up to the first mask."""
        ends, written = self.context.tokenizer.eog_ids, self.text.written
        n = next((i for i, t in enumerate(written) if t in ends or t == self.text.mask), len(written))
        stopped = n < len(written) and written[n] in ends
        stream = self.context.tokenizer.stream(skip_special=True)
        return Completion(
            text="".join(map(stream.push, written[:n])) + stream.flush(),
            token_ids=written[:n],
            finish_reason="stop" if stopped else "cancelled" if self.cancelled else "length",
            prompt_tokens=len(self.text.prompt),
            stop_reason=written[n] if stopped else None,
        )


def denoised(context: EngineContext, prompt: Any, options: Mapping[str, Any]) -> Completion:
    """The text of `Engine.diffuse`, whose steps the calling thread waits for."""
    denoising = Denoising(context, prompt, options)
    for requests, outbox in denoising.rounds():
        context.core.run(requests, outbox)
    return denoising.result()


def check_denoises(context: EngineContext) -> None:
    """Raises GenerateError for a model of another kind, EngineClosedError once the engine is closed."""
    context.core.check_open()
    if not context.spec.denoises:
        use = "generate() is for it" if context.spec.causal else "it is for embed() alone"
        raise GenerateError(f"architecture {context.spec.arch} does not denoise texts: {use}")


def mask_of(context: EngineContext, settings: DiffusionSettings) -> int:
    """The mask's id. Raises ConfigError where neither file nor caller says it."""
    if settings.mask_token is not None:
        return check_token("mask_token", settings.mask_token, context.spec.n_vocab)
    if context.tokenizer.mask_id is None:
        raise ConfigError("the model's file names no mask token (tokenizer.ggml.mask_token_id): give mask_token")
    return context.tokenizer.mask_id


def read_masked(context: EngineContext, prompt: Any, max_tokens: int, mask: int) -> list[int]:
    """The prompt's tokens. Raises ContextOverflowError without room for the output, ConfigError for a mask in it."""
    ids = context.factory.ids("prompt", prompt)
    if len(ids) + max_tokens > context.context_size:
        raise ContextOverflowError(
            f"prompt has {len(ids)} tokens, max_tokens is {max_tokens} and context_size {context.context_size}, which "
            "holds both: shorten one, or load with a larger context_size"
        )
    if mask in ids:
        raise ConfigError(f"prompt has the mask token {mask} at index {ids.index(mask)}: what follows it is written")
    return ids
