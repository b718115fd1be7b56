"""What metadata say about experts, and what they may not say."""

import pytest

from oxillama.errors import LoadError, UnsupportedModelError
from oxillama.gguf import Metadata
from oxillama.models.experts import read_experts

BASE = {"expert_count": 16, "expert_used_count": 4, "expert_feed_forward_length": 96, "feed_forward_length": 512}


def read(arch="deepseek2", **values):
    """The spec of these keys over BASE; a key that is None is left out."""
    keys = {k: v for k, v in {**BASE, **values}.items() if v is not None}
    return read_experts(Metadata({}).replaced({f"{arch}.{k}": v for k, v in keys.items()}), arch)


def test_no_experts():
    assert read(expert_count=None) is None
    assert read(expert_count=0, expert_used_count=0) is None


@pytest.mark.parametrize(
    ("arch", "gating", "normalise", "activation"),
    [
        ("llama", "softmax", True, "silu"),
        ("dbrx", "softmax", True, "silu"),
        ("deepseek2", "softmax", False, "silu"),
        ("ernie4_5-moe", "softmax", True, "silu"),
        ("gpt-oss", "softmax_chosen", False, "swiglu_oai"),
        ("granitemoe", "softmax", True, "silu"),
        ("granitehybrid", "softmax", True, "silu"),
        ("jamba", "softmax", False, "silu"),
        ("olmoe", "softmax", False, "silu"),
        ("qwen2moe", "softmax", False, "silu"),
        ("qwen3moe", "softmax", True, "silu"),
    ],
)
def test_what_an_architecture_means_where_metadata_are_silent(arch, gating, normalise, activation):
    spec = read(arch)
    assert (spec.gating, spec.normalise, spec.activation) == (gating, normalise, activation)
    assert (spec.n_experts, spec.n_used, spec.n_ff, spec.scale, spec.n_groups) == (16, 4, 96, 1.0, 1)
    assert all(spec.in_layer(i) for i in range(4))


def test_metadata_come_before_defaults():
    spec = read(
        expert_gating_func=2,
        expert_weights_norm=True,
        expert_weights_scale=2.5,
        expert_group_count=4,
        expert_group_used_count=2,
        expert_shared_count=2,
        leading_dense_block_count=1,
        interleave_moe_layer_step=2,
    )
    assert (spec.gating, spec.normalise, spec.scale) == ("sigmoid", True, 2.5)
    assert (spec.n_groups, spec.n_groups_used, spec.n_shared, spec.n_ff_shared) == (4, 2, 2, 192)
    assert [spec.in_layer(i) for i in range(4)] == [False, True, False, True]
    assert read(expert_gating_func=3).gating == "softmax_chosen"
    assert read(leading_dense_block_count=2).in_layer(1) is False


def test_widths():
    assert read(expert_feed_forward_length=None).n_ff == 512
    assert read(expert_feed_forward_length=None, feed_forward_length=[64, 64]).n_ff == 64
    assert read(expert_shared_feed_forward_length=40, expert_shared_count=2).n_ff_shared == 40
    assert read("qwen2moe").n_ff_shared == 512
    assert read("qwen2moe", expert_shared_feed_forward_length=40).n_ff_shared == 40
    assert read("qwen3moe").n_ff_shared == 0


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"expert_count": 10**9}, LoadError, "deepseek2.expert_count' is 1000000000; at least 0 and at most 4096"),
        ({"expert_count": -1}, LoadError, "deepseek2.expert_count' is -1"),
        ({"expert_used_count": 17}, LoadError, "deepseek2.expert_used_count' is 17; at least 1 and at most 16"),
        ({"expert_used_count": 0}, LoadError, "deepseek2.expert_used_count' is 0"),
        ({"expert_used_count": None}, LoadError, "no key 'deepseek2.expert_used_count'"),
        ({"expert_group_count": 5}, LoadError, "expert_group_count is 5, which does not divide expert_count 16"),
        ({"expert_group_count": 10**9}, LoadError, "deepseek2.expert_group_count' is 1000000000"),
        (
            {"expert_group_count": 4, "expert_group_used_count": 5},
            LoadError,
            "expert_group_used_count is 5, but deepseek2.expert_group_count is 4",
        ),
        (
            {"expert_group_count": 8, "expert_group_used_count": 1},
            LoadError,
            "expert_used_count is 4, but deepseek2.expert_group_used_count 1 leaves 2 experts",
        ),
        ({"expert_gating_func": 4}, UnsupportedModelError, "deepseek2.expert_gating_func is 4"),
        ({"expert_gating_func": -1}, UnsupportedModelError, "deepseek2.expert_gating_func is -1"),
        ({"expert_weights_scale": float("nan")}, LoadError, "deepseek2.expert_weights_scale' is nan"),
        ({"expert_weights_scale": -1.0}, LoadError, "deepseek2.expert_weights_scale' is -1.0"),
        ({"expert_weights_norm": 1}, LoadError, "deepseek2.expert_weights_norm"),
        ({"expert_feed_forward_length": -1}, LoadError, "deepseek2.expert_feed_forward_length' is -1"),
        ({"expert_feed_forward_length": 10**9}, LoadError, "deepseek2.expert_feed_forward_length' is 1000000000"),
        (
            {"expert_feed_forward_length": [64, 96]},
            UnsupportedModelError,
            "expert_feed_forward_length differs between layers, whose experts it measures: [64, 96]",
        ),
        ({"expert_shared_count": 10**9}, LoadError, "deepseek2.expert_shared_count' is 1000000000"),
        (
            {"expert_shared_count": 4000, "expert_feed_forward_length": 10**5},
            LoadError,
            "deepseek2.expert_shared_count is 4000: experts of 100000 values are too wide together",
        ),
        ({"expert_shared_feed_forward_length": -1}, LoadError, "deepseek2.expert_shared_feed_forward_length' is -1"),
        ({"leading_dense_block_count": -1}, LoadError, "deepseek2.leading_dense_block_count' is -1"),
        ({"interleave_moe_layer_step": 0}, LoadError, "deepseek2.interleave_moe_layer_step' is 0"),
    ],
)
def test_values_that_make_no_mixture(values, error, message):
    with pytest.raises(error) as caught:
        read(**values)
    assert message in str(caught.value)


def test_phi_routes_to_two():
    assert read("phimoe", expert_used_count=2).gating == "sparsemixer"
    with pytest.raises(UnsupportedModelError, match=r"phimoe\.expert_used_count is 4"):
        read("phimoe")
