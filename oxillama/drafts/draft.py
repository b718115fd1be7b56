"""Draft protocol: proposals of draft tokens, and statistics of their acceptance."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol, runtime_checkable

from oxillama._util.json_values import fields_as_json
from oxillama.sampling import Distribution, Sampler
from oxillama.tokenizer import Tokenizer

__all__ = [
    "Distribution",
    "Draft",
    "DraftTask",
    "Proposal",
    "SpecStats",
    "Target",
]


@dataclass(frozen=True, slots=True)
class SpecStats:
    """Of one completion, or of several together.

    rounds: steps that checked guesses. drafted: tokens that were guessed and checked. accepted: those that came true.
    bonus: rounds in which all did, so that the step's last row gave one token more. elapsed: wall-clock seconds of
    these rounds, drafting included. draft_seconds: those in which drafts were made, for everybody who asked then.
    n1_fallbacks: steps without guesses, since a recurrent state had to be computed again after some were wrong.
    off: why it does not guess at the moment; "" if it does.
    """

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    bonus: int = 0
    elapsed: float = 0.0
    draft_seconds: float = 0.0
    n1_fallbacks: int = 0
    off: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Every field by name, in the form that `json.dumps` takes."""
        return fields_as_json(self)

    def __add__(self, other: "SpecStats") -> "SpecStats":
        """Of both together; why it is off, of the second."""
        counts = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self) if f.name != "off"}
        return SpecStats(**counts, off=other.off)

    @property
    def rejected(self) -> int:
        """Guesses that did not come true, or came after one that did not."""
        return self.drafted - self.accepted

    @property
    def acceptance_rate(self) -> float:
        """Part of the guesses that came true; 0 if there were none."""
        return self.accepted / self.drafted if self.drafted else 0.0


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
