"""Draft model: a second model that proposes draft tokens."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from oxillama._util.pickling import OpenedOnce
from oxillama._util.signals import DeferredInterrupt
from oxillama.config import EngineConfig, EngineOptions, ModelSource
from oxillama.core.context import LoadedEngine, context_of
from oxillama.core.loading import EngineParts, config_beside, load_parts, make_config, parts_beside
from oxillama.core.reopening import ModelTicket, ticket_of_model
from oxillama.core.runner import ClosedRunner, RunnerProtocol, Span
from oxillama.drafts.draft import DraftTask, Proposal, Target
from oxillama.errors import ConfigError, EngineClosedError, GenerateError, OxiLlamaError, UnsupportedModelError
from oxillama.kernels.sampling import Candidates
from oxillama.sampling import Distribution
from oxillama.scheduling.pools import SequencePool
from oxillama.scheduling.prefix_cache import WINDOWED
from oxillama.scheduling.scheduler import Scheduler
from oxillama.scheduling.sequence import Sequence
from oxillama.scheduling.sequence import Sequence as Tokens
from oxillama.speculative.draft_sequences import DraftSequence, DraftSequences, Mark
from oxillama.tokenizer import Tokenizer

__all__ = [
    "DraftModel",
    "DraftRun",
    "Source",
    "check_same_vocabulary",
    "first_difference",
    "parts_of",
]


def first_difference(one: Tokenizer, other: Tokenizer) -> int | None:
    """The first token with different bytes, special in only one tokenizer, or missing in one; None without any."""
    if one is other:
        return None
    n = min(one.n_vocab, other.n_vocab)
    for token in range(n):
        if _content(one, token) != _content(other, token):
            return token
    return None if one.n_vocab == other.n_vocab else n


def check_same_vocabulary(draft: Tokenizer, target: Tokenizer) -> None:
    """Raises ConfigError, which names the first token that differs, unless draft and model have the same ids."""
    token = first_difference(draft, target)
    if token is not None:
        raise ConfigError(
            f"the draft's vocabulary is not the model's: token {token} is {_shown(draft, token)} for the draft and "
            f"{_shown(target, token)} for the model; give a draft with the same tokenizer"
        )


def _content(tokenizer: Tokenizer, token: int) -> tuple[bytes, bool]:
    return tokenizer.token_bytes(token), tokenizer.is_special(token)


def _shown(tokenizer: Tokenizer, token: int) -> str:
    if token >= tokenizer.n_vocab:
        return f"beyond the last of {tokenizer.n_vocab}"
    raw, special = _content(tokenizer, token)
    return f"{'the special token ' if special else ''}{raw!r}"


Source = ModelSource | LoadedEngine


def parts_of(model: Source, parts: EngineParts | None, fields: Mapping[str, Any]) -> tuple[EngineConfig, EngineParts]:
    """Raises ConfigError, LoadError and its children, TypeError for an unknown field."""
    if (loaded := context_of(model)) is not None:
        config = config_beside(loaded, fields)
        parts = parts or parts_beside(loaded, config)
    else:
        config = make_config("DraftModel", None, {"model_path": model, **fields})
        parts = parts or load_parts(config)
    if not parts.spec.causal:
        raise UnsupportedModelError(
            f"architecture {parts.spec.arch} reads texts whole and predicts no next token: it can't be a draft"
        )
    return config, parts


MASK = (1 << 64) - 1


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

    __slots__ = ("_end_ids", "_n_before", "_probs", "_sampler", "_start", "_text", "done", "n", "tokens")

    def __init__(self, task: DraftTask, n: int, scratch: Candidates, end_ids: frozenset[int]) -> None:
        """n may be less than the task wants. end_ids: tokens after which none is drafted."""
        memory = task.sampler.memory
        self.n, self._end_ids = n, end_ids
        self.tokens: list[int] = []
        self.done = n < 1
        self._probs: list[Distribution] | None = [] if task.with_probs else None
        self._start: Mark = memory.rng.state, memory.mu
        self._n_before = memory.n_accepted
        self._sampler = task.sampler.shadow(scratch)
        self._text: DraftSequence | None = None

    @property
    def sequence(self) -> Sequence:
        """The draft model's sequence; there is one after `begin`."""
        assert self._text is not None
        return self._text.sequence

    @property
    def mark(self) -> Mark | None:
        """State of the sampler at the start; None if draft tokens of earlier rounds can't be used."""
        return None if self._probs is not None else self._start

    def begin(self, text: DraftSequence) -> None:
        """Takes the draft tokens of earlier rounds that are still valid."""
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
        self.done = len(self.tokens) >= self.n or token in self._end_ids

    def draw(self, row: NDArray[np.float32]) -> None:
        """Draws the next draft token from the draft's logits; none if the request's chain or grammar allows none.

        That is no error here: if the text comes to this place, the model's own draw raises it. Raises GenerateError if
        a logit is NaN or plus infinity.
        """
        try:
            self._sampler.scratch.load(row)
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


T = TypeVar("T")
DRAFTS: OpenedOnce[Any] = OpenedOnce()

# Prompt tokens computed at a time before the draft tokens of other sequences, so that those don't wait long.
CATCH_UP = 512


class _Stopped(Exception):
    """The run is cancelled: its draft tokens are not needed any more."""


class DraftModel:
    """A model that drafts tokens for another one with the same vocabulary. Use with `with`, or call `close`.

    It draws with the state of the request's own sampler, so that a draft token often is what the model draws then, at
    any temperature; the user's own processors and stages are left out. Requests are drafted in one batch. No token of a
    sequence is computed twice, unless its keys and values were evicted, least recently used first, when `kv_budget`
    was full. Adapters of requests are not applied to the draft model, only to the model that verifies.

    Any number of engines and threads may use one. Its pickle says how it was loaded, as that of an `Engine` does, and a
    copy is the draft model itself. n_computed: tokens that it has computed. n_guessed: tokens that it has drawn.
    config: its settings. identity: that of its file.
    """

    def __init__(
        self, model: Source = None, *, parts: EngineParts | None = None, **fields: Unpack[EngineOptions]
    ) -> None:
        """A GGUF file as a path or bytes, the model that ships with the package (None), or a loaded `Engine`.

        fields: of `EngineConfig`. With an engine, its weights are shared, also after it is closed, and its settings are
        the defaults; fields that loading needs can't be given then. parts: used instead of loading.

        Raises ConfigError, LoadError and its children, TypeError for an unknown field.
        """
        self.config, self._parts = parts_of(model, parts, fields)
        parts = self._parts
        self._runner: RunnerProtocol = parts.runner
        self.tokenizer, self.context_size, self.identity = parts.tokenizer, parts.context_size, parts.identity
        self._n_ids = self._width = parts.spec.n_vocab  # ids that all targets have; length of their rows
        self._end_ids: frozenset[int] = self.tokenizer.eog_ids
        self._scratch, self._row = Candidates(), np.empty(0, np.float32)
        self._closed, self.n_computed, self.n_guessed = False, 0, 0
        self._reset()

    def _reset(self) -> None:
        """Drops all sequences; also in a forked child, since a thread of the parent may have been in a change."""
        parts, config = self._parts, self.config
        pool = SequencePool(parts.n_blocks, parts.n_slots, parts.n_windowed, parts.window)
        block, chunk = config.kv_block_size, parts.step_tokens or config.prefill_chunk_size
        self._scheduler = Scheduler(pool, block, chunk, prefix_cache=config.prefix_cache)
        self._texts = DraftSequences(self._scheduler)
        self._mail: deque[Callable[[], object]] = deque()
        self._lock, self._pid = threading.Lock(), os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_open()
        ticket = ticket_of_model(type(self), self.config, self.identity, self._parts.tokenizer_identity)
        DRAFTS.register(ticket.key, self)
        return reopened_draft, (ticket,)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    # ---- the protocol

    def bind(self, target: Target) -> None:
        """Raises ConfigError, which names the first token that differs, unless the model has the same vocabulary."""
        check_same_vocabulary(self.tokenizer, target.tokenizer)

        def note() -> None:
            self._n_ids, self._width = min(self._n_ids, target.n_vocab), max(self._width, target.n_vocab)
            self._end_ids |= target.tokenizer.eog_ids

        self.turn(note)

    def propose(self, tasks: SequenceOf[DraftTask], stopped: Callable[[], bool] | None = None) -> list[Proposal]:
        """Draft tokens for each task; fewer than wanted at the end of the context, or without room; none yet for a long
        new sequence while others would have to wait for it.

        stopped: polled now and then; once it is true, the tokens drafted so far are returned. Raises EngineClosedError,
        and GenerateError if the model computes NaN.
        """
        return self.turn(lambda: self._propose(tasks, stopped))

    def _propose(self, tasks: SequenceOf[DraftTask], stopped: Callable[[], bool] | None) -> list[Proposal]:
        runs = [DraftRun(task, self._n_wanted(task), self._scratch, self._end_ids) for task in tasks]
        try:
            self._begin(tasks, runs)
            n_held = sum(len(run.tokens) for run in runs)
            self._write(runs, stopped)
        finally:
            self._pause()
            proposals = [run.end() for run in runs]
        self.n_guessed += sum(len(proposal.tokens) for proposal in proposals) - n_held
        return proposals

    def forget(self, key: int) -> None:
        """Frees the KV of a sequence: now, or after a running proposal."""
        self.post(lambda: self._texts.forget(key))

    def post(self, change: Callable[[], object]) -> None:
        """Runs a short change, also of a closed model: now, or after a running proposal."""
        self._mail.append(change)
        if self._pid == os.getpid() and not sys.is_finalizing():
            self._settle()

    def turn(self, action: Callable[[], T]) -> T:
        """Result of an action that runs while no other does. Raises EngineClosedError, and what the action raises.

        Another error than an `OxiLlamaError` may have interrupted a change: all sequences are dropped then.
        """
        if self._pid != os.getpid():
            self._reset()
        try:
            with self._lock:
                self._check_open()
                try:
                    return action()
                except OxiLlamaError:
                    raise
                except BaseException:
                    self._recover()
                    raise
        finally:
            self._settle()  # changes posted meanwhile

    def _recover(self) -> None:
        self._scheduler.reset()
        self._texts = DraftSequences(self._scheduler)

    # ---- drafting ahead

    def agrees(self, task: DraftTask) -> bool:
        """Whether the task's tokens agree with the draft tokens, as far as either reach. For any thread."""
        text = self._texts.find(task.key)
        return text is not None and text.agrees(task.tokens)

    def beyond(self, task: DraftTask, n: int) -> DraftTask | None:
        """A task of n tokens more, as if all draft tokens of this task were accepted; None if the text would end.

        It has a sampler of its own. Call this before another proposal for the sequence.
        """
        text = self._texts.find(task.key)
        if text is None or len(text.marks) < 2 or text.sequence.tokens[-1] in self._end_ids:
            return None
        sampler = task.sampler.copy()
        memory = sampler.memory
        for token, mark in zip(text.drafted, text.marks[1:], strict=True):
            memory.rng.state, memory.mu = mark
            sampler.accept(token)
        return DraftTask(task.key, list(text.sequence.tokens), n, sampler, cache_key=task.cache_key)

    # ---- life

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def num_threads(self) -> int:
        """Number of compute threads."""
        return self._runner.num_threads

    @property
    def reach(self) -> int:
        """Largest number of tokens of a sequence."""
        return min(self.context_size, self._scheduler.capacity)

    def memory_bytes(self) -> dict[str, int]:
        """Bytes by part, as in `Engine.memory_bytes`; weights shared with an engine count there too."""
        return self._runner.memory_bytes()

    def close(self) -> None:
        """Frees the model, after a running proposal; further calls do nothing."""
        with suppress(EngineClosedError):
            self.turn(self._free)

    def _free(self) -> None:
        self._closed = True
        DRAFTS.forget(self)
        self._runner = self._parts.runner = ClosedRunner()
        self._row = np.empty(0, np.float32)

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._texts)} texts"
        return f"<DraftModel {self._parts.spec.arch} {self._parts.spec.name!r}, {state}>"

    # ---- computation

    def _check_open(self) -> None:
        if self._closed:
            raise EngineClosedError("the draft model is closed: load it again")

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

    def _n_wanted(self, task: DraftTask) -> int:
        """Number of draft tokens that there is room for: the last one is drawn, and not computed."""
        return min(task.n, self.reach - len(task.tokens) + 1)

    def _begin(self, tasks: SequenceOf[DraftTask], runs: SequenceOf[DraftRun]) -> None:
        needs = []
        for task, run in zip(tasks, runs, strict=True):
            known = self._texts.find(task.key)
            if max(task.tokens[known.n_known if known else 0 :], default=0) >= self._n_ids:
                run.done = True  # an id that the draft doesn't have
            if not run.done:
                text = self._texts.sync(task.key, task.cache_key, task.tokens, run.mark)
                run.begin(text)
                if not run.done:
                    needs.append((text, run.sequence.n_reserve))
        self._texts.make_room(needs)
        for text, _ in needs:
            self._scheduler.add_request(text.sequence, accepted=True)

    def _write(self, runs: SequenceOf[DraftRun], stopped: Callable[[], bool] | None) -> None:
        """Rounds of one draft token for each sequence.

        A sequence without room, and one that has no draft token after `CATCH_UP` computed tokens while others have, is
        left for the next proposal; unless the request's text depends on its draft tokens.
        """
        scheduler = self._scheduler
        before, going = self.n_computed, [run for run in runs if not run.done]
        while going:
            plan = scheduler.step()
            if not (self._round(plan, stopped) if plan else scheduler.preempting):
                break
            late = self.n_computed - before >= CATCH_UP and any(run.tokens for run in runs)
            for run in going:
                optional, running = run.mark is not None, run.sequence.running
                if run.done or (optional and (not running or (late and not run.tokens))):
                    scheduler.pause(run.sequence)
                    run.done = True
            going = [run for run in going if not run.done]

    def _round(self, plan: list[tuple[Tokens, int]], stopped: Callable[[], bool] | None) -> bool:
        """Computes a plan and draws; False, and nothing has changed, if the run was cancelled."""
        for kind, source, target in self._scheduler.copies:
            self._runner.copy_block(source, target, windowed=kind == WINDOWED)
        self._scheduler.copies.clear()
        spans = [_span(sequence, n) for sequence, n in plan]
        try:
            rows = iter(self._runner.forward(spans, _poll(stopped)))
        except _Stopped:
            return False
        for (sequence, n), span in zip(plan, spans, strict=True):
            self._advance(sequence, n)
            if span.want == "last":
                cast(DraftRun, sequence.handle).draw(self._fitting(next(rows)))
        return True

    def _advance(self, sequence: Tokens, n: int) -> None:
        self.n_computed += n
        if sequence.n_computed + n <= sequence.n_prompt:
            self._scheduler.advance(sequence, n)
            if sequence.n_computed == sequence.n_prompt:  # a checkpoint to rewind to
                self._scheduler.blocks.checkpoint(sequence)
            return
        self._scheduler.blocks.commit(sequence, n, provisional=True)

    def _fitting(self, row: NDArray[np.float32]) -> NDArray[np.float32]:
        """A row of logits with the target's length, in which ids that not all targets have can't be drawn."""
        if len(row) == self._width == self._n_ids:
            return row
        if len(self._row) != self._width:
            self._row = np.empty(self._width, np.float32)
        self._row.fill(-np.inf)
        self._row[: self._n_ids] = row[: self._n_ids]
        return self._row

    def _pause(self) -> None:
        for sequence in list(self._scheduler.live.values()):
            self._scheduler.pause(sequence)


def reopened_draft(ticket: ModelTicket) -> DraftModel:
    """The draft model of a ticket: the one open in this process, or else a newly loaded one. Raises what `DraftModel`
    raises, PickleError if the file is not that of the pickled draft."""

    def opened() -> DraftModel:
        fields = {f.name: getattr(ticket.config, f.name) for f in dataclasses.fields(ticket.config)}
        draft: DraftModel = ticket.kind(fields.pop("model_path"), **fields)
        try:
            ticket.check(draft.identity, draft._parts.tokenizer_identity)
        except BaseException:
            draft.close()
            raise
        return draft

    found: DraftModel = DRAFTS.get(ticket.key, opened, lambda draft: not draft.closed)
    return found


def _poll(stopped: Callable[[], bool] | None) -> Callable[[], None] | None:
    if stopped is None:
        return None

    def poll() -> None:
        if stopped():
            raise _Stopped

    return poll


def _span(sequence: Tokens, n: int) -> Span:
    """The next n tokens of a sequence."""
    start = sequence.n_computed
    want = "last" if start + n == len(sequence.tokens) else "none"
    slots = None if sequence.slots is None else sequence.slots.span()
    blocks, windowed = sequence.tables
    return Span(sequence.tokens[start : start + n], start, blocks, want, slots, windowed)
