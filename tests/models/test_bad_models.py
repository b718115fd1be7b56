"""Files that are well-formed GGUF but no usable model: typed errors that name the key or tensor."""

from pathlib import Path

import numpy as np
import pytest

import oxillama.gguf as gguf
from oxillama.errors import LoadError, MissingKeyError, MissingTensorError, UnsupportedModelError
from oxillama.models import architectures, families, load_model
from oxillama.models.families import FAMILIES
from tests.models.references import path_of

F32 = np.float32


def load(overrides=None, name="llama"):
    with gguf.open(path_of(name), overrides=overrides) as file:
        return load_model(file)


def rewritten(tmp_path, change, name="llama"):
    """The reference model after ``change(tensors)``."""
    with gguf.open(path_of(name)) as file:
        tensors = {t.name: np.array(t.dequantize()) for t in file.tensors.values()}
        change(tensors)
        target = tmp_path / "changed.gguf"
        gguf.write_gguf(target, dict(file.metadata), tensors)
    return target


@pytest.mark.parametrize(
    ("key", "value", "error", "message"),
    [
        ("general.architecture", "perceptron", UnsupportedModelError, "architecture 'perceptron' is not supported"),
        ("llama.attention.head_count", 0, LoadError, "llama.attention.head_count"),
        ("llama.attention.head_count", 3, LoadError, "head_count_kv is 2, which does not divide head_count 3"),
        ("llama.attention.head_count_kv", 3, LoadError, "head_count_kv is 3, which does not divide"),
        ("llama.attention.key_length", 10**6, LoadError, "llama.attention.key_length"),
        ("llama.attention.key_length", 32, LoadError, "attn_q.weight has shape (64, 64); metadata ask for (128, 64)"),
        ("llama.attention.value_length", 32, LoadError, "attn_v.weight has shape (32, 64); metadata ask for (64, 64)"),
        ("llama.embedding_length", 10**9, LoadError, "llama.embedding_length"),
        ("llama.embedding_length", 128, LoadError, "has shape"),
        ("llama.block_count", 0, LoadError, "llama.block_count"),
        ("llama.block_count", 4, MissingTensorError, "blk.3.attn_norm.weight is missing"),
        ("llama.block_count", 2, UnsupportedModelError, "has no use for blk.2."),
        ("llama.rope.dimension_count", 17, LoadError, "llama.rope.dimension_count"),
        ("llama.rope.dimension_count", 15, LoadError, "rotated dimensions come in pairs"),
        ("llama.rope.freq_base", 0.0, LoadError, "freq_base' is 0.0"),
        ("llama.rope.freq_base", float("nan"), LoadError, "freq_base"),
        ("llama.rope.scaling.type", "spiral", UnsupportedModelError, "scaling.type is 'spiral'"),
        ("llama.rope.scaling.factor", -1.0, LoadError, "scaling.factor' is -1.0"),
        ("llama.attention.layer_norm_rms_epsilon", float("nan"), LoadError, "layer_norm_rms_epsilon"),
        ("llama.rope.scaling.yarn_beta_fast", 1e308, LoadError, "yarn_beta_fast"),
        ("llama.rope.scaling.yarn_beta_slow", 5e-324, LoadError, "yarn_beta_slow"),
        ("llama.rope.scaling.attn_factor", 1e38, LoadError, "attn_factor"),
        ("llama.rope.scaling.yarn_ext_factor", 2.0, LoadError, "yarn_ext_factor"),
        ("llama.attention.causal", False, UnsupportedModelError, "llama.attention.causal is False"),
        ("llama.logit_scale", 0.5, UnsupportedModelError, "llama.logit_scale is 0.5"),
        ("llama.expert_count", 10**9, LoadError, "llama.expert_count"),
        ("llama.context_length", 0, LoadError, "llama.context_length"),
    ],
)
def test_bad_hyper_parameters(key, value, error, message):
    with pytest.raises(error) as caught:
        load({key: value})
    assert message in str(caught.value)


@pytest.mark.parametrize(("used", "n"), [(0, 4), (5, 4)])
def test_bad_expert_counts(used, n):
    with pytest.raises(LoadError, match=r"llama\.expert_used_count"):
        load({"llama.expert_used_count": used, "llama.expert_count": n}, "mixtral")


def test_missing_key(tmp_path):
    with gguf.open(path_of("llama")) as file:
        metadata = {k: v for k, v in file.metadata.items() if k != "llama.block_count"}
        gguf.write_gguf(tmp_path / "no_key.gguf", metadata, {t.name: t.dequantize() for t in file.tensors.values()})
    with gguf.open(tmp_path / "no_key.gguf") as file, pytest.raises(MissingKeyError, match=r"llama\.block_count"):
        load_model(file)


def test_missing_tensor(tmp_path):
    path = rewritten(tmp_path, lambda t: t.pop("blk.1.ffn_up.weight"))
    with gguf.open(path) as file, pytest.raises(MissingTensorError, match=r"blk\.1\.ffn_up\.weight is missing"):
        load_model(file)


def test_wrong_shape(tmp_path):
    path = rewritten(tmp_path, lambda t: t.update({"blk.0.attn_q.weight": np.zeros((64, 32), F32)}))
    with gguf.open(path) as file, pytest.raises(LoadError, match=r"attn_q\.weight has shape \(64, 32\).*\(64, 64\)"):
        load_model(file)


def test_tensor_that_nothing_uses(tmp_path):
    path = rewritten(tmp_path, lambda t: t.update({"blk.0.mystery.weight": np.zeros(4, F32)}))
    with gguf.open(path) as file, pytest.raises(UnsupportedModelError, match=r"no use for blk\.0\.mystery\.weight"):
        load_model(file)


def test_bad_rope_factors(tmp_path):
    path = rewritten(tmp_path, lambda t: t["rope_freqs.weight"].__setitem__(3, 0.0), "llama-rope-llama3")
    with gguf.open(path) as file, pytest.raises(LoadError, match="rotary factors"):
        load_model(file)


def test_vocabulary_only(tmp_path):
    path = rewritten(tmp_path, lambda t: t.clear())
    with gguf.open(path) as file, pytest.raises(LoadError, match=r"token_embd\.weight is missing"):
        load_model(file)


def test_architectures_are_listed():
    assert {"llama", "qwen2", "qwen2moe", "qwen3", "qwen3moe"} <= set(architectures())


def test_each_architecture_is_registered_by_the_module_that_is_imported_for_it():
    assert sorted(name for names in FAMILIES.values() for name in names.split()) == list(architectures())
    for family, names in FAMILIES.items():
        source = (Path(families.__file__).parent / f"{family}.py").read_text()
        assert [name for name in names.split() if f'"{name}"' not in source] == []


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("qwen2", "blk.1.attn_k.bias"),
        ("qwen2moe", "blk.0.attn_q.bias"),
        ("qwen3", "blk.2.attn_q_norm.weight"),
        ("qwen3moe", "blk.0.attn_k_norm.weight"),
        ("qwen3moe", "blk.1.ffn_gate_inp.weight"),
        ("qwen3moe", "blk.2.ffn_up_exps.weight"),
        ("qwen2moe", "blk.0.ffn_gate_inp_shexp.weight"),
        ("qwen2moe", "blk.1.ffn_down_shexp.weight"),
    ],
)
def test_what_an_architecture_is_made_of_can_not_be_missing(tmp_path, name, tensor):
    path = rewritten(tmp_path, lambda t: t.pop(tensor), name)
    with gguf.open(path) as file, pytest.raises(MissingTensorError, match=f"tensor {tensor} is missing"):
        load_model(file)


def test_norms_that_an_architecture_does_not_have_are_not_dropped(tmp_path):
    path = rewritten(tmp_path, lambda t: t.update({"blk.0.attn_k_norm.weight": np.ones(16, F32)}))
    with gguf.open(path) as file, pytest.raises(UnsupportedModelError, match=r"no use for blk\.0\.attn_k_norm"):
        load_model(file)


def test_experts_need_no_dense_width(tmp_path):
    with gguf.open(path_of("qwen3moe")) as file:
        metadata = {k: v for k, v in file.metadata.items() if k != "qwen3moe.feed_forward_length"}
        gguf.write_gguf(tmp_path / "moe.gguf", metadata, dict(file.tensors))
    with gguf.open(tmp_path / "moe.gguf") as file:
        assert load_model(file).spec.experts.n_ff == 64


def test_leading_ones_may_be_dropped(tmp_path):
    """The gate of a shared expert, one row, which quantisers store as a vector."""

    def flatten(tensors):
        name = "blk.0.ffn_gate_inp_shexp.weight"
        assert tensors[name].shape == (1, 64)
        tensors[name] = tensors[name].reshape(64)

    with gguf.open(rewritten(tmp_path, flatten, "qwen2moe")) as file:
        assert load_model(file).spec.experts.n_ff_shared == 96
