"""What a draft is: whoever guesses tokens ahead, for the model to check several in one step.

A draft never changes what a request gives, only how soon; with `acceptance="rejection"` it changes that, but not how
likely each text is. The one that proposes and the engine that asks know nothing else of each other.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from oxillama.sampling import Distribution, Sampler
from oxillama.tokenizer import Tokenizer

__all__ = ["Distribution", "Draft", "DraftTask", "Proposal", "Target"]


@dataclass(slots=True)
class DraftTask:
    """One request that asks for a draft.

    key: of its text, the same each time and unique in the process. tokens: prompt and output so far, the last one not
    computed yet; it lives on and is not to be changed. n: tokens wanted at most, at least 1. sampler: the request's
    own, after `tokens`; a draft may draw from it, and leaves it as it found it.
    with_probs: whether guesses are kept or not by how likely they were (`rejection.py`): a draft that draws does so by
    a generator of its own then, and gives `Proposal.probs`. What it proposes decides over the text then, and should
    follow from the task alone; `n` is the same each time, also where the text can't get so many tokens any more.
    cache_key: as of `Sequence`; texts with different ones share nothing.
    """

    key: int
    tokens: list[int]
    n: int
    sampler: Sampler
    with_probs: bool = False
    cache_key: Hashable = None


class Proposal(NamedTuple):
    """What a draft guesses for one task.

    tokens: those that follow, at most as many as were wanted; none if it has no idea. probs: what each was drawn from,
    for the acceptance that keeps a distribution rather than tokens; None from drafts that draw nothing.
    """

    tokens: list[int]
    probs: list[Distribution] | None = None


class Target(NamedTuple):
    """What a draft sees of the engine that it guesses for. context_size: tokens of a text at most."""

    tokenizer: Tokenizer
    n_vocab: int
    context_size: int


@runtime_checkable
class Draft(Protocol):
    """Guesses what comes next. Its methods run in the thread that computes the engine's steps, one at a time.

    What `propose` raises ends the requests that it was asked for, and nothing else.
    """

    def bind(self, target: Target) -> None:
        """Called before the first request of an engine uses it. Raises ConfigError if it is of no use there."""

    def propose(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        """One for each task; called once for a step, with all requests that use this draft."""

    def forget(self, key: int) -> None:
        """The text has ended: nobody asks for it again."""
