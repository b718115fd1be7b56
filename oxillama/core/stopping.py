"""Stopping criteria: functions of the caller's own that end a text."""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oxillama.errors import ConfigError

__all__ = ["Criteria", "StoppingCriterion", "check_criteria", "is_met"]

# (token ids so far, the logits that the last of them was drawn from, float32 [n_vocab]): whether the text ends here.
StoppingCriterion = Callable[[list[int], NDArray[np.float32]], bool]
Criteria = StoppingCriterion | SequenceOf[StoppingCriterion] | None


def check_criteria(criteria: Any) -> tuple[StoppingCriterion, ...]:
    """`criteria` as a tuple, of None an empty one. Raises ConfigError unless all can be called."""
    if criteria is None:
        return ()
    if callable(criteria):
        return (criteria,)
    if isinstance(criteria, str | bytes | Mapping) or not isinstance(criteria, Iterable):
        raise ConfigError(f"stopping_criteria must be a function or a list of them, not {type(criteria).__name__}")
    found = tuple(criteria)
    for i, criterion in enumerate(found):
        if not callable(criterion):
            raise ConfigError(f"stopping_criteria[{i}] must be a function (ids, logits), not {criterion!r}")
    return found


def is_met(criteria: Iterable[StoppingCriterion], tokens: list[int], row: NDArray[np.float32]) -> bool:
    """Whether one of them ends a text, prompt included, by the row of logits that its last token was drawn from.

    Each gets a list of its own, and all the same copy of the row, which can't be written. Raises ConfigError for an
    answer that is neither True nor False, and what they raise.
    """
    logits = row.copy()
    logits.flags.writeable = False
    for i, criterion in enumerate(criteria):
        answer = criterion(tokens[:], logits)
        if not isinstance(answer, bool | np.bool_):
            raise ConfigError(f"stopping_criteria[{i}] must return True or False, not {answer!r:.60}")
        if answer:
            return True
    return False
