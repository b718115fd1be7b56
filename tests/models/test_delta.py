"""Layers with the gated delta rule: what metadata say about them, and what they may not say."""

import numpy as np
import pytest

import oxillama.gguf as gguf
from oxillama.errors import LoadError, MissingTensorError, UnsupportedModelError
from oxillama.gguf import Metadata
from oxillama.kernels.delta import Delta
from oxillama.models.delta_spec import DeltaSpec, read_delta_spec
from oxillama.models.registry import read_model_spec
from tests.models import naive
from tests.models.references import TOKENS, load, logits, path_of, rewritten
from tests.models.tiny import Shape, tiny

BASE = {"conv_kernel": 4, "inner_size": 60, "state_size": 24, "time_step_rank": 6, "group_count": 3}
DEEP = Shape(n_layers=4, n_heads=4, n_kv_heads=2)
FEW = [token % 60 for token in TOKENS]


def metadata(**values):
    """These keys over BASE; a key that is None is left out."""
    keys = {f"qwen35.ssm.{k}": v for k, v in (BASE | values).items() if v is not None}
    return Metadata({}).replaced({"general.architecture": "qwen35"} | keys)


def test_sizes():
    spec = read_delta_spec(metadata(), neighbours=False)
    assert spec == DeltaSpec(4, 3, 6, 24, 10, neighbours=False)
    assert (spec.n_inner, spec.n_convolved, spec.rule_at) == (60, 2 * 3 * 24 + 60, 624)
    rule = Delta(np.zeros(6), np.zeros(6), np.ones(10), k_dim=24, n_keys=3, eps=1e-6, neighbours=False)
    assert spec.shape.n_values == 624 + rule.n_values


@pytest.mark.parametrize("key", list(BASE))
@pytest.mark.parametrize("value", [None, 0, -1, 1 << 30, "4", 4.5])
def test_sizes_that_cannot_be(key, value):
    with pytest.raises(LoadError, match=rf"qwen35\.ssm\.{key}"):
        read_delta_spec(metadata(**{key: value}), neighbours=False)


def test_heads_that_do_not_divide():
    with pytest.raises(LoadError, match=r"inner_size is 60, which qwen35\.ssm\.time_step_rank 9 does not divide"):
        read_delta_spec(metadata(time_step_rank=9), neighbours=False)
    with pytest.raises(LoadError, match=r"time_step_rank is 6, which qwen35\.ssm\.group_count 4 does not divide"):
        read_delta_spec(metadata(group_count=4), neighbours=False)


@pytest.mark.parametrize(
    "values",
    [
        {"inner_size": 1 << 20, "state_size": 1 << 10, "time_step_rank": 1, "group_count": 1},
        {"inner_size": 1 << 16, "state_size": 1 << 16, "time_step_rank": 1 << 16, "group_count": 1},
        {"inner_size": 1 << 20, "conv_kernel": 256, "state_size": 16, "time_step_rank": 1, "group_count": 1},
    ],
)
def test_states_that_no_machine_has(values):
    with pytest.raises(LoadError, match=r"qwen35\.ssm\.inner_size \d+, .* values in each layer"):
        read_delta_spec(metadata(**values), neighbours=False)


def test_what_layers_keep(tmp_path):
    """Attention in every third layer, from the second on, keys and values; a state in the others."""
    model = load(tiny("qwen35", tmp_path, DEEP))
    assert [layer.n_heads for layer in model.spec.layers] == [0, 4, 0, 0]
    kept = [type(layer[0]).__name__ for layer in model.spec.states]
    assert kept == ["RecurrentShape", "KvShape", "RecurrentShape", "RecurrentShape"]


def test_without_a_list_the_last_of_an_interval_has_attention(tmp_path):
    with gguf.open(path_of("qwen35")) as file:
        listed = file.metadata["qwen35.attention.recurrent_layers"]
    path = rewritten(path_of("qwen35"), tmp_path, {"qwen35.attention.recurrent_layers": None})
    with gguf.open(path) as file:
        assert [not layer.n_heads for layer in read_model_spec(file).layers] == list(listed) == [True] * 3 + [False]
    assert (logits(path, FEW) == logits(path_of("qwen35"), FEW)).all()
    bare = {"qwen35.attention.recurrent_layers": None, "qwen35.full_attention_interval": None}
    path = rewritten(path_of("qwen35"), tmp_path, bare)  # four, where metadata don't say
    assert (logits(path, FEW) == logits(path_of("qwen35"), FEW)).all()


@pytest.mark.parametrize(
    ("key", "value", "error", "message"),
    [
        ("attention.recurrent_layers", [True, False], LoadError, "has 2 values for 4 layers"),
        ("attention.recurrent_layers", [1, 0, 2, 1], LoadError, "only 0 and 1 say which layers are recurrent"),
        ("attention.recurrent_layers", [True] * 4, MissingTensorError, r"blk\.1\.ssm_out\.weight is missing"),
        ("attention.recurrent_layers", [False] * 4, MissingTensorError, r"blk\.0\.attn_q\.weight is missing"),
        ("attention.value_length", 8, LoadError, "value_length is 8, but attn_q has as many gates as queries"),
        ("full_attention_interval", 0, LoadError, "full_attention_interval"),
        ("attention.head_count", 0, LoadError, "head_count"),
        ("ssm.group_count", 3, LoadError, r"attn_qkv\.weight has shape"),
        ("attention.scale", 0.5, UnsupportedModelError, r"attention\.scale is 0\.5"),
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path, key, value, error, message):
    keys = {f"qwen35.{key}": value}
    if key == "full_attention_interval":
        keys["qwen35.attention.recurrent_layers"] = None
    with pytest.raises(error, match=message):
        load(rewritten(tiny("qwen35", tmp_path, DEEP), tmp_path, keys))


def test_positions_of_three_parts_belong_to_those_that_see(tmp_path):
    path = rewritten(tiny("qwen3next", tmp_path), tmp_path, {"qwen3next.rope.dimension_sections": [2, 1, 1, 0]})
    with pytest.raises(UnsupportedModelError, match=r"qwen3next\.rope\.dimension_sections is "):
        load(path)


@pytest.mark.parametrize("name", ["qwen35", "qwen3next"])
def test_the_order_of_heads_counts(tmp_path, name):
    """A twin that takes the other order is far off: the shape has heads for which the two differ."""
    path = tiny(name, tmp_path, DEEP)
    other = "qwen3next" if name != "qwen3next" else "qwen35moe"
    found, expected = logits(path, TOKENS), naive.logits(path, TOKENS)
    naive.DECODERS[name], kept = naive.DECODERS[other], naive.DECODERS[name]
    try:
        wrong = naive.logits(path, TOKENS)
    finally:
        naive.DECODERS[name] = kept
    largest = np.abs(expected).max()
    assert np.abs(found - expected).max() <= 2e-5 * largest < 1e-2 * largest <= np.abs(found - wrong).max()


def test_the_block_that_guesses_further_ahead_is_left_out(tmp_path):
    path = tiny("qwen35moe-mtp", tmp_path, DEEP)
    with gguf.open(path) as file:
        blocks = {int(name.split(".")[1]) for name in file.tensors if name.startswith("blk.")}
        rest = {t.name: np.array(t.dequantize()) for t in file.tensors.values() if not t.name.startswith("blk.4.")}
        keys = {"block_count": 4, "nextn_predict_layers": 0, "attention.recurrent_layers": [True, False, True, True]}
        gguf.write_gguf(
            tmp_path / "rest.gguf", dict(file.metadata) | {f"qwen35moe.{k}": v for k, v in keys.items()}, rest
        )
    assert blocks == set(range(5))
    assert load(path).spec.n_layers == 4
    assert (logits(path, TOKENS) == logits(tmp_path / "rest.gguf", TOKENS)).all()
