"""Distribution of a chain: the tokens that its stages leave, with their probabilities."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from oxillama.kernels.sampling import Candidates

__all__ = ["Distribution", "certain", "distribution_of"]


class Distribution(NamedTuple):
    """Distribution of one token: rising ids, int32 [n], and their probabilities, float64 [n], above zero."""

    ids: NDArray[np.int32]
    probs: NDArray[np.float64]

    def probability(self, token: int) -> float:
        """The probability of one token."""
        at = int(np.searchsorted(self.ids, token))
        return float(self.probs[at]) if at < len(self.ids) and self.ids[at] == token else 0.0

    def draw(self, u: float) -> int:
        """The token at u, 0 <= u < 1, of the cumulative probabilities."""
        sums = np.cumsum(self.probs)
        at = int(np.searchsorted(sums, u * sums[-1], side="right"))
        return int(self.ids[min(at, len(sums) - 1)])  # rounding may leave the sums short


def certain(token: int) -> Distribution:
    """All of the probability on one token."""
    return Distribution(np.array([token], np.int32), np.ones(1))


def distribution_of(candidates: Candidates) -> Distribution:
    """Softmax over the candidates that are left."""
    ids, probs = np.empty(len(candidates), np.int32), np.empty(len(candidates))
    candidates.softmax(ids, probs)
    order = np.argsort(ids, kind="stable")  # mostly they rise already
    order = order[probs[order] > 0.0]
    return Distribution(ids[order], probs[order])
