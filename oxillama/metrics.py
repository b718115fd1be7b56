"""Counts of values by size, and the buckets of an engine's; those of vLLM's metrics."""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

from oxillama._util.json_values import fields_as_json
from oxillama._util.notebook import html_table
from oxillama.errors import ConfigError

__all__ = [
    "CONTENT_TYPE",
    "FAMILIES",
    "FINISHED_REASONS",
    "FIRST_TOKEN_BUCKETS",
    "INTER_TOKEN_BUCKETS",
    "ITERATION_BUCKETS",
    "OPENMETRICS_CONTENT_TYPE",
    "REJECTED_REASONS",
    "REQUEST_BUCKETS",
    "Family",
    "Histogram",
    "HistogramSnapshot",
    "MetricsSnapshot",
    "RejectedReason",
    "exposition",
]

# Upper bounds: the first three in seconds, the last in tokens.
FIRST_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
INTER_TOKEN_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_BUCKETS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
ITERATION_BUCKETS = (
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """Observed values by size.

    bounds: upper bounds of the buckets, each included, rising. counts: values in each bucket alone, and last those
    above all bounds. sum: of all values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Mean of all values; 0 without any."""
        return self.sum / self.count if self.count else 0.0

    def to_dict(self) -> dict[str, Any]:
        """bounds, counts and sum, as `json.dumps` takes them."""
        return fields_as_json(self)


class Histogram:
    """Counts values by size. For one writer at a time.

    observe: takes `(value, n)`, a value that comes n times. It is counted with the next `values`: what runs in each
    step only appends it to a list.
    """

    __slots__ = ("_counts", "_observed", "bounds", "observe", "sum")

    def __init__(self, bounds: Iterable[float]) -> None:
        """Raises ConfigError unless the bounds rise."""
        self.bounds = tuple(bounds)
        if any(a >= b for a, b in zip(self.bounds, self.bounds[1:], strict=False)):
            raise ConfigError(f"bounds of a histogram must rise: {self.bounds}")
        self._counts = [0] * (len(self.bounds) + 1)
        self._observed: list[tuple[float, int]] = []
        self.observe = self._observed.append
        self.sum = 0.0

    def values(self) -> tuple[tuple[float, ...], tuple[int, ...], float]:
        """Values that make a `HistogramSnapshot` of now."""
        for value, n in self._observed:
            self._counts[bisect_left(self.bounds, value)] += n
            self.sum += value * n
        self._observed.clear()
        return self.bounds, tuple(self._counts), self.sum


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

FINISHED_REASONS = ("stop", "length", "cancelled", "deadline", "error")
RejectedReason = Literal["queue_full", "too_large"]
REJECTED_REASONS = get_args(RejectedReason)


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """An engine's numbers since it was loaded, all of one moment between two steps; `FAMILIES` says what each means.

    finished, rejected: requests by reason, one of FINISHED_REASONS and of REJECTED_REASONS. The others are numbers and
    histograms.
    """

    prompt_tokens: int
    generation_tokens: int
    prefill_tokens: int
    prefill_seconds: float
    decode_seconds: float
    prefix_queries: int
    prefix_hits: int
    preemptions: int
    spec_rounds: int
    spec_drafted: int
    spec_accepted: int
    finished: Mapping[str, int]
    rejected: Mapping[str, int]
    running: int
    waiting: int
    kv_blocks: int
    kv_blocks_used: int
    kv_blocks_cached: int
    slots: int
    slots_used: int
    kv_bytes_used: int
    kv_bytes_cached: int
    weights_bytes: int
    kv_bytes: int
    recurrent_bytes: int
    workspace_bytes: int
    offload_budget: int
    offload_hits: int
    offload_faults: int
    offload_bytes: int
    offload_direct_bytes: int
    offload_stalls: int
    offload_stall_seconds: float
    time_to_first_token: HistogramSnapshot
    inter_token_latency: HistogramSnapshot
    queue_time: HistogramSnapshot
    request_latency: HistogramSnapshot
    iteration_tokens: HistogramSnapshot

    def __reduce__(self) -> tuple[Any, ...]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return _snapshot_of, ({n: dict(v) if isinstance(v, Mapping) else v for n, v in values.items()},)

    def to_dict(self) -> dict[str, Any]:
        """Every field by name, as `json.dumps` takes it: a histogram as {"bounds": […], "counts": […], "sum": …}."""
        return fields_as_json(self)

    @property
    def kv_cache_usage(self) -> float:
        """Part of the KV blocks that is used, 0 … 1; 0 if the model has none."""
        return self.kv_blocks_used / self.kv_blocks if self.kv_blocks else 0.0

    def prometheus(self, labels: Mapping[str, str] | None = None, *, openmetrics: bool = False) -> str:
        """The text that a scrape gets, to be sent as CONTENT_TYPE, or as OPENMETRICS_CONTENT_TYPE in that format.

        `labels` are put on every line, to tell engines apart: {"model_name": "…"}. Raises ConfigError for a name that
        Prometheus doesn't allow or that is used here already.
        """
        return exposition(((f, getattr(self, f.field)) for f in FAMILIES), labels or {}, openmetrics=openmetrics)

    def _repr_html_(self) -> str:
        """A table for notebooks: requests, tokens, speeds, caches and memory in a few lines."""
        return html_table(_shown(self))


def _shown(m: MetricsSnapshot) -> Iterator[tuple[str, str]]:
    """Rows of a snapshot's table."""
    ended = ", ".join(f"{n} {reason}" for reason, n in m.finished.items() if n)
    yield "requests", f"{m.running} running, {m.waiting} waiting, {sum(m.finished.values())} ended ({ended or 'none'})"
    found = m.prefix_hits / m.prefix_queries if m.prefix_queries else 0.0
    yield "prompt tokens", f"{m.prompt_tokens:,}, {found:.0%} of those looked up found in the prefix cache"
    yield "generated tokens", f"{m.generation_tokens:,}"
    if m.prefill_seconds:
        yield "prompts", f"{m.prefill_tokens / m.prefill_seconds:,.0f} tokens/s"
    if m.decode_seconds:
        yield "decoding", f"{m.generation_tokens / m.decode_seconds:,.1f} tokens/s"
    yield "first token", f"{m.time_to_first_token.mean:.3f} s, mean of {m.time_to_first_token.count:,}"
    if m.spec_drafted:
        yield "drafts", f"{m.spec_accepted / m.spec_drafted:.0%} of {m.spec_drafted:,} tokens accepted"
    yield "KV blocks", f"{m.kv_cache_usage:.0%} of {m.kv_blocks:,} used, {m.preemptions:,} preemptions"
    n_bytes = m.weights_bytes + m.kv_bytes_used + m.kv_bytes_cached + m.recurrent_bytes + m.workspace_bytes
    yield "memory", f"{n_bytes / 2**20:,.0f} MiB, {m.weights_bytes / 2**20:,.0f} of them weights"


def _snapshot_of(values: Mapping[str, Any]) -> MetricsSnapshot:
    """Restores a pickled snapshot."""
    found: dict[str, Any] = {n: MappingProxyType(v) if isinstance(v, dict) else v for n, v in values.items()}
    return MetricsSnapshot(**found)


Value = float | Mapping[str, int] | HistogramSnapshot


class Family(NamedTuple):
    """A metric: the snapshot's field that has it, its kind, its name, what it is, and the label of a mapping's keys.

    The name is that of a sample without `_bucket`, `_sum` and `_count`; counters' names end in `_total`.
    """

    field: str
    kind: Literal["counter", "gauge", "histogram"]
    name: str
    help: str
    label: str = ""


FAMILIES = (
    Family("prompt_tokens", "counter", "oxillama_prompt_tokens_total", "Tokens of prompts that were read."),
    Family("generation_tokens", "counter", "oxillama_generation_tokens_total", "Tokens generated."),
    Family(
        "prefill_tokens", "counter", "oxillama_prefill_tokens_total",
        "Tokens computed to read prompts, without what a cache had, with what was computed again.",
    ),
    Family(
        "prefill_seconds", "counter", "oxillama_prefill_seconds_total",
        "Time in which prompts were read; a step that also generates is divided by tokens.",
    ),
    Family("decode_seconds", "counter", "oxillama_decode_seconds_total", "Time in which tokens were generated."),
    Family(
        "prefix_queries", "counter", "oxillama_prefix_cache_queries_total", "Tokens looked up in the prefix cache.",
    ),
    Family("prefix_hits", "counter", "oxillama_prefix_cache_hits_total", "Tokens that the prefix cache had."),
    Family("preemptions", "counter", "oxillama_num_preemptions_total", "Times that a running request was set back."),
    Family("spec_rounds", "counter", "oxillama_spec_decode_num_drafts_total", "Rounds that verified draft tokens."),
    Family("spec_drafted", "counter", "oxillama_spec_decode_num_draft_tokens_total", "Draft tokens verified."),
    Family("spec_accepted", "counter", "oxillama_spec_decode_num_accepted_tokens_total", "Draft tokens accepted."),
    Family(
        "finished", "counter", "oxillama_request_success_total",
        "Requests that ended, by reason; those that failed have the reason error.", "finished_reason",
    ),
    Family(
        "rejected", "counter", "oxillama_requests_rejected_total",
        "Requests that were refused, by reason: the queue was full, or the KV cache is too small for it.", "reason",
    ),
    Family("running", "gauge", "oxillama_num_requests_running", "Requests that take part in steps."),
    Family("waiting", "gauge", "oxillama_num_requests_waiting", "Requests that wait for their turn."),
    Family("kv_blocks", "gauge", "oxillama_kv_cache_blocks", "KV blocks that there are."),
    Family("kv_blocks_used", "gauge", "oxillama_kv_cache_used_blocks", "KV blocks that requests and sessions have."),
    Family(
        "kv_blocks_cached", "gauge", "oxillama_kv_cache_cached_blocks",
        "KV blocks that only the prefix cache has, and gives up when they are needed.",
    ),
    Family("kv_cache_usage", "gauge", "oxillama_kv_cache_usage_ratio", "Part of the KV blocks that is used, 0 to 1."),
    Family("slots", "gauge", "oxillama_recurrent_slots", "Slots of recurrent states that there are."),
    Family("slots_used", "gauge", "oxillama_recurrent_used_slots", "Slots that requests and sessions have."),
    Family("weights_bytes", "gauge", "oxillama_weights_bytes", "Memory of repacked weights."),
    Family("kv_bytes", "gauge", "oxillama_kv_cache_bytes", "Memory reserved for KV blocks."),
    Family("kv_bytes_used", "gauge", "oxillama_kv_cache_used_bytes", "Part of it that requests and sessions have."),
    Family("kv_bytes_cached", "gauge", "oxillama_kv_cache_cached_bytes", "Part of it that only the prefix cache has."),
    Family("recurrent_bytes", "gauge", "oxillama_recurrent_bytes", "Memory reserved for recurrent states."),
    Family("workspace_bytes", "gauge", "oxillama_workspace_bytes", "Memory of the forward pass."),
    Family("offload_budget", "gauge", "oxillama_offload_budget_bytes", "Memory that weights may take; 0: all of them."),
    Family("offload_hits", "counter", "oxillama_offload_hits_total", "Pages of weights that were there when needed."),
    Family("offload_faults", "counter", "oxillama_offload_faults_total", "Pages of weights that were not."),
    Family("offload_bytes", "counter", "oxillama_offload_read_bytes_total", "Bytes of weights read while in use."),
    Family("offload_direct_bytes", "counter", "oxillama_offload_direct_read_bytes_total",
           "Part of them that was read past the page cache."),
    Family("offload_stalls", "counter", "oxillama_offload_stalls_total", "Times that a product waited for weights."),
    Family("offload_stall_seconds", "counter", "oxillama_offload_stall_seconds_total", "Time that these took."),
    Family(
        "time_to_first_token", "histogram", "oxillama_time_to_first_token_seconds",
        "From a request's submission to its first token.",
    ),
    Family(
        "inter_token_latency", "histogram", "oxillama_inter_token_latency_seconds",
        "From one token of a request to the next.",
    ),
    Family(
        "queue_time", "histogram", "oxillama_request_queue_time_seconds",
        "From a request's submission to its first step.",
    ),
    Family(
        "request_latency", "histogram", "oxillama_e2e_request_latency_seconds",
        "From a request's submission to its end, whatever the reason.",
    ),
    Family("iteration_tokens", "histogram", "oxillama_iteration_tokens", "Tokens computed in one step."),
)  # fmt: skip

_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


def exposition(
    families: Iterable[tuple[Family, Value]], labels: Mapping[str, str], *, openmetrics: bool = False
) -> str:
    """Text of metrics with their values, in format 0.0.4, or in OpenMetrics 1.0.0.

    Raises ConfigError for a label's name that Prometheus doesn't allow or that is used here already.
    """
    common = _label_pairs(labels)
    lines = []
    for family, value in families:
        # The formats agree in the samples, but not in what a counter is called.
        cut = openmetrics and family.kind == "counter"
        name = family.name.removesuffix("_total") if cut else family.name
        help_text = family.help.translate(_ESCAPES if openmetrics else _HELP_ESCAPES)
        lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {family.kind}"]
        for suffix, pairs, number in _samples(family, value):
            where = ",".join([*common, *pairs])
            lines.append(f"{family.name}{suffix}{{{where}}} {number!r}".replace("{}", "", 1))
    if openmetrics:
        lines.append("# EOF")
    return "\n".join(lines) + "\n"


def _samples(family: Family, value: Value) -> Iterator[tuple[str, list[str], float]]:
    """(end of the name, own labels, number) of each line."""
    if isinstance(value, HistogramSnapshot):
        n = 0
        for bound, count in zip((*map(repr, value.bounds), "+Inf"), value.counts, strict=True):
            n += count
            yield "_bucket", [f'le="{bound}"'], n
        yield "_sum", [], value.sum
        yield "_count", [], n
    elif isinstance(value, Mapping):
        for key, number in value.items():
            yield "", [f'{family.label}="{key.translate(_ESCAPES)}"'], number
    else:
        yield "", [], value


def _label_pairs(labels: Mapping[str, str]) -> list[str]:
    taken = {"le", *(family.label for family in FAMILIES)}
    pairs = []
    for name, value in labels.items():
        if not isinstance(name, str) or not _LABEL.fullmatch(name) or name in taken:
            raise ConfigError(
                f"label {name!r} can't be used: a name has letters, digits and _, begins with no digit and no __, and "
                "is not one of le, finished_reason and reason"
            )
        if not isinstance(value, str):
            raise ConfigError(f"label {name} must be a string, not {type(value).__name__}")
        pairs.append(f'{name}="{value.translate(_ESCAPES)}"')
    return pairs
