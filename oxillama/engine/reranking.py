"""Which of several documents answers a query best, by a model that reads both together and has a classifier."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oxillama.checks import check_int, check_type
from oxillama.engine.embedding import EmbeddingRequest, NumberMethods
from oxillama.engine.prompts import plain
from oxillama.engine.request import Bell, Outbox
from oxillama.errors import ConfigError, UnsupportedModelError
from oxillama.json_values import fields_as_json
from oxillama.models.classifier import Classifier
from oxillama.tokenizer import Tokenizer

__all__ = ["RankMethods", "RankedDocument", "pair_ids"]

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
        two texts with the encoder's separators. Scores are the encoder's logits, or a decoder's probabilities.

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
    ) -> tuple[list[EmbeddingRequest], Outbox, Callable[[], list[RankedDocument]]]:
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
