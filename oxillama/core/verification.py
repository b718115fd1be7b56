"""Verification of draft tokens against the rows of one step."""

import numpy as np
from numpy.typing import NDArray

from oxillama.core.generation_request import GenerationRequest
from oxillama.core.results import FinishReason

__all__ = ["verify"]


def verify(rows: NDArray[np.float32], ahead: list[int], request: GenerationRequest) -> FinishReason | None:
    """Draws what follows a text by the rows of its last token and of each draft token after it, float32 [1 + k, vocab].

    A row is of use only if all draft tokens before it are what was drawn. Tokens go to the end of
    `request.sequence.tokens`: as long as they are those of the draft, and one more. Returns why the request is
    finished, or None. Raises what drawing raises; the tokens before it are there then.
    """
    tokens = request.sequence.tokens
    for row, guess in zip(rows, [*ahead, -1], strict=True):
        reason = request.draw(row)
        if reason is not None or tokens[-1] != guess:
            return reason
    return None
