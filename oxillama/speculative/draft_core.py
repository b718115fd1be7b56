"""Draft core: the sequences of a draft model, and the steps that compute and draw their draft tokens."""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from oxillama._util.signals import DeferredInterrupt
from oxillama.config import EngineConfig
from oxillama.core.engine_core import ForkListener
from oxillama.core.loading import EngineParts
from oxillama.core.runner import ClosedRunner, RunnerProtocol, StepAbandoned, execute_plan, next_plan
from oxillama.drafts.draft import DraftTask, Proposal, Target
from oxillama.errors import EngineClosedError, GenerateError, OxiLlamaError
from oxillama.kernels.sampling import Candidates
from oxillama.lora.registry import NO_LORAS
from oxillama.sampling import Distribution
from oxillama.scheduling.pools import SequencePool, StateSlots
from oxillama.scheduling.scheduler import Scheduler
from oxillama.scheduling.sequence import Sequence as Tokens
from oxillama.scheduling.sequence import n_common

__all__ = ["DraftCore"]

T = TypeVar("T")
Mark = tuple[int, float]  # state of a sampler: its generator's state, and mirostat's mu

# Prompt tokens computed at a time before the draft tokens of other sequences, so that those don't wait long.
CATCH_UP = 512

MASK = (1 << 64) - 1


class CommonIds:
    """Token ids that a draft and all its targets have.

    n: their number. width: length of the targets' rows of logits. ends: tokens after which none is drafted.
    """

    def __init__(self, n_vocab: int, ends: frozenset[int]) -> None:
        self.n = self.width = n_vocab
        self.ends = ends
        self._row = np.empty(0, np.float32)

    def add(self, target: Target) -> None:
        """Takes another target into account."""
        self.n, self.width = min(self.n, target.n_vocab), max(self.width, target.n_vocab)
        self.ends |= target.tokenizer.eog_ids

    def fitting(self, row: NDArray[np.float32]) -> NDArray[np.float32]:
        """A row of logits with the target's length, in which ids that not all targets have can't be drawn."""
        if len(row) == self.width == self.n:
            return row
        if len(self._row) != self.width:
            self._row = np.empty(self.width, np.float32)
        self._row.fill(-np.inf)
        self._row[: self.n] = row[: self.n]
        return self._row


class DraftSequence:
    """Sequence of one request in the draft model: the request's tokens, draft tokens after them, and their KV.

    n_known: number of the request's tokens when the others were drafted. marks: state of the sampler after these, and
    after each draft token; empty if the draft tokens can't be used again.
    """

    __slots__ = ("marks", "n_known", "sequence")

    def __init__(self, cache_key: Hashable) -> None:
        self.sequence = Tokens([], 0, cache_key=cache_key)
        self.n_known = 0
        self.marks: list[Mark] = []

    @property
    def drafted(self) -> list[int]:
        """The draft tokens."""
        return self.sequence.tokens[self.n_known :]

    def agrees(self, tokens: Sequence[int]) -> bool:
        """Whether tokens agree with the draft tokens, as far as either reach."""
        mine = self.sequence.tokens
        n = min(len(mine), len(tokens))
        return mine[:n] == list(tokens[:n])


class DraftSequences:
    """Draft sequences by key, least recently used first; each has blocks of the scheduler's pool."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._texts: OrderedDict[int, DraftSequence] = OrderedDict()

    def __len__(self) -> int:
        return len(self._texts)

    def find(self, key: int) -> DraftSequence | None:
        """The sequence of a key; None if there is none."""
        return self._texts.get(key)

    def sync(self, key: int, cache_key: Hashable, tokens: list[int], mark: Mark | None) -> DraftSequence:
        """Updates a sequence to the request's tokens. KV of their common prefix stays; rejected draft tokens go.

        mark: state of the request's sampler. Draft tokens after `tokens` stay if the sampler had this state when they
        were drawn; none stay if it is None. Without any, the last token counts as not computed: its logits are gone.
        """
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = DraftSequence(cache_key)
        self._texts.move_to_end(key)
        sequence, at = text.sequence, len(tokens) - text.n_known
        mine = sequence.tokens
        if len(mine) > len(tokens) and 0 <= at < len(text.marks) and text.marks[at] == mark and text.agrees(tokens):
            text.n_known, text.marks = len(tokens), text.marks[at:]
            self.scheduler.blocks.rewind(sequence, len(mine) - 1)  # if none could be drawn after the last draft token
            return text
        self.scheduler.blocks.rewind(sequence, min(n_common(mine, tokens), len(tokens) - 1))
        sequence.tokens[:] = tokens
        text.n_known, text.marks = len(tokens), [] if mark is None else [mark]
        return text

    def make_room(self, needs: Sequence[tuple[DraftSequence, int]]) -> None:
        """Evicts sequences that are not in `needs`, least recently used first, until there is room for the tokens of
        each that is."""
        asked = {id(text) for text, _ in needs}
        for key, text in list(self._texts.items()):
            if id(text) in asked or self._has_room(needs):
                break
            self.scheduler.blocks.rewind(text.sequence, 0)
            del self._texts[key]

    def _has_room(self, needs: Sequence[tuple[DraftSequence, int]]) -> bool:
        if not needs:
            return True
        scheduler = self.scheduler
        missing = [scheduler.blocks.missing(text.sequence, n) for text, n in needs]
        slots = [(text.sequence.slots or StateSlots()).n_missing(scheduler.pool.slots) for text, _ in needs]
        if scheduler.pool.n_slots and sum(slots) > scheduler.pool.slots.n_available:
            return False
        return scheduler.blocks.fits([sum(n) for n in zip(*missing, strict=True)])

    def forget(self, key: int) -> None:
        """Frees the KV of a sequence; does nothing for an unknown key."""
        text = self._texts.pop(key, None)
        if text is not None:
            self.scheduler.blocks.rewind(text.sequence, 0)


def derived(state: int) -> int:
    """State of a generator independent of the request's own generator in `state`.

    The finaliser of SplitMix64 (Steele et al. 2014) of `state` with an offset; never 0, which xorshift doesn't leave.
    """
    x = (state ^ 0x9E3779B97F4A7C15) & MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return (x ^ x >> 31) or 1


class DraftRun:
    """Draft tokens in the making for one task. The task's sampler advances with them; `end` restores it.

    n: number of draft tokens wanted. done: whether no more follow.
    """

    __slots__ = ("_ids", "_n_before", "_probs", "_sampler", "_start", "_text", "done", "n", "tokens")

    want = "last"
    loras = NO_LORAS

    def __init__(self, task: DraftTask, n: int, scratch: Candidates, ids: CommonIds) -> None:
        """n may be less than the task wants."""
        memory = task.sampler.memory
        self.n, self._ids = n, ids
        self.tokens: list[int] = []
        self.done = n < 1
        self._probs: list[Distribution] | None = [] if task.with_probs else None
        self._start: Mark = memory.rng.state, memory.mu
        self._n_before = memory.n_accepted
        self._sampler = task.sampler.shadow(scratch)
        self._text: DraftSequence | None = None

    @property
    def sequence(self) -> Tokens:
        """The draft model's sequence; there is one after `begin`."""
        assert self._text is not None
        return self._text.sequence

    @property
    def mark(self) -> Mark | None:
        """State of the sampler at the start; None if draft tokens of earlier proposals can't be used."""
        return None if self._probs is not None else self._start

    def begin(self, text: DraftSequence) -> None:
        """Takes the draft tokens of earlier proposals that are still valid."""
        memory, sequence = self._sampler.memory, text.sequence
        self._text, sequence.handle = text, self
        sequence.n_prompt, sequence.n_reserve = text.n_known, text.n_known + self.n - 1
        if self._probs is not None:
            memory.rng.state = derived(memory.rng.state)
        for token, mark in zip(text.drafted[: self.n], text.marks[1:], strict=False):
            memory.rng.state, memory.mu = mark
            self._sampler.accept(token)
            self._add(token)

    def _add(self, token: int) -> None:
        self.tokens.append(token)
        self.done = len(self.tokens) >= self.n or token in self._ids.ends

    def draw(self, row: NDArray[np.float32]) -> None:
        """Draws the next draft token from the draft's logits; none if the request's chain or grammar allows none.

        That is no error here: if the text comes to this place, the model's own draw raises it. Raises GenerateError if
        a logit is NaN or plus infinity.
        """
        try:
            self._sampler.scratch.load(self._ids.fitting(row))
        except GenerateError as error:
            raise GenerateError(f"in the draft model: {error}") from None
        try:
            self._take(*self._choose())
        except OxiLlamaError:
            self.done = True

    def _take(self, token: int, q: Distribution | None) -> None:
        # A drawn token is always proposed, even if it can't be accepted: leaving it out would change the distribution.
        self._add(token)
        if self._probs is not None and q is not None:
            self._probs.append(q)
        self._sampler.accept(token)
        self.sequence.tokens.append(token)
        if self._probs is None and self._text is not None:
            self._text.marks.append((self._sampler.memory.rng.state, self._sampler.memory.mu))

    def _choose(self) -> tuple[int, Distribution | None]:
        chain, candidates, memory = self._sampler.chain, self._sampler.scratch, self._sampler.memory
        if self._probs is None:
            return chain.choose(candidates, memory), None
        q = chain.distribution(candidates, memory)
        return q.draw(memory.rng.uniform()), q

    def end(self) -> Proposal:
        """The proposal so far; restores the sampler."""
        memory = self._sampler.memory
        self._sampler.rewind(memory.n_accepted - self._n_before)
        memory.rng.state, memory.mu = self._start
        if self._text is not None:
            self._text.sequence.handle = None
        return Proposal(self.tokens, self._probs)


Plan = list[tuple[DraftRun, int]]


class DraftCore:
    """Sequences of one draft model, and the steps that compute them. All of its state changes in a turn (`change`).

    runner, scheduler: as in `EngineCore`. sequences: by key. ids: those that all targets have. closed: whether its
    memory is free. n_computed: tokens that were computed. n_drawn: tokens that were drawn.
    """

    def __init__(self, parts: EngineParts, config: EngineConfig) -> None:
        self._parts, self._config = parts, config
        self.runner: RunnerProtocol = parts.runner
        self.ids = CommonIds(parts.spec.n_vocab, parts.tokenizer.eog_ids)
        self._scratch = Candidates()
        self.closed, self.n_computed, self.n_drawn = False, 0, 0
        self._reset()

    def _reset(self) -> None:
        """Drops all sequences; also in a forked child, since a thread of the parent may have been in a change."""
        parts, config = self._parts, self._config
        pool = SequencePool(parts.n_blocks, parts.n_slots, parts.n_windowed, parts.window)
        block, chunk = config.kv_block_size, parts.step_tokens or config.prefill_chunk_size
        self.scheduler = Scheduler(pool, block, chunk, prefix_cache=config.prefix_cache)
        self.sequences = DraftSequences(self.scheduler)
        self._mail: deque[Callable[[], object]] = deque()
        self._lock, self._pid = threading.Lock(), os.getpid()

    @property
    def reach(self) -> int:
        """Largest number of tokens of a sequence."""
        return min(self._parts.context_size, self.scheduler.capacity)

    # ---- turns

    def post(self, change: Callable[[], object]) -> None:
        """Runs a short change, also of a closed model: now, or after a running proposal."""
        self._mail.append(change)
        if self._pid == os.getpid() and not sys.is_finalizing():
            self._settle()

    def change(self, action: Callable[[], T]) -> T:
        """Result of an action that runs while no other does. Raises EngineClosedError, and what the action raises.

        Another error than an `OxiLlamaError` may have interrupted a change: all sequences are dropped then.
        """
        if self._pid != os.getpid():
            self._reset()
        try:
            with self._lock:
                self.check_open()
                try:
                    return action()
                except OxiLlamaError:
                    raise
                except BaseException:
                    self._recover()
                    raise
        finally:
            self._settle()  # changes posted meanwhile

    def tell_of_fork(self, listener: ForkListener) -> None:
        """Does nothing: a forked child's core starts without sequences and blocks, and there is nothing to release."""

    def check_open(self) -> None:
        """Raises EngineClosedError once the draft model is closed."""
        if self.closed:
            raise EngineClosedError("the draft model is closed: load it again")

    def free(self) -> None:
        """Frees the model, in a turn."""
        self.closed = True
        self.runner = self._parts.runner = ClosedRunner()

    def _recover(self) -> None:
        self.scheduler.reset()
        self.sequences = DraftSequences(self.scheduler)

    def _settle(self) -> None:
        # If another thread has the lock, it makes the changes when it releases that.
        with DeferredInterrupt():
            while self._mail and self._lock.acquire(blocking=False):
                try:
                    while self._mail:
                        self._mail.popleft()()
                except BaseException:
                    self._recover()
                    raise
                finally:
                    self._lock.release()

    # ---- draft tokens, in a turn

    def draft(self, tasks: Sequence[DraftTask], stopped: Callable[[], bool] | None) -> list[Proposal]:
        """Draft tokens for each task: `DraftModel.propose`."""
        runs = [DraftRun(task, self._n_wanted(task), self._scratch, self.ids) for task in tasks]
        try:
            self._begin(tasks, runs)
            n_held = sum(len(run.tokens) for run in runs)
            self._write(runs, stopped)
        finally:
            self._pause()
            proposals = [run.end() for run in runs]
        self.n_drawn += sum(len(proposal.tokens) for proposal in proposals) - n_held
        return proposals

    def _n_wanted(self, task: DraftTask) -> int:
        """Number of draft tokens that there is room for: the last one is drawn, and not computed."""
        return min(task.n, self.reach - len(task.tokens) + 1)

    def _begin(self, tasks: Sequence[DraftTask], runs: Sequence[DraftRun]) -> None:
        needs = []
        for task, run in zip(tasks, runs, strict=True):
            known = self.sequences.find(task.key)
            if max(task.tokens[known.n_known if known else 0 :], default=0) >= self.ids.n:
                run.done = True  # an id that the draft doesn't have
            if not run.done:
                text = self.sequences.sync(task.key, task.cache_key, task.tokens, run.mark)
                run.begin(text)
                if not run.done:
                    needs.append((text, run.sequence.n_reserve))
        self.sequences.make_room(needs)
        for text, _ in needs:
            self.scheduler.add_request(text.sequence, accepted=True)

    def _write(self, runs: Sequence[DraftRun], stopped: Callable[[], bool] | None) -> None:
        """Steps of one draft token for each sequence.

        A sequence without room, and one that has no draft token after `CATCH_UP` computed tokens while others have, is
        left for the next proposal; unless the request's text depends on its draft tokens.
        """
        scheduler, poll = self.scheduler, _poll(stopped)
        before, going = self.n_computed, [run for run in runs if not run.done]
        while going:
            plan = [(cast(DraftRun, sequence.handle), n) for sequence, n in next_plan(self.runner, scheduler)]
            if not (self._step(plan, poll) if plan else scheduler.preempting):
                break
            late = self.n_computed - before >= CATCH_UP and any(run.tokens for run in runs)
            for run in going:
                optional, running = run.mark is not None, run.sequence.running
                if run.done or (optional and (not running or (late and not run.tokens))):
                    scheduler.pause(run.sequence)
                    run.done = True
            going = [run for run in going if not run.done]

    def _step(self, plan: Plan, poll: Callable[[], None] | None) -> bool:
        """Computes a plan and draws; False, and nothing has changed, if the run was cancelled."""
        rows = execute_plan(self.runner, plan, poll)
        if rows is None:
            return False
        for (run, n), own in zip(plan, rows, strict=True):
            self._advance(run.sequence, n)
            if own is not None:
                run.draw(own[0])
        return True

    def _advance(self, sequence: Tokens, n: int) -> None:
        """n tokens are computed. Draft tokens may be rejected later; the end of the request's own tokens is a place to
        come back to."""
        self.n_computed += n
        drafted = sequence.n_computed + n > sequence.n_prompt
        self.scheduler.advance(sequence, n, provisional=drafted)
        if not drafted and sequence.n_computed == sequence.n_prompt:
            self.scheduler.blocks.checkpoint(sequence)

    def _pause(self) -> None:
        for sequence in list(self.scheduler.live.values()):
            self.scheduler.pause(sequence)


def _poll(stopped: Callable[[], bool] | None) -> Callable[[], None] | None:
    if stopped is None:
        return None

    def poll() -> None:
        if stopped():
            raise StepAbandoned

    return poll
