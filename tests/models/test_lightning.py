"""Layers with lightning attention: what metadata say about them, and what they may not say."""

import numpy as np
import pytest

from oxillama.errors import LoadError
from oxillama.gguf import Metadata
from oxillama.models.lightning import fading, lightning_shape
from tests.models import naive
from tests.models.references import TOKENS, load, logits, rewritten
from tests.models.tiny import Shape, tiny

DEEP = Shape(n_layers=4, n_heads=4, n_kv_heads=2)


def test_states_fade_more_slowly_from_layer_to_layer():
    """The slopes of the first layer are those of ALiBi, the last one's nearly none."""
    first, last = fading(8, 0, 80), fading(8, 79, 80)
    assert np.allclose(first, np.exp(-(2.0 ** -np.arange(1, 9)) * (1 + 1e-5)), rtol=1e-6)
    assert (np.diff(first) > 0).all()
    assert (last > 1 - 1e-5).all()
    assert (last < 1).any()
    assert np.isfinite(fading(3, 0, 1)).all()


def test_what_layers_keep(tmp_path):
    model = load(tiny("minimax-01-mixed", tmp_path, DEEP))
    assert [layer.n_heads for layer in model.spec.layers] == [0, 4, 0, 0]
    kept = [[type(shape).__name__ for shape in layer] for layer in model.spec.states]
    assert kept == [["RecurrentShape"], ["KvShape"], ["RecurrentShape"], ["RecurrentShape"]]
    assert load(tiny("minimax-01", tmp_path)).spec.layers[7].n_heads == 3  # where metadata don't say


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("attention.recurrent_layers", [True] * 3, "has 3 values for 4 layers"),
        ("attention.recurrent_layers", [True] * 4, r"blk\.1\.attn_qkv\.weight is missing"),
        ("attention.recurrent_layers", [False] * 4, r"blk\.0\.attn_qkv\.weight has shape"),
        ("attention.value_length", 8, r"attention\.value_length is 8, but attention\.key_length 16"),
        ("attention.head_count", 2, r"blk\.0\.attn_output\.weight has shape"),
        ("attention.head_count", 1 << 20, r"attention\.head_count' is 1048576"),
        ("residual_scale", float("nan"), r"minimax-01\.residual_scale"),
        ("residual_scale", -1.0, r"minimax-01\.residual_scale"),
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path, key, value, message):
    with pytest.raises(LoadError, match=message):
        load(rewritten(tiny("minimax-01-mixed", tmp_path, DEEP), tmp_path, {f"minimax-01.{key}": value}))


def test_states_that_no_machine_has():
    keys = {"general.architecture": "minimax-01", "minimax-01.attention.head_count": 1 << 16}
    with pytest.raises(LoadError, match=r"head_count 65536 and .*key_length 4096 make a state of .* values"):
        lightning_shape(Metadata({}).replaced(keys), 4096)


def test_the_interval_of_metadata(tmp_path):
    path = tiny("minimax-01", tmp_path)
    once = rewritten(path, tmp_path, {"minimax-01.full_attention_interval": 8})
    assert (logits(once, TOKENS) == logits(path, TOKENS)).all()
    with pytest.raises(LoadError, match=r"blk\.3\.attn_qkv\.weight"):
        load(rewritten(path, tmp_path, {"minimax-01.full_attention_interval": 4}))


def test_a_stream_that_is_not_scaled(tmp_path):
    path = rewritten(tiny("minimax-01-mixed", tmp_path), tmp_path, {"minimax-01.residual_scale": 1.0})
    expected = naive.logits(path, TOKENS)
    assert np.abs(logits(path, TOKENS) - expected).max() <= 2e-5 * np.abs(expected).max()
