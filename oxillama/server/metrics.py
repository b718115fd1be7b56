"""Metrics of the server, and those of its engines, as Prometheus reads them."""

from __future__ import annotations

import contextlib
import os
import resource
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from oxillama.metrics import CONTENT_TYPE, OPENMETRICS_CONTENT_TYPE, REQUEST_BUCKETS, Histogram, MetricsSnapshot
from oxillama.server.log_output import LOSSES

__all__ = ["STATES", "ServerMetrics", "content_type", "merged", "model_states", "process_metrics"]

Labels = tuple[tuple[str, str], ...]
MOST_OBSERVED = 1024
STATES = ("loading", "ready", "failed", "idle")  # of models
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class ServerMetrics:
    """Counts of requests over HTTP."""

    def __init__(self) -> None:
        self._requests: Counter[Labels] = Counter()
        self._refused: Counter[Labels] = Counter()
        self._tokens: Counter[Labels] = Counter()
        self._left_out: Counter[Labels] = Counter()
        self._durations: dict[str, Histogram] = {}
        self.in_flight = self.disconnects = self._n_observed = 0

    def ended(self, path: str, method: str, status: int, seconds: float) -> None:
        """A request ended."""
        self._requests[(("path", path), ("method", method), ("status", str(status)))] += 1
        if path not in self._durations:
            self._durations[path] = Histogram((0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, *REQUEST_BUCKETS))
        self._durations[path].observe((seconds, 1))
        self._n_observed += 1
        if self._n_observed >= MOST_OBSERVED:  # histograms keep what they observe until they are read
            self._n_observed = 0
            for histogram in self._durations.values():
                histogram.values()

    def refused(self, code: str) -> None:
        """A request was refused."""
        self._refused[(("code", code),)] += 1

    def left_out(self, kind: str) -> None:
        """A request was answered without a part that it asked for."""
        self._left_out[(("kind", kind),)] += 1

    def used(self, key: str, kind: str, n_tokens: int) -> None:
        """A key used tokens."""
        self._tokens[(("key", key), ("kind", kind))] += n_tokens

    def text(self, openmetrics: bool) -> str:
        """The lines of all of them."""
        lines: list[str] = []
        gone: Counter[Labels] = Counter({(): self.disconnects})
        lost: Counter[Labels] = Counter({(): LOSSES.n_lines})
        for name, text, counts in (
            ("oxillama_http_requests_total", "Requests that ended.", self._requests),
            ("oxillama_requests_refused_total", "Requests that were refused, by code.", self._refused),
            ("oxillama_left_out_total", "Parts of requests that were left out, by kind.", self._left_out),
            ("oxillama_key_tokens_total", "Tokens by key.", self._tokens),
            ("oxillama_http_disconnects_total", "Clients that left early.", gone),
            ("oxillama_log_lines_lost_total", "Lines of the log that nothing took.", lost),
        ):
            lines += counter(name, text, counts, openmetrics)
        lines += ["# HELP oxillama_http_in_flight Requests under way.", "# TYPE oxillama_http_in_flight gauge"]
        lines.append(f"oxillama_http_in_flight {self.in_flight}")
        name = "oxillama_http_request_duration_seconds"
        lines += [f"# HELP {name} From a request's headers to the end of its answer.", f"# TYPE {name} histogram"]
        for path, histogram in self._durations.items():
            lines += self._buckets(name, path, histogram)
        return "\n".join(lines) + "\n"

    @staticmethod
    def _buckets(name: str, path: str, histogram: Histogram) -> Iterable[str]:
        bounds, counts, total = histogram.values()
        n = 0
        for bound, count in zip((*map(repr, bounds), "+Inf"), counts, strict=True):
            n += count
            yield f"{name}_bucket{labelled((('path', path), ('le', bound)))} {n}"
        yield f"{name}_sum{labelled((('path', path),))} {total!r}"
        yield f"{name}_count{labelled((('path', path),))} {n}"


def counter(name: str, text: str, counts: Mapping[Labels, float], openmetrics: bool) -> Iterable[str]:
    """Lines of one counter."""
    shown = name.removesuffix("_total") if openmetrics else name
    yield f"# HELP {shown} {text}"
    yield f"# TYPE {shown} counter"
    for labels, count in counts.items():
        yield f"{name}{labelled(labels)} {count}"


def labelled(labels: Labels) -> str:
    pairs = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels)
    return f"{{{pairs}}}" if pairs else ""


def merged(snapshots: Mapping[str, MetricsSnapshot], *, openmetrics: bool = False) -> str:
    """Metrics of several engines, labelled with their models; all samples of a metric stand together."""
    families: dict[str, tuple[list[str], list[str]]] = {}
    for model, snapshot in snapshots.items():
        name = ""
        for line in snapshot.prometheus({"model": model}, openmetrics=openmetrics).splitlines():
            if line.startswith("# HELP "):
                name = line.split(" ", 3)[2]
            head, samples = families.setdefault(name, ([], []))
            if not line.startswith("#"):
                samples.append(line)
            elif len(head) < 2 and line != "# EOF":
                head.append(line)
    return "".join(f"{line}\n" for head, samples in families.values() for line in (*head, *samples))


def model_states(states: Mapping[str, str]) -> str:
    """Lines about the states of models, by their names: 1 for the one that each is in."""
    name = "oxillama_model_state"
    lines = [f"# HELP {name} State of each model: 1 of the one that it is in.", f"# TYPE {name} gauge"]
    for model, state in states.items():
        lines += [f"{name}{labelled((('model', model), ('state', one)))} {int(one == state)}" for one in STATES]
    return "\n".join(lines) + "\n"


def process_metrics(openmetrics: bool, proc: str | Path = "/proc") -> str:
    """Lines about this process, under the names that Prometheus' own clients have for them.

    Those of Linux's /proc are left out where it isn't, or has another form (Documentation/filesystems/proc.rst).
    """
    lines = list(counter("process_cpu_seconds_total", "CPU time.", Counter({(): sum(os.times()[:2])}), openmetrics))
    gauges: list[tuple[str, str, float]] = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        own = Path(proc, "self/stat").read_text().rpartition(")")[2].split()  # from the third field on
        booted = next(line for line in Path(proc, "stat").read_text().splitlines() if line.startswith("btime "))
        started = int(booted.split()[1]) + int(own[19]) / os.sysconf("SC_CLK_TCK")
        gauges.append(("process_start_time_seconds", "When the process started, in Unix seconds.", started))
        gauges.append(("process_virtual_memory_bytes", "Virtual memory.", int(own[20])))
        gauges.append(("process_resident_memory_bytes", "Resident memory.", int(own[21]) * os.sysconf("SC_PAGE_SIZE")))
        gauges.append(("process_open_fds", "Open file descriptors.", len(os.listdir(Path(proc, "self/fd")))))
    gauges.append(
        ("process_max_fds", "File descriptors at most.", float(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
    )
    for name, text, value in gauges:
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge", f"{name} {value!r}"]
    return "\n".join(lines) + "\n"


def content_type(openmetrics: bool) -> str:
    """The Content-Type of a scrape."""
    return OPENMETRICS_CONTENT_TYPE if openmetrics else CONTENT_TYPE
