"""Asynchronous drafts: a draft model that runs ahead in a thread of its own."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Self, Unpack

from oxillama._util.fork import GUESSES, ForkRegistry
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

_lives = ForkRegistry(GUESSES)


class _Run:
    """Guesses on top of guesses, for texts that may turn out otherwise.

    token: shared by who guesses and who finds that nobody wants it any more. keys: of the texts that are still wanted.
    """

    def __init__(self, tasks: list[DraftTask]) -> None:
        self.tasks = tasks
        self.keys = {task.key for task in tasks}
        self.token = CancelToken()
        self.done = threading.Event()


class SpeculativeDecoder:
    """A draft whose model works in a thread of its own. Use with `with`, or call `close`.

    When it has proposed, it takes it that all will come true and guesses on from there, while the model checks. If all
    did, and the token after them as well, the next guesses are there already; if not, they are given up in the middle.
    What it proposes is what its `DraftModel` would, token by token.

    It pays where the two have cores of their own: give it `num_threads` that the engine doesn't use.

    model: the draft model, closed with this if it was made by it. n_ready: guesses that were there when asked for.
    """

    __reduce_ex__ = stays_here("make one of a DraftModel in the other process; that can be sent")

    def __init__(self, draft: DraftModel | Source = None, **fields: Unpack[EngineOptions]) -> None:
        """draft: a `DraftModel`, or what one is made of, with its options. Raises what that raises, TypeError for
        options of a model that is made already."""
        self._own = not isinstance(draft, DraftModel)
        if fields and not self._own:
            raise TypeError(f"{next(iter(fields))} can't be given with a DraftModel: it is made already")
        self.model = draft if isinstance(draft, DraftModel) else DraftModel(draft, **fields)
        self.n_ready = 0
        self._closed = False
        self._start()
        _lives.add(self)

    def _start(self) -> None:
        """With a thread to come; also in a forked child, where the parent's is not."""
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
        """Guesses for each task, of which some may be there already. Raises what `DraftModel.propose` raises."""
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
        """The text has ended: what is guessed for it alone is given up."""
        run = self._run
        if run is not None:
            run.keys.discard(key)
            if not run.keys:
                run.token.cancel()
        self.model.forget(key)

    # ---- the thread

    def _await_run(self, tasks: Sequence[DraftTask]) -> None:
        """Until what is guessed ahead is there; it is given up if all texts went another way."""
        run = self._run
        if run is not None:
            if not any(task.key in run.keys and self.model.agrees(task) for task in tasks):
                run.token.cancel()
            run.done.wait()
            self._run = None  # not before: whose text ends meanwhile has to find it

    def _run_ahead(self, tasks: Sequence[DraftTask]) -> None:
        """Has the token after the guesses guessed, and as many more as now, if the texts go on so."""
        found = [self.model.beyond(task, task.n + 1) for task in tasks if not task.with_probs]
        wanted = [task for task in found if task is not None]
        with self._beginning:
            if wanted and not self._forks and not self._closed:  # the thread of a closed one would never do it
                self._run = run = _Run(wanted)
                if self._thread is None:
                    self._thread = threading.Thread(target=_work, args=(self._jobs,), name=THREAD, daemon=True)
                    self._thread.start()
                self._jobs.put(partial(_guess, self.model, run))

    # What the thread does may hold locks, as of grammars, which stay locked in a forked child for ever. So a fork waits
    # for it; nobody is kept from proposing, or the fork, which waits for the engines' steps too, might never happen.

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
        """It begins nothing there: its thread is the parent's."""

    # ---- life

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Ends the thread, and the model if it was made here; further calls do nothing."""
        self.stop()
        if self._own:
            self.model.close()

    def stop(self, *, wait: bool = True) -> None:
        """Ends the thread."""
        self._closed = True
        if self._pid == os.getpid():
            with self._beginning:  # who began before the flag was set is done now, and nobody begins any more
                run, self._run = self._run, None
            if run is not None:
                run.token.cancel()
            self._end.detach()
            self._jobs.put(None)  # itself, since finalizers may be over at the interpreter's end
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
        del job  # it keeps the model, which may be dropped before the next one comes


def _guess(model: DraftModel, run: _Run) -> None:
    try:
        tasks = [task for task in run.tasks if task.key in run.keys]
        model.propose(tasks, lambda: run.token.cancelled)
    except BaseException:  # may be of a text that never comes; if not, it is raised again when that is asked for
        log.debug("guesses ahead of the model failed", exc_info=True)
    finally:
        for task in run.tasks:
            if task.key not in run.keys:  # forgotten before it was begun
                model.forget(task.key)
        run.done.set()
