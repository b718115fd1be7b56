"""Survey of a model's weights before any are read: the least and the most memory, and the budget of a policy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from oxillama.config import OffloadPolicy
from oxillama.errors import ConfigError
from oxillama.gguf.source import DIRECT_SLACK
from oxillama.kernels.matrix import Matrix
from oxillama.models.weights import Stored, Weights
from oxillama.offload.layout import WINDOW, Item, Layout
from oxillama.offload.pressure import MemoryPressureProbe
from oxillama.offload.sizing import first_budget

__all__ = ["PANEL", "Survey", "survey"]

PANEL = 16
EXPERTS = re.compile(r"^(.*)ffn_(gate|up|gate_up|down)_exps\.weight$")


@dataclass(frozen=True)
class Survey:
    """Memory needs of a model's weights.

    constant: bytes that are in memory in any case, norms and the like; budget, least and most include them. stored: the
    matrices that can be left in the file. layout: their pages.
    """

    stored: list[Stored]
    layout: Layout
    constant: int
    least: int
    most: int
    budget: int


def survey(weights: Weights, policy: OffloadPolicy, probe: MemoryPressureProbe, *, repack: bool) -> Survey:
    """Raises ConfigError, with the least that works, for a budget below it, and for patterns that fit nothing."""
    stored = [s for s in weights.stored if s.source is not None]
    others = [s.matrix for s in weights.stored if s.source is None]  # rearranged: no file has them in this form
    constant = weights.n_value_bytes + sum(held_bytes(w, repack) for w in others)
    items = [item_of(s, repack) for s in stored]
    pinned = find_pinned(items, policy.pinned)
    smallest = Layout(items, pinned, 0, DIRECT_SLACK)
    least, most = constant + smallest.least, constant + smallest.most
    if policy.budget is not None and policy.budget < least:
        raise ConfigError(
            f"offload.budget must be at least {least} bytes for this model"
            f"{' with the matrices that are pinned' if pinned else ''}, not {policy.budget}"
        )
    if policy.automatic:
        budget = first_budget(probe.read(), policy.reserve, least, min(most, policy.budget or most))
    elif policy.budget is not None:
        budget = policy.budget
    else:
        rest = sum(m.held for i, m in enumerate(items) if i not in pinned)
        budget = min(most, least + min(WINDOW, rest // 8))
    return Survey(stored, Layout(items, pinned, budget - constant, DIRECT_SLACK), constant, least, most, budget)


def held_bytes(w: Matrix, repack: bool) -> int:
    return w.held_nbytes if repack else w.file_nbytes


def item_of(stored: Stored, repack: bool) -> Item:
    w = stored.matrix
    is_experts = EXPERTS.match(w.name) is not None
    n_panels = -(-w.n_out // PANEL)
    if stored.in_panels:
        return Item(w.name, n_panels, stored.nbytes // (w.n_experts * n_panels), w.n_experts, stored.nbytes, is_experts)
    return Item(w.name, n_panels, PANEL * w.row_bytes, w.n_experts, held_bytes(w, repack), is_experts)


def find_pinned(items: Sequence[Item], patterns: Sequence[str]) -> frozenset[int]:
    """Matrices whose names fit a pattern. Raises ConfigError for a pattern that fits none."""
    found: set[int] = set()
    for pattern in patterns:
        fitting = [i for i, item in enumerate(items) if fnmatchcase(item.name, pattern)]
        if not fitting:
            names = ", ".join(sorted({re.sub(r"\d+", "*", item.name) for item in items}))
            raise ConfigError(f"offload.pinned must fit names of matrices ({names}), not {pattern!r}")
        found.update(fitting)
    return frozenset(found)


def second_halves(items: Sequence[Item]) -> dict[int, int | None]:
    """Successor of each stack of experts: the stack whose same experts are used next."""
    by_name = {item.name: i for i, item in enumerate(items) if item.is_experts}
    found: dict[int, int | None] = {}
    for name, i in by_name.items():
        match = EXPERTS.match(name)
        is_last = match is None or match[2] == "down"
        found[i] = None if match is None or is_last else by_name.get(f"{match[1]}ffn_down_exps.weight")
    return found
