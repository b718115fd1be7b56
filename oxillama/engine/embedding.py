"""Numbers of whole texts: hidden states of all tokens, pooled to embeddings, and logits of every position."""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from oxillama.checks import check_bool, check_choice
from oxillama.engine.core import EngineCore
from oxillama.engine.options import Prompt
from oxillama.engine.prompts import is_single_prompt, named_prompts
from oxillama.engine.request import Bell, LogitsRequest, Outbox, Request, Want
from oxillama.engine.results import FinishReason
from oxillama.engine.sequence import Sequence
from oxillama.engine.texts import TextMaker
from oxillama.errors import ConfigError, UnsupportedModelError
from oxillama.gguf import Metadata
from oxillama.lora import check_wanted

__all__ = ["POOLINGS", "EmbedPooling", "EmbeddingRequest", "NumberMethods", "read_pooling"]

# Poolings that give one vector for a text.
EmbedPooling = Literal["mean", "last", "cls", "max"]
POOLINGS = ("mean", "last", "cls", "max", "none")


# What files say by number; "rank" needs a classifier, which no model here has.
FILE_POOLINGS = ("none", "mean", "cls", "last", "rank")


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


class EmbeddingRequest(Request):
    """Hidden states after the final norm, pooled over the tokens of one text; `result` when finished.

    Rows are added one by one in double, so that the mean doesn't depend on how the text was divided into chunks.
    """

    want: Want = "hidden"

    def __init__(self, tokens: list[int], pooling: str, normalize: bool, outbox: Outbox, **options: Any) -> None:
        super().__init__(Sequence(tokens, len(tokens)), outbox, **options)
        self.result: NDArray[np.float32] = np.empty(0, np.float32)
        self._pooling = pooling
        self._normalize = normalize
        self._n_added = 0
        self._rows: list[NDArray[Any]] = []

    def absorb(self, rows: NDArray[np.float32]) -> FinishReason | None:
        end = self.sequence.n_computed
        if end > self._n_added:  # of those sent back, rows come again
            self._add(rows[self._n_added - end :])
            self._n_added = end
        if self._n_added < len(self.sequence.tokens):
            return None
        self.result = self._pooled()
        return "stop"

    def _add(self, rows: NDArray[np.float32]) -> None:
        kept = self._rows
        match self._pooling:
            case "none":
                kept.append(rows.copy())
            case "cls":
                self._rows = kept or [rows[0].copy()]
            case "last":
                self._rows = [rows[-1].copy()]
            case "max":
                self._rows = [np.maximum.reduce([*kept, *rows])]
            case _:
                total = kept[0] if kept else np.zeros(rows.shape[1], np.float64)
                for row in rows:
                    total += row
                self._rows = [total]

    def _pooled(self) -> NDArray[np.float32]:
        pooled = np.concatenate(self._rows) if self._pooling == "none" else self._rows[0]
        if self._pooling == "mean":
            pooled = pooled / len(self.sequence.tokens)
        if self._normalize:
            wide = pooled.astype(np.float64)
            length = np.sqrt((wide * wide).sum(axis=-1, keepdims=True))
            pooled = np.divide(wide, length, out=np.zeros_like(wide), where=length > 0)
        return pooled.astype(np.float32)


class NumberMethods:
    """Methods of the engine that compute whole texts."""

    _core: EngineCore
    _maker: TextMaker
    _pooling: str
    n_vocab: int

    # A text is also a sequence of texts to the type system; the first signature that fits counts.
    @overload
    def embed(
        self, input: Prompt, *, pooling: str | None = None, normalize: bool = True, lora: Any = None
    ) -> NDArray[np.float32]: ...

    @overload
    def embed(
        self, input: SequenceOf[Prompt], *, pooling: EmbedPooling, normalize: bool = True, lora: Any = None
    ) -> NDArray[np.float32]: ...

    @overload
    def embed(
        self, input: SequenceOf[Prompt], *, pooling: str | None = None, normalize: bool = True, lora: Any = None
    ) -> NDArray[np.float32] | list[NDArray[np.float32]]: ...

    def embed(
        self, input: Prompt | SequenceOf[Prompt], *, pooling: Any = None, normalize: bool = True, lora: Any = None
    ) -> NDArray[np.float32] | list[NDArray[np.float32]]:
        """Hidden states after the final norm, pooled over tokens: float32 [d] for one text, [n, d] for a list.

        pooling: "mean", "max", "last" or "cls" (first token); "none" gives [tokens, d], and a list of these for a list.
            None is what the model's file says (`pooling_type`), or "mean".
        normalize: divide by the Euclidean length (for "none", each row by its own).
        lora: adapters, as for `generate`.
        Raises ConfigError, TokenizerError, ContextOverflowError; UnsupportedModelError if the file says "rank".
        """
        requests, outbox, results = self._embedding(input, pooling, normalize, lora)
        self._core.run(requests, outbox)
        return results()

    def _embedding(
        self, input: Any, pooling: str | None, normalize: bool, lora: Any, bell: Bell | None = None
    ) -> tuple[list[EmbeddingRequest], Outbox, Callable[[], NDArray[np.float32] | list[NDArray[np.float32]]]]:
        """Requests, their outbox, and what gives the results when they are finished."""
        self._core.check_open()
        if pooling is None and self._pooling == "rank":
            raise UnsupportedModelError(
                'the model\'s pooling_type is 4 ("rank"), which needs a classifier: give another pooling'
            )
        pooling = check_choice("pooling", self._pooling if pooling is None else pooling, POOLINGS)
        check_bool("normalize", normalize)
        single = is_single_prompt("input", input)
        named = [("input", input)] if single else named_prompts("input", input)
        outbox, loras = Outbox(len(named), bell), self._maker.loras.select(check_wanted("lora", lora))
        requests = [
            EmbeddingRequest(self._maker.fitting(name, p), pooling, normalize, outbox, index=i, loras=loras)
            for i, (name, p) in enumerate(named)
        ]

        def results() -> NDArray[np.float32] | list[NDArray[np.float32]]:
            found = [request.result for request in requests]
            return found[0] if single else found if pooling == "none" else np.stack(found)

        return requests, outbox, results

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
