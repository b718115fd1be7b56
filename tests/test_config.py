"""Settings check themselves and say what is wrong."""

import dataclasses
import math
import pickle
from typing import get_type_hints

import numpy as np
import pytest

from oxillama._util.settings import settings_of
from oxillama.config import EngineConfig, RopeConfig, SamplerConfig, SamplingOptions, field_names
from oxillama.core.denoising import DiffuseOptions
from oxillama.core.options import ServingOptions
from oxillama.errors import ConfigError
from oxillama.keywords import DrawOptions, ServingKeywords, ShapingOptions
from oxillama.sampler_config import CONSTRAINTS, SHAPING, fields_of, idle_values
from oxillama.sampling.stages import STAGES, default_stages
from oxillama.text_settings import DiffusionSettings


def test_defaults_of_sampling():
    c = SamplerConfig()
    assert (c.temperature, c.top_k, c.top_p, c.min_p) == (0.7, 40, 0.9, 0.0)
    assert (c.repetition_penalty, c.repetition_penalty_window, c.seed, c.grammar) == (1.0, 64, None, None)


def test_greedy_is_plain_argmax():
    c = SamplerConfig.greedy()
    assert c.temperature == 0.0
    assert c.repetition_penalty == 1.0


def test_every_field_is_a_keyword():
    assert set(SamplingOptions.__annotations__) == set(field_names(SamplerConfig))
    assert set(ShapingOptions.__annotations__) == set(SHAPING)
    assert set(ServingKeywords.__annotations__) == set(field_names(ServingOptions))
    assert set(DiffuseOptions.__annotations__) == set(field_names(DiffusionSettings))


def test_keywords_have_the_types_of_their_fields():
    """A keyword's type may leave None out, which stands for a field that is not given."""
    types = get_type_hints(SamplerConfig)
    assert get_type_hints(SamplingOptions) == {name: types[name] for name in SamplingOptions.__annotations__}
    of_diffusion = get_type_hints(DiffusionSettings)
    assert get_type_hints(DrawOptions) == {name: of_diffusion[name] for name in DrawOptions.__annotations__}


def test_fields_know_their_stage():
    assert CONSTRAINTS == ("grammar", "json_schema", "regex", "choices")
    assert fields_of("masks") == ("allowed_token_ids", "bad_words", "min_tokens")
    assert idle_values("penalties", "dry", "xtc", "top_k", "typical_p") == {
        "repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, "dry_multiplier": 0.0,
        "xtc_probability": 0.0, "top_k": 0, "typical_p": 1.0,
    }  # fmt: skip
    known = settings_of(SamplerConfig)
    every = {name: one.idle for name, one in known.items() if one.idle is not None}
    assert default_stages(SamplerConfig(**every)) == [STAGES["grammar"], STAGES["draw"]]


@pytest.mark.parametrize("field", ["logit_bias", "banned_tokens", "allowed_token_ids", "bad_words"])
def test_ids_beyond_the_vocabulary_are_refused_by_field(field):
    given = {"logit_bias": {9: 1.0}, "bad_words": ["a", [1, 9]]}.get(field, [1, 9])
    SamplerConfig(**{field: given}).check_ids(10)
    with pytest.raises(ConfigError, match=f"^{field} must have token ids of this model, from 0 to 8, not 9$"):
        SamplerConfig(**{field: given}).check_ids(9)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", math.nan),
        ("temperature", -0.1),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("temperature", True),
        ("temperature", 10**400),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_k", True),
        ("top_k", 1 << 31),
        ("top_p", -0.01),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("min_p", -0.5),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("repetition_penalty", -1),
        ("repetition_penalty", math.nan),
        ("repetition_penalty_window", -1),
        ("repetition_penalty_window", 2.0),
        ("typical_p", 1.5),
        ("top_a", -0.1),
        ("eta_cutoff", math.nan),
        ("epsilon_cutoff", 2),
        ("top_n_sigma", -1.0),
        ("top_n_sigma", math.inf),
        ("frequency_penalty", math.inf),
        ("presence_penalty", "x"),
        ("dry_multiplier", -1),
        ("dry_base", 0.5),
        ("dry_allowed_length", 0),
        ("dry_window", 0),
        ("dry_sequence_breakers", "ab"),
        ("dry_sequence_breakers", 5),
        ("xtc_probability", 1.1),
        ("xtc_threshold", -0.5),
        ("mirostat", 3),
        ("mirostat", True),
        ("mirostat_tau", -1.0),
        ("mirostat_eta", 11.0),
        ("dynatemp_range", -1),
        ("dynatemp_exponent", math.nan),
        ("logit_bias", [1, 2]),
        ("logit_bias", "x"),
        ("banned_tokens", 5),
        ("banned_tokens", "abc"),
        ("grammar", b"x"),
        ("seed", -1),
        ("seed", 1 << 64),
        ("seed", 1.0),
        ("seed", "x"),
    ],
)
def test_bad_sampling_value_is_named(field, value):
    with pytest.raises(ConfigError) as e:
        SamplerConfig(**{field: value})
    assert str(e.value).startswith(f"{field} must be ")
    shown = f"{value:g}" if isinstance(value, float) else repr(value)
    assert shown in str(e.value)
    assert isinstance(e.value, ValueError)


@pytest.mark.parametrize(
    ("field", "value", "name"),
    [
        ("logit_bias", {1: math.inf}, r"logit_bias\[1\]"),
        ("logit_bias", {1: math.nan}, r"logit_bias\[1\]"),
        ("logit_bias", {1: "x"}, r"logit_bias\[1\]"),
        ("logit_bias", {1: 1e39}, r"logit_bias\[1\]"),
        ("logit_bias", {-1: 0.0}, "logit_bias's token"),
        ("logit_bias", {"1": 0.0}, "logit_bias's token"),
        ("banned_tokens", [3, -1], r"banned_tokens\[1\]"),
        ("banned_tokens", [1.0], r"banned_tokens\[0\]"),
        ("dry_sequence_breakers", ["a", ""], r"dry_sequence_breakers\[1\]"),
        ("dry_sequence_breakers", [[]], r"dry_sequence_breakers\[0\]"),
        ("dry_sequence_breakers", [["a"]], r"dry_sequence_breakers\[0\]\[0\]"),
        ("dry_sequence_breakers", [5], r"dry_sequence_breakers\[0\]"),
        ("dry_sequence_breakers", ["a" * 257], r"dry_sequence_breakers\[0\]"),
        ("dry_sequence_breakers", ["a"] * 257, "dry_sequence_breakers"),
    ],
)
def test_bad_items_are_named(field, value, name):
    with pytest.raises(ConfigError, match=f"^{name} must "):
        SamplerConfig(**{field: value})


def test_settings_of_sampling_are_values():
    biases = {7: -math.inf, 3: 1}
    c = SamplerConfig(logit_bias=biases, banned_tokens=[np.int64(4), 5], dry_sequence_breakers=["x", [np.int32(1), 2]])
    biases[9] = 1.0
    assert c.logit_bias == {7: -math.inf, 3: 1.0}
    assert c.banned_tokens == (4, 5)
    assert c.dry_sequence_breakers == ("x", (1, 2))
    same = pickle.loads(pickle.dumps(c))
    assert same == c == dataclasses.replace(c)
    assert hash(same) == hash(c)
    assert SamplerConfig(**dataclasses.asdict(c)) == c
    with pytest.raises(TypeError):
        c.logit_bias[1] = 2.0
    assert repr(c.logit_bias) == "{7: -inf, 3: 1.0}"


@pytest.mark.parametrize(
    "fields", [{"logit_bias": {3: 1.0, 10: 2.0}}, {"banned_tokens": [10]}, {"dry_sequence_breakers": ["a", [2, 10]]}]
)
def test_ids_of_a_vocabulary(fields):
    config = SamplerConfig(**fields)
    config.check_ids(11)
    with pytest.raises(
        ConfigError, match=f"^{next(iter(fields))} must have token ids of this model, from 0 to 9, not 10"
    ):
        config.check_ids(10)


def test_mirostat_draws_at_random():
    c = SamplerConfig.mirostat_v2(3.0, 0.2)
    assert (c.mirostat, c.mirostat_tau, c.mirostat_eta) == (2, 3.0, 0.2)
    assert (c.temperature, c.repetition_penalty) == (1.0, 1.0)
    with pytest.raises(ConfigError, match=r"^temperature must be above 0 with mirostat"):
        SamplerConfig(temperature=0, mirostat=1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("context_size", 0),
        ("context_size", -5),
        ("context_size", 1 << 40),
        ("context_size", 8.0),
        ("num_threads", 0),
        ("num_threads", -1),
        ("num_threads", 100_000),
        ("num_threads", True),
        ("prefill_chunk_size", 0),
        ("kv_type", "q3"),
        ("kv_type", 16),
        ("kv_block_size", 0),
        ("kv_block_size", 24),
        ("kv_block_size", 96),
        ("kv_budget", 0),
        ("kv_budget", "1G"),
        ("repack", 1),
        ("model_path", 5),
        ("tokenizer_path", b"x"),
        ("rope", 5),
        ("rope", "yarn"),
        ("rope", {"speed": 4}),
        ("overrides", {1: 2}),
        ("overrides", ["a"]),
    ],
)
def test_bad_engine_value_is_named(field, value):
    with pytest.raises(ConfigError, match=rf"^{field} must "):
        EngineConfig(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("scaling", "ntk"),
        ("scaling", 4),
        ("factor", 0),
        ("factor", math.nan),
        ("original_context", 0),
        ("original_context", 4096.0),
        ("freq_base", 1.0),
        ("freq_base", "1e6"),
        ("window_freq_base", 1e13),
        ("attn_factor", 0),
        ("beta_fast", -1),
        ("beta_slow", math.inf),
        ("ext_factor", 1.5),
    ],
)
def test_bad_rope_value_is_named(field, value):
    with pytest.raises(ConfigError, match=rf"^rope\.{field} must "):
        RopeConfig(**{field: value})


@pytest.mark.parametrize(
    "fields",
    [
        {"factor": 4},
        {"factor": 4, "scaling": "none"},
        {"factor": 4, "scaling": "longrope"},
        *({"scaling": s} for s in ("linear", "yarn", "dynamic")),
    ],
)
def test_factor_and_scaling_of_rope_come_together(fields):
    with pytest.raises(
        ConfigError, match=r"rope\.factor must be given with a rope\.scaling of linear, yarn or dynamic"
    ):
        RopeConfig(**fields)


def test_what_belongs_to_yarn_is_refused_elsewhere():
    for name in ("beta_fast", "beta_slow", "ext_factor"):
        assert getattr(RopeConfig("yarn", 4, **{name: 1}), name) == 1.0
        with pytest.raises(
            ConfigError, match=rf"rope\.{name} must be left out unless rope\.scaling is yarn, not linear"
        ):
            RopeConfig("linear", 4, **{name: 1})


def test_rope_as_a_mapping():
    given = {"scaling": "yarn", "factor": 4, "original_context": 4096}
    assert EngineConfig(rope=given).rope == RopeConfig("yarn", 4.0, 4096)
    assert EngineConfig(rope=RopeConfig()).rope == RopeConfig()


def test_rope_as_metadata():
    assert RopeConfig().metadata("llama") == {}
    assert RopeConfig("dynamic", 4, 512, window_freq_base=5e5).metadata("x") == {
        "x.rope.scaling.type": "dynamic",
        "x.rope.scaling.factor": 4.0,
        "x.rope.scaling.original_context_length": 512,
        "x.rope.scaling.yarn_attn_factor": 0.0,
        "x.rope.freq_base_swa": 5e5,
    }


def test_integers_of_numpy_are_integers():
    c = SamplerConfig(top_k=np.int64(3), seed=np.uint64((1 << 64) - 1), temperature=np.float32(0.5))
    assert c == SamplerConfig(top_k=3, seed=(1 << 64) - 1, temperature=0.5)
    assert all(type(v) in (int, float) for v in (c.top_k, c.seed, c.temperature))


def test_frozen_and_detached_from_what_was_given():
    given = {"a": 1}
    c = EngineConfig(overrides=given)
    given["a"] = 2
    assert c.overrides["a"] == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        c.context_size = 3
    with pytest.raises(TypeError):
        c.overrides["a"] = 3


@pytest.mark.parametrize("size", [16, 32, 64, 128, 4096])
def test_block_sizes_that_tiles_can_be_cut_into(size):
    assert EngineConfig(kv_block_size=size).kv_block_size == size
