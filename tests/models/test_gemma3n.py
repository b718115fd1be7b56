"""Gemma 3n: streams, sparse activations and shared keys in other numbers, and what is refused."""

import math

import numpy as np
import pytest

from oxillama.errors import LoadError, MissingTensorError, UnsupportedModelError
from tests.models import naive
from tests.models.references import TOKENS, load, logits, rewritten
from tests.models.tiny import Shape, gemma4, tiny

DEEP = Shape(n_layers=6, n_heads=4, n_kv_heads=2)


def agrees(path):
    expected = naive.logits(path, TOKENS)
    return np.abs(logits(path, TOKENS) - expected).max() <= 2e-5 * np.abs(expected).max()


def test_layers_that_borrow_keep_nothing(tmp_path):
    model = load(tiny("gemma3n", tmp_path, DEEP))
    assert [len(kept) for kept in model.spec.states] == [1, 1, 0, 0, 0, 0]
    assert model.lenders == [0, 1, 0, 0, 1, 0]


@pytest.mark.parametrize("n", [2, 3, 6])
def test_any_number_of_streams(tmp_path, monkeypatch, n):
    monkeypatch.setattr(gemma4, "STREAMS", n)
    assert agrees(tiny("gemma3n", tmp_path, DEEP))


@pytest.mark.parametrize(
    "keys",
    [
        {"activation_sparsity_scale": [0.0] * 6},
        {"activation_sparsity_scale": [-math.inf] * 6},
        {"activation_sparsity_scale": [-0.3, 1.0, 2.5, 5.0, 0.1, 0.2]},
        {"attention.shared_kv_layers": 0},
        {"attention.shared_kv_layers": 1},
        {"attention.sliding_window": 3},
        {"rope.freq_base_swa": 77.0},
        {"final_logit_softcapping": None},
        {"altup.active_idx": None},
    ],
)
def test_keys_that_change_what_is_computed(tmp_path, keys):
    path = tiny("gemma3n", tmp_path, DEEP)
    assert agrees(rewritten(path, tmp_path, {f"gemma3n.{key}": value for key, value in keys.items()}))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("altup.active_idx", 1, "altup.active_idx is 1"),
        ("altup.num_inputs", 1, "altup.num_inputs"),
        ("altup.num_inputs", 5, "altup_router.weight has shape"),
        ("altup.num_inputs", 1 << 40, "altup.num_inputs"),
        ("altup.num_inputs", None, "altup.num_inputs"),
        ("activation_sparsity_scale", None, "activation_sparsity_scale"),
        ("activation_sparsity_scale", [1.0, 1.0], "activation_sparsity_scale has 2 values for 3 layers"),
        ("activation_sparsity_scale", [1.0, math.nan, 1.0], "activation_sparsity_scale is nan"),
        ("activation_sparsity_scale", [1.0, math.inf, 1.0], "activation_sparsity_scale is inf"),
        ("attention.shared_kv_layers", None, "shared_kv_layers"),
        ("attention.shared_kv_layers", 3, "shared_kv_layers"),
        ("embedding_length_per_layer_input", 7, "per_layer_token_embd.weight has shape"),
        ("embedding_length_per_layer_input", None, "embedding_length_per_layer_input"),
    ],
)
def test_what_can_not_be(tmp_path, key, value, message):
    with pytest.raises(LoadError) as caught:
        load(rewritten(tiny("gemma3n", tmp_path), tmp_path, {f"gemma3n.{key}": value}))
    assert message in str(caught.value)


def test_a_missing_low_rank_branch_is_named(tmp_path):
    path = tiny("gemma3n", tmp_path)
    bare = path.read_bytes().replace(b"blk.0.laurel_l", b"blk.0.laurel_x")
    (tmp_path / "bare.gguf").write_bytes(bare)
    with pytest.raises(MissingTensorError, match=r"blk\.0\.laurel_l"):
        load(tmp_path / "bare.gguf")


def test_others_have_no_use_for_its_keys(tmp_path):
    path = rewritten(tiny("gemma4", tmp_path), tmp_path, {"gemma4.activation_sparsity_scale": [1.0, 1.0, 1.0]})
    with pytest.raises(UnsupportedModelError, match=r"gemma4\.activation_sparsity_scale"):
        load(path)
