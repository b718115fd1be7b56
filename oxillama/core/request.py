"""Requests: a sequence with a purpose, and the queue of its results."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from oxillama.core.results import CancelToken, Chunk, FinishReason, Timings
from oxillama.core.step_loop import Bell
from oxillama.lora import NO_LORAS, LoraSet
from oxillama.scheduling.sequence import Sequence

__all__ = [
    "Bell",
    "LogitsRequest",
    "Request",
    "RequestClock",
    "ResultQueue",
    "SnapshotOptions",
    "SnapshotProtocol",
    "Want",
]


Want = Literal["last", "likeliest", "all", "hidden"]


class SnapshotOptions(TypedDict, total=False):
    """Keywords of `snapshot`; `SnapshotProtocol.write` says what they mean."""

    base: str | os.PathLike[str] | None
    compress: bool
    shared: bool
    format: int


class SnapshotProtocol(Protocol):
    """Writes snapshots of one engine: `oxillama/snapshot` has the one that is given to handles when they are made.

    core, loras, config: of the engine. identity, tokenizer_identity: of the files that it was loaded from. arithmetic:
    what its bits depend on beside them.
    """

    core: Any
    loras: Any
    config: Any
    identity: Any
    tokenizer_identity: Any
    arithmetic: str

    def write(
        self, take: Callable[[Any], Any], path: Any, *, base: Any = None, compress: bool = False,
        shared: bool = False, format: int = 2,
    ) -> None:  # fmt: skip
        """Writes what `take` gives to a file.

        base: a snapshot in the same folder that was written before: what it has isn't written again, and the new one
            needs it, and what it needs. Nothing is taken from one with 1,024 others before it, or of kernels with other
            digits: the new one is whole then. path must not be a file that base needs. Deprecated: give `shared`.
        compress: with zstd. shared: what whole blocks of tokens hold goes to the folder `blocks` beside the file, once
            for all snapshots there; `oxillama.snapshot.collect_garbage` removes what none needs.
        format: 1 writes what the original reads: attention's KV as float32.
        """

    def pack(self, take: Callable[[Any], Any], *, compress: bool = False, format: int = 2) -> bytes: ...

    def session(self, sequence: Any, serving: Any, logits: Any, sampling: Any, known: Any) -> Any: ...

    def conversation(self, sequence: Any, messages: list[Any], known: Any) -> Any: ...

    def text(self, request: Any, outbox: ResultQueue, known: Any) -> Any: ...

    def save_texts(self, requests: Any, outbox: ResultQueue, path: Any, **options: Any) -> bytes | None: ...

    def save_search(self, search: Any, path: Any, *, compress: bool) -> bytes | None: ...


class ResultQueue:
    """Results of requests that were made together, in the order in which they came.

    items: (index of the request, chunk), the oldest first. n_open: requests that are not finished. error: of the
    first request that failed. bell: of a caller that doesn't drive the loop while it waits.
    """

    __slots__ = ("bell", "error", "items", "n_open", "whole")

    def __init__(self, n_requests: int, bell: Bell | None = None, *, whole: bool = False) -> None:
        """`whole`: no caller reads before the end, so that a request may put all of its text into one chunk; and the
        bell rings for the end alone."""
        self.items: deque[tuple[int, Chunk]] = deque()
        self.n_open = n_requests
        self.error: BaseException | None = None
        self.bell = bell
        self.whole = whole

    @property
    def ended(self) -> bool:
        """Whether all requests are finished, or one has failed."""
        return not self.n_open or self.error is not None

    def is_readable(self) -> bool:
        """Whether a reader needn't wait: an item is there, of those that are read before the end, or the end is."""
        return not self.n_open or self.error is not None or (len(self.items) > 0 and not self.whole)

    def put(self, index: int, chunk: Chunk) -> None:
        """A chunk of a request."""
        self.items.append((index, chunk))
        if self.bell is not None and not self.whole:
            self.bell.ring()

    def end(self, request: Request, error: BaseException | None) -> None:
        """A request is finished. Called again after it was left in the middle, it does what is left to do."""
        if error is not None and self.error is None:
            self.error = error
        if not request.reported:
            request.reported = True
            self.n_open -= 1
        if self.bell is not None and (self.error is not None or not self.n_open):
            self.bell.ring()


class RequestClock:
    """Times of one request, in seconds of `time.perf_counter`, and how many of its tokens the metrics have counted.

    submitted_at, started_at, first_at, ended_at: when it was queued, had its first step, had its first token, and was
    finished; 0 before. n_counted: tokens that were counted, prompt included. counted_at: when the last of them was; 0
    before the first new one. n_beside: tokens that the step computes beside the last one of a decoding request.
    """

    __slots__ = ("counted_at", "ended_at", "first_at", "n_beside", "n_counted", "started_at", "submitted_at")

    def __init__(self) -> None:
        self.submitted_at = self.started_at = self.first_at = self.ended_at = self.counted_at = 0.0
        self.n_counted = self.n_beside = 0

    def resume(self, n_tokens: int) -> None:
        """The request goes on from a snapshot with tokens that were drawn, and counted, before."""
        self.first_at = self.counted_at = time.perf_counter()
        self.n_counted = n_tokens

    @property
    def timings(self) -> Timings:
        """Times of a finished request."""
        if not self.first_at:
            return Timings(0.0, self.ended_at - self.started_at if self.started_at else 0.0, 0.0)
        return Timings(
            time_to_first_token=self.first_at - self.submitted_at,
            prefill_seconds=self.first_at - self.started_at,
            decode_seconds=self.ended_at - self.first_at,
        )


class Request:
    """One sequence with a purpose. `absorb` gets the rows that were asked for, in order, and says when it is enough.

    want: rows of "last" or "all" logits, "hidden" states of all tokens, or the "likeliest" token after the
    last one. keep_blocks: the sequence outlives it.
    followers: requests for the same prompt, which wait until this one has computed it, and then go on by themselves
    from what it has; those that still wait end with it.
    n_filling: tokens of the prompt's place that stand behind those that an encoder reads.
    shares: whether `absorb` and `close` change more than the request. reported: whether its outbox knows of its end.
    """

    # Read for each token. With more than 30 attributes, and no slots, each instance has a whole dictionary of its own.
    __slots__ = (
        "__weakref__", "begin", "cancel_token", "clock", "failure", "finish_reason", "followers", "follows", "index",
        "keep_blocks", "loras", "n_filling", "n_prompt", "outbox", "outcome", "reported", "sequence", "thread",
        "time_limit", "unwanted", "watched",
    )  # fmt: skip

    want: Want = "last"
    shares = False

    def __init__(
        self,
        sequence: Sequence,
        outbox: ResultQueue,
        *,
        index: int = 0,
        cancel_token: CancelToken | None = None,
        keep_blocks: bool = False,
        begin: Callable[[Sequence], None] | None = None,
        loras: LoraSet = NO_LORAS,
        leader: Request | None = None,
        time_limit: float = math.inf,
    ) -> None:
        """`begin` gets the sequence in the turn that queues it, and may refuse by raising an OxiLlamaError.

        `leader`: the request that this one follows; it is submitted before. `time_limit`: seconds from its first step
        to its deadline, which the sequence has if it counts from elsewhere.
        """
        self.sequence = sequence
        self.n_prompt = sequence.n_prompt
        self.n_filling = sequence.n_prompt - sequence.n_source if sequence.n_source else 0
        self.keep_blocks = keep_blocks
        self.begin = begin
        self.loras = loras
        self.follows = leader is not None
        self.followers: list[Request] = []
        if leader is not None:
            leader.followers.append(self)
        self.outbox = outbox
        self.index = index
        self.cancel_token = cancel_token
        self.watched = cancel_token is not None or outbox.bell is not None  # so that it may be `cancelled` by itself
        self.time_limit = time_limit
        self.thread = threading.get_ident()
        self.unwanted = False  # its caller is gone
        self.failure: BaseException | None = None  # of its cancel token
        self.reported = False
        self.outcome: tuple[FinishReason, BaseException | None] | None = None  # how it ended, before that is reported
        self.finish_reason: FinishReason | None = None
        self.clock = RequestClock()

    @property
    def cancelled(self) -> bool:
        """Whether its result is not wanted any more. An error of the caller's own cancel token becomes `failure`."""
        bell, token = self.outbox.bell, self.cancel_token
        if self.unwanted or (bell is not None and bell.lost):
            return True
        try:
            return token is not None and token.cancelled
        except BaseException as error:
            self.unwanted, self.failure = True, error
            return True

    @property
    def wanted(self) -> bool:
        """Whether a step is to go on for it: it is not cancelled, and its deadline has not passed."""
        if self.unwanted or (self.watched and self.cancelled):
            return False
        return self.sequence.deadline == math.inf or time.perf_counter() < self.sequence.deadline

    def absorb(self, rows: Any) -> FinishReason | None:
        """Takes rows, float32 [n, n_vocab or n_embd], that are valid only now; or the likeliest token, where that is
        wanted. Returns why it is finished, or None."""
        raise NotImplementedError

    def close(self, reason: FinishReason) -> FinishReason:
        """Called once, when finished: hands over what is left, and may know the reason better."""
        return reason

    def finish(self, reason: FinishReason, error: BaseException | None = None) -> None:
        """Tells the outbox; what `close` raises is the request's error. To be repeated if it was left in the middle."""
        if self.finish_reason is None:
            self.clock.ended_at = time.perf_counter()
            try:
                self.finish_reason = self.close(reason)
            except BaseException as caught:
                if self.shares:
                    raise
                error = error or caught
                self.finish_reason, self.outcome = reason, (reason, error)
        self.loras = NO_LORAS  # so that a request that is kept keeps no adapter that was unloaded
        self.outbox.end(self, error)


class LogitsRequest(Request):
    """Logits of every position, float32 [n_tokens, n_vocab], in `out`; not of those that an encoder reads."""

    want: Want = "all"

    def __init__(self, sequence: Sequence, n_vocab: int, outbox: ResultQueue, **options: Any) -> None:
        super().__init__(sequence, outbox, **options)
        sequence.every_row = True
        self.out = np.empty((len(sequence.tokens) - sequence.n_encoded, n_vocab), np.float32)

    def absorb(self, rows: NDArray[np.float32]) -> FinishReason | None:
        end = self.sequence.n_computed - self.sequence.n_encoded  # of those sent back, rows come again
        self.out[end - len(rows) : end] = rows
        return "stop" if end == len(self.out) else None
