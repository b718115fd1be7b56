"""Llama 4: chunks of positions, queries that grow, experts of one size and of none, and what is refused."""

import numpy as np
import pytest

from oxillama.errors import LoadError, UnsupportedModelError
from tests.models import naive
from tests.models.references import DATA, TOKENS, load, logits, rewritten
from tests.models.tiny import Shape, tiny

DEEP = Shape(n_layers=5, n_heads=4, n_kv_heads=2)


def agrees(path):
    expected = naive.logits(path, TOKENS)
    return np.abs(logits(path, TOKENS) - expected).max() <= 2e-5 * np.abs(expected).max()


def test_past_a_chunk_logits_agree_with_transformers():
    """8262 positions, of which the last 70 see a new chunk, and the layers without chunks grow their queries."""
    reference = np.load(DATA / "long" / "llama4-chunks.npz")
    ours = logits(DATA / "long" / "llama4-chunks.gguf", reference["tokens"].tolist(), chunk=512)
    assert np.abs(ours[reference["rows"]] - reference["logits"]).max() <= 2e-5 * reference["largest"]


def test_layers_with_chunks_may_give_blocks_back(tmp_path):
    states = load(tiny("llama4", tmp_path, DEEP)).spec.states
    assert [kept[0].window for kept in states] == [8192, 8192, 8192, 0, 8192]


@pytest.mark.parametrize(
    "keys",
    [
        {"attention.sliding_window": 0},  # all layers see everything and rotate
        {"attention.sliding_window": 13},
        {"attention.temperature_length": 3, "attention.temperature_scale": 0.7},
        {"attention.sliding_window_pattern": 2},
        {"expert_weights_scale": 1.7},
    ],
)
def test_keys_that_change_what_is_computed(tmp_path, keys):
    path = tiny("llama4-short", tmp_path, DEEP)
    assert agrees(rewritten(path, tmp_path, {f"llama4.{key}": value for key, value in keys.items()}))


def test_maverick_has_no_norms_of_queries_and_keys(tmp_path):
    """Its 128 experts tell it apart."""
    assert agrees(tiny("llama4-short", tmp_path, Shape(n_layers=4, n_embd=24, n_ff=40, n_experts=128, n_used=1)))


@pytest.mark.parametrize(
    ("key", "value", "kind", "message"),
    [
        ("expert_used_count", 2, UnsupportedModelError, r"llama4\.expert_used_count is 2"),
        ("attention.temperature_length", 0, LoadError, "temperature_length"),
        ("attention.temperature_scale", -1.0, LoadError, "temperature_scale"),
    ],
)
def test_what_can_not_be(tmp_path, key, value, kind, message):
    with pytest.raises(kind, match=message):
        load(rewritten(tiny("llama4", tmp_path), tmp_path, {f"llama4.{key}": value}))


def test_others_have_no_use_for_its_keys(tmp_path):
    with pytest.raises(UnsupportedModelError, match=r"llama\.attention\.temperature_length is 8192"):
        load(rewritten(tiny("llama", tmp_path), tmp_path, {"llama.attention.temperature_length": 8192}))
