"""Registry of adapters: by name, those pushed for all requests, and the sets that requests use."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oxillama._util.checks import check_float
from oxillama._util.fork import renew_at_fork
from oxillama._util.lazy import lazy
from oxillama.errors import ConfigError
from oxillama.kernels.lora import LowRank
from oxillama.lora.adapter import Lora
from oxillama.lora.binding import BoundLora, bind
from oxillama.models import ModelSpec
from oxillama.models.adaptable import Adaptable
from oxillama.models.linear import Linear

__all__ = ["NO_LORAS", "LoraRegistry", "LoraSet", "Wanted", "check_wanted"]

MAX_SCALE = 1e6

# Names with scales, as a request gives them; None: the pushed adapters.
Wanted = tuple[tuple[str, float], ...] | None


@dataclass(frozen=True, eq=False)
class LoraSet:
    """Adapters with their scales, in the order of their digests, independent of the order in the request.

    key: equal for sets that compute the same. members: in the form that kernels take.
    """

    loras: tuple[tuple[BoundLora, float], ...] = ()

    @lazy
    def key(self) -> tuple[tuple[str, float], ...]:
        return tuple((bound.lora.digest, scale) for bound, scale in self.loras)

    @lazy
    def members(self) -> tuple[tuple[Mapping[Any, LowRank], float], ...]:
        return tuple((bound.changes, scale) for bound, scale in self.loras)

    def deltas(self, head: Linear) -> list[tuple[NDArray[np.float32], NDArray[np.float32], float]]:
        """Changes of a classifier's layer, as `Linear` takes them."""
        found = [(bound.heads[head], scale) for bound, scale in self.loras if head in bound.heads]
        return [(change.a, change.b, change.scale * scale) for change, scale in found]


NO_LORAS = LoraSet()


def check_wanted(name: str, value: Any) -> Wanted:
    """`lora` of a request: a name, or a list of names and of (name, scale). Raises ConfigError."""
    if value is None:
        return None
    entries = [value] if isinstance(value, str) else value
    if isinstance(entries, Mapping) or not isinstance(entries, Iterable):
        raise ConfigError(f"{name} must be a list of (name, scale), not {value!r}")
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], int | float):
        raise ConfigError(f"{name} must be a list of (name, scale): [{value!r}] instead of {value!r}")
    return tuple(check_entry(f"{name}[{i}]", entry) for i, entry in enumerate(entries))


def check_entry(name: str, entry: Any) -> tuple[str, float]:
    pair = (entry, 1.0) if isinstance(entry, str) else entry
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
        raise ConfigError(f"{name} must be a name or (name, scale), not {entry!r}")
    return pair[0], check_scale(f"{name}: scale", pair[1])


def check_scale(name: str, scale: Any) -> float:
    """The scale as float32, in which it is applied. Raises ConfigError unless it is a finite number."""
    return float(np.float32(check_float(name, scale, -MAX_SCALE, MAX_SCALE)))


def combined(members: Iterable[tuple[BoundLora, float]]) -> LoraSet:
    """The set of adapters. An adapter given twice gets the sum of its scales; one with scale 0 is left out."""
    scales: dict[str, float] = {}
    found: dict[str, BoundLora] = {}
    for bound, scale in members:
        digest = bound.lora.digest
        found.setdefault(digest, bound)
        scales[digest] = scales.get(digest, 0.0) + scale
    kept = sorted((digest, float(np.float32(scale))) for digest, scale in scales.items() if np.float32(scale) != 0)
    return LoraSet(tuple((found[digest], scale) for digest, scale in kept))


class LoraRegistry:
    """The adapters of one model. May be used from any thread; the set that a request uses doesn't change.

    ``adaptable`` returns the model's tensors when the first adapter is bound.
    """

    def __init__(self, spec: ModelSpec, adaptable: Callable[[], Mapping[str, Adaptable]]) -> None:
        self._spec, self._adaptable = spec, adaptable
        self.renew_lock()
        renew_at_fork(self)
        self._named: dict[str, tuple[Lora, BoundLora]] = {}
        self._pushed: tuple[tuple[Lora, BoundLora, float], ...] = ()
        self.default = NO_LORAS
        # Equal adapters with different names are bound once: their rows are multiplied together.
        self._bound: weakref.WeakValueDictionary[str, BoundLora] = weakref.WeakValueDictionary()

    def renew_lock(self) -> None:
        """Makes a new lock, in a forked child."""
        self._lock = threading.Lock()

    @property
    def named(self) -> dict[str, Lora]:
        """Loaded adapters by name."""
        return {name: lora for name, (lora, _) in self._named.copy().items()}

    @property
    def pushed(self) -> list[tuple[Lora, float]]:
        """The adapters of requests without `lora`, the last pushed last."""
        return [(lora, scale) for lora, _, scale in self._pushed]

    @property
    def nbytes(self) -> int:
        """Bytes of all bound adapters that are still in use."""
        return sum(bound.nbytes for found in self._bound.valuerefs() if (bound := found()) is not None)

    def bind(self, lora: Lora) -> BoundLora:
        """The adapter for this model. Raises what `binding.bind` raises."""
        with self._lock:
            known = self._bound.get(lora.digest)
        if known is not None:
            return known
        made = bind(lora, self._spec, self._adaptable())
        with self._lock:
            return self._bound.setdefault(lora.digest, made)

    def load(self, name: str, lora: Lora) -> None:
        """Registers an adapter by a name. Raises ConfigError if the name is taken, and what `bind` raises."""
        if not isinstance(name, str) or not name:
            raise ConfigError(f"name must be a str that is not empty, not {name!r}")
        self._check_free(name)
        bound = self.bind(lora)
        with self._lock:
            self._check_free(name)
            self._named[name] = lora, bound

    def _check_free(self, name: str) -> None:
        if name in self._named:
            raise ConfigError(f"an adapter {name!r} is loaded already: unload it first, or take another name")

    def unload(self, name: str) -> None:
        """Removes a name. Requests that use the adapter keep it, and it stays pushed if it was."""
        with self._lock:
            self._find(name)
            del self._named[name]

    def _find(self, name: str) -> tuple[Lora, BoundLora]:
        try:
            return self._named[name]
        except (KeyError, TypeError):
            known = ", ".join(map(repr, list(self._named))) or "none"
            raise ConfigError(f"no adapter is called {name!r}; loaded: {known}") from None

    def push(self, lora: Lora | str, scale: float) -> None:
        """Adds an adapter, or the one of this name, to those of requests without `lora`."""
        scale = check_scale("scale", scale)
        lora, bound = (lora, self.bind(lora)) if isinstance(lora, Lora) else self._find(lora)
        with self._lock:
            self._set_pushed((*self._pushed, (lora, bound, scale)))

    def pop(self) -> Lora:
        """Removes the adapter pushed last. Raises ConfigError if there is none."""
        with self._lock:
            if not self._pushed:
                raise ConfigError("no adapter is pushed: there is none to pop")
            lora, _, _ = self._pushed[-1]
            self._set_pushed(self._pushed[:-1])
        return lora

    def clear(self) -> None:
        """Removes all pushed adapters."""
        with self._lock:
            self._set_pushed(())

    def _set_pushed(self, pushed: tuple[tuple[Lora, BoundLora, float], ...]) -> None:
        self._pushed, self.default = pushed, combined((bound, scale) for _, bound, scale in pushed)

    def forget(self) -> None:
        """Drops all adapters, when the engine is closed."""
        self.clear()
        with self._lock:
            self._named.clear()

    def select(self, wanted: Wanted = None) -> LoraSet:
        """The set of adapters of a request. Raises ConfigError for a name that isn't loaded."""
        if wanted is None:
            return self.default
        with self._lock:
            return combined((self._find(name)[1], scale) for name, scale in wanted)
