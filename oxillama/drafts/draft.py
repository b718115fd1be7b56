"""Draft protocol: proposals of draft tokens, and statistics of their acceptance.

A draft never changes what a request gives, only how soon; with `acceptance="rejection"` it changes that, but not how
likely each text is. The one that proposes and the engine that asks know nothing else of each other.
"""

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
    """Statistics of speculation, of one completion or of several together.

    rounds: steps that verified draft tokens. drafted: draft tokens verified. accepted: draft tokens accepted.
    bonus: rounds in which all were, so that the step's last row gave one token more. elapsed: wall-clock seconds of
    these rounds, drafting included. draft_seconds: the part of them spent drafting, for all requests of the steps.
    n1_fallbacks: steps without draft tokens, since a recurrent state had to be computed again after a rejection.
    off: why speculation is off at the moment; "" if it is on.
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
        """Statistics of both together; `off` is that of the second."""
        counts = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self) if f.name != "off"}
        return SpecStats(**counts, off=other.off)

    @property
    def rejected(self) -> int:
        """Draft tokens rejected, or after a rejected one."""
        return self.drafted - self.accepted

    @property
    def acceptance_rate(self) -> float:
        """Share of draft tokens that were accepted; 0 if there were none."""
        return self.accepted / self.drafted if self.drafted else 0.0


@dataclass(slots=True)
class DraftTask:
    """Task of a draft: draft tokens for one request.

    key: of the request's sequence, the same each time and unique in the process. tokens: prompt and output so far, the
    last one not computed yet; the list is the request's own and must not be changed. n: draft tokens wanted at most, at
    least 1. sampler: the request's own, after `tokens`; a draft may draw from it, and restores its state.
    with_probs: whether rejection sampling accepts the draft tokens (`sampling/rejection.py`): a draft that draws uses a
    generator of its own then, and returns `Proposal.probs`. The text depends on the proposal then, which should follow
    from the task alone; `n` is the same each time, also where the text has no room for so many tokens.
    cache_key: as in `Sequence`; sequences with different keys share nothing.
    """

    key: int
    tokens: list[int]
    n: int
    sampler: Sampler
    with_probs: bool = False
    cache_key: Hashable = None


class Proposal(NamedTuple):
    """Draft tokens for one task.

    tokens: at most as many as wanted; empty without a proposal. probs: the distribution that each was drawn from, for
    acceptance="rejection"; None from drafts that don't draw.
    """

    tokens: list[int]
    probs: list[Distribution] | None = None


class Target(NamedTuple):
    """The engine that a draft serves. context_size: largest number of tokens of a sequence. encodes: whether an encoder
    reads its prompts."""

    tokenizer: Tokenizer
    n_vocab: int
    context_size: int
    encodes: bool = False


@runtime_checkable
class Draft(Protocol):
    """Source of draft tokens. Its methods run in the thread that computes the engine's steps, one at a time.

    An error raised by `propose` ends the requests of its tasks, and no others.
    """

    def bind(self, target: Target) -> None:
        """Called before an engine's first request uses the draft. Raises ConfigError if it can't serve the engine."""

    def propose(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        """A proposal for each task; called once a step, with all requests that use this draft."""

    def forget(self, key: int) -> None:
        """Called when the request of this key has ended."""
