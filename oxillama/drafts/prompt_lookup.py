"""Prompt-lookup drafts: the continuation of an earlier occurrence of the last tokens."""

from collections.abc import Iterable, Sequence
from typing import Any

from oxillama._util.checks import check_int
from oxillama._util.pickling import with_fields
from oxillama.drafts.draft import DraftTask, Proposal, Target
from oxillama.errors import ConfigError
from oxillama.sampling.state import check_ids

__all__ = [
    "MAX_NGRAM",
    "NgramIndex",
    "PromptLookup",
]

MAX_NGRAM = 16


class NgramIndex:
    """Index of the last occurrence of each n-gram in a growing text; O(1) for each added token.

    An n-gram is entered once a token follows it. n_read: number of indexed tokens.
    """

    __slots__ = ("_after", "_sizes", "n_read", "tokens")

    def __init__(self, tokens: Sequence[int], min_ngram: int, max_ngram: int) -> None:
        """`tokens` may be appended to, and is not copied."""
        self.tokens = tokens
        self._sizes = range(max_ngram, min_ngram - 1, -1)
        self.n_read = 0
        self._after: dict[tuple[int, ...], int] = {}

    def read(self) -> None:
        """Indexes the tokens added since the last call."""
        tokens, after = self.tokens, self._after
        for end in range(max(self.n_read, 1), len(tokens)):
            for size in self._sizes:
                if size <= end:
                    after[tuple(tokens[end - size : end])] = end
        self.n_read = len(tokens)

    def find(self, run: tuple[int, ...]) -> int | None:
        """The index after the last occurrence of an n-gram; None if there is none."""
        return self._after.get(run)

    def copy(self, at: int, n: int) -> list[int]:
        """n tokens from an index on; beyond the end, the copied tokens repeat."""
        tokens = list(self.tokens[at : at + n])
        period = len(self.tokens) - at
        while len(tokens) < n:
            tokens.append(tokens[len(tokens) - period])
        return tokens


class PromptLookup:
    """Drafts the continuation of the last occurrence of the same tokens, in the text itself or in one of `texts`.

    Costs next to nothing, and is accepted where much is repeated: summaries, edits of a text, code, structured data.

    >>> engine.generate(prompt, draft="lookup")
    >>> engine.generate(prompt, draft=PromptLookup(texts=[original]))
    """

    def __init__(self, max_ngram: int = 4, min_ngram: int = 2, *, texts: Iterable[str | Sequence[int]] = ()) -> None:
        """The longest n-gram of last tokens that occurred before decides, from max_ngram down to min_ngram tokens.

        texts: other texts to search, strings or token ids; after the request's own text, and the last one first.
        Raises ConfigError for numbers out of range and texts of another type.
        """
        self.min_ngram = check_int("min_ngram", min_ngram, 1, MAX_NGRAM)
        self.max_ngram = check_int("max_ngram", max_ngram, self.min_ngram, MAX_NGRAM)
        if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
            raise ConfigError(f"texts must be a list of texts or of lists of token ids, not {type(texts).__name__}")
        self.texts = [text if isinstance(text, str) else check_ids(f"texts[{i}]", text) for i, text in enumerate(texts)]
        self._tokenizer: Any = None
        self._shared: list[NgramIndex] = []
        self._own: dict[int, NgramIndex] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the state of an engine: its tokens and texts.
        fields = {"max_ngram": self.max_ngram, "min_ngram": self.min_ngram, "texts": self.texts}
        return with_fields, (type(self), fields)

    def bind(self, target: Target) -> None:
        """Raises ConfigError if it has `texts` and serves an engine with another tokenizer already, TokenizerError."""
        if not self.texts or self._tokenizer is target.tokenizer:
            return
        if self._tokenizer is not None:
            raise ConfigError("this PromptLookup has the texts of another engine's tokens: make another one")
        ids = [target.tokenizer.encode(text, False) if isinstance(text, str) else text for text in self.texts]
        self._shared = [self._index(tokens) for tokens in reversed(ids)]
        self._tokenizer = target.tokenizer

    def _index(self, tokens: Sequence[int]) -> NgramIndex:
        index = NgramIndex(tokens, self.min_ngram, self.max_ngram)
        index.read()
        return index

    def propose(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        return [Proposal(self._continued(task)) for task in tasks]

    def _continued(self, task: DraftTask) -> list[int]:
        own = self._own.get(task.key)
        if own is None or own.tokens is not task.tokens or own.n_read > len(task.tokens):
            own = self._own[task.key] = self._index(task.tokens)
        own.read()
        for size in range(min(self.max_ngram, len(task.tokens)), self.min_ngram - 1, -1):
            run = tuple(task.tokens[-size:])
            for index in (own, *self._shared):
                if (at := index.find(run)) is not None:
                    return index.copy(at, task.n) if index is own else list(index.tokens[at : at + task.n])
        return []

    def forget(self, key: int) -> None:
        self._own.pop(key, None)
