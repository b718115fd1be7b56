"""Prompts on their way through the engine, of which only some are in memory at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable, Callable, Iterable, Sized
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from oxillama.checks import check_bool, check_choice, check_int
from oxillama.engine.completions import completions_of, shaped
from oxillama.engine.core import EngineCore
from oxillama.engine.options import TextOptions
from oxillama.engine.prompts import read_prompt
from oxillama.engine.request import Bell, Outbox
from oxillama.engine.results import BatchFailure, Completion
from oxillama.engine.stream import TextRequest
from oxillama.engine.texts import TextMaker
from oxillama.errors import ConfigError, DeadlineError, EngineClosedError, QueueFullError

__all__ = ["MAX_IN_FLIGHT", "BatchSettings", "Errors", "Outcome", "Pipeline", "Progress", "read_settings"]

# Twice what runs in one step: the queue never runs dry while finished ones wait for their turn.
MAX_IN_FLIGHT = 128
MOST_IN_FLIGHT = 1 << 20

Errors = Literal["raise", "yield"]
Outcome = Completion | list[Completion] | BatchFailure
Progress = bool | Callable[[int, int | None], object]


@dataclass(frozen=True)
class BatchSettings:
    """How a batch is done; the keywords of `Engine.batch` of these names. total: prompts, if they are counted."""

    ordered: bool
    max_in_flight: int
    errors: Errors
    progress: Progress
    total: int | None


def read_settings(prompts: Any, ordered: bool, max_in_flight: int, errors: Errors, progress: Progress) -> BatchSettings:
    """Raises ConfigError for values out of range."""
    if isinstance(prompts, str | bytes | dict) or not isinstance(prompts, Iterable | AsyncIterable):
        raise ConfigError(f"prompts must be an iterable of prompts, not {type(prompts).__name__}")
    return BatchSettings(
        check_bool("ordered", ordered),
        check_int("max_in_flight", max_in_flight, 1, MOST_IN_FLIGHT),
        cast(Errors, check_choice("errors", errors, ("raise", "yield"))),
        progress if callable(progress) else check_bool("progress", progress),
        len(prompts) if isinstance(prompts, Sized) else None,
    )


class _Item(Outbox):
    """One prompt on its way. Puts itself into `finished`, if that is given, when it is done."""

    __slots__ = ("_finished", "place", "requests")

    def __init__(self, place: int, n: int, finished: deque[_Item] | None, bell: Bell | None) -> None:
        super().__init__(n, bell, whole=True)
        self._finished = finished
        self.place = place
        self.requests: list[TextRequest] = []

    def end(self, error: Exception | None) -> None:
        if self._finished is not None and self.n_open == 1:
            self._finished.append(self)
        super().end(error)

    def fail(self, error: Exception) -> None:
        """Ends what was not queued."""
        self.n_open = 1
        self.end(error)


class Pipeline:
    """Prompts in, results out; it waits for nothing itself.

    exhausted: no more prompts come. broken: the error with which they ended.
    """

    def __init__(self, core: EngineCore, maker: TextMaker, options: TextOptions, settings: BatchSettings) -> None:
        self._core = core
        self._maker = maker
        self._options = replace(options, serving=options.serving.counted_from("start"))
        self._settings = settings
        self._in_flight: dict[int, _Item] = {}
        self._finished: deque[_Item] = deque()
        self._n_taken = self._n_given = 0
        self._closed = False
        self._held: _Item | None = None  # for which the engine's queue had no room
        self._show = _Show(settings.progress, settings.total)
        self.bell: Bell | None = None
        self.exhausted = False
        self.broken: BaseException | None = None

    @property
    def cancelled(self) -> bool:
        token = self._options.cancel_token
        return token is not None and token.cancelled

    @property
    def wants_more(self) -> bool:
        """Whether another prompt may be added."""
        open_ = self._held is None and not self.exhausted and not self.cancelled
        return open_ and len(self._in_flight) < self._settings.max_in_flight

    @property
    def empty(self) -> bool:
        return not self._in_flight

    def ready(self) -> bool:
        """Whether a result can be taken."""
        if not self._settings.ordered:
            return bool(self._finished)
        return bool(self._in_flight) and not next(iter(self._in_flight.values())).n_open

    def add(self, prompt: Any) -> None:
        """Queues a prompt. Its error, if it has one, is its result; an EngineClosedError is raised."""
        finished = None if self._settings.ordered else self._finished
        item = _Item(self._n_taken, self._options.n_each, finished, self.bell)
        self._in_flight[item.place] = item
        self._n_taken += 1
        name = f"prompts[{item.place}]"
        try:
            prompt = read_prompt(name, prompt, f"{name} must be")
            ids = self._maker.ids(name, prompt)
            echo = self._maker.echo(prompt, ids, self._options)
            item.requests = self._maker.group(ids, self._options, item, name=name, echo=echo)
            self._submit(item)
        except EngineClosedError:
            raise
        except Exception as error:
            item.fail(error)
        if self._closed:  # by the task that had this done in another thread
            self.cancel()

    def retry(self) -> None:
        """Queues what the queue had no room for; its QueueFullError, if nothing of this batch is there to end first."""
        item, self._held = self._held, None
        if item is not None and item.n_open:  # not cancelled meanwhile
            try:
                self._submit(item)
            except QueueFullError as error:
                item.fail(error)

    def _submit(self, item: _Item) -> None:
        others = len(self._in_flight) > 1
        try:
            self._core.submit(item.requests, patient=others)
        except QueueFullError:
            if not others:
                raise
            self._held = item

    def stop(self, error: BaseException | None = None) -> None:
        """No more prompts come; those under way go on."""
        self.exhausted, self.broken = True, error

    def take(self) -> Outcome:
        """A result that is ready. An EngineClosedError, the end of all, is raised."""
        item = next(iter(self._in_flight.values())) if self._settings.ordered else self._finished.popleft()
        del self._in_flight[item.place]
        self._n_given += 1
        self._show.tell(self._n_given)
        if isinstance(item.error, EngineClosedError):
            raise item.error
        if item.error is not None:
            return BatchFailure(item.place, item.error)
        found = completions_of(item.requests, item.items, self._options.n_each, item.place)
        if all(completion.finish_reason == "deadline" and not completion.token_ids for completion in found):
            return BatchFailure(item.place, self._too_late(item.place))
        return cast(Completion, shaped(found, self._options.n, single=True))

    def _too_late(self, place: int) -> DeadlineError:
        serving = self._options.serving
        since = "its first step" if serving.deadline_from == "start" else "it was queued"
        return DeadlineError(
            f"prompts[{place}] had no token {serving.deadline} s after {since} (deadline): give it more time, or fewer "
            "prompts at once (max_in_flight)"
        )

    def outcome(self, found: Outcome) -> Outcome:
        """What a caller gets: raises the error of a failure if he wants that."""
        if isinstance(found, BatchFailure) and self._settings.errors == "raise":
            raise found.error
        return found

    def _under_way(self) -> list[TextRequest]:
        """Requests of the prompts that were taken, some of them finished."""
        return [request for item in self._in_flight.values() for request in item.requests]

    def entrust(self) -> None:
        """Has what is under way computed while this thread does something else, if there can be another one."""
        loop, requests = self._core.loop, self._under_way()
        loop.post(lambda: loop.guests.update(r for r in requests if r.submitted_at and r.outcome is None))
        with suppress(RuntimeError):  # else it is computed when this thread comes back
            loop.engage()

    def take_back(self) -> None:
        """This thread takes the steps again: two in turn would be slower."""
        loop, requests = self._core.loop, self._under_way()
        if loop.guests:
            loop.post(lambda: loop.guests.difference_update(requests))

    def cancel(self) -> None:
        """Ends what is under way."""
        self._core.cancel(self._under_way())

    def close(self) -> None:
        """Ends and forgets everything."""
        self._closed = self.exhausted = True
        self.cancel()
        self._show.close()


class _Show:
    """Tells how many results were given."""

    def __init__(self, progress: Progress, total: int | None) -> None:
        self._total = total
        self._tell = progress if callable(progress) else None
        self._bar: Any = None
        if progress is True:
            from tqdm import tqdm  # type: ignore[import-untyped]

            self._bar = tqdm(total=total, unit="prompt")

    def tell(self, n_given: int) -> None:
        if self._bar is not None:
            self._bar.update(1)
        if self._tell is not None:
            self._tell(n_given, self._total)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
