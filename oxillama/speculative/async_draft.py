"""Asynchronous drafts: a draft model that runs ahead in a worker thread."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Self, Unpack

from oxillama._util.checks import given_of
from oxillama._util.fork import DRAFTS, ForkRegistry
from oxillama._util.pickling import stays_here
from oxillama._util.signals import Finalizer
from oxillama.config import EngineOptions
from oxillama.core.results import CancelToken
from oxillama.drafts.draft import DraftTask, Proposal, Target
from oxillama.errors import EngineClosedError
from oxillama.speculative.draft_model import DraftModel, Source

__all__ = [
    "SpeculativeDecoder",
]

Jobs = SimpleQueue[Callable[[], None] | None]

THREAD = "oxillama draft"

log = logging.getLogger("oxillama")

_lives = ForkRegistry(DRAFTS)


class _Run:
    """One run of the worker thread: draft tokens after draft tokens that are not verified yet.

    token: cancelled by the proposing thread when no sequence needs the run any more; polled by the worker thread.
    keys: of the sequences that still need it.
    """

    def __init__(self, tasks: list[DraftTask]) -> None:
        self.tasks = tasks
        self.keys = {task.key for task in tasks}
        self.token = CancelToken()
        self.done = threading.Event()


class SpeculativeDecoder:
    """Draft whose model runs in a worker thread. Use with `with`, or call `close`.

    After each proposal, the draft assumes that all its tokens will be accepted and drafts on from there, while the
    model verifies them. If all are accepted, and the token after them is right as well, the next draft tokens are
    ready; if not, the run is abandoned. The proposals are those of its `DraftModel`, token by token.

    It pays where draft and model have cores of their own: give it `num_threads` that the engine doesn't use.

    model: the draft model, closed with this object if made by it. n_ready: draft tokens that were ready when requested.
    """

    __reduce_ex__ = stays_here("make one of a DraftModel in the other process; that can be sent")

    def __init__(self, draft: DraftModel | Source = None, **fields: Unpack[EngineOptions]) -> None:
        """draft: a `DraftModel`, or the source of one, with its options. Raises what `DraftModel` raises, TypeError for
        options beside a `DraftModel`."""
        self._own = not isinstance(draft, DraftModel)
        if (given := given_of(fields)) and not self._own:
            raise TypeError(f"{next(iter(given))} can't be given with a DraftModel: it is made already")
        self.model = draft if isinstance(draft, DraftModel) else DraftModel(draft, **fields)
        self.n_ready = 0
        self._closed = False
        self._start()
        _lives.add(self)

    def _start(self) -> None:
        """Sets up the state without a thread, which starts later; also in a forked child, which has no thread."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._beginning = threading.Lock()
        self._forks = 0
        self._jobs: Jobs = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._run: _Run | None = None
        self._end = Finalizer(partial(self._jobs.put, None))

    # ---- the protocol

    def bind(self, target: Target) -> None:
        """Raises ConfigError unless the model has the same vocabulary."""
        self._check_open()
        self.model.bind(target)

    def propose(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        """Draft tokens for each task, some of which may be ready. Raises what `DraftModel.propose` raises."""
        if self._pid != os.getpid():
            self._start()
        with self._lock:
            self._check_open()
            self._await_run(tasks)
            drawn = self.model.n_guessed
            proposals = self.model.propose(tasks)
            self.n_ready += sum(len(p.tokens) for p in proposals) - (self.model.n_guessed - drawn)
            self._run_ahead(tasks)
            return proposals

    def forget(self, key: int) -> None:
        """Ends a sequence: a run for it alone is cancelled."""
        run = self._run
        if run is not None:
            run.keys.discard(key)
            if not run.keys:
                run.token.cancel()
        self.model.forget(key)

    # ---- the thread

    def _await_run(self, tasks: Sequence[DraftTask]) -> None:
        """Waits for the run of the worker thread, which is cancelled if all sequences went another way."""
        run = self._run
        if run is not None:
            if not any(task.key in run.keys and self.model.agrees(task) for task in tasks):
                run.token.cancel()
            run.done.wait()
            self._run = None  # not before: `forget` of a sequence that ends meanwhile has to find the run

    def _run_ahead(self, tasks: Sequence[DraftTask]) -> None:
        """Starts a run for the tokens after the draft tokens, as if all of these were accepted."""
        found = [self.model.beyond(task, task.n + 1) for task in tasks if not task.with_probs]
        wanted = [task for task in found if task is not None]
        with self._beginning:
            if wanted and not self._forks and not self._closed:  # a closed draft's thread would never run it
                if not self._has_thread():
                    return
                self._run = run = _Run(wanted)
                self._jobs.put(partial(_run_draft, self.model, run))

    def _has_thread(self) -> bool:
        """Starts the worker thread; whether there is one: where none can be started, the draft doesn't run ahead."""
        if self._thread is None:
            thread = threading.Thread(target=_work, args=(self._jobs,), name=THREAD, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                log.debug("the thread that drafts ahead couldn't be started: %s", error)
                return False
            self._thread = thread
        return True

    # A run may hold locks, such as those of grammars, which would stay locked in a forked child for ever. So a fork
    # waits for the run. Proposals are not blocked meanwhile: the fork also waits for the engines' steps, which propose.

    def before_fork(self) -> None:
        with self._beginning:
            self._forks += 1
            run = self._run
        if run is not None:
            run.token.cancel()
            run.done.wait()

    def after_fork_in_parent(self) -> None:
        with self._beginning:
            self._forks -= 1

    def after_fork_in_child(self) -> None:
        """Does nothing: `propose` notices the new process, and sets up the state without a thread."""

    # ---- life

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Ends the worker thread, and closes the model if made here; further calls do nothing."""
        self.stop()
        if self._own:
            self.model.close()

    def stop(self, *, wait: bool = True) -> None:
        """Ends the worker thread."""
        self._closed = True
        if self._pid == os.getpid():
            with self._beginning:  # starts of runs before the flag was set are done now, and no others follow
                run, self._run = self._run, None
            if run is not None:
                run.token.cancel()
            self._end.detach()
            self._jobs.put(None)  # put here, since finalizers may be over at the interpreter's end
            if wait and self._thread is not None:
                self._thread.join()

    def _check_open(self) -> None:
        if self._closed:
            raise EngineClosedError("the draft is closed: make another one")

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<SpeculativeDecoder of {self.model!r}>"


def _work(jobs: Jobs) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # it keeps the model alive, which may be dropped before the next job comes


def _run_draft(model: DraftModel, run: _Run) -> None:
    try:
        tasks = [task for task in run.tasks if task.key in run.keys]
        model.propose(tasks, lambda: run.token.cancelled)
    except BaseException:  # of tokens that may never be requested; if they are, `propose` raises it again
        log.debug("drafting ahead of the model failed", exc_info=True)
    finally:
        for task in run.tasks:
            if task.key not in run.keys:  # ended before the run started
                model.forget(task.key)
        run.done.set()
