"""Log-probabilities of generated and prompt tokens."""

import math
from collections.abc import Callable
from copy import copy

import numpy as np
from numpy.typing import NDArray

from oxillama.core.results import TokenLogprob
from oxillama.errors import GenerateError
from oxillama.kernels.logprobs import log_sum_exp
from oxillama.kernels.sampling import Candidates
from oxillama.scheduling.sequence import Sequence

__all__ = [
    "MAX_LOGPROBS",
    "LogprobComputer",
    "LogprobRecorder",
]

# Of each token. More would mean lists longer than what a step computes takes to make them.
MAX_LOGPROBS = 1024


class LogprobComputer:
    """Log-softmax of rows of logits, in double: a logit less log Σ exp(row)."""

    def __init__(self, token_bytes: Callable[[int], bytes], scratch: Candidates) -> None:
        self._token_bytes = token_bytes
        self._scratch = scratch

    def score(self, row: NDArray[np.float32], token: int, k: int) -> TokenLogprob:
        """Log-probability of a token, with the k likeliest, by a row of logits, float32 [n_vocab].

        Raises GenerateError for a row with NaN or plus infinity in it.
        """
        total = log_sum_exp(row)
        if math.isnan(total):
            raise GenerateError("a logit of the model is NaN or infinite: the weights or the input are damaged")
        top = tuple(self._made(i, logit - total) for i, logit in self.likeliest(row, k)) if k else ()
        return self._made(token, float(row[token]) - total, top)

    def likeliest(self, row: NDArray[np.float32], k: int) -> list[tuple[int, float]]:
        """The first k > 0 (id, logit) by falling logit, then by rising id; all if there are fewer."""
        self._scratch.load(row)
        self._scratch.top_k(k)
        found = self._scratch.items()
        return found if k < len(row) else sorted(found, key=lambda pair: (-pair[1], pair[0]))

    def _made(self, token: int, logprob: float, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
        return TokenLogprob(token, logprob, self._token_bytes(token), top)


class LogprobRecorder:
    """Log-probabilities of one request, as they come; each list is None if it isn't wanted.

    prompt: of the prompt's tokens; None stands for the first, which nothing predicts. tokens: of those generated.
    end: of the token that ended the text, if one did.
    """

    __slots__ = ("_k", "_prompt_k", "_scorer", "end", "prompt", "tokens")

    def __init__(self, scorer: LogprobComputer, k: int | None, prompt_k: int | None) -> None:
        self._scorer = scorer
        self._k, self._prompt_k = k or 0, prompt_k or 0
        self.tokens: list[TokenLogprob] | None = None if k is None else []
        self.prompt: list[TokenLogprob | None] | None = None if prompt_k is None else [None]
        self.end: TokenLogprob | None = None

    def sibling(self) -> "LogprobRecorder":
        """Recorder of another completion of the same prompt: what is found of that is for both."""
        other = copy(self)
        other.tokens = None if self.tokens is None else []
        return other

    def wants_prompt(self, sequence: Sequence) -> bool:
        """Whether rows of the prompt are missing."""
        return self.prompt is not None and len(self.prompt) < sequence.n_prompt

    def add_prompt(self, sequence: Sequence, rows: NDArray[np.float32]) -> None:
        """Takes the rows of the tokens that were computed last; those that it had before, it passes over."""
        end = sequence.n_computed
        first = end - len(rows)
        while self.prompt is not None and len(self.prompt) <= min(end, sequence.n_prompt - 1):
            position = len(self.prompt)
            row = rows[position - 1 - first]
            self.prompt.append(self._scorer.score(row, sequence.tokens[position], self._prompt_k))

    def add(self, row: NDArray[np.float32], token: int) -> None:
        """A token was drawn."""
        if self.tokens is not None:
            self.tokens.append(self._scorer.score(row, token, self._k))

    def add_end(self, row: NDArray[np.float32], token: int) -> None:
        """The token that ends the text was drawn."""
        if self.tokens is not None:
            self.end = self._scorer.score(row, token, self._k)
