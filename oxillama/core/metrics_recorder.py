"""Metrics recorder: counters and histograms of the step loop."""

import time
from collections.abc import Iterable, Mapping
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

# Fields of the snapshot, by the names of `LayerPager.counts`.
PAGING = {
    count: f"offload_{count}"
    for count in ("budget", "hits", "faults", "bytes", "direct_bytes", "stalls", "stall_seconds")
}
COUNTERS = (
    "prompt_tokens", "generation_tokens", "prefill_tokens", "spec_rounds", "spec_drafted", "spec_accepted",
)  # fmt: skip
BUCKETS = {
    "time_to_first_token": FIRST_TOKEN_BUCKETS,
    "inter_token_latency": INTER_TOKEN_BUCKETS,
    "queue_time": REQUEST_BUCKETS,
    "request_latency": REQUEST_BUCKETS,
    "iteration_tokens": ITERATION_BUCKETS,
}


class MetricsRecorder:
    """Numbers of one engine. All methods but `snapshot` run in a turn of its loop, so that there is one writer.

    What it has counted is seen from outside only when it is published, all at once, by setting one attribute: readers
    need no lock, never see half of a step, and never make one wait.

    memory: bytes by part, as `Engine.memory_bytes` has them. paging: what `LayerPager.counts` has.
    block_bytes: of a KV block, and of one of windows. changed: whether requests came or went since the last
    publication.
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
        # By the names of the snapshot's fields.
        self._counts = dict.fromkeys(COUNTERS, 0) | {"prefill_seconds": 0.0, "decode_seconds": 0.0}
        self._finished = MappingProxyType(dict.fromkeys(FINISHED_REASONS, 0))
        self._rejected = MappingProxyType(dict.fromkeys(REJECTED_REASONS, 0))
        self._histograms = {name: Histogram(bounds) for name, bounds in BUCKETS.items()}
        self._observe_latency = self._histograms["inter_token_latency"].observe
        self._observe_iteration = self._histograms["iteration_tokens"].observe
        self._step_at = 0.0
        self._published_at = 0.0
        self.changed = True
        self.publish()

    # ---- of a request

    def queued(self) -> None:
        """A request was submitted."""
        self._n_live += 1
        self.changed = True

    def rejected(self, reason: RejectedReason, n: int) -> None:
        """Counts requests that were refused."""
        self._rejected = MappingProxyType({**self._rejected, reason: self._rejected[reason] + n})
        self.changed = True

    def started(self, request: Request) -> None:
        """A request takes part in a step for the first time."""
        self._histograms["queue_time"].observe((request.clock.started_at - request.clock.submitted_at, 1))
        self.changed = True

    def forked(self, request: Request) -> None:
        """A request had its first token from the last row of a prompt that another one computed."""
        self._counts["generation_tokens"] += self._first(request, time.perf_counter())

    def verified(self, n_accepted: int, n_drafted: int) -> None:
        """Counts draft tokens of a request, and those that were accepted."""
        self._counts["spec_rounds"] += 1
        self._counts["spec_drafted"] += n_drafted
        self._counts["spec_accepted"] += n_accepted

    def ended(self, request: Request, error: BaseException | None) -> None:
        """A request is finished; it was queued before."""
        self._n_live -= 1
        failed = error is not None and not isinstance(error, EngineClosedError)
        reason = "error" if failed else request.finish_reason or "cancelled"
        self._finished = MappingProxyType({**self._finished, reason: self._finished[reason] + 1})
        self._histograms["request_latency"].observe((request.clock.ended_at - request.clock.submitted_at, 1))
        self.changed = True

    def emptied(self) -> None:
        """No request is left."""
        self._n_live = 0
        self.changed = True

    # ---- of a step

    def count(self, plan: Iterable[tuple[Request, int]], began: float) -> tuple[int, float]:
        """Requests have advanced by so many tokens each, in a forward pass that began at that time.

        Returns how many of the tokens are of prompts, and the seconds that it took.
        """
        now, counts, step_at = time.perf_counter(), self._counts, self._step_at
        n_prefill = n_decode = n_new = n_usual = 0
        for request, n in plan:
            clock = request.clock
            counted_at = clock.counted_at
            if not counted_at:
                n_prefill += n
                n_new += self._first(request, now)
                continue
            if n == 1 + clock.n_beside:
                n_decode += n
            else:  # again, since preemption took it
                n_prefill += n
            n_tokens = len(request.sequence.tokens)
            new = n_tokens - clock.n_counted
            if not new:  # it drew nothing yet, or the end
                continue
            n_new += new
            if new == 1 and counted_at == step_at:
                n_usual += 1
            else:
                self._observe_latency(((now - counted_at) / new, new))
            clock.n_counted, clock.counted_at = n_tokens, now
        if n_usual:  # those had their last token with the last step, so all waited for the same time
            self._observe_latency((now - step_at, n_usual))
        self._step_at = now
        counts["generation_tokens"] += n_new
        seconds = decode_seconds = now - began
        if n_prefill:
            decode_seconds *= n_decode / (n_prefill + n_decode)
            counts["prefill_tokens"] += n_prefill
            counts["prefill_seconds"] += seconds - decode_seconds
        counts["decode_seconds"] += decode_seconds
        self._observe_iteration((n_prefill + n_decode, 1))
        return n_prefill, seconds

    def _first(self, request: Request, now: float) -> int:
        """New tokens of a request that had none before this step."""
        clock = request.clock
        if clock.first_at:
            self._counts["prompt_tokens"] += request.n_prompt - request.n_filling
            self._histograms["time_to_first_token"].observe((clock.first_at - clock.submitted_at, 1))
            new = len(request.sequence.tokens) - request.n_prompt
            if new:
                clock.n_counted, clock.counted_at = request.n_prompt + new, now
            return new
        if request.outcome is not None and request.outcome[0] in ("stop", "length"):  # no tokens were wanted
            self._counts["prompt_tokens"] += request.n_prompt - request.n_filling
        return 0

    # ---- to the outside

    def end(self) -> None:
        """Publishes a step that is over, unless another was published a moment ago and no request came or went
        since."""
        if self.changed or self._step_at - self._published_at >= PUBLISH_SECONDS:
            self.publish()

    def publish(self) -> None:
        """Lets others see what was counted up to now."""
        self.changed, self._published_at = False, self._step_at
        scheduler, memory = self._scheduler, self.memory
        prefix, n_running = scheduler.prefix, len(scheduler.running)
        blocks, windowed, slots = scheduler.pool.blocks, scheduler.pool.windowed, scheduler.pool.slots
        used, used_windowed = blocks.n - blocks.n_available, windowed.n - windowed.n_available
        block_bytes, windowed_bytes = self._block_bytes
        numbers: dict[str, Any] = {
            **self._counts,
            "prefix_queries": prefix.hit_tokens + prefix.miss_tokens if prefix else 0,
            "prefix_hits": prefix.hit_tokens if prefix else 0,
            "preemptions": scheduler.n_preempted,
            "finished": self._finished,
            "rejected": self._rejected,
            "running": n_running,
            "waiting": self._n_live - n_running,
            "kv_blocks": blocks.n + windowed.n,
            "kv_blocks_used": used + used_windowed,
            "kv_blocks_cached": blocks.n_idle + windowed.n_idle,
            "slots": slots.n,
            "slots_used": slots.n - slots.n_available,
            "kv_bytes_used": used * block_bytes + used_windowed * windowed_bytes,
            "kv_bytes_cached": blocks.n_idle * block_bytes + windowed.n_idle * windowed_bytes,
            "weights_bytes": memory.get("weights", 0),
            "kv_bytes": memory.get("kv_cache", 0),
            "recurrent_bytes": memory.get("recurrent_state", 0),
            "workspace_bytes": memory.get("workspace", 0),
        }
        for count, field in PAGING.items():
            numbers[field] = self.paging.get(count, 0)
        observed = {}  # plain values: snapshots are made on demand
        for name, histogram in self._histograms.items():
            observed[name] = histogram.values()
        self._published = numbers, observed

    def snapshot(self) -> MetricsSnapshot:
        """Numbers that were last published; from any thread."""
        numbers, histograms = self._published
        observed: dict[str, Any] = {name: HistogramSnapshot(*values) for name, values in histograms.items()}
        return MetricsSnapshot(**numbers, **observed)
