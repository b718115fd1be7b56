"""How much of a model's weights may be in memory."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from oxillama.checks import check_bool, check_int, suggests_fields
from oxillama.errors import ConfigError

__all__ = ["OffloadPolicy", "read_policy"]

MAX_BYTES = 1 << 62


@suggests_fields
@dataclass(frozen=True, slots=True)
class OffloadPolicy:
    """Which weights stay in memory; the others are read from the model's file whenever they are multiplied.

    Results are the same bits in any case. Without a field set, all weights are in memory.

    budget: bytes of memory that weights may take, everything that is kept of them counted: those that stay, the pages
        that others are read into, norms and biases. Not the KV cache and the memory of the forward pass. With
        `automatic`: at most so many.
    pinned: patterns of tensor names, as "output.weight" or "blk.0.*" (`*` stands for anything, `?` for one character),
        of matrices that stay in any case. Without a budget little else does.
    automatic: as many bytes as the system can spare, looked at between steps: fewer when memory gets short, more when
        there is some again.
    reserve: bytes of memory that `automatic` leaves to others; default: a tenth of the memory there is.
    direct: read everything past the system's page cache (O_DIRECT), even what it has. Otherwise that is done with what
        it doesn't keep, where the file system can tell and the disk can do it, and what the cache has is taken from it.

    Raises ConfigError, which names the field, its value and its range.
    """

    budget: int | None = None
    pinned: tuple[str, ...] = ()
    automatic: bool = False
    reserve: int | None = None
    direct: bool = False

    def __post_init__(self) -> None:
        if self.budget is not None:
            self._set("budget", check_int("offload.budget", self.budget, 1, MAX_BYTES))
        pinned = (self.pinned,) if isinstance(self.pinned, str) else self.pinned
        if not isinstance(pinned, list | tuple) or not all(isinstance(p, str) and p for p in pinned):
            raise ConfigError(f"offload.pinned must be patterns of tensor names, not {self.pinned!r}")
        self._set("pinned", tuple(pinned))
        check_bool("offload.automatic", self.automatic)
        check_bool("offload.direct", self.direct)
        if self.reserve is not None:
            self._set("reserve", check_int("offload.reserve", self.reserve, 0, MAX_BYTES))
            if not self.automatic:
                raise ConfigError(
                    f"offload.reserve must be left out unless offload.automatic is set, not {self.reserve}"
                )
        if self.direct and not self.active:
            raise ConfigError("offload.direct must be left out where nothing is offloaded: give offload.budget, too")

    @property
    def active(self) -> bool:
        """Whether any weights may be left in the file."""
        return self.budget is not None or bool(self.pinned) or self.automatic

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def read_policy(given: OffloadPolicy | Mapping[str, Any] | int | None) -> OffloadPolicy | None:
    """A policy, its fields, or bytes: its budget. ConfigError for anything else."""
    if given is None or isinstance(given, OffloadPolicy):
        return given
    if isinstance(given, Mapping):
        names = [f.name for f in fields(OffloadPolicy)]
        for name in given:
            if name not in names:
                raise ConfigError(f"offload must have fields among {', '.join(names)}, not {name!r}")
        return OffloadPolicy(**given)
    if isinstance(given, bool | float | str | bytes):
        raise ConfigError(
            f"offload must be an OffloadPolicy, a mapping of its fields, or a number of bytes, not {given!r}"
        )
    return OffloadPolicy(budget=check_int("offload", given, 1, MAX_BYTES))
