"""Names, times and durations of Ollama's API."""

import math
from datetime import UTC, datetime

import pytest

import oxillama as ox
from oxillama.server import ServerConfig, create_app
from oxillama.server.errors import ApiError
from oxillama.server.models import ServedModel
from oxillama.server.ollama.names import human_number, moment, nanoseconds, seconds_of, served_name, tagged, timestamp


@pytest.fixture(scope="module")
def models(engine):
    unloaded = ServedModel("Qwen3-4B", load=lambda: ox.load(num_threads=1), at_start=False, aliases=("org/other:q8",))
    config = ServerConfig(served_model_name=("gpt-4o",))
    return create_app({"tiny": engine, "Qwen3-4B": unloaded}, config).service.models


@pytest.mark.parametrize(("given", "served"), [
    ("tiny", "tiny"), ("tiny:latest", "tiny"), ("TINY", "tiny"), ("Tiny:Latest", "tiny"), ("library/tiny", "tiny"),
    ("registry.ollama.ai/library/tiny:latest", "tiny"), ("gpt-4o:latest", "gpt-4o"), ("qwen3-4b", "Qwen3-4B"),
    ("qwen3:4b", "Qwen3-4B"), ("Qwen3-4B:latest", "Qwen3-4B"), ("org/other:q8", "org/other:q8"),
    ("Qwen3-4B:pirate", "Qwen3-4B:pirate"),
])  # fmt: skip
def test_names_mean_served_models(models, given, served):
    assert served_name(models, given) == served
    assert models.find(served_name(models, given)).model.id in ("tiny", "Qwen3-4B")


@pytest.mark.parametrize("given", ["other", "tiny:q8", "tiny-latest", ":latest", "library/", "'", "x" * 256])
def test_names_that_mean_none(models, given):
    with pytest.raises(ApiError) as raised:
        served_name(models, given)
    assert (raised.value.status, raised.value.message) == (404, f"model '{given}' not found")


def test_a_name_is_required(models):
    with pytest.raises(ApiError, match=r"^model is required$") as raised:
        served_name(models, "")
    assert raised.value.status == 400


def test_a_server_that_takes_any_name(engine):
    app = create_app({"tiny": engine}, ServerConfig(served_model_name=("*",)))
    assert served_name(app.service.models, "llama3.2:3b") == "llama3.2:3b"


def test_tags():
    assert (tagged("tiny"), tagged("tiny:pirate")) == ("tiny:latest", "tiny:pirate")


@pytest.mark.parametrize(("value", "seconds"), [
    (5, 5.0), (0, 0.0), (-1, math.inf), (0.5, 0.5), ("5m", 300.0), ("1h30m", 5400.0), ("1.5s", 1.5), ("250ms", 0.25),
    ("-1m", math.inf), ("0", 0.0), ("300", 300.0), ("-1", math.inf), ("0s", 0.0), ("+2s", 2.0), ("1µs", 1e-6),
])  # fmt: skip
def test_durations(value, seconds):
    assert seconds_of("keep_alive", value) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "m", "5 m", "5x", "five", "-", "5m5", "1e3s", "5m" * 20 + "x", "--1"])
def test_texts_that_are_no_durations(text):
    with pytest.raises(ApiError, match=r"^keep_alive must be a duration"):
        seconds_of("keep_alive", text)


def test_times():
    assert timestamp(1_691_139_165_385_406_455) == "2023-08-04T08:52:45.385406455Z"
    assert timestamp(0) == "1970-01-01T00:00:00.000000000Z"
    now = datetime.fromisoformat(timestamp())
    assert abs((datetime.now(UTC) - now).total_seconds()) < 60
    assert 50 < (datetime.fromisoformat(moment(60.0)) - datetime.now(UTC)).total_seconds() <= 60
    assert datetime.fromisoformat(moment(math.inf)).year > datetime.now(UTC).year + 98
    assert [nanoseconds(x) for x in (1.5, 0.0, -1.0)] == [1_500_000_000, 0, 0]


@pytest.mark.parametrize(("number", "shown"), [
    (8_030_261_248, "8.0B"), (8_000_000_000, "8B"), (134_515_008, "134.52M"), (270_000_000, "270M"), (12_300, "12K"),
    (999, "999"),
])  # fmt: skip
def test_numbers_of_parameters(number, shown):
    assert human_number(number) == shown
