"""Gemma 4: which layers keep keys and values, what files may hold beside, and what is refused."""

import numpy as np
import pytest

import oxillama.gguf as gguf
from oxillama.errors import LoadError, MissingTensorError, UnsupportedModelError
from tests.models import naive
from tests.models.references import TOKENS, load, logits, rewritten
from tests.models.tiny import Shape, tiny

DEEP = Shape(n_layers=6, n_heads=4, n_kv_heads=2)


def agrees(path):
    expected = naive.logits(path, TOKENS)
    return np.abs(logits(path, TOKENS) - expected).max() <= 2e-5 * np.abs(expected).max()


def test_layers_that_borrow_keep_nothing(tmp_path):
    """The last four of six: layers 2, 3 and 5 have a window and read those of layer 0, layer 4 those of layer 1."""
    model = load(tiny("gemma4-e4b", tmp_path, DEEP))
    assert [len(kept) for kept in model.spec.states] == [1, 1, 0, 0, 0, 0]
    assert model.lenders == [0, 1, 0, 0, 1, 0]
    narrow, wide = (kept[0] for kept in model.spec.states[:2])
    assert (narrow.k_dim, narrow.n_heads, narrow.window) == (16, 2, 5)
    assert (wide.k_dim, wide.n_heads, wide.window) == (32, 1, 0)


def test_keys_that_no_layer_uses_may_be_in_the_file(tmp_path):
    path = tiny("gemma4-e4b", tmp_path, DEEP)
    extra = {
        "blk.3.attn_k.weight": np.ones((32, 64), np.float32),
        "blk.3.attn_v.weight": np.ones((32, 64), np.float32),
        "blk.3.attn_k_norm.weight": np.ones(16, np.float32),
    }
    assert (logits(rewritten(path, tmp_path, {}, extra), TOKENS) == logits(path, TOKENS)).all()


@pytest.mark.parametrize(("layer", "found"), [(1, False), (4, True)])
def test_values_may_be_what_keys_are_made_of(tmp_path, layer, found):
    """In layers without a matrix for values, whatever others have."""
    path = tiny("gemma4", tmp_path, DEEP)
    with gguf.open(path) as file:
        assert f"blk.{layer}.attn_v.weight" not in file.tensors
    extra = {f"blk.{layer}.attn_v.weight": np.full((32, 64), 0.01, np.float32)} if found else {}
    assert agrees(rewritten(path, tmp_path, {}, extra))


@pytest.mark.parametrize(
    "keys",
    [
        {"gemma4.attention.shared_kv_layers": None, "gemma4.embedding_length_per_layer_input": None},
        {"gemma4.final_logit_softcapping": None},
        {"gemma4.rope.freq_base_swa": 77.0},
        {"gemma4.attention.sliding_window": 3},
    ],
)
def test_keys_that_change_what_is_computed(tmp_path, keys):
    assert agrees(rewritten(tiny("gemma4", tmp_path), tmp_path, keys))


def test_scales_of_layers_are_in_all_or_none(tmp_path):
    with gguf.open(tiny("gemma4-e4b", tmp_path)) as file:
        tensors = {t.name: t.dequantize() for t in file.tensors.values()}
        metadata = dict(file.metadata)
    without = {name: x for name, x in tensors.items() if "layer_output_scale" not in name}
    gguf.write_gguf(tmp_path / "none.gguf", metadata, without)
    assert agrees(tmp_path / "none.gguf")
    del tensors["blk.1.layer_output_scale.weight"]
    gguf.write_gguf(tmp_path / "some.gguf", metadata, tensors)
    with pytest.raises(MissingTensorError, match=r"blk\.1\.layer_output_scale"):
        load(tmp_path / "some.gguf")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("attention.shared_kv_layers", 3, "shared_kv_layers"),
        ("attention.shared_kv_layers", 2, "leaves layer 1 no layer of its kind"),
        ("attention.key_length_swa", 8, "key_length_swa is 8, but rope.dimension_count_swa is 16"),
        ("attention.value_length_swa", 8, "blk.0.attn_v.weight has shape"),
        ("embedding_length_per_layer_input", 7, "per_layer_token_embd.weight has shape"),
        ("embedding_length_per_layer_input", 0, "has no use for"),
        ("embedding_length_per_layer_input", 1 << 40, "embedding_length_per_layer_input"),
    ],
)
def test_what_can_not_be(tmp_path, key, value, message):
    with pytest.raises(LoadError) as caught:
        load(rewritten(tiny("gemma4-e4b", tmp_path), tmp_path, {f"gemma4.{key}": value}))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [("attention.shared_kv_layers", 1), ("attention.key_length_swa", 8), ("embedding_length_per_layer_input", 8)],
)
def test_others_have_no_use_for_its_keys(tmp_path, key, value):
    with pytest.raises(UnsupportedModelError, match=rf"gemma3\.{key} is {value}"):
        load(rewritten(tiny("gemma3", tmp_path), tmp_path, {f"gemma3.{key}": value}))
