"""Grammar drafts: text that the grammar forces."""

from collections.abc import Sequence

from oxillama.drafts.draft import DraftTask, Proposal, Target
from oxillama.errors import ConfigError
from oxillama.tokenizer import Tokenizer

__all__ = [
    "GrammarDraft",
]

# Bytes of a token; longer tokens are rare.
TOKEN_BYTES = 16


class GrammarDraft:
    """Drafts the text that the request's grammar, schema or tools force, in the tokens that the tokenizer would use.

    The model may spell the same text in other tokens, so these are verified too. Drafts nothing without a grammar.
    """

    def __init__(self) -> None:
        self._tokenizer: Tokenizer | None = None

    def bind(self, target: Target) -> None:
        """Raises ConfigError if it serves an engine with another tokenizer already."""
        if self._tokenizer is not None and self._tokenizer is not target.tokenizer:
            raise ConfigError("this GrammarDraft serves an engine with another tokenizer: make another one")
        self._tokenizer = target.tokenizer

    def propose(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        return [Proposal(self._forced(task)) for task in tasks]

    def _forced(self, task: DraftTask) -> list[int]:
        grammar, tokenizer = task.sampler.memory.grammar, self._tokenizer
        if grammar is None or tokenizer is None:
            return []
        text = grammar.forced_bytes(task.n * TOKEN_BYTES).decode("utf-8", "ignore")
        return _continuing(tokenizer, text)[: task.n] if text else []

    def forget(self, key: int) -> None:
        """Does nothing: no state is kept."""


def _continuing(tokenizer: Tokenizer, text: str) -> list[int]:
    """Tokens of a text that continues another. Some tokenizers put a space before the start of their input."""
    if not (tokenizer.model == "llama" and tokenizer.add_space_prefix):
        return tokenizer.encode(text, add_special=False)
    before = tokenizer.encode("\n", add_special=False)
    both = tokenizer.encode("\n" + text, add_special=False)
    return both[len(before) :] if both[: len(before)] == before else []
