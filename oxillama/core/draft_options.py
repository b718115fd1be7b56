"""Speculation settings of a request, and the drafts bound to it."""

import os
import weakref
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from oxillama._util.settings import check_fields, setting, settings
from oxillama.config import field_names
from oxillama.drafts.cost_model import AcceptanceEstimate
from oxillama.drafts.draft import Distribution, Draft, SpecStats
from oxillama.errors import ConfigError
from oxillama.sampling import Sampler
from oxillama.sampling.rejection import chosen
from oxillama.text_settings import DraftSettings

__all__ = [
    "DRAFT_FIELDS",
    "NAMED",
    "NO_DRAFTS",
    "DraftLike",
    "DraftOptions",
    "Speculation",
    "read_drafts",
]


@runtime_checkable
class DraftSource(Protocol):
    """An engine, whose model may be the draft of another one."""

    def as_draft(self) -> Draft: ...


DraftName = Literal["lookup", "grammar"]
DraftLike = DraftName | Draft | DraftSource | Iterable[DraftName | Draft | DraftSource] | None

NAMED = ("lookup", "grammar")
MAX_DRAFTS = 8


def _checked(name: str, draft: Any) -> tuple[str | Draft, ...]:
    alone = isinstance(draft, str | bytes | Mapping | Set | Draft) or not isinstance(draft, Iterable)
    drafts = (draft,) if alone else tuple(draft)
    if not 0 < len(drafts) <= MAX_DRAFTS:
        raise ConfigError(f"{name} must be None, one draft, or a list of 1 to {MAX_DRAFTS}, not of {len(drafts)}")
    for i, one in enumerate(drafts):
        _check_one(name if alone else f"{name}[{i}]", one)
    return tuple(one.as_draft() if isinstance(one, DraftSource) else one for one in drafts)


def _check_one(name: str, draft: Any) -> None:
    if isinstance(draft, str) and draft in NAMED:
        return
    if isinstance(draft, os.PathLike) or (isinstance(draft, str) and _is_path(draft)):
        path = os.fspath(draft)
        raise ConfigError(
            f"{name} is the path of a model's file, which a request doesn't load: load it once, as "
            f"oxillama.DraftModel({path!r}), give that, and close it in the end; SpeculativeEngine takes paths and "
            "does all that"
        )
    if isinstance(draft, str):
        raise ConfigError(
            f"{name} must be one of {', '.join(NAMED)}, not {draft!r}; of a model's file, make a DraftModel"
        )
    if isinstance(draft, type) or not isinstance(draft, Draft | DraftSource):
        raise ConfigError(
            f"{name} must be {', '.join(map(repr, NAMED))}, an Engine, or an object with the methods bind, propose "
            f"and forget of Draft (of a model's file, make a DraftModel), not {draft!r}"
        )
    try:
        weakref.WeakSet([draft])
    except TypeError as error:
        raise ConfigError(f"{name} must be hashable and weakly referable: {error}") from None


def _is_path(text: str) -> bool:
    return text.lower().endswith(".gguf") or os.sep in text


@settings()
@dataclass(frozen=True, slots=True)
class DraftOptions(DraftSettings):
    """Every field is a keyword of `generate`, `stream`, `chat` and `batch`.

    With acceptance="match" none of them changes what these return.

    {fields}

    With "rejection" the text is a function of prompt, seed, sampling options, model, draft and num_speculative.

    Raises ConfigError, which names the field and its value, also for the others without a draft.
    """

    draft: Any = setting(
        None,
        'source of draft tokens, several of which the model verifies in one step: "lookup" (`PromptLookup`), '
        '"grammar" (`GrammarDraft`), a `Draft`, an `Engine` (its model, as a `DraftModel`), or a list of these, of '
        "which the first counts that has something to propose. A model's file is loaded once for many requests: "
        "`DraftModel(path)`.",
        check=_checked,
        brief="where draft tokens come from; it changes no text",
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.draft is None:
            object.__setattr__(self, "draft", ())
        if self.adaptive is None:
            object.__setattr__(self, "adaptive", self.acceptance == "match")
        if self.adaptive and self.acceptance == "rejection":
            raise ConfigError(
                "adaptive must be left out or False with acceptance='rejection', not True: how many tokens are drafted "
                "would follow measured times, and the text with it"
            )


DRAFT_FIELDS = field_names(DraftOptions)


NO_DRAFTS = DraftOptions()


def read_drafts(given: Mapping[str, Any]) -> DraftOptions:
    """Checks the keywords that are fields of `DraftOptions`. Raises ConfigError for their values."""
    found = DraftOptions(**given) if given else NO_DRAFTS
    if not found.draft:
        for name, value in given.items():
            if name != "draft":
                raise ConfigError(f"{name} is {value!r}, but there is no draft: give one, or leave it out")
    return found


class DraftRound:
    """Draft tokens that were proposed together, with acceptance="rejection", and are used up one by one.

    tokens: as proposed. probs: what each was drawn from; None from a draft that draws nothing. n_used: how many of
    them were accepted.
    """

    __slots__ = ("n_used", "probs", "tokens")

    def __init__(self, tokens: list[int], probs: list[Distribution] | None, n_used: int = 0) -> None:
        self.tokens, self.probs, self.n_used = tokens, probs, n_used

    @property
    def left(self) -> list[int]:
        """The draft tokens that are not used yet."""
        return self.tokens[self.n_used :]

    def choose(self, sampler: Sampler, row: NDArray[np.float32]) -> tuple[int, bool]:
        """The token of the next position, drawn from a row of logits, and whether the round goes on behind it.

        It goes on behind a draft token that is accepted; after the last of them one token more is drawn.
        """
        p, at = sampler.distribution(row), self.n_used
        if at == len(self.tokens):
            return chosen(p, None, None, sampler.memory.rng.uniform), False
        drafted, q = self.tokens[at], None if self.probs is None else self.probs[at]
        token = chosen(p, drafted, q, sampler.memory.rng.uniform)
        self.n_used += 1
        return token, token == drafted


class Speculation:
    """Drafting of one request: its drafts, how far each is trusted, and what was counted.

    round: with acceptance="rejection", the round of the next position, which stays until it is used up, whatever else
    happens to the request: a step that has no room for its draft tokens, or preemption. n_begun: of a request that was
    saved in the middle of a round, tokens of that round that it has; it is proposed again.
    """

    __slots__ = ("_by", "_stats", "acceptance", "adaptive", "asked", "drafts", "k", "n_begun", "round", "trusts")

    def __init__(self, drafts: tuple[Draft, ...], options: DraftOptions) -> None:
        self.drafts = drafts
        self.trusts = [AcceptanceEstimate() for _ in drafts]
        self.k, self.acceptance, self.adaptive = options.num_speculative, options.acceptance, bool(options.adaptive)
        self.asked: set[Draft] = set()
        self.round: DraftRound | None = None
        self.n_begun = 0
        self._by = 0
        self._stats = SpecStats()

    @property
    def rejects(self) -> bool:
        """Whether draft tokens are accepted by their probabilities, and every token depends on them."""
        return self.acceptance == "rejection"

    def choose(self, sampler: Sampler, row: NDArray[np.float32]) -> int:
        """The request's next token, from the model's logits for it."""
        current, self.round = self.round, None
        if current is None or not current.tokens:
            return sampler.sample(row)
        token, goes_on = current.choose(sampler, row)
        self.round = current if goes_on else None
        return token

    def forced(self, token: int) -> int:
        """The request's next token, which is not drawn: what was drafted is dropped."""
        self.round = None
        return token

    def proposed(self, by: int, seconds: float) -> None:
        """Counts a proposal of one of the drafts, and its seconds."""
        self._by = by
        self._stats = replace(self._stats, draft_seconds=self._stats.draft_seconds + seconds)

    def checked(self, n_accepted: int, n_drafted: int, seconds: float, *, again: bool) -> None:
        """A round: so many of the draft tokens were accepted. again: the accepted ones are computed again."""
        self.trusts[self._by].observe(n_accepted, n_drafted)
        s = self._stats
        self._stats = replace(
            s,
            rounds=s.rounds + 1,
            drafted=s.drafted + n_drafted,
            accepted=s.accepted + n_accepted,
            bonus=s.bonus + (n_accepted == n_drafted),
            elapsed=s.elapsed + seconds,
            n1_fallbacks=s.n1_fallbacks + again,
        )

    def release(self) -> set[Draft]:
        """The request ended, and keeps no draft: those that know of it."""
        asked, self.asked, self.drafts, self.round = self.asked, set(), (), None
        return asked

    def stats(self) -> SpecStats:
        """Counts up to now."""
        return replace(self._stats, off=self._off())

    def _off(self) -> str:
        if not self.k:
            return "num_speculative is 0"
        if not self.adaptive or any(not trust.resting for trust in self.trusts):
            return ""
        chances = ", ".join(f"{trust.chance:.2f}" for trust in self.trusts)
        return f"draft tokens don't pay for what they cost: each is estimated to be accepted with a chance of {chances}"
