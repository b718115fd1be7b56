"""Histograms, and the text for Prometheus, which is read back by a parser of its own."""

import dataclasses
import json
import re
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType

import pytest

from oxillama.errors import ConfigError
from oxillama.metrics import (
    CONTENT_TYPE,
    FAMILIES,
    FINISHED_REASONS,
    FIRST_TOKEN_BUCKETS,
    INTER_TOKEN_BUCKETS,
    ITERATION_BUCKETS,
    OPENMETRICS_CONTENT_TYPE,
    REJECTED_REASONS,
    REQUEST_BUCKETS,
    Family,
    Histogram,
    HistogramSnapshot,
    MetricsSnapshot,
    exposition,
)
from tests.prometheus import parse

README = (Path(__file__).parents[1] / "oxillama/engine/README.md").read_text()


def histogram_of(bounds, *values):
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe((value, 1))
    return HistogramSnapshot(*histogram.values())


def make_snapshot():
    """A snapshot in which no two numbers are alike."""
    numbers = {f.name: i + 2 for i, f in enumerate(fields(MetricsSnapshot))}
    numbers["prefill_seconds"], numbers["decode_seconds"] = 0.1, 1e-05
    numbers["finished"] = MappingProxyType({reason: 100 + i for i, reason in enumerate(FINISHED_REASONS)})
    numbers["rejected"] = MappingProxyType({reason: 200 + i for i, reason in enumerate(REJECTED_REASONS)})
    for i, (name, bounds) in enumerate(BUCKETS.items()):
        numbers[name] = histogram_of(bounds, *[0.02] * (i + 1), 0.3, 3.0, 1e6)
    return MetricsSnapshot(**numbers)


BUCKETS = {
    "time_to_first_token": FIRST_TOKEN_BUCKETS,
    "inter_token_latency": INTER_TOKEN_BUCKETS,
    "queue_time": REQUEST_BUCKETS,
    "request_latency": REQUEST_BUCKETS,
    "iteration_tokens": ITERATION_BUCKETS,
}


# ---- histograms


def test_a_value_on_a_bound_is_below_it():
    found = histogram_of((1.0, 2.0), 0.5, 1.0, 1.5, 2.0, 2.5)
    assert found.counts == (2, 2, 1)
    assert (found.count, found.sum, found.mean) == (5, 7.5, 1.5)


def test_a_value_counts_several_times():
    histogram = Histogram((1.0, 2.0))
    histogram.observe((1.5, 3))
    assert HistogramSnapshot(*histogram.values()) == HistogramSnapshot((1.0, 2.0), (0, 3, 0), 4.5)


def test_what_is_frozen_stays():
    histogram = Histogram((1.0,))
    empty = HistogramSnapshot(*histogram.values())
    histogram.observe((0.5, 1))
    assert (empty.count, empty.sum, empty.mean) == (0, 0.0, 0.0)
    assert HistogramSnapshot(*histogram.values()).count == 1


@pytest.mark.parametrize("bounds", [(1.0, 1.0), (2.0, 1.0)])
def test_bounds_must_rise(bounds):
    with pytest.raises(ConfigError, match="must rise"):
        Histogram(bounds)


# ---- text


@pytest.mark.parametrize("openmetrics", [False, True])
@pytest.mark.parametrize("labels", [{}, {"model_name": "m", "engine": "0"}])
def test_the_text_has_every_number(openmetrics, labels):
    snapshot = make_snapshot()
    found = parse(snapshot.prometheus(labels, openmetrics=openmetrics), openmetrics)
    common = tuple(labels.items())
    assert len(found) == len(FAMILIES)
    for family in FAMILIES:
        name = family.name.removesuffix("_total") if openmetrics else family.name
        kind, text, samples = found[name]
        assert (kind, text) == (family.kind, family.help)
        value = getattr(snapshot, family.field)
        assert samples == {
            (n, tuple(sorted((*common, *own)))): number for n, own, number in expected_samples(family, value)
        }


def expected_samples(family, value):
    if family.kind == "histogram":
        bounds = [*value.bounds, float("inf")]
        for i, bound in enumerate(bounds):
            text = "+Inf" if bound == float("inf") else str(bound)
            yield f"{family.name}_bucket", [("le", text)], sum(value.counts[: i + 1])
        yield f"{family.name}_sum", [], value.sum
        yield f"{family.name}_count", [], value.count
    elif family.field in ("finished", "rejected"):
        for reason, n in value.items():
            yield family.name, [("finished_reason" if family.field == "finished" else "reason", reason)], n
    else:
        yield family.name, [], value


def test_every_field_is_in_the_text():
    assert {f.name for f in fields(MetricsSnapshot)} <= {f.field for f in FAMILIES}


def test_names_follow_the_conventions():
    for family in FAMILIES:
        assert re.fullmatch(r"oxillama_[a-z0-9_]+", family.name)
        assert family.name.endswith("_total") == (family.kind == "counter")
        assert "milli" not in family.name
        assert not family.name.endswith(("_bucket", "_sum", "_count", "_info", "_created"))
        # What `promtool check metrics` complains about: types, units that are no base units, abbreviations.
        words = set(family.name.split("_"))
        assert not words & {"counter", "gauge", "histogram", "summary", "untyped", "unknown"}
        assert not words & {"ms", "us", "ns", "s", "sec", "min", "h", "d", "b", "kb", "mb", "gb", "kib", "mib", "perc"}
        assert not words & {"minutes", "hours", "days", "bits", "kilobytes", "megabytes", "gigabytes", "percent"}
        assert family.help.endswith(".")
    assert len({f.name for f in FAMILIES}) == len(FAMILIES)


def test_it_goes_into_json_with_every_field():
    made = make_snapshot()
    found = json.loads(json.dumps(made.to_dict(), allow_nan=False))
    assert list(found) == [f.name for f in fields(made)]
    for name, value in found.items():
        kept = getattr(made, name)
        if isinstance(kept, HistogramSnapshot):
            assert HistogramSnapshot(tuple(value["bounds"]), tuple(value["counts"]), value["sum"]) == kept
        else:
            assert value == kept


def test_parts_of_the_cache():
    s = dataclasses.replace(make_snapshot(), kv_blocks=64, kv_blocks_used=16)
    assert s.kv_cache_usage == 0.25
    assert dataclasses.replace(s, kv_blocks=0).kv_cache_usage == 0.0


def test_buckets_rise():
    for bounds in BUCKETS.values():
        assert list(bounds) == sorted(set(bounds))


@pytest.mark.parametrize("value", ['a"b', "a\\b", "a\nb", "\\n", "\\", '"', "", "a,b}", "ü", '\\\\"\n'])
@pytest.mark.parametrize("openmetrics", [False, True])
def test_labels_come_back(value, openmetrics):
    found = parse(make_snapshot().prometheus({"model_name": value}, openmetrics=openmetrics), openmetrics)
    for _, _, samples in found.values():
        assert {dict(labels)["model_name"] for _, labels in samples} == {value}


@pytest.mark.parametrize("openmetrics", [False, True])
def test_help_and_own_labels_are_escaped(openmetrics):
    family = Family("x", "counter", "x_total", 'a \\ b\nc "d"', "reason")
    text = exposition([(family, {'q"\\\n': 1})], {}, openmetrics=openmetrics)
    (kind, help_text, samples), *more = parse(text, openmetrics).values()
    assert (kind, help_text, more) == ("counter", family.help, [])
    assert ('\\"d\\"' in text) == openmetrics  # the other format leaves quotes in help as they are
    assert samples == {("x_total", (("reason", 'q"\\\n'),)): 1}


@pytest.mark.parametrize("name", ["", "a-b", "1a", "__a", "le", "finished_reason", "reason", "ä", "a b", 3])
def test_bad_label_names(name):
    with pytest.raises(ConfigError, match="can't be used"):
        make_snapshot().prometheus({name: "x"})


def test_label_values_are_strings():
    with pytest.raises(ConfigError, match="label engine must be a string, not int"):
        make_snapshot().prometheus({"engine": 0})


def test_content_types_name_the_formats():
    assert "version=0.0.4" in CONTENT_TYPE
    assert OPENMETRICS_CONTENT_TYPE.startswith("application/openmetrics-text; version=1.0.0")


def test_readme_names_every_metric():
    listed = re.findall(r"`(oxillama_\w+)`", README)
    assert sorted(listed) == sorted(f.name for f in FAMILIES)
