"""RWKV-7: what metadata say about its layers, and what they may not say."""

import numpy as np
import pytest

from oxillama.errors import LoadError, MissingTensorError
from oxillama.layer_state import RecurrentShape
from tests.models import naive
from tests.models.references import TOKENS, load, logits, rewritten
from tests.models.tiny import Shape, tiny

WIDE = Shape(n_heads=3, head_dim=20)


def test_what_layers_keep(tmp_path):
    """The last token's input of either mix, and between them a matrix for each head, in panels of 16 columns."""
    spec = load(tiny("rwkv7", tmp_path, WIDE)).spec
    assert spec.states == ((RecurrentShape(60), RecurrentShape(60 * 32), RecurrentShape(60)),) * 3
    assert [layer.n_heads for layer in spec.layers] == [0, 0, 0]


@pytest.mark.parametrize(
    ("key", "value", "error", "message"),
    [
        ("wkv.head_size", None, LoadError, r"rwkv7\.wkv\.head_size"),
        ("wkv.head_size", 0, LoadError, r"rwkv7\.wkv\.head_size"),
        ("wkv.head_size", 7, LoadError, r"head_size is 7, which does not divide embedding_length 60"),
        ("attention.decay_lora_rank", None, LoadError, r"attention\.decay_lora_rank"),
        ("attention.decay_lora_rank", 12, LoadError, r"time_mix_w1\.weight has shape"),
        ("attention.gate_lora_rank", -1, LoadError, r"attention\.gate_lora_rank"),
        ("attention.head_count", 4, LoadError, r"attention\.head_count is 4, but no layer of rwkv7 has attention"),
        ("feed_forward_length", 31, LoadError, r"channel_mix_key\.weight has shape"),
        ("block_count", 4, MissingTensorError, r"blk\.3\.attn_norm\.weight is missing"),
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path, key, value, error, message):
    with pytest.raises(error, match=message):
        load(rewritten(tiny("rwkv7", tmp_path, WIDE), tmp_path, {f"rwkv7.{key}": value}))


def test_the_first_layer_has_no_values_to_mix_with(tmp_path):
    """Its tensors for that are in files and have no effect."""
    path = tiny("rwkv7", tmp_path, WIDE)
    other = {f"blk.0.time_mix_{name}.weight": np.ones(dims, np.float32) for name, dims in (
        ("v0", (60,)), ("v1", (5, 60)), ("v2", (60, 5))
    )}  # fmt: skip
    assert (logits(rewritten(path, tmp_path, tensors=other), TOKENS) == logits(path, TOKENS)).all()


def test_heads_of_another_width_are_other_heads(tmp_path):
    path = tiny("rwkv7", tmp_path, WIDE)
    narrow = rewritten(path, tmp_path, {"rwkv7.wkv.head_size": 12})
    expected = naive.logits(narrow, TOKENS)
    found = logits(narrow, TOKENS)
    assert np.abs(found - expected).max() <= 2e-5 * np.abs(expected).max()
    assert np.abs(found - logits(path, TOKENS)).max() > 1e-2 * np.abs(expected).max()
