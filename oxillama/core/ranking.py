"""Rankings of documents: how well each answers a query, by the classifier of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from oxillama._util.checks import check_int, check_keywords, check_type
from oxillama._util.json_values import fields_as_json
from oxillama.core.context import EngineContext
from oxillama.core.embedding import EmbeddingRequest, embedding_requests
from oxillama.core.prompts import Side, Truncate, check_length, check_truncate, cut_ids, plain
from oxillama.core.request import Bell, ResultQueue
from oxillama.errors import ConfigError, ContextOverflowError, UnsupportedModelError
from oxillama.models.classifier import Classifier
from oxillama.tokenizer import Tokenizer

__all__ = [
    "RankedDocument",
    "RerankOptions",
    "pair_ids",
    "ranked",
    "ranking_requests",
    "read_pairs",
]

# The name under which files have the template of a query and a document, and its fields.
TEMPLATE, FIELDS = "rerank", ("{query}", "{document}")


class RerankOptions(TypedDict, total=False):
    """Options of `Engine.rerank` beside the query and the documents."""

    top_n: int | None
    template: str | None
    truncate: Truncate
    lora: Any


RERANK_KEYWORDS = ("query", "documents", *RerankOptions.__annotations__)


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
    truncate: "end" or "start": what a document has more than there is room for beside the query is left out there;
        False refuses it.
    lora: adapters, as for `generate`.
    """
    check_keywords("rerank", options, RERANK_KEYWORDS)
    context.core.check_open()
    top_n, lora = options.get("top_n"), options.get("lora")
    pairs, _ = read_pairs(context, query, documents, options.get("template"), check_truncate(options.get("truncate")))
    n = len(pairs) if top_n is None else check_int("top_n", top_n, 1, 1 << 31)
    requests, outbox, scores = embedding_requests(context, pairs, "rank", {"lora": lora}, bell, name="documents")

    return requests, outbox, lambda: ranked(scores(), n)


def ranked(rows: Iterable[NDArray[np.float32]], n: int | None) -> list[RankedDocument]:
    """Documents by what a classifier gave for them, best first; n at most."""
    found = [RankedDocument(i, float(row[0]), row) for i, row in enumerate(rows)]
    return sorted(found, key=lambda document: -document.score)[:n]


def read_pairs(
    context: EngineContext, query: Any, documents: Any, template: Any, side: Side | None = None, size: int | None = None
) -> tuple[list[list[int]], int]:
    """Token ids of the query with each document, which is cut at `side` where both have more than `size` (None: as many
    as the context); and the number of those that were cut.

    Raises what `Engine.rerank` raises for what can't be read.
    """
    if context.classifier is None:
        raise UnsupportedModelError(
            "the model has no classifier that scores a pair of texts: load a reranker, or compare by embed()"
        )
    query, documents = check_type("query", plain("query", query), str), plain("documents", documents)
    if isinstance(documents, str | bytes) or not isinstance(documents, SequenceOf) or not documents:
        raise ConfigError(f"documents must be a list of at least one text, not {documents!r}")
    texts = [check_type(f"documents[{i}]", text, str) for i, text in enumerate(documents)]
    chosen = pair_template(context.tokenizer, context.classifier, template)
    if side is not None:
        cut = [cut_pair(context, chosen, query, text, side, size or context.context_size) for text in texts]
        return [ids for ids, _ in cut], sum(shorter for _, shorter in cut)
    check = partial(check_length, context.tokenizer, context_size=context.context_size)
    return [
        pair_ids(context.tokenizer, chosen, query, text, partial(check, f"documents[{i}] with the query"))
        for i, text in enumerate(texts)
    ], 0


def cut_pair(
    context: EngineContext, template: str | None, query: str, document: str, side: Side, size: int
) -> tuple[list[int], bool]:
    """Token ids of a query and as much of a document as there is room for in `size`, and whether some was left out.

    With a template, whose tokens depend on their neighbours, the document loses characters in proportion to the tokens
    that are too many, until it fits. Raises ContextOverflowError if the query leaves no room.
    """
    tokenizer = context.tokenizer
    check_length(tokenizer, "query", query, size)
    around = len(pair_ids(tokenizer, template, query, ""))
    if around >= size:
        text = f"query has {around} tokens with what surrounds it, of {size} that a pair may have: no document fits"
        raise ContextOverflowError(f"{text}: shorten it, or load with a larger context_size", around)
    if template is None:
        whole = tokenizer.encode(document, add_special=False)
        second = cut_ids(whole, size - around, side)
        return separated(tokenizer, tokenizer.encode(query, add_special=False), second), len(second) < len(whole)
    shorter = False
    while len(found := pair_ids(tokenizer, template, query, document)) > size:
        kept = min(len(document) - 1, len(document) * (size - around) // (len(found) - around))
        document = document[:kept] if side == "end" else document[len(document) - kept :]
        shorter = True
    return found, shorter


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
    the tokenizer's `separators`. Raises UnsupportedModelError.
    """
    fields = {"{query}": query, "{document}": document}
    for text in fields.values() if template is None else tokenizer.filled(template, fields):
        if check is not None and isinstance(text, str):
            check(text)
    if template is not None:
        return tokenizer.encode_template(template, fields)
    return separated(tokenizer, *(tokenizer.encode(text, add_special=False) for text in (query, document)))


def separated(tokenizer: Tokenizer, first: list[int], second: list[int]) -> list[int]:
    """Tokens of two texts with the encoder's separators. Raises UnsupportedModelError without the tokens for it."""
    begin = tokenizer.cls_id if tokenizer.bos_id is None else tokenizer.bos_id
    end = tokenizer.sep_id if tokenizer.model == "bert" or tokenizer.eos_id is None else tokenizer.eos_id
    if begin is None or end is None:
        raise UnsupportedModelError("the tokenizer has no tokens to begin and to separate texts with: give template=")
    second_mark = end if tokenizer.sep_id is None else tokenizer.sep_id
    between = [end, second_mark][: tokenizer.separators]
    return [begin, *first, *between, *second, end]
