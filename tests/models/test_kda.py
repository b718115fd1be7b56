"""Layers with the delta rule by channel: what metadata say about them, and what they may not say."""

import numpy as np
import pytest

from oxillama.errors import LoadError, UnsupportedModelError
from oxillama.gguf import Metadata
from oxillama.models.kda import KdaSpec, read_kda
from tests.models import naive
from tests.models.references import TOKENS, load, logits, rewritten
from tests.models.tiny import Shape, tiny

KEYS = {"ssm.conv_kernel": 4, "attention.head_count": 3, "kda.head_dim": 20}
DEEP = Shape(n_layers=4, n_heads=4, n_kv_heads=2)


def metadata(**values):
    """These keys over KEYS; a key that is None is left out."""
    keys = {f"kimi-linear.{k}": v for k, v in (KEYS | values).items() if v is not None}
    return Metadata({}).replaced({"general.architecture": "kimi-linear"} | keys)


def test_sizes():
    spec = read_kda(metadata(), bounded=False)
    assert spec == KdaSpec(4, 3, 20)
    assert [shape.n_values for shape in spec.shapes] == [180, 180, 180, 3 * 20 * 32]


@pytest.mark.parametrize("key", list(KEYS))
@pytest.mark.parametrize("value", [None, 0, -1, 1 << 30, "4", 4.5])
def test_sizes_that_cannot_be(key, value):
    with pytest.raises(LoadError, match=rf"kimi-linear\.{key}"):
        read_kda(metadata(**{key: value}), bounded=False)


def test_states_that_no_machine_has():
    with pytest.raises(LoadError, match=r"kda\.head_dim 4096, .* values in each layer"):
        read_kda(metadata(**{"attention.head_count": 1 << 10, "kda.head_dim": 1 << 12}), bounded=False)


def test_what_layers_keep(tmp_path):
    """The latent vector where metadata give a head, three convolutions and the rule's state elsewhere."""
    model = load(tiny("kimi-linear", tmp_path, DEEP))
    assert [layer.n_heads for layer in model.spec.layers] == [0, 4, 0, 0]
    kept = [[type(shape).__name__ for shape in layer] for layer in model.spec.states]
    assert kept == [["RecurrentShape"] * 4, ["KvShape"], ["RecurrentShape"] * 4, ["RecurrentShape"] * 4]


@pytest.mark.parametrize(
    ("key", "value", "error", "message"),
    [
        ("attention.head_count_kv", [0, 2, 0, 0], LoadError, r"head_count_kv is 2, but keys and values are unfolded"),
        ("attention.head_count_kv", [0, 1, 0], LoadError, "has 3 values for 4 layers"),
        ("attention.head_count_kv", [1, 1, 0, 0], LoadError, r"blk\.0\.attn_q\.weight has shape"),
        ("attention.head_count_kv", [0, 0, 0, 0], LoadError, r"blk\.1\.attn_q\.weight has shape"),
        ("attention.key_length", 99, LoadError, r"attention\.key_length is 99"),
        ("ssm.conv_kernel", 3, LoadError, r"ssm_conv1d_q\.weight has shape"),
        ("kda.head_dim", 11, LoadError, r"attn_q\.weight has shape"),
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path, key, value, error, message):
    with pytest.raises(error, match=message):
        load(rewritten(tiny("kimi-linear", tmp_path, DEEP), tmp_path, {f"kimi-linear.{key}": value}))


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (None, LoadError, r"bailingmoe3\.kda\.gate_lower_bound"),
        (0.0, LoadError, r"kda\.gate_lower_bound is 0; the bound of a decay's logarithm is below 0"),
        (1.0, LoadError, r"kda\.gate_lower_bound' is 1"),
        (-1e3, LoadError, r"kda\.gate_lower_bound' is -1000"),
        (float("nan"), LoadError, r"kda\.gate_lower_bound"),
    ],
)
def test_bounds_of_decays_that_cannot_be(tmp_path, value, error, message):
    with pytest.raises(error, match=message):
        load(rewritten(tiny("bailingmoe3", tmp_path), tmp_path, {"bailingmoe3.kda.gate_lower_bound": value}))


def test_decays_without_a_bound_are_refused_where_files_say_nothing_of_them(tmp_path):
    path = rewritten(tiny("bailingmoe3", tmp_path), tmp_path, {"bailingmoe3.kda.safe_gate": False})
    with pytest.raises(UnsupportedModelError, match=r"bailingmoe3\.kda\.safe_gate is False"):
        load(path)


def test_bounds_of_experts_by_layer(tmp_path):
    """As Ling 3.0 flash has them in its last layers."""
    keys = {f"bailingmoe3.swiglu_clamp_{name}": [0.3, 0.0, 0.2] for name in ("exp", "shexp")}
    path = tiny("bailingmoe3", tmp_path)
    plain, bounded = logits(path, TOKENS), rewritten(path, tmp_path, keys)
    found, expected = logits(bounded, TOKENS), naive.logits(bounded, TOKENS)
    assert np.abs(found - expected).max() <= 2e-5 * np.abs(expected).max()
    assert np.abs(found - plain).max() > 1e-3 * np.abs(expected).max()


def test_a_model_without_attention(tmp_path):
    """One layer, which has the rule: nothing is asked of what attention would need."""
    path = tiny("kimi-linear", tmp_path, Shape(n_layers=1))
    keys = ("kv_lora_rank", "key_length_mla", "value_length_mla")
    bare = rewritten(path, tmp_path, {f"kimi-linear.attention.{key}": None for key in keys})
    assert (logits(bare, TOKENS) == logits(path, TOKENS)).all()
