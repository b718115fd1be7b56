"""Python's cyclic garbage collector in a server: its collections look at what requests made, not at models."""

from __future__ import annotations

import gc

from oxillama.server.models import Models

__all__ = ["ServerCollector"]

# Collections of the middle generation before a full one. A full collection looks at every object of the process, and no
# thread runs meanwhile: with 10, as Python has it, one came within a single large request, and looked at all of it.
FULL_AFTER = 500
FULL_WHEN_IDLE = 5  # of them, after which a full one comes between requests, when there is little to look at:
IDLE = 10  # calls of `look` without requests, until what the last ones had is freed


class ServerCollector:
    """Settings of the collector from `begin` to `end`, and what it leaves out.

    What is there when models have been loaded stays: a full collection of it takes a tenth of a second, in which the
    event loop waits. It is left out of collections until a model leaves, whose cycles are looked for then.
    """

    def __init__(self, models: Models) -> None:
        self._models = models
        self._before = gc.get_threshold()
        self._was_frozen = False
        self._n_idle = 0
        self._engines: set[int] = set()

    def begin(self) -> None:
        """Full collections become rare."""
        self._before, self._was_frozen = gc.get_threshold(), gc.get_freeze_count() > 0
        gc.set_threshold(*self._before[:2], max(FULL_AFTER, self._before[2]))

    def look(self, busy: bool = False) -> None:
        """Called now and then: takes note of models that were loaded, or left. busy: there are requests."""
        self._n_idle = 0 if busy else self._n_idle + 1
        if self._n_idle >= IDLE and gc.get_count()[2] >= FULL_WHEN_IDLE:
            gc.collect()
        if any(model.state == "loading" for model in self._models.all.values()):
            return
        engines = {id(model.engine) for model in self._models.all.values() if model.engine is not None}
        if engines == self._engines:
            return
        if not self._engines <= engines:
            gc.unfreeze()
            gc.collect()
        self._engines = engines
        gc.freeze()

    def end(self) -> None:
        """Ends it; what was left out before stays so."""
        if not self._was_frozen:
            gc.unfreeze()
        gc.set_threshold(*gc.get_threshold()[:2], self._before[2])
