"""Metrics recorder: counters and histograms of the step loop."""

import time
from collections.abc import Iterable, Mapping
from operator import mul
from types import MappingProxyType
from typing import Any

from oxillama.core.request import Request
from oxillama.errors import EngineClosedError
from oxillama.metrics import (
    FINISHED_REASONS,
    FIRST_TOKEN_BUCKETS,
    INTER_TOKEN_BUCKETS,
    ITERATION_BUCKETS,
    REJECTED_REASONS,
    REQUEST_BUCKETS,
    Histogram,
    HistogramSnapshot,
    MetricsSnapshot,
    RejectedReason,
)
from oxillama.scheduling.scheduler import Scheduler

__all__ = [
    "MetricsRecorder",
]

# Steps of a small model take 0.2 ms, of which publishing each would be 3 %.
PUBLISH_SECONDS = 0.01

# In the order of the snapshot's fields.
PAGING = ("budget", "hits", "faults", "bytes", "direct_bytes", "stalls", "stall_seconds")


class MetricsRecorder:
    """Numbers of one engine. All methods but `snapshot` run in a turn of its loop, so that there is one writer.

    What it has counted is seen from outside only when it is published, all at once, by setting one attribute: readers
    need no lock, never see half of a step, and never make one wait.

    memory: bytes by part, as `Engine.memory_bytes` has them. paging: what `LayerPager.counts` has.
    block_bytes: of a KV block, and of one of windows.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        memory: Mapping[str, int] = MappingProxyType({}),
        block_bytes: tuple[int, int] = (0, 0),
    ) -> None:
        self._scheduler = scheduler
        self.memory = memory
        self.paging: Mapping[str, float] = {}
        self._block_bytes = block_bytes
        self._n_live = 0
        self._prompt_tokens = self._generation_tokens = self._prefill_tokens = 0
        self._prefill_seconds = self._decode_seconds = 0.0
        self._rounds = self._drafted = self._accepted = 0
        self._finished = MappingProxyType(dict.fromkeys(FINISHED_REASONS, 0))
        self._rejected = MappingProxyType(dict.fromkeys(REJECTED_REASONS, 0))
        self._first_token = Histogram(FIRST_TOKEN_BUCKETS)
        self._inter_token = Histogram(INTER_TOKEN_BUCKETS)
        self._queue_time = Histogram(REQUEST_BUCKETS)
        self._latency = Histogram(REQUEST_BUCKETS)
        self._iteration = Histogram(ITERATION_BUCKETS)
        self._step_at = 0.0
        self._published_at = 0.0
        self._changed = True  # requests came or went since the last publication
        self.publish()

    # ---- of a request

    def queued(self) -> None:
        """A request was submitted."""
        self._n_live += 1
        self._changed = True

    def rejected(self, reason: RejectedReason, n: int) -> None:
        """So many requests were refused."""
        self._rejected = MappingProxyType({**self._rejected, reason: self._rejected[reason] + n})
        self._changed = True

    def started(self, request: Request) -> None:
        """A request takes part in a step for the first time."""
        self._queue_time.observe(request.started_at - request.submitted_at)
        self._changed = True

    def forked(self, request: Request) -> None:
        """A request had its first token from the last row of a prompt that another one computed."""
        self._generation_tokens += self._first(request, time.perf_counter())

    def guessed(self, n_right: int, n_guessed: int) -> None:
        """So many of a request's guesses came true."""
        self._rounds += 1
        self._drafted += n_guessed
        self._accepted += n_right

    def ended(self, request: Request, error: BaseException | None) -> None:
        """A request is finished; it was queued before."""
        self._n_live -= 1
        failed = error is not None and not isinstance(error, EngineClosedError)
        reason = "error" if failed else request.finish_reason or "cancelled"
        self._finished = MappingProxyType({**self._finished, reason: self._finished[reason] + 1})
        self._latency.observe(request.ended_at - request.submitted_at)
        self._changed = True

    def emptied(self) -> None:
        """No request is left."""
        self._n_live = 0
        self._changed = True

    # ---- of a step

    def begin(self) -> None:
        """A step was chosen, and may take long: what came or went before it must not wait for its end to be seen."""
        if self._changed:
            self.publish()

    def count(self, plan: Iterable[tuple[Request, int]], began: float) -> tuple[int, float]:
        """Requests have advanced by so many tokens each, in a forward pass that began at that time.

        Returns how many of the tokens are of prompts, and the seconds that it took.
        """
        now = time.perf_counter()
        n_prefill = n_decode = n_new = n_usual = 0
        for request, n in plan:
            if not request.counted_at:
                n_prefill += n
                n_new += self._first(request, now)
                continue
            if n == 1 + request.n_beside:
                n_decode += n
            else:  # again, since preemption took it
                n_prefill += n
            n_tokens = len(request.sequence.tokens)
            new = n_tokens - request.n_counted
            if not new:  # it drew nothing yet, or the end
                continue
            n_new += new
            if new == 1 and request.counted_at == self._step_at:
                n_usual += 1
            else:
                self._inter_token.observe((now - request.counted_at) / new, new)
            request.n_counted, request.counted_at = n_tokens, now
        if n_usual:  # those had their last token with the last step, so all waited for the same time
            self._inter_token.observe(now - self._step_at, n_usual)
        self._step_at = now
        self._prefill_tokens += n_prefill
        self._generation_tokens += n_new
        prefill_seconds = (now - began) * n_prefill / (n_prefill + n_decode)
        self._prefill_seconds += prefill_seconds
        self._decode_seconds += now - began - prefill_seconds
        self._iteration.observe(n_prefill + n_decode)
        return n_prefill, now - began

    def _first(self, request: Request, now: float) -> int:
        """New tokens of a request that had none before this step."""
        if request.first_at:
            self._prompt_tokens += request.n_prompt
            self._first_token.observe(request.first_at - request.submitted_at)
            new = len(request.sequence.tokens) - request.n_prompt
            if new:
                request.n_counted, request.counted_at = request.n_prompt + new, now
            return new
        if request.finish_reason == "stop":  # no tokens were wanted
            self._prompt_tokens += request.n_prompt
        return 0

    # ---- to the outside

    def end(self) -> None:
        """Publishes a step that is over, unless another was published a moment ago and no request came or went
        since."""
        if self._changed or self._step_at - self._published_at >= PUBLISH_SECONDS:
            self.publish()

    def publish(self) -> None:
        """Lets others see what was counted up to now."""
        self._changed, self._published_at = False, self._step_at
        scheduler = self._scheduler
        pool, prefix, n_running = scheduler.pool, scheduler.prefix, len(scheduler.running)
        hits, misses = (prefix.hit_tokens, prefix.miss_tokens) if prefix else (0, 0)
        groups = pool.blocks, pool.windowed
        used, cached = [p.n - p.n_available for p in groups], [p.n_idle for p in groups]
        numbers: tuple[Any, ...] = (  # in the order of the snapshot's fields, which is made on demand
            self._prompt_tokens, self._generation_tokens, self._prefill_tokens, self._prefill_seconds,
            self._decode_seconds, hits + misses, hits, scheduler.n_preempted,
            self._rounds, self._drafted, self._accepted,
            self._finished, self._rejected, n_running, self._n_live - n_running,
            sum(p.n for p in groups), sum(used), sum(cached), pool.n_slots, pool.n_slots - pool.slots.n_available,
            sum(map(mul, used, self._block_bytes)), sum(map(mul, cached, self._block_bytes)),
            *(self.memory.get(part, 0) for part in ("weights", "kv_cache", "recurrent_state", "workspace")),
            *(self.paging.get(count, 0) for count in PAGING),
        )  # fmt: skip
        histograms = (self._first_token, self._inter_token, self._queue_time, self._latency, self._iteration)
        self._published = numbers, tuple(histogram.values() for histogram in histograms)

    def snapshot(self) -> MetricsSnapshot:
        """What was last published; from any thread."""
        numbers, histograms = self._published
        return MetricsSnapshot(*numbers, *(HistogramSnapshot(*histogram) for histogram in histograms))
