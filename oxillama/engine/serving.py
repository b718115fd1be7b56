"""How a request is served: with which adapters, and when."""

import math
import time
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

from oxillama.checks import check_bool, check_choice, check_float, check_int
from oxillama.config import SamplingOptions, field_names
from oxillama.engine.sequence import MAX_PRIORITY
from oxillama.engine.speculation import Acceptance, DraftLike
from oxillama.engine.tool_use import ToolUse
from oxillama.errors import ConfigError
from oxillama.lora import LoraSet, Wanted, check_wanted

__all__ = ["CacheKey", "DeadlineFrom", "RequestOptions", "ServingOptions", "split_options"]

DeadlineFrom = Literal["submit", "start"]


class CacheKey(NamedTuple):
    """What two sequences must have in common, besides tokens, for the KV of one to be that of the other.

    adapters: those that the weights are changed by. kv_type: how KV is stored. salt: whose it is.
    """

    adapters: tuple[tuple[str, float], ...]
    kv_type: str
    salt: str | None


class RequestOptions(SamplingOptions, total=False):
    """The keywords that are fields of `SamplerConfig`, `ServingOptions` or `DraftOptions`, and `tool_use`."""

    priority: int
    deadline: float | None
    deadline_from: DeadlineFrom | None
    cache_prompt: bool
    cache_salt: str | None
    lora: Any
    tool_use: ToolUse | None
    draft: DraftLike
    num_speculative: int
    acceptance: Acceptance
    adaptive: bool | None


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """Every field is a keyword of `generate`, `stream` and `chat`.

    priority: requests of a higher one go first, and lose what is computed last; 0 to 100. Waiting makes up for it.
    deadline: seconds after which the request ends with the finish reason "deadline" and what there is by then. None is
        no limit.
    deadline_from: whether they count from when the request is queued ("submit") or from its first step in the model
        ("start"), so that waiting behind others takes nothing from it. None: from "start" in `batch`, whose prompts
        are queued long before their turn, and else from "submit".
    cache_prompt: begin with the KV of earlier requests that began alike, and leave it for others.
    cache_salt: only requests with the same one share beginnings, so that none can tell by its speed what others ask.
    lora: adapters, a list of (name, scale) or of names; [] for none, None for those that were pushed.

    Raises ConfigError, which names the field, its value and its range.
    """

    priority: int = 0
    deadline: float | None = None
    deadline_from: DeadlineFrom | None = None
    cache_prompt: bool = True
    cache_salt: str | None = None
    lora: Wanted = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "priority", check_int("priority", self.priority, 0, MAX_PRIORITY))
        if self.deadline is not None:
            object.__setattr__(self, "deadline", check_float("deadline", self.deadline, 0.0, above=True))
        if self.deadline_from is not None:
            check_choice("deadline_from", self.deadline_from, get_args(DeadlineFrom))
            if self.deadline is None:
                raise ConfigError("deadline_from says from when a deadline counts: give deadline too")
        check_bool("cache_prompt", self.cache_prompt)
        if self.cache_salt is not None and not isinstance(self.cache_salt, str):
            raise ConfigError(f"cache_salt must be a str or None, not {self.cache_salt!r}")
        object.__setattr__(self, "lora", check_wanted("lora", self.lora))

    def cache_key(self, kv_type: str, loras: LoraSet) -> CacheKey | None:
        """Under which the prefix cache has what a request computes; None if it is neither to find nor to leave any."""
        return CacheKey(loras.key, kv_type, self.cache_salt) if self.cache_prompt else None

    def counted_from(self, default: DeadlineFrom) -> "ServingOptions":
        """The same with a deadline that counts from there, unless its caller said otherwise."""
        if self.deadline is None or self.deadline_from is not None:
            return self
        return replace(self, deadline_from=default)

    @property
    def time_limit(self) -> float:
        """Seconds that a request may take from its first step on; infinite unless its deadline counts from there."""
        return self.deadline if self.deadline is not None and self.deadline_from == "start" else math.inf

    def of_sequence(self, kv_type: str, loras: LoraSet) -> dict[str, Any]:
        """The same as options of `Sequence`, which uses these adapters; a deadline from "submit" counts from now."""
        deadline = math.inf
        if self.deadline is not None and self.deadline_from != "start":
            deadline = time.perf_counter() + self.deadline
        key = self.cache_key(kv_type, loras)
        return {"priority": self.priority, "deadline": deadline, "cache_key": key, "weights": loras.key}


_FIELDS = field_names(ServingOptions)


def split_options(options: dict[str, Any]) -> ServingOptions:
    """Takes the fields of `ServingOptions` out of keywords. Raises ConfigError for their values."""
    return ServingOptions(**{name: options.pop(name) for name in _FIELDS if name in options})
