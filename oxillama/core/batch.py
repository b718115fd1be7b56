"""Batches: any number of prompts, of which some are in flight."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping, Sized
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from types import GeneratorType, TracebackType
from typing import Any, Literal, NoReturn, Self, TypeVar, cast

from oxillama._util.checks import check_flag, overlaid
from oxillama._util.pickling import stays_here
from oxillama._util.settings import check_fields, setting, settings, settings_of
from oxillama._util.signals import DeferredInterrupt, Finalizer
from oxillama.core.engine_core import EngineCore
from oxillama.core.generation_request import GenerationRequest
from oxillama.core.options import Progress, TextOptions, check_options, read_options
from oxillama.core.prompts import check_no_table, read_prompt
from oxillama.core.request import Bell, Request, ResultQueue
from oxillama.core.request_factory import RequestFactory
from oxillama.core.results import BatchFailure, Completion
from oxillama.core.text_stream import completions_of, shaped
from oxillama.errors import ConfigError, DeadlineError, EngineClosedError, GenerateError, QueueFullError, SnapshotError

__all__ = [
    "MAX_IN_FLIGHT",
    "Batch",
    "BatchPrompt",
    "BatchRunner",
    "BatchSettings",
    "Errors",
    "Outcome",
    "batch_runner",
    "read_settings",
]

# Twice what runs in one step: the queue never runs dry while finished ones wait for their turn.
MAX_IN_FLIGHT = 128
MOST_IN_FLIGHT = 1 << 20

# Iterators that run no code of their caller's.
PLAIN: tuple[type, ...] = tuple(map(type, map(iter, ([], (), {}, {}.values(), set(), range(0)))))

# Options of `stream` that a batch's prompts have in common: how many completions a result is, and what ends them all.
_OF_THE_WHOLE = ("n", "cancel_token")

Errors = Literal["raise", "yield"]
Outcome = Completion | list[Completion] | BatchFailure


@settings()
@dataclass(frozen=True)
class BatchSettings:
    """Options of a batch, checked.

    {fields}

    Other options are those of `stream`, for all prompts. A cancel token ends what is under way, and takes no more
    prompts. A deadline counts from each prompt's own first step unless `deadline_from` says "submit"; a prompt that has
    no token by then fails with DeadlineError.
    """

    ordered: bool = setting(
        True, "results in the order of the prompts; else as they finish, and `index` tells which prompt's they are."
    )
    max_in_flight: int = setting(
        MAX_IN_FLIGHT, "prompts taken whose results were not given yet, at most.", least=1, most=MOST_IN_FLIGHT
    )
    errors: Errors = setting(
        "raise",
        "a prompt that fails has its error raised in its place, and asking for the next result goes on after "
        'it; or "yield": a `BatchFailure` in its place. No other result is lost either way, nor by an interrupt: after '
        "Ctrl-C, too, asking for the next result goes on.",
        choices=("raise", "yield"),
    )
    progress: Progress = setting(
        False,
        "True shows a bar on stderr; a function is called with the number of results given, and of all if "
        "`prompts` has a length, else None.",
        check=lambda name, given: given if callable(given) else check_flag(name, given),
    )
    total: int | None = None  # prompts, if they are counted

    def __post_init__(self) -> None:
        """Raises ConfigError for values out of range."""
        check_fields(self)


SETTINGS = tuple(settings_of(BatchSettings))


def read_settings(prompts: Any, options: Mapping[str, Any]) -> tuple[BatchSettings, dict[str, Any]]:
    """Divides keywords: a batch's own, checked, and those of each text. Raises ConfigError for values out of range."""
    check_no_table("prompts", prompts)
    if isinstance(prompts, str | bytes | Mapping) or not isinstance(prompts, Iterable | AsyncIterable):
        raise ConfigError(f"prompts must be an iterable of prompts, not {type(prompts).__name__}")
    if getattr(prompts, "ndim", 1) == 0:  # a NumPy array of one value, which looks like an iterable
        raise ConfigError(f"prompts must be an iterable of prompts, not one value ({type(prompts).__name__})")
    own = {name: value for name, value in options.items() if name in SETTINGS}
    found = BatchSettings(**own, total=len(prompts) if isinstance(prompts, Sized) else None)
    return found, {name: value for name, value in options.items() if name not in own}


@dataclass(frozen=True, slots=True, eq=False)
class BatchPrompt:
    """A prompt of a batch with options of its own, in place of the batch's: keywords of `stream`.

    What is wrong with them is wrong with this prompt alone: its result is the error. Results are those of
    `generate(prompt, **options)`, whatever the other prompts' options are.
    """

    prompt: Any
    options: Mapping[str, Any]


class _Item(ResultQueue):
    """One prompt on its way. Puts itself into `finished`, if that is given, when it is done."""

    __slots__ = ("_finished", "options", "place", "requests")

    def __init__(self, place: int, options: TextOptions, finished: deque[_Item] | None, bell: Bell | None) -> None:
        super().__init__(options.n_each, bell, whole=True)
        self._finished = finished
        self.options = options
        self.place = place
        self.requests: list[GenerationRequest] = []

    def end(self, request: Request, error: BaseException | None) -> None:
        super().end(request, error)
        self._hand_over()

    def _hand_over(self) -> None:
        finished = self._finished
        if finished is not None and not self.n_open:
            self._finished = None
            finished.append(self)

    def fail(self, error: BaseException) -> None:
        """Ends what was not queued."""
        self.error, self.n_open = error, 0
        self._hand_over()


class BatchRunner:
    """Prompts in, results out; it waits for nothing itself.

    An interrupt at any moment, or a cancelled task, leaves each prompt in one of these places, from which the next call
    goes on: in the iterable, in `taken`, in flight, or in `result`.

    taken: a prompt that the iterable gave and that is not queued yet. result: the next one to be given, and the error
    to be raised in its place. exhausted: no more prompts come. broken: the error with which they ended.
    """

    def __init__(
        self, core: EngineCore, factory: RequestFactory, given: Mapping[str, Any], settings: BatchSettings
    ) -> None:
        """`given`: the options of all prompts. Raises ConfigError and TypeError for them."""
        self._core = core
        self._factory = factory
        self._given = given
        self.options = self._read({})
        self._settings = settings
        self._in_flight: dict[int, _Item] = {}
        self._finished: deque[_Item] = deque()
        self._n_taken = self._n_given = 0
        self._closed = False
        self._tickets: dict[int, Finalizer] = {}  # not in the items, to which their requests refer
        self._held: _Item | None = None  # for which the engine's queue had no room
        self._show = _Show(settings.progress, settings.total)
        self.bell: Bell | None = None
        self.taken: deque[Any] = deque()
        self.result: tuple[Outcome, BaseException | None] | None = None
        self.exhausted = False
        self.broken: BaseException | None = None

    def _read(self, own: Mapping[str, Any]) -> TextOptions:
        """The options of a prompt that has some of its own."""
        options = read_options("stream", overlaid(self._given, own), self._factory.default_chain)
        return replace(options, serving=options.serving.counted_from("start"))

    @property
    def cancelled(self) -> bool:
        token = self.options.cancel_token
        return token is not None and token.cancelled

    @property
    def wants_more(self) -> bool:
        """Whether another prompt may be taken from the iterable."""
        open_ = self._held is None and not (self.taken or self.exhausted or self.cancelled)
        return open_ and len(self._in_flight) < self._settings.max_in_flight

    @property
    def can_put(self) -> bool:
        """Whether a prompt was taken that can be queued now."""
        return bool(self.taken) and self._held is None and not self._closed

    @property
    def empty(self) -> bool:
        return not self._in_flight

    def ready(self) -> bool:
        """Whether a result can be taken."""
        if not self._settings.ordered:
            return bool(self._finished)
        return bool(self._in_flight) and not next(iter(self._in_flight.values())).n_open

    def take(self, prompts: Iterator[Any]) -> None:
        """Takes a prompt, or the end or the error that comes in its place.

        An interrupt inside the iterable's own code may have lost a prompt, and has ended a generator: no more are taken
        then, and `failure` says so when the others have results.
        """
        generator = prompts if isinstance(prompts, GeneratorType) else None
        plain = isinstance(prompts, PLAIN)
        try:
            # All in C: no signal comes between a prompt's leaving the iterable and its being here.
            self.taken.extend(islice(prompts, 1))
            if not self.taken:
                self.exhausted = True
        # Until the attributes are set nothing is called, and Python looks for no other signals.
        except Exception as error:
            if generator is not None and generator.gi_frame is not None:
                raise  # of a signal's handler: a generator ends with its own
            self.exhausted, self.broken = True, error
        except BaseException as error:
            inner = error.__traceback__ and error.__traceback__.tb_next  # the handler's own, if not the iterable's
            code = generator.gi_code if generator is not None else getattr(type(prompts).__next__, "__code__", None)
            inside = not plain and inner is not None and code in (None, inner.tb_frame.f_code)
            if inside and not self.taken and (generator is None or generator.gi_frame is None):
                self.exhausted, self.broken = True, error
            raise

    def failure(self) -> Exception | None:
        """The error to raise after the last result."""
        error = self.broken
        if error is None or isinstance(error, Exception):
            return error
        failure = GenerateError(
            f"the iterable of prompts was interrupted ({type(error).__name__}) after {self._n_taken} prompts, which "
            "have their results, and may have lost the next: give the others to another batch"
        )
        failure.__cause__ = error
        return failure

    def make(self) -> _Item:
        """The prompt that was taken, ready to be queued, in any thread. Its error, if it has one, is in it."""
        prompt, place = self.taken[0], self._n_taken
        finished = None if self._settings.ordered else self._finished
        item = _Item(place, self.options, finished, self.bell)
        name = f"prompts[{place}]"
        try:
            if isinstance(prompt, BatchPrompt):
                item.options, prompt = self._own(name, prompt.options), prompt.prompt
            prompt = read_prompt(name, prompt, f"{name} must be")
            ids = self._factory.ids(name, prompt)
            echo = self._factory.echo(prompt, ids) if item.options.echo else ""
            item.requests = self._factory.group(ids, item.options, item, name=name, echo=echo)
        except Exception as error:
            item.error = error
        return item

    def _own(self, name: str, options: Mapping[str, Any]) -> TextOptions:
        """The options of a prompt. Raises ConfigError for those that only the batch as a whole can have."""
        for option in _OF_THE_WHOLE:
            if options.get(option) is not None:
                raise ConfigError(f"{name} must leave {option} to the batch, whose prompts have it in common")
        return self._read(options) if options else self.options

    def put(self, item: _Item) -> None:
        """Queues what was made. Raises EngineClosedError; another error is the prompt's result."""
        with DeferredInterrupt():
            if self._closed:  # by another task, while one waited for the item to be made
                return
            self._in_flight[item.place] = item
            self._n_taken += 1
            self.taken.popleft()
            if item.error is None:
                self._submit(item)
            else:
                item.fail(item.error)

    def retry(self) -> None:
        """Queues what the queue had no room for; its QueueFullError, if nothing of this batch is there to end first."""
        if self._held is None:
            return
        with DeferredInterrupt():
            item, self._held = self._held, None
            if item.n_open:  # not cancelled meanwhile
                self._submit(item)

    def _submit(self, item: _Item) -> None:
        others = len(self._in_flight) > 1
        try:
            self._tickets[item.place] = self._core.submit(item.requests, patient=others)
        except EngineClosedError:
            raise
        except Exception as error:
            if others and isinstance(error, QueueFullError):
                self._held = item
            else:
                item.fail(error)

    def give(self) -> None:
        """Makes one that is ready the `result`. An EngineClosedError, the end of all, is raised, as is what `progress`
        raises. An error that is no Exception asks for the end of more than a prompt, and is no result."""
        ordered = self._settings.ordered
        item = next(iter(self._in_flight.values())) if ordered else self._finished[0]
        if isinstance(item.error, EngineClosedError):
            raise item.error
        found = self._outcome(item)
        error = found.error if isinstance(found, BatchFailure) else None
        if isinstance(error, Exception) and self._settings.errors == "yield":
            drop_frames(error)
            error = None
        with DeferredInterrupt():
            item.error = None  # whose traceback may hold the item
            if not ordered:
                self._finished.popleft()
            del self._in_flight[item.place]
            self._tickets.pop(item.place, None)
            self._n_given += 1
            self.result = found, error
        self._show.tell(self._n_given)

    def _outcome(self, item: _Item) -> Outcome:
        if item.error is not None:
            return BatchFailure(item.place, cast(Exception, item.error))
        found = completions_of(item.requests, item.items, item.options.n_each, item.place)
        if all(completion.finish_reason == "deadline" and not completion.token_ids for completion in found):
            return BatchFailure(item.place, self._too_late(item))
        return cast(Completion, shaped(found, item.options.n, single=True))

    def _too_late(self, item: _Item) -> DeadlineError:
        serving = item.options.serving
        since = "its first step" if serving.deadline_from == "start" else "it was queued"
        return DeadlineError(
            f"prompts[{item.place}] had no token {serving.deadline} s after {since} (deadline): give it more time, or "
            "fewer prompts at once (max_in_flight)"
        )

    def _under_way(self) -> list[GenerationRequest]:
        """Requests of the prompts that were taken, some of them finished."""
        return [request for item in self._in_flight.values() for request in item.requests]

    def entrust(self) -> None:
        """Has what is under way computed while this thread does something else, if there can be another one."""
        loop, requests = self._core.loop, self._under_way()
        loop.post(
            lambda: loop.background_requests.update(r for r in requests if r.clock.submitted_at and r.outcome is None)
        )
        with suppress(RuntimeError):  # else it is computed when this thread comes back
            loop.start_worker()

    def take_back(self) -> None:
        """Returns the steps to this thread: two in turn would be slower."""
        loop, requests = self._core.loop, self._under_way()
        if loop.background_requests:
            loop.post(lambda: loop.background_requests.difference_update(requests))

    def cancel(self) -> None:
        """Ends what is under way."""
        self._core.cancel(self._under_way())

    def close(self) -> None:
        """Ends and forgets everything."""
        self._closed = self.exhausted = True
        self.cancel()
        self._show.close()


def drop_frames(error: BaseException) -> None:
    """Drops the tracebacks of an error that becomes a result, and of those that led to it.

    Their frames refer to the callers' frames, which hold the failure that was given before, and that one its own
    traceback: each failed prompt would keep all earlier ones alive.
    """
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            left += (one.__cause__, one.__context__)


class _Show:
    """Tells how many results were given."""

    def __init__(self, progress: Progress, total: int | None) -> None:
        self._total = total
        self._tell = progress if callable(progress) else None
        self._bar: Any = None
        if progress is True:
            from tqdm.auto import tqdm  # type: ignore[import-untyped]  # a widget in notebooks

            self._bar = tqdm(total=total, unit="prompt")

    def tell(self, n_given: int) -> None:
        if self._bar is not None:
            self._bar.update(1)
        if self._tell is not None:
            self._tell(n_given, self._total)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


T = TypeVar("T")

NO_SNAPSHOT = (
    "a batch can't be saved, since its prompts come from an iterable of your own: keep the results, and give those "
    "prompts that have none to a new batch, with the same results; or save each request with stream(prompt).snapshot()"
)

# A caller that works longer than this between two results has the rest computed meanwhile, by the worker thread. Its
# start costs some tenths of a millisecond, which callers that only collect results needn't pay for.
AWAY_SECONDS = 0.002


class Batch(Iterator[T]):
    """The results of a batch, for one thread at a time; ends, when dropped or closed (also as a context manager), what
    is under way.

    An interrupt (Ctrl-C, or a signal whose handler raises) leaves it as it was: asking for the next result goes on, and
    each prompt has its result once. Only where the interrupt came out of the iterable of prompts itself, no more are
    taken, and after the results of the others a GenerateError says so.
    """

    __reduce_ex__ = stays_here("send its results, or its prompts, to a batch of the other process's engine")
    _pipeline: BatchRunner | None = None

    def __init__(self, core: EngineCore, pipeline: BatchRunner, prompts: Iterator[Any]) -> None:
        self._core = core
        self._prompts = prompts
        self._pipeline = pipeline
        self._left_at = math.inf
        self._reading = False

    def __next__(self) -> T:
        pipeline = self._pipeline
        if pipeline is None:
            raise StopIteration
        if self._reading:
            raise GenerateError("another thread waits for this batch already: results are for one thread at a time")
        try:  # Python changes threads, and looks for signals, where a function begins and after calls
            self._reading = True
            away = time.perf_counter() - self._left_at
            if pipeline.result is None and not self._find(pipeline):  # there is one if its caller was interrupted
                self.close()
                raise StopIteration
            if away > AWAY_SECONDS:
                pipeline.entrust()
            self._left_at = time.perf_counter()
            found, error = cast(tuple[Any, BaseException | None], pipeline.result)
            pipeline.result = None  # from here on nothing is called
            if error is None:
                return found  # type: ignore[no-any-return]
            raise error
        finally:
            self._reading = False
            # A traceback that holds this frame would hold them, and so the failures before it.
            found = error = None

    def _find(self, pipeline: BatchRunner) -> bool:
        """Sees to a result; False at the end."""
        try:
            pipeline.retry()
            while pipeline.can_put or pipeline.wants_more:
                if not pipeline.taken:
                    pipeline.take(self._prompts)
                if pipeline.taken:
                    pipeline.put(pipeline.make())
            if pipeline.empty:
                error = pipeline.failure()
                pipeline.broken = None
                if error is None:
                    return False
                raise error
            if not pipeline.ready():
                pipeline.take_back()
                self._core.drive(lambda: pipeline.ready() or pipeline.cancelled)
            if not pipeline.ready():
                pipeline.cancel()
                self._core.drive(pipeline.ready)
            pipeline.give()
        except EngineClosedError:
            self.close()
            raise
        return True

    def snapshot(self, *ignored: object, **options: object) -> NoReturn:
        """Raises SnapshotError: the prompts that are to come are the caller's, and no file can hold an iterable.

        What has results is done: a new batch of the other prompts gives the same as this one would. Each request of
        `stream` can be saved by itself.
        """
        raise SnapshotError(NO_SNAPSHOT)

    def close(self) -> None:
        """Ends what is under way and takes no more prompts; further calls do nothing."""
        if self._pipeline is not None:
            with DeferredInterrupt():
                pipeline, self._pipeline = self._pipeline, None
                pipeline.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def batch_runner(core: EngineCore, factory: RequestFactory, prompts: Any, options: Mapping[str, Any]) -> BatchRunner:
    """A runner for the keywords of `Engine.batch`, with no prompt taken yet.

    Raises ConfigError and TypeError for the options, EngineClosedError, GenerateError if the model is an encoder.
    """
    check_options("batch", options)  # a misspelt name first
    settings, of_texts = read_settings(prompts, options)
    runner = BatchRunner(core, factory, of_texts, settings)
    core.check_generates()
    return runner
