"""Memory of models: the bytes of their weights, beside what the machine or its control group has."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from oxillama.errors import ConfigError

if TYPE_CHECKING:
    from oxillama.offload.pressure import MemoryPressureProbe, MemoryReading

__all__ = ["check_memory", "is_short_of", "parts_of", "shown_bytes", "weight_bytes"]

_PARTS = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def weight_bytes(path: str) -> int:
    """Bytes of a GGUF file, with the parts that it is split into; of those that are missing, loading says so."""
    return sum(os.path.getsize(file) for file in parts_of(path) if os.path.isfile(file))


def parts_of(path: str) -> list[str]:
    """The files of a model that is split, and the file of any other."""
    parts = _PARTS.fullmatch(path)
    if parts is None:
        return [path]
    return [f"{parts['stem']}-{i:05}-of-{parts['count']}.gguf" for i in range(1, int(parts["count"]) + 1)]


def check_memory(weights: Mapping[str, int], probe: MemoryPressureProbe | None = None) -> None:
    """Raises ConfigError for models, bytes by name, whose weights together are more than all memory that there is."""
    total, needed = _read(probe).total, sum(weights.values())
    if total is not None and needed > total:
        each = ", ".join(f"{name} {shown_bytes(n)}" for name, n in weights.items())
        raise ConfigError(
            f"the models need {shown_bytes(needed)} for their weights alone ({each}), and there are "
            f"{shown_bytes(total)} of memory: load some on demand with models_max, or give offload"
        )


def is_short_of(n_bytes: int, probe: MemoryPressureProbe | None = None) -> bool:
    """Whether so many bytes can't be had without taking them from other processes."""
    available = _read(probe).available
    return available is not None and available < n_bytes


def _read(probe: MemoryPressureProbe | None) -> MemoryReading:
    from oxillama.offload.pressure import MemoryPressureProbe  # and numpy, which the sizes of files don't need

    return (probe or MemoryPressureProbe()).read()


def shown_bytes(n_bytes: int) -> str:
    """A number of bytes in GiB or MiB."""
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 1 << 30 else f"{n_bytes / 2**20:.1f} MiB"
