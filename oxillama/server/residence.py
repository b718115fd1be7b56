"""Residence: how long models stay in memory after their last request, where a request says so."""

from __future__ import annotations

import asyncio
import math
import time

from oxillama.server.models import Models, ServedModel

__all__ = ["Residence", "leaves_in"]

LONGEST = 366 * 86400.0  # seconds; a model that is to stay for longer stays
LOOK = 0.25  # seconds between looks at a model that is to leave, and is in use


class Residence:
    """Takes models out of memory when no request has used them for as long as was asked for."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    def keep(self, model: ServedModel, seconds: float) -> None:
        """The model stays in memory for so long after its last request; with infinity, whatever `--idle-unload` says.

        One that is to leave at once leaves soon; `leave` waits for that.
        """
        model.keep = seconds if seconds <= LONGEST else math.inf
        self._watch(model)

    async def leave(self, model: ServedModel) -> None:
        """The model leaves memory, unless it is in use, is to stay, or can't be loaded again."""
        if model.keep == 0:
            await self._models.unload(model)

    def _watch(self, model: ServedModel) -> None:
        """Looks again when the model may leave."""
        timer = self._timers.pop(model.id, None)
        if timer is not None:
            timer.cancel()
        if model.engine is None or model.load is None or model.keep is None or model.keep > LONGEST:
            return
        left = model.used_at + model.keep - time.monotonic()
        loop = asyncio.get_running_loop()
        self._timers[model.id] = loop.call_later(max(left, LOOK), self._look, model)

    def _look(self, model: ServedModel) -> None:
        if model.keep is not None and not model.n_open and model.used_at + model.keep <= time.monotonic():
            task = asyncio.ensure_future(self._models.unload(model))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
        else:
            self._watch(model)

    def close(self) -> None:
        """Looks no more."""
        for timer in self._timers.values():
            timer.cancel()


def leaves_in(model: ServedModel, idle_unload: float) -> float:
    """Seconds until a model leaves memory if no further request comes; infinite if it stays."""
    kept = model.keep if model.keep is not None else (idle_unload or math.inf)
    return math.inf if model.load is None or model.pinned else max(model.used_at + kept - time.monotonic(), 0.0)
