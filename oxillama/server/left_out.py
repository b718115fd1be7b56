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

    def __init__(self, metrics: ServerMetrics) -> None:
        self._metrics = metrics
        self._seen: set[tuple[str, str]] = set()
        self._kinds: set[str] = set()

    def note(self, key: str, peer: str, kinds: Iterable[str]) -> None:
        """Counts what one answer was given without. key: name of the client's key. peer: its address."""
        client = key if key != "-" or not peer else peer
        for kind in kinds:
            if len(self._kinds) < MOST_KINDS:
                self._kinds.add(kind)
            self._metrics.left_out(kind if kind in self._kinds else "other")
            if (client, kind) not in self._seen and len(self._seen) < MOST_CLIENTS:
                self._seen.add((client, kind))
                log.info("left out of requests of %s: %s", client, kind)
