"""PEFT folders: Hugging Face's names and layouts, scales, patterns. The witness merges in Hugging Face's layout."""

import numpy as np
import pytest

import oxillama.gguf as gguf
from oxillama.lora import Lora
from tests.lora.files import merged_file, write_peft
from tests.lora.loaded import Loaded
from tests.lora.peft import factors, in_pairs, module, shape_of, table, tied
from tests.models import naive
from tests.models.references import path_of, tokens_of


def key(path, name):
    with gguf.open(path) as file:
        return file.metadata[f"{file.metadata.arch}.{name}"]


def agrees(path, folder, tmp_path, deltas, scale=1.0):
    """The adapted model's logits are those of the file with ``deltas`` added to its tensors."""
    with gguf.open(path) as file:
        tensors = {name: np.array(t.dequantize(), np.float64) for name, t in file.tensors.items()}
        for name, delta in deltas.items():
            tensors[name] = tensors[name] + scale * delta
        merged = tmp_path / "merged.gguf"
        gguf.write_gguf(merged, file.metadata, {name: t.astype(np.float32) for name, t in tensors.items()})
    loaded, tokens = Loaded(path), tokens_of(path.stem)
    loaded.load("x", folder)
    twin, ours = naive.logits(merged, tokens), loaded.logits(tokens, [("x", scale)])
    assert np.abs(ours - twin).max() <= 3e-6 * np.abs(twin).max()
    assert np.abs(loaded.logits(tokens) - twin).max() > 1e-3 * np.abs(twin).max()


def test_rotated_rows_of_llama_stand_in_pairs(tmp_path):
    path = path_of("llama")
    tensors, deltas = {}, {}
    for part, heads in (("q", "attention.head_count"), ("k", "attention.head_count_kv"), ("v", None)):
        name = f"blk.1.attn_{part}.weight"
        a, b = factors(*shape_of(path, name), 4)
        tensors |= module(f"model.layers.1.self_attn.{part}_proj", a, b)
        delta = 2.0 * (b.astype(np.float64) @ a)  # lora_alpha 8, r 4
        deltas[name] = delta if heads is None else in_pairs(delta, key(path, heads))
    agrees(path, write_peft(tmp_path / "peft", tensors), tmp_path, deltas, scale=0.7)


def test_all_other_modules_of_llama_are_mapped(tmp_path):
    path = path_of("llama")
    names = {
        "model.layers.0.self_attn.o_proj": "blk.0.attn_output.weight",
        "model.layers.0.mlp.gate_proj": "blk.0.ffn_gate.weight",
        "model.layers.1.mlp.up_proj": "blk.1.ffn_up.weight",
        "model.layers.0.mlp.down_proj": "blk.0.ffn_down.weight",
        "lm_head": "output.weight",
    }
    tensors, deltas = {}, {}
    for i, (theirs, ours) in enumerate(names.items()):
        a, b = factors(*shape_of(path, ours), 1 + i)
        tensors |= module(theirs, a, b)
        deltas[ours] = 6.0 / (1 + i) * (b.astype(np.float64) @ a)
    n_vocab, n_embd = shape_of(path, "token_embd.weight")
    a, b = factors(n_embd, n_vocab, 3)
    tensors |= table("model.embed_tokens", a, b)
    deltas["token_embd.weight"] = 2.0 * (b.astype(np.float64) @ a).T
    ranks = {"o_proj": 1, "gate_proj": 2, "layers.1.mlp.up_proj": 3, "down_proj": 4, "lm_head": 5}
    folder = write_peft(tmp_path / "peft", tensors, r=3, lora_alpha=6, rank_pattern=ranks)
    agrees(path, folder, tmp_path, deltas)


def test_rank_stabilised_and_alpha_pattern(tmp_path):
    path, tensors, deltas = path_of("llama"), {}, {}
    for i, alpha in enumerate((3.0, 8.0)):
        name = f"blk.{i}.ffn_up.weight"
        a, b = factors(*shape_of(path, name), 4)
        tensors |= module(f"model.layers.{i}.mlp.up_proj", a, b)
        deltas[name] = alpha / 2.0 * (b.astype(np.float64) @ a)
    folder = write_peft(
        tmp_path / "peft", tensors, use_rslora=True, alpha_pattern={"^model.layers.0.mlp.up_proj": 3.0, "0.mlp": 99.0}
    )
    agrees(path, folder, tmp_path, deltas)
    lora = Lora.load(folder)
    assert (lora.rank, lora.alpha, lora.arch) == (4, 8.0, None)


def test_bfloat16_factors_are_exact(tmp_path):
    path, name = path_of("llama"), "blk.0.ffn_up.weight"
    a, b = (x.view(np.uint32) >> 16 for x in factors(*shape_of(path, name), 4))
    raw = [("BF16", x.shape, x.astype("<u2").tobytes()) for x in (a, b)]
    wide = [(x.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for x in (a, b)]
    folder = write_peft(tmp_path / "peft", module("model.layers.0.mlp.up_proj", *raw))
    agrees(path, folder, tmp_path, {name: 2.0 * wide[1] @ wide[0]})


def test_interleaved_heads_are_taken_apart(tmp_path):
    """GPT-NeoX has a head's query, key and value together; the file has all queries, all keys, all values."""
    path, name = path_of("gptneox"), "blk.0.attn_qkv.weight"
    n_out, n_in = shape_of(path, name)
    a, b = factors(n_out, n_in, 4)
    heads = key(path, "attention.head_count")
    delta, apart, head = 2.0 * (b.astype(np.float64) @ a), np.empty((n_out, n_in)), n_out // 3 // heads
    for h in range(heads):
        for part in range(3):
            rows = slice((part * heads + h) * head, (part * heads + h + 1) * head)
            apart[rows] = delta[(h * 3 + part) * head : (h * 3 + part + 1) * head]
    folder = write_peft(tmp_path / "peft", module("gpt_neox.layers.0.attention.query_key_value", a, b))
    agrees(path, folder, tmp_path, {name: apart})


def test_experts_are_stacked(tmp_path):
    path = path_of("qwen2moe")
    tensors, deltas, ranks = {}, {}, {}
    for part in ("gate", "up", "down"):
        name = f"blk.0.ffn_{part}_exps.weight"
        stack = shape_of(path, name)
        delta = np.zeros(stack)
        for e, rank in ((0, 2), (stack[0] - 1, 4)):  # the others stay as they are
            a, b = factors(*stack[1:], rank)
            tensors |= module(f"model.layers.0.mlp.experts.{e}.{part}_proj", a, b)
            ranks[f"experts.{e}.{part}_proj"] = rank
            delta[e] = 8.0 / rank * (b.astype(np.float64) @ a)
        deltas[name] = delta
    for theirs, ours in (("gate", "ffn_gate_inp"), ("shared_expert.up_proj", "ffn_up_shexp")):
        name = f"blk.0.{ours}.weight"
        a, b = factors(*shape_of(path, name), 4)
        tensors |= module(f"model.layers.0.mlp.{theirs}", a, b)
        deltas[name] = 2.0 * (b.astype(np.float64) @ a)
    agrees(path, write_peft(tmp_path / "peft", tensors, rank_pattern=ranks), tmp_path, deltas)


@pytest.mark.parametrize("name", ["deepseek2", "deepseek3"])
def test_the_up_projection_of_latent_vectors_is_split(name, tmp_path):
    """One matrix there; in files one, or the keys' part transposed by head, and the values'."""
    path = path_of(name)
    with gguf.open(path) as file:
        split = "blk.0.attn_k_b.weight" in file.tensors
    m = "_mla" if split else ""
    heads, rank = key(path, "attention.head_count"), key(path, "attention.kv_lora_rank")
    plain = key(path, f"attention.key_length{m}") - key(path, "rope.dimension_count")
    v_dim = key(path, f"attention.value_length{m}")
    a, b = factors(heads * (plain + v_dim), rank, 4)
    delta = 2.0 * (b.astype(np.float64) @ a)
    by_head = delta.reshape(heads, plain + v_dim, rank)
    deltas = {"blk.0.attn_kv_b.weight": delta}
    if split:
        deltas = {
            "blk.0.attn_k_b.weight": by_head[:, :plain].transpose(0, 2, 1),
            "blk.0.attn_v_b.weight": by_head[:, plain:],
        }
    folder = write_peft(tmp_path / "peft", module("model.layers.0.self_attn.kv_b_proj", a, b))
    agrees(path, folder, tmp_path, deltas)


@pytest.mark.parametrize("which", ["lookups", "both", "output"])
def test_a_tied_embedding_is_changed(which, tmp_path):
    """PEFT changes what is looked up alone, unless it was told to tie; or the output alone."""
    path, tokens = path_of("llama-tied-bias"), tokens_of("llama-tied-bias")
    n_vocab, n_embd = shape_of(path, "token_embd.weight")
    if which == "output":
        a, b = factors(n_vocab, n_embd, 4)
        folder = write_peft(tmp_path / "peft", module("lm_head", a, b))
        deltas = {"output.weight": 2.0 * (b.astype(np.float64) @ a)}
    else:
        a, b = factors(n_embd, n_vocab, 4)
        folder = write_peft(tmp_path / "peft", table("model.embed_tokens", a, b), ensure_weight_tying=which == "both")
        delta = 2.0 * (b.astype(np.float64) @ a).T
        deltas = {"token_embd.weight": delta} | ({"output.weight": delta} if which == "both" else {})
    loaded = Loaded(path)
    loaded.load("x", folder)
    twin, ours = naive.logits(tied(tmp_path, deltas), tokens), loaded.logits(tokens, [("x", 1.0)])
    assert np.abs(ours - twin).max() <= 3e-6 * np.abs(twin).max()


def test_digests_differ_between_adapters(tmp_path):
    a, b = factors(64, 64, 4)
    made = []
    for i, (alpha, change) in enumerate(((8, 0), (8, 0), (4, 0), (8, 1))):
        other = b.copy()
        other[3, 2] += change
        made.append(
            Lora.load(write_peft(tmp_path / f"p{i}", module("model.layers.0.mlp.up_proj", a, other), lora_alpha=alpha))
        )
    assert made[0].digest == made[1].digest
    assert len({lora.digest for lora in made}) == 3


def test_merged_file_of_the_tests_is_what_it_says(tmp_path):
    """The helper that other tests trust: one tensor by hand."""
    path, name = path_of("llama"), "blk.0.ffn_up.weight"
    a, b = factors(*shape_of(path, name), 2)
    merged_file(path, tmp_path / "m.gguf", ({name: (a, b)}, 0.5))
    with gguf.open(path) as before, gguf.open(tmp_path / "m.gguf") as after:
        expected = before.tensors[name].dequantize() + 0.5 * (b[:, :1] * a[:1] + b[:, 1:] * a[1:])
        assert np.allclose(after.tensors[name].dequantize(), expected, atol=1e-6)
        assert np.array_equal(*(f.tensors["blk.1.ffn_up.weight"].dequantize() for f in (before, after)))
