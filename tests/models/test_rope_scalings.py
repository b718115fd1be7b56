"""Scalings of the rotary embedding that no reference has, from metadata and from the settings, against the twin."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

import oxillama.gguf as gguf
from oxillama.config import EngineConfig, RopeConfig
from oxillama.core.loading import choose_context, load_parts
from oxillama.errors import ConfigError, LoadError, UnsupportedModelError
from oxillama.gguf.entries import make_entry
from oxillama.gguf.metadata import Metadata
from oxillama.kernels.batch import Span
from oxillama.models.rope import RopeSpec
from tests.models import naive
from tests.models.compared import TOKENS, agree, ours
from tests.models.references import path_of

LLAMA = path_of("llama")  # trained for 256 tokens, heads of 16
ONE = np.arange(0, 16, 2) / 16


def metadata(**values):
    """Of an architecture x; __ stands for a dot."""
    keys = {f"x.rope.{name.replace('__', '.')}": value for name, value in values.items()}
    return Metadata({key: make_entry(key, value) for key, value in keys.items()})


def spec(arch="x", **values):
    entries = {key.replace("x.", arch + ".", 1): entry for key, entry in metadata(**values)._entries.items()}
    return RopeSpec.read(Metadata(entries), arch, 16, 256)


def scaling(**values):
    return {f"llama.rope.scaling.{name}": value for name, value in values.items()}


@pytest.mark.parametrize(
    ("context_size", "original", "factor"),
    [(256, 64, 2.0), (128, 64, 4.0), (256, 256, 4.0), (32, 64, 4.0), (256, 64, 1)],
)
def test_dynamic(context_size, original, factor):
    """Transformers' formula, at the context that was configured; no longer than the original, nothing changes."""
    longer = max(context_size, original) / original
    base = 10000.0 * (factor * longer - (factor - 1)) ** (16 / 14)
    keys = scaling(type="dynamic", factor=float(factor), original_context_length=original)
    tokens = TOKENS[:context_size]
    got = ours(LLAMA, keys, context_size, tokens)
    agree(got, naive.logits(LLAMA, tokens, frequencies=base**-ONE))
    assert (ours(LLAMA, keys, context_size, tokens[:7]) == got[:7]).all(), "depends on how long the text is"


def test_dynamic_needs_dimensions_to_stretch():
    with pytest.raises(LoadError, match=r"rope\.dimension_count is 2, but .*scaling\.type dynamic"):
        ours(LLAMA, scaling(type="dynamic", factor=2.0) | {"llama.rope.dimension_count": 2})


def test_unknown_scaling_is_named():
    with pytest.raises(UnsupportedModelError, match=r"scaling\.type is 'su'; known: none, linear, yarn"):
        ours(LLAMA, scaling(type="su"))


@pytest.mark.parametrize("multiplier", [0.0, 0.5, 1.0])
def test_multiplier_of_yarns_logarithm(multiplier):
    """Temperatures are relative to the multiplier's (mscale / mscale_all_dim of transformers, the first being one)."""
    keys = {"type": "yarn", "factor": 8.0, "original_context_length": 32, "yarn_log_multiplier": multiplier}
    magnitude = (1 + 0.1 * math.log(8)) / (1 + 0.1 * multiplier * math.log(8))
    frequencies = spec(scaling__type="yarn", scaling__factor=8.0, scaling__original_context_length=32).frequencies()
    expected = naive.logits(LLAMA, TOKENS, frequencies=frequencies, magnitude=magnitude)
    agree(ours(LLAMA, scaling(**keys)), expected)


def test_a_models_own_magnitude_stands_in_place_of_the_formula():
    """``attention_factor`` of transformers; settings that scale otherwise go by the formula again."""
    plain = {"scaling__type": "yarn", "scaling__factor": 8.0}
    assert spec(**plain, scaling__yarn_attn_factor=1.25).magnitude == 1.25
    assert spec(**plain, scaling__yarn_attn_factor=1.25, scaling__attn_factor=2.0).magnitude == 2.5
    assert spec(**plain, scaling__yarn_attn_factor=0.0).magnitude == spec(**plain).magnitude
    assert spec(scaling__yarn_attn_factor=1.25).magnitude == 1.0
    assert RopeConfig(scaling="yarn", factor=8.0).metadata("x")["x.rope.scaling.yarn_attn_factor"] == 0.0
    assert RopeConfig(freq_base=500.0).metadata("x") == {"x.rope.freq_base": 500.0}


@pytest.mark.parametrize(("stored", "mscale"), [(0.0707, 0.707), (0.1, 1.0)])
def test_deepseek_puts_the_temperature_into_scores(stored, mscale):
    """V2 has mscale = mscale_all_dim = 0.707, V3 one; files hold a tenth."""
    values = {"scaling__type": "yarn", "scaling__factor": 40.0, "scaling__yarn_log_multiplier": stored}
    rope = spec("deepseek2", **values)
    assert rope.magnitude == 1.0
    assert rope.attention_factor == pytest.approx((0.1 * mscale * math.log(40) + 1) ** 2, rel=1e-6)
    assert spec("deepseek2", **values, scaling__attn_factor=0.5).attention_factor == rope.attention_factor / 4


def test_scores_of_others_are_left_alone():
    plain = {"scaling__type": "yarn", "scaling__factor": 40.0}
    assert spec("deepseek2", **plain).attention_factor == 1.0
    assert spec("deepseek2", **plain).magnitude == pytest.approx(1 + 0.1 * math.log(40))
    assert spec(**plain, scaling__yarn_log_multiplier=1.0).attention_factor == 1.0
    assert spec("deepseek2", scaling__yarn_log_multiplier=0.1).attention_factor == 1.0
    assert spec(scaling__type="yarn", scaling__factor=0.5).magnitude == 1.0


def test_layers_with_a_window_have_a_base_of_their_own_and_no_scaling():
    m = metadata(freq_base=1e6, scaling__type="linear", scaling__factor=8.0)
    whole = RopeSpec.read(m, "x", 16, 256)
    np.testing.assert_allclose(whole.frequencies(), 1e6**-ONE / 8, rtol=1e-12)
    np.testing.assert_allclose(whole.of_windows(m, "x", 10000.0).frequencies(), 10000.0**-ONE, rtol=1e-12)
    given = metadata(freq_base_swa=500.0)
    np.testing.assert_allclose(whole.of_windows(given, "x", 10000.0).frequencies(), 500.0**-ONE, rtol=1e-12)


ROPES = {
    "none": ({"scaling": "none", "freq_base": 500.0}, {"llama.rope.freq_base": 500.0} | scaling(type="none")),
    "linear": ({"scaling": "linear", "factor": 2}, scaling(type="linear", factor=2.0)),
    "yarn": (
        {"scaling": "yarn", "factor": 4, "original_context": 64, "beta_fast": 8, "beta_slow": 2, "ext_factor": 0.5,
         "attn_factor": 1.25},
        scaling(type="yarn", factor=4.0, original_context_length=64, yarn_beta_fast=8.0, yarn_beta_slow=2.0,
                yarn_ext_factor=0.5, attn_factor=1.25),
    ),
    "dynamic": (
        {"scaling": "dynamic", "factor": 4, "original_context": 64},
        scaling(type="dynamic", factor=4.0, original_context_length=64),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "keys"), ROPES.values(), ids=ROPES)
@pytest.mark.parametrize("name", ["llama", "llama-rope-yarn"])
def test_settings_replace_what_the_file_says(name, fields, keys):
    path = path_of(name)
    parts = load_parts(EngineConfig(path, rope=fields, num_threads=2, kv_type="f32"))
    got = parts.runner.forward([Span(TOKENS[:100], 0, list(range(7)), "all")])
    assert (got == ours(path, keys, parts.context_size, TOKENS[:100])).all()
    assert (got != ours(path, None, parts.context_size, TOKENS[:100])).any()
    assert parts.metadata[next(iter(keys))] == next(iter(keys.values()))
    with gguf.open(path) as file:
        assert file.metadata.get("llama.rope.scaling.factor") == {"llama": None, "llama-rope-yarn": 8.0}[name]


def test_contexts_that_a_scaling_reaches():
    rope = RopeConfig("yarn", 4)
    assert load_parts(EngineConfig(LLAMA, context_size=1024, rope=rope)).context_size == 1024
    assert load_parts(EngineConfig(LLAMA, rope=rope)).context_size == 256
    with pytest.raises(ConfigError, match="context_size must be at most the 1024 tokens of rope, not 1025"):
        load_parts(EngineConfig(LLAMA, context_size=1025, rope=rope))
    with pytest.raises(ConfigError, match="at most the 256 tokens that the model was trained for, not 257"):
        load_parts(EngineConfig(LLAMA, context_size=257, rope=RopeConfig(freq_base=1e6)))


def test_settings_that_the_file_has_no_tensors_for():
    with pytest.raises(LoadError, match="rope_factors_long"):
        load_parts(EngineConfig(LLAMA, rope=RopeConfig("longrope")))


def test_models_without_rotary_embedding_refuse_the_setting():
    still = SimpleNamespace(arch="gpt2", rope=None, context_length=64)
    assert choose_context(still, EngineConfig()) == 64
    with pytest.raises(ConfigError, match="rope must be left out: architecture gpt2 has no rotary embedding"):
        choose_context(still, EngineConfig(rope=RopeConfig(freq_base=1e6)))
