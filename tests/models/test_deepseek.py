"""Latent attention and grouped experts of random models of odd shapes, against the twin that unfolds every head."""

import numpy as np
import pytest

import oxillama.gguf as gguf
from oxillama.core.runner import Runner
from oxillama.errors import LoadError, MissingTensorError
from oxillama.gguf.recoding import quantize_file
from oxillama.kernels.batch import Span
from oxillama.layer_state import KvShape
from oxillama.models import load_model
from tests.models import naive

TOKENS = np.random.default_rng(0).integers(0, 50, 70).tolist()
# heads, kv_lora_rank, q_lora_rank (0: without), plain, rotated, value, experts, used, groups, groups used, sigmoid
SHAPES = {
    "lite": (1, 24, 0, 10, 6, 14, 5, 2, 1, 1, False),
    "v2": (3, 20, 28, 8, 2, 6, 4, 3, 1, 1, False),
    "v2 in groups": (3, 20, 28, 8, 2, 6, 12, 3, 4, 2, False),
    "v3": (5, 32, 12, 16, 8, 16, 12, 4, 4, 2, True),
    "one group of many": (2, 16, 8, 4, 4, 4, 6, 2, 3, 1, True),
    "values wider than keys": (4, 40, 16, 2, 4, 20, 3, 1, 1, 1, True),
}


def keys_of(shape):
    heads, rank, q_rank, plain, rotated, v_dim, experts, used, groups, groups_used, sigmoid = shape
    keys = {
        "context_length": 256,
        "embedding_length": 40,
        "block_count": 3,
        "feed_forward_length": 52,
        "leading_dense_block_count": 1,
        "attention.head_count": heads,
        "attention.head_count_kv": 1,
        "attention.layer_norm_rms_epsilon": 1e-3,
        "attention.kv_lora_rank": rank,
        "attention.key_length": rank + rotated,
        "attention.value_length": rank,
        "attention.key_length_mla": plain + rotated,
        "attention.value_length_mla": v_dim,
        "rope.dimension_count": rotated,
        "rope.freq_base": 500.0,
        "expert_count": experts,
        "expert_used_count": used,
        "expert_feed_forward_length": 20,
        "expert_shared_count": 2,
        "expert_weights_scale": 1.5,
        "expert_weights_norm": sigmoid,
        "expert_gating_func": 2 if sigmoid else 1,
        "expert_group_count": groups,
        "expert_group_used_count": groups_used,
    }
    if q_rank:
        keys["attention.q_lora_rank"] = q_rank
    return {"general.architecture": "deepseek2"} | {f"deepseek2.{k}": v for k, v in keys.items()}


def tensors_of(shape, seed=1):
    heads, rank, q_rank, plain, rotated, v_dim, experts, *_, sigmoid = shape
    rng = np.random.default_rng(seed)

    def matrix(*dims):
        return (rng.standard_normal(dims) * 1.5 / np.sqrt(dims[-1])).astype(np.float32)

    def weights(n):
        return rng.uniform(0.5, 1.5, n).astype(np.float32)

    t = {"token_embd.weight": matrix(50, 40), "output_norm.weight": weights(40), "output.weight": matrix(50, 40)}
    for i in range(3):
        p, q_dim = f"blk.{i}.", heads * (plain + rotated)
        t |= {p + "attn_norm.weight": weights(40), p + "ffn_norm.weight": weights(40)}
        if q_rank:
            t |= {p + "attn_q_a.weight": matrix(q_rank, 40), p + "attn_q_a_norm.weight": weights(q_rank)}
        t[p + ("attn_q_b.weight" if q_rank else "attn_q.weight")] = matrix(q_dim, q_rank or 40)
        t |= {p + "attn_kv_a_mqa.weight": matrix(rank + rotated, 40), p + "attn_kv_a_norm.weight": weights(rank)}
        t |= {p + "attn_k_b.weight": matrix(heads, rank, plain), p + "attn_v_b.weight": matrix(heads, v_dim, rank)}
        t[p + "attn_output.weight"] = matrix(40, heads * v_dim)
        for suffix, n_ff, *stack in [("", 52)] if i < 1 else [("_exps", 20, experts), ("_shexp", 40)]:
            for name, dims in (("gate", (n_ff, 40)), ("up", (n_ff, 40)), ("down", (40, n_ff))):
                t[f"{p}ffn_{name}{suffix}.weight"] = matrix(*stack, *dims)
        if i:
            t[p + "ffn_gate_inp.weight"] = matrix(experts, 40)
        if i and sigmoid:
            t[p + "exp_probs_b.bias"] = rng.uniform(-0.2, 0.2, experts).astype(np.float32)
    return t


def written(tmp_path, keys, tensors):
    gguf.write_gguf(tmp_path / "model.gguf", keys, tensors)
    return tmp_path / "model.gguf"


def joined(keys, tensors, shape):
    """The same model as files before 2025 hold it: heads' sizes under the plain names, one matrix that unfolds."""
    heads, rank, _, plain, rotated, v_dim, *_ = shape
    keys = {k: v for k, v in keys.items() if not k.endswith("_mla")}
    keys |= {
        "deepseek2.attention.head_count_kv": heads,
        "deepseek2.attention.key_length": plain + rotated,
        "deepseek2.attention.value_length": v_dim,
    }
    tensors = dict(tensors)
    for i in range(3):
        k_b, v_b = (tensors.pop(f"blk.{i}.attn_{name}_b.weight") for name in "kv")
        both = np.concatenate([k_b.transpose(0, 2, 1), v_b], 1)
        tensors[f"blk.{i}.attn_kv_b.weight"] = both.reshape(-1, rank)
    return keys, tensors


def runner_of(path, *, overrides=None, threads=2, repack=True, kv_type="f32"):
    with gguf.open(path, overrides=overrides) as file:
        model = load_model(file, num_threads=threads, repack=repack)
    return Runner(model, num_threads=threads, kv_type=kv_type, n_blocks=6)


def logits(path, *, chunk=70, **options):
    """Every position's logits, the prompt taken in chunks."""
    runner, table = runner_of(path, **options), [4, 2, 0, 1, 3]
    spans = [Span(TOKENS[i : i + chunk], i, table, "all") for i in range(0, len(TOKENS), chunk)]
    return np.concatenate([runner.forward([span]).copy() for span in spans])


def agree(got, expected):
    assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_logits(tmp_path, shape):
    path = written(tmp_path, keys_of(shape), tensors_of(shape))
    agree(logits(path), naive.logits(path, TOKENS))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("kv_type", ["f32", "q8_0", "q4_0"])
def test_chunks_threads_and_repacking_give_equal_bits(tmp_path, shape, kv_type):
    path = written(tmp_path, keys_of(shape), tensors_of(shape))
    whole = logits(path, threads=1, kv_type=kv_type)
    for chunk, threads, repack in ((1, 2, True), (7, 3, False), (64, 2, True)):
        assert (logits(path, chunk=chunk, threads=threads, repack=repack, kv_type=kv_type) == whole).all()


@pytest.mark.parametrize("want", ["last", "none"])
def test_only_wanted_rows_go_on(tmp_path, want):
    shape = SHAPES["v3"]
    path = written(tmp_path, keys_of(shape), tensors_of(shape))
    expected, runner = logits(path), runner_of(path)
    rows = runner.forward([Span(TOKENS[:33], 0, [4, 2, 0], want)]).copy()
    assert (rows == expected[33 - len(rows) : 33]).all()
    assert len(rows) == (want == "last")
    assert (runner.forward([Span(TOKENS[33:], 33, [4, 2, 0, 1, 3], "all")]) == expected[33:]).all()


@pytest.mark.parametrize("repack", [False, True])
@pytest.mark.parametrize("shape", [SHAPES["lite"], SHAPES["v2"]], ids=["lite", "v2"])
def test_one_matrix_for_keys_and_values(tmp_path, shape, repack):
    keys, tensors = joined(keys_of(shape), tensors_of(shape), shape)
    path = written(tmp_path, keys, tensors)
    with gguf.open(path) as file:
        model = load_model(file, repack=repack)
    heads, rank, _, plain, rotated, v_dim, *_ = shape
    assert model.spec.states == ((KvShape(1, rank + rotated, rank),),) * 3
    assert model.n_weight_bytes >= 3 * 4 * heads * rank * (plain + v_dim)  # the rearranged copy is counted
    got = logits(path, repack=repack)
    agree(got, naive.logits(path, TOKENS))
    (tmp_path / "split").mkdir()
    assert (got == logits(written(tmp_path / "split", keys_of(shape), tensors_of(shape)))).all()


@pytest.mark.parametrize("old", [False, True])
def test_quantised(tmp_path, old):
    """Near the twin on the stored weights: what remains is the rounding of activations to 8 bits.

    All experts are used, and queries are short, so that the rounding can't change which experts or tokens count.
    """
    shape = (2, 64, 32, 32, 8, 32, 2, 2, 1, 1, True)
    keys, tensors = keys_of(shape), tensors_of(shape)
    for i in range(3):
        tensors[f"blk.{i}.attn_q_b.weight"] *= np.float32(0.2)
    if old:
        keys, tensors = joined(keys, tensors, shape)
    target = tmp_path / "quantised.gguf"
    quantize_file(written(tmp_path, keys, tensors), target, "Q8_0", pure=True)
    with gguf.open(target) as file:
        names = ["attn_kv_b"] if old else ["attn_k_b", "attn_v_b"]
        assert {file.tensors[f"blk.1.{name}.weight"].type for name in names} == {"Q8_0"}
    expected, whole = naive.logits(target, TOKENS), logits(target)
    assert np.linalg.norm(whole - expected) < 0.05 * np.linalg.norm(expected)
    assert (logits(target, chunk=7, repack=False, threads=3) == whole).all()


@pytest.mark.parametrize("multiplier", [0.0, 0.0707, 0.1])
def test_yarn(tmp_path, multiplier):
    """With a multiplier the temperature is in the scores, squared; without one in sines and cosines."""
    scaling = {"type": "yarn", "factor": 8.0, "original_context_length": 64, "yarn_log_multiplier": multiplier}
    keys = keys_of(SHAPES["v3"]) | {f"deepseek2.rope.scaling.{k}": v for k, v in scaling.items()}
    path = written(tmp_path, keys, tensors_of(SHAPES["v3"]))
    agree(logits(path), naive.logits(path, TOKENS))


BAD = {
    "kv_lora_rank": ("attention.kv_lora_rank", 0, r"kv_lora_rank"),
    "cached keys": ("attention.key_length", 41, r"attention\.key_length is 41, but .*kv_lora_rank 32 .* 8 make 40"),
    "cached values": ("attention.value_length", 16, r"attention\.value_length is 16, but .*kv_lora_rank is 32"),
    "cached heads": ("attention.head_count_kv", 5, r"head_count_kv is 5, but .* 1$"),
    "no plain part": ("attention.key_length_mla", 8, r"key_length_mla is 8, which .*dimension_count 8 leaves nothing"),
    "odd rotation": ("rope.dimension_count", 7, r"dimension_count"),
    "no values": ("attention.value_length_mla", 0, r"value_length_mla"),
    "other values": ("attention.value_length_mla", 24, r"attn_v_b\.weight has shape \(5, 16, 32\).*\(5, 24, 32\)"),
    "no heads": ("attention.head_count", 0, r"attention\.head_count"),
    "more heads": ("attention.head_count", 6, r"attn_q_b\.weight has shape"),
    "other queries": ("attention.q_lora_rank", 13, r"attn_q_a\.weight has shape \(12, 40\).*\(13, 40\)"),
    "huge": ("attention.kv_lora_rank", 10**9, r"kv_lora_rank"),
}


@pytest.mark.parametrize(("key", "value", "message"), BAD.values(), ids=BAD)
def test_bad_hyper_parameters(tmp_path, key, value, message):
    path = written(tmp_path, keys_of(SHAPES["v3"]), tensors_of(SHAPES["v3"]))
    with gguf.open(path, overrides={f"deepseek2.{key}": value}) as file, pytest.raises(LoadError, match=message):
        load_model(file)


@pytest.mark.parametrize("name", ["attn_k_b", "attn_v_b", "attn_kv_a_mqa", "attn_kv_a_norm", "attn_q_a_norm"])
def test_missing_tensor(tmp_path, name):
    tensors = tensors_of(SHAPES["v3"])
    del tensors[f"blk.1.{name}.weight"]
    path, message = written(tmp_path, keys_of(SHAPES["v3"]), tensors), rf"blk\.1\.{name}\.weight is missing"
    with gguf.open(path) as file, pytest.raises(MissingTensorError, match=message):
        load_model(file)


def test_older_files_have_as_many_keys_as_heads(tmp_path):
    shape = SHAPES["v2"]
    keys, tensors = joined(keys_of(shape), tensors_of(shape), shape)
    keys["deepseek2.attention.head_count_kv"] = 1
    with gguf.open(written(tmp_path, keys, tensors)) as file, pytest.raises(LoadError, match="head_count_kv is 1, but"):
        load_model(file)
