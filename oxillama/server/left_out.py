"""Log and count of what was left out of requests: a line for each kind and client, and a number for each kind."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from oxillama.server.metrics import ServerMetrics

__all__ = ["LeftOut"]

log = logging.getLogger("oxillama")

MOST_CLIENTS = 4096  # pairs of a client and a kind that are remembered; of further ones no line is written
MOST_KINDS = 256  # that are counted by name


class LeftOut:
    """Kinds of fields and parts that requests asked for and didn't get. Names only, never what was in them."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()
        self._kinds: set[str] = set()

    def note(self, client: str, kinds: Iterable[str], counts: Iterable[ServerMetrics]) -> None:
        """Counts what one answer was given without, in each of `counts`. client: name of its key, or its address."""
        for kind in kinds:
            if len(self._kinds) < MOST_KINDS:
                self._kinds.add(kind)
            for metrics in counts:
                metrics.left_out(kind if kind in self._kinds else "other")
            if (client, kind) not in self._seen and len(self._seen) < MOST_CLIENTS:
                self._seen.add((client, kind))
                log.info("left out of requests of %s: %s", client, kind)
