"""Sampling defaults that a model's file recommends, under llama.cpp's keys."""

import logging
import math

import pytest

from oxillama.config import SamplerConfig
from oxillama.errors import LoadError, MissingKeyError
from oxillama.gguf.entries import make_entry, value_type
from oxillama.gguf.metadata import Metadata
from oxillama.sampling.file_defaults import STAGE_NAMES, idle_settings, read_sampling_defaults

# By llama.cpp's gguf-py/gguf/constants.py, with the types of its writer.
KEYS = {
    "top_k": ("INT32", 17, "top_k"),
    "top_p": ("FLOAT32", 0.77, "top_p"),
    "min_p": ("FLOAT32", 0.03, "min_p"),
    "xtc_probability": ("FLOAT32", 0.4, "xtc_probability"),
    "xtc_threshold": ("FLOAT32", 0.15, "xtc_threshold"),
    "temp": ("FLOAT32", 0.6, "temperature"),
    "penalty_last_n": ("INT32", 32, "repetition_penalty_window"),
    "penalty_repeat": ("FLOAT32", 1.05, "repetition_penalty"),
    "mirostat": ("INT32", 2, "mirostat"),
    "mirostat_tau": ("FLOAT32", 4.5, "mirostat_tau"),
    "mirostat_eta": ("FLOAT32", 0.2, "mirostat_eta"),
}


def read(_context=512, **keys):
    """Of a file with these keys, each a value or (type, value)."""
    entries = {}
    for key, given in keys.items():
        kind, value = given if isinstance(given, tuple) else (None, given)
        entries[f"general.sampling.{key}"] = make_entry(key, value, kind and value_type(kind))
    return read_sampling_defaults(Metadata(entries, "a.gguf"), _context)


def test_a_file_without_keys_has_the_defaults_of_the_field():
    config = read()
    assert config == SamplerConfig()
    assert (config.temperature, config.top_k, config.top_p, config.min_p) == (0.7, 40, 0.9, 0.0)
    assert (config.repetition_penalty, config.frequency_penalty, config.presence_penalty) == (1.0, 0.0, 0.0)


def test_the_original_defaults_are_a_preset():
    config = SamplerConfig.original()
    assert (config.temperature, config.top_k, config.top_p) == (0.7, 40, 0.9)
    assert (config.repetition_penalty, config.repetition_penalty_window) == (1.1, 64)


@pytest.mark.parametrize("key", KEYS)
def test_each_key_sets_its_field_and_no_other(key):
    kind, value, field = KEYS[key]
    # Exactly: a float32 is the number that was written, and not the nearest double to the nearest float32.
    assert read(**{key: (kind, value)}) == SamplerConfig(**{field: value})
    if kind == "FLOAT32":
        assert read(**{key: ("FLOAT64", value)}) == SamplerConfig(**{field: value})


def test_all_keys_together():
    fields = {field: value for _, value, field in KEYS.values()}
    assert read(**{key: (kind, value) for key, (kind, value, _) in KEYS.items()}) == SamplerConfig(**fields)


def test_minus_one_is_everything():
    assert read(top_k=("INT32", -1)).top_k == 0
    assert read(100, penalty_last_n=("INT32", -1)).repetition_penalty_window == 100


BAD = [
    {"temp": -0.5},
    {"temp": math.nan},
    {"temp": math.inf},
    {"temp": "hot"},
    {"temp": True},
    {"temp": [0.5]},
    {"top_k": 0.5},
    {"top_k": ("INT32", -2)},
    {"top_k": ("UINT64", (1 << 64) - 1)},
    {"top_p": 1.5},
    {"min_p": -0.1},
    {"penalty_repeat": 0.0},
    {"penalty_repeat": -1.0},
    {"penalty_last_n": ("INT32", -2)},
    {"mirostat": 3},
    {"mirostat_tau": 1e9},
    {"mirostat_eta": -1.0},
    {"xtc_probability": 2},
    {"xtc_threshold": -1.0},
    {"sequence": 5},
]


@pytest.mark.parametrize("keys", BAD, ids=str)
def test_bad_values_are_refused_by_key(keys):
    (key,) = keys
    with pytest.raises(MissingKeyError, match=rf"general\.sampling\.{key}"):
        read(**keys)
    assert issubclass(MissingKeyError, LoadError)


def test_a_combination_that_can_t_be_is_refused():
    with pytest.raises(MissingKeyError, match=r"general\.sampling\.\*: temperature must be above 0 with mirostat"):
        read(mirostat=2, temp=0.0)


def test_an_unknown_key_is_said(caplog):
    with caplog.at_level(logging.WARNING, "oxillama"):
        assert read(penalty_freq=0.5) == SamplerConfig()
    assert "general.sampling.penalty_freq" in caplog.text


USUAL = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature"


def test_a_sequence_switches_off_what_it_leaves_out(caplog):
    with caplog.at_level(logging.WARNING, "oxillama"):
        assert read(sequence=USUAL) == SamplerConfig()
        assert read(sequence="") == SamplerConfig()
        assert read(sequence="top_k;temperature") == SamplerConfig(top_p=1.0)
        assert read(sequence="top-k; nucleus;temp", min_p=0.1) == SamplerConfig()
        assert read(sequence="min_p", penalty_repeat=1.2) == SamplerConfig(temperature=1.0, top_k=0, top_p=1.0)
    assert not caplog.text


@pytest.mark.parametrize("sequence", ["temperature;top_k", "top_k;infill", "top_k;top_k", "adaptive_p"])
def test_a_sequence_that_can_t_be_honoured_is_said(sequence, caplog):
    with caplog.at_level(logging.WARNING, "oxillama"):
        assert read(sequence=sequence, top_k=7) == SamplerConfig(top_k=7)
    assert "general.sampling.sequence" in caplog.text
    assert "SamplerChain" in caplog.text


def test_stages_that_are_not_named_are_idle():
    assert idle_settings(STAGE_NAMES) == {}
    assert idle_settings(["top_k", "nucleus", "temp", "other"]) == {
        "repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, "dry_multiplier": 0.0,
        "top_n_sigma": 0.0, "typical_p": 1.0, "min_p": 0.0, "xtc_probability": 0.0,
    }  # fmt: skip
    SamplerConfig(**idle_settings([]))
