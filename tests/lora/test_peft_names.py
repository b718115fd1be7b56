"""PEFT names of every architecture: each linear layer has one, and its rows are converted as converters do."""

import re
from dataclasses import replace

import numpy as np
import pytest

import oxillama.gguf as gguf
from oxillama.errors import LoraError, UnsupportedModelError
from oxillama.lora import Lora, LoraRegistry
from oxillama.lora.namings import REFUSED, naming_of
from oxillama.lora.peft_names import to_gguf
from oxillama.models import architectures, load_model
from tests.lora.files import write_peft
from tests.lora.peft import in_pairs, module
from tests.models.references import path_of
from tests.models.tiny import RECIPES, tiny

RNG = np.random.default_rng(11)
RANK = 3

# Experts that are no linear layers in Hugging Face's code, but one tensor with three dimensions: PEFT has other ways
# to change those (target_parameters), which are refused by name.
STACKED = {"dbrx", "gpt-oss", "granitemoe", "granitehybrid", "mistral4", "nomic-bert-moe", "gemma4", "llama4"}


# Architectures that a converter knows, and of which no model was published whose names could be read.
UNPUBLISHED = {"granite_swa"}


def loaded(path):
    with gguf.open(path) as file:
        return load_model(file, repack=False)


@pytest.mark.parametrize("name", RECIPES)
def test_every_linear_layer_of_every_architecture_has_a_name(name, tmp_path):
    model = loaded(tiny(name, tmp_path))
    spec, naming = model.spec, naming_of(model.spec)
    if spec.arch in UNPUBLISHED:
        assert naming is None
        with pytest.raises(UnsupportedModelError, match="its names are not known here"):
            to_gguf({}, spec)
        return
    if spec.arch in REFUSED:
        assert naming is None
        with pytest.raises(UnsupportedModelError, match="multipliers in the weights"):
            to_gguf({}, spec)
        return
    known = {part for names in (naming.names | naming.recurrent).values() for part in names.split("+")}
    known |= {naming.names[name] for name in naming.recurrent}
    for tensor in model.adaptable:
        inner = re.fullmatch(r"(?:enc\.|dec\.)?blk\.\d+\.(.+)\.weight", tensor)
        if inner is None or (spec.arch in STACKED and inner[1].endswith("_exps")):
            continue
        joint = inner[1].replace("attn_k_b", "attn_kv_b").replace("attn_v_b", "attn_kv_b")
        assert joint in known, tensor


def test_no_architecture_is_left_out():
    assert {recipe.arch for recipe in RECIPES.values()} == set(architectures())


def heads(spec, i=0):
    return spec.layers[i].n_heads, spec.layers[i].n_kv_heads, spec.head_dim


def halves(first, second):
    def parts(delta, spec):
        half = len(delta) // 2
        return {first: delta[:half], second: delta[half:]}

    return parts


def interleaved(delta, spec):
    """Of each key head: its queries, the key, the value. Queries and keys rotate in pairs."""
    n_heads, n_kv, dim = heads(spec)
    each, q, k, v = n_heads // n_kv, [], [], []
    for g in range(n_kv):
        rows = delta[g * (each + 2) * dim : (g + 1) * (each + 2) * dim]
        q.append(rows[: each * dim])
        k.append(rows[each * dim : (each + 1) * dim])
        v.append(rows[(each + 1) * dim :])
    q, k, v = map(np.concatenate, (q, k, v))
    return {"attn_q": in_pairs(q, n_heads), "attn_k": in_pairs(k, n_kv), "attn_v": v}


def plain(name):
    return lambda delta, spec: {name: delta}


def queries(delta, spec):
    return {"attn_q": in_pairs(delta, heads(spec)[0])}


def keys(delta, spec):
    return {"attn_k": in_pairs(delta, heads(spec)[1])}


def places_apart(rule, width, first=0):
    """Of heads of values in the file, those that share one of keys n_keys apart: where they were, as neighbours."""
    each = rule.n_heads // rule.n_keys
    heads = [key * each + i for i in range(each) for key in range(rule.n_keys)]
    return [first + head * width + d for head in heads for d in range(width)]


def apart(name, by_head=False):
    """Rows of heads; ``by_head``: one row each."""
    return lambda delta, spec: {name: delta[places_apart(spec.delta, 1 if by_head else spec.delta.v_dim)]}


def values_apart(delta, spec):
    first = 2 * spec.delta.n_keys * spec.delta.k_dim
    return {"attn_qkv": delta[[*range(first), *places_apart(spec.delta, spec.delta.v_dim, first)]]}


def columns_apart(delta, spec):
    return {"ssm_out": delta[:, places_apart(spec.delta, spec.delta.v_dim)] if delta.shape[1] > 1 else delta}


def kinds_together(delta, spec):
    """Of each head of keys: query, key, values, gates."""
    k, v = spec.delta.k_dim, spec.delta.n_inner // spec.delta.n_keys
    groups = [range(at, at + 2 * k + 2 * v) for at in range(0, spec.delta.n_keys * 2 * (k + v), 2 * (k + v))]
    parts = [[i for g in groups for i in g[a:b]] for a, b in ((0, k), (k, 2 * k), (2 * k, 2 * k + v))]
    gates = [i for g in groups for i in g[2 * k + v :]]
    return {"attn_qkv": delta[[i for part in parts for i in part]], "attn_gate": delta[gates]}


def packed(delta, spec):
    """All queries, all keys, all values."""
    n_heads, n_kv, dim = heads(spec)
    q, k, v = np.split(delta, np.cumsum([n_heads * dim, n_kv * dim])) if len(delta) > 1 else (delta,) * 3
    return {"attn_q": in_pairs(q, n_heads), "attn_k": in_pairs(k, n_kv), "attn_v": v}


LLAMA = "model.layers.0."
LINEAR = "model.language_model.layers.0.linear_attn."
GPT = "transformer.h.0."
# By recipe: modules of the first layer that has them, and the tensors that their rows are, made one by one.
MODULES = {
    "internlm2": {
        "model.layers.0.attention.wqkv": interleaved,
        "model.layers.0.attention.wo": plain("attn_output"),
        "model.layers.0.feed_forward.w1": plain("ffn_gate"),
        "model.layers.0.feed_forward.w2": plain("ffn_down"),
        "model.layers.0.feed_forward.w3": plain("ffn_up"),
    },
    "baichuan": {
        "model.layers.0.self_attn.W_pack": packed,
        "model.layers.0.self_attn.o_proj": plain("attn_output"),
    },
    "refact": {
        "transformer.h.0.attn.q": plain("attn_q"),
        "transformer.h.0.attn.kv": halves("attn_k", "attn_v"),
        "transformer.h.0.attn.c_proj": plain("attn_output"),
        "transformer.h.0.mlp.gate_up_proj": halves("ffn_gate", "ffn_up"),
        "transformer.h.0.mlp.c_proj": plain("ffn_down"),
    },
    "openelm": {
        "transformer.layers.0.attn.qkv_proj": plain("attn_qkv"),
        "transformer.layers.0.attn.out_proj": plain("attn_output"),
        "transformer.layers.0.ffn.proj_1": halves("ffn_gate", "ffn_up"),
        "transformer.layers.0.ffn.proj_2": plain("ffn_down"),
    },
    "granitemoe-shared": {
        "model.layers.0.self_attn.q_proj": queries,
        "model.layers.0.self_attn.k_proj": keys,
        "model.layers.0.block_sparse_moe.router.layer": plain("ffn_gate_inp"),
        "model.layers.0.shared_mlp.input_linear": halves("ffn_gate_shexp", "ffn_up_shexp"),
        "model.layers.0.shared_mlp.output_linear": plain("ffn_down_shexp"),
    },
    "xverse": {
        "model.layers.0.self_attn.q_proj": queries,
        "model.layers.0.self_attn.k_proj": keys,
        "model.layers.0.self_attn.v_proj": plain("attn_v"),
    },
    "exaone": {
        "transformer.h.0.attn.attention.q_proj": plain("attn_q"),
        "transformer.h.0.attn.attention.out_proj": plain("attn_output"),
        "transformer.h.0.mlp.c_fc_0": plain("ffn_gate"),
        "transformer.h.0.mlp.c_fc_1": plain("ffn_up"),
        "transformer.h.0.mlp.c_proj": plain("ffn_down"),
    },
    "qwen": {
        "transformer.h.0.attn.c_attn": plain("attn_qkv"),
        "transformer.h.0.attn.c_proj": plain("attn_output"),
        "transformer.h.0.mlp.w1": plain("ffn_up"),
        "transformer.h.0.mlp.w2": plain("ffn_gate"),
        "transformer.h.0.mlp.c_proj": plain("ffn_down"),
    },
    "codeshell": {"transformer.h.0.attn.c_attn": plain("attn_qkv"), "transformer.h.0.mlp.c_fc": plain("ffn_up")},
    "dbrx": {
        "transformer.blocks.0.norm_attn_norm.attn.Wqkv": plain("attn_qkv"),
        "transformer.blocks.0.norm_attn_norm.attn.out_proj": plain("attn_output"),
        "transformer.blocks.0.ffn.router.layer": plain("ffn_gate_inp"),
    },
    "hunyuan-moe": {
        "model.layers.0.self_attn.q_proj": plain("attn_q"),
        "model.layers.0.mlp.gate.wg": plain("ffn_gate_inp"),
        "model.layers.0.mlp.shared_mlp.up_proj": plain("ffn_up_shexp"),
    },
    "qwen3next": {
        "model.layers.0.linear_attn.in_proj_qkvz": kinds_together,
        "model.layers.0.linear_attn.in_proj_ba": plain("ssm_ba"),
        "model.layers.0.linear_attn.out_proj": plain("ssm_out"),
        "model.layers.0.mlp.shared_expert.up_proj": plain("ffn_up_shexp"),
    },
    "qwen3next-2025": {"model.layers.0.linear_attn.in_proj_qkvz": plain("ssm_in")},
    "rwkv7": {
        "model.layers.0.attn.r_proj": plain("time_mix_receptance"),
        "model.layers.0.attn.w_lora.lora.0": plain("time_mix_w1"),
        "model.layers.0.attn.g_lora.lora.2": plain("time_mix_g2"),
        "model.layers.0.ffn.key": plain("channel_mix_key"),
    },
    "deepseek32": {
        "model.layers.0.self_attn.q_b_proj": plain("attn_q_b"),
        "model.layers.0.self_attn.indexer.wq_b": plain("indexer.attn_q_b"),
        "model.layers.0.self_attn.indexer.wk": plain("indexer.attn_k"),
        "model.layers.0.self_attn.indexer.weights_proj": plain("indexer.proj"),
    },
    "minimax-m3": {
        "model.language_model.layers.0.self_attn.q_proj": plain("attn_q"),
        "model.layers.0.mlp.down_proj": plain("ffn_down"),
    },
    "kimi-linear": {
        "model.layers.0.self_attn.q_proj": plain("attn_q"),
        "model.layers.0.self_attn.f_a_proj": plain("ssm_f_a"),
        "model.layers.0.self_attn.g_b_proj": plain("ssm_g_b"),
        "model.layers.0.self_attn.b_proj": plain("ssm_beta"),
        "model.layers.0.mlp.up_proj": plain("ffn_up"),
    },
    "minimax-01": {
        "model.layers.0.self_attn.qkv_proj": plain("attn_qkv"),
        "model.layers.0.self_attn.out_proj": plain("attn_output"),
        "model.layers.0.self_attn.output_gate": plain("attn_gate"),
        "model.layers.0.block_sparse_moe.gate": plain("ffn_gate_inp"),
    },
    "llada": {
        "model.transformer.blocks.0.q_proj": queries,
        "model.transformer.blocks.0.attn_out": plain("attn_output"),
        "model.transformer.blocks.0.ff_proj": plain("ffn_gate"),
        "model.transformer.blocks.0.ff_out": plain("ffn_down"),
    },
    "bailingmoe3": {
        "model.layers.0.self_attn.v_proj": plain("attn_v"),
        "model.layers.0.self_attn.forget_gate.f_proj": plain("ssm_f_a"),
        "model.layers.0.self_attn.b_proj": plain("ssm_beta"),
        "model.layers.0.self_attn.g_proj": plain("ssm_g_a"),
    },
    "qwen35": {
        f"{LINEAR}in_proj_qkv": values_apart,
        f"{LINEAR}in_proj_z": apart("attn_gate"),
        f"{LINEAR}in_proj_a": apart("ssm_alpha", by_head=True),
        f"{LINEAR}in_proj_b": apart("ssm_beta", by_head=True),
        f"{LINEAR}out_proj": columns_apart,
    },
    "nomic-bert": {
        "encoder.layers.0.attn.Wqkv": plain("attn_qkv"),
        "encoder.layers.0.attn.out_proj": plain("attn_output"),
        "encoder.layers.0.mlp.fc11": plain("ffn_up"),
        "encoder.layers.0.mlp.fc12": plain("ffn_gate"),
        "encoder.layers.0.mlp.fc2": plain("ffn_down"),
    },
    "bert": {
        "roberta.encoder.layer.0.attention.self.query": plain("attn_q"),
        "bert.encoder.layer.0.output.dense": plain("ffn_down"),
        "distilbert.transformer.layer.0.attention.out_lin": plain("attn_output"),
        "distilbert.transformer.layer.0.ffn.lin1": plain("ffn_up"),
    },
}


def test_names_of_classifiers(tmp_path):
    model = loaded(path_of("roberta-ranker"))
    tensors = {}
    for named, tensor in (("classifier.dense", "cls.weight"), ("classifier.out_proj", "cls.output.weight")):
        n_out, n_in = model.adaptable[tensor].shape
        tensors |= module(named, np.ones((RANK, n_in), np.float32), np.ones((n_out, RANK), np.float32))
    lora = Lora.load(write_peft(tmp_path / "peft", tensors, r=RANK))
    assert set(lora.changes(model.spec)) == {"cls.weight", "cls.output.weight"}
    LoraRegistry(model.spec, lambda: model.adaptable).load("x", lora)


def test_a_name_that_means_two_things(tmp_path):
    """Ling's gates: of the delta rule, and of attention in other layers."""
    model = loaded(tiny("bailingmoe3", tmp_path))
    tensors = {}
    for i, tensor in enumerate(("ssm_g_a", "attn_gate")):
        n_out, n_in = model.adaptable[f"blk.{i}.{tensor}.weight"].shape
        factors = np.ones((RANK, n_in), np.float32), np.ones((n_out, RANK), np.float32)
        tensors |= module(f"model.layers.{i}.self_attn.g_proj", *factors)
    changes = Lora.load(write_peft(tmp_path / "peft", tensors, r=RANK)).changes(model.spec)
    assert set(changes) == {"blk.0.ssm_g_a.weight", "blk.1.attn_gate.weight"}
    LoraRegistry(model.spec, lambda: model.adaptable).load("x", Lora.load(tmp_path / "peft"))


def test_names_of_an_encoder_and_a_decoder(tmp_path):
    model = loaded(tiny("t5encoder", tmp_path))
    places = {
        "encoder.block.0.layer.0.SelfAttention.q": "enc.blk.0.attn_q",
        "encoder.block.2.layer.0.SelfAttention.o": "enc.blk.2.attn_o",
        "encoder.block.1.layer.1.DenseReluDense.wi_0": "enc.blk.1.ffn_gate",
        "encoder.block.1.layer.1.DenseReluDense.wi_1": "enc.blk.1.ffn_up",
        "encoder.block.1.layer.1.DenseReluDense.wo": "enc.blk.1.ffn_down",
    }
    check_names(model, places, tmp_path)
    places |= {
        "decoder.block.0.layer.0.SelfAttention.v": "dec.blk.0.attn_v",
        "decoder.block.1.layer.1.EncDecAttention.k": "dec.blk.1.cross_attn_k",
        "decoder.block.1.layer.1.EncDecAttention.o": "dec.blk.1.cross_attn_o",
        "decoder.block.1.layer.2.DenseReluDense.wo": "dec.blk.1.ffn_down",
        "lm_head": "output",
        "shared": "token_embd",
    }
    model = loaded(tiny("t5-flan", tmp_path))
    check_names(model, places, tmp_path)
    with pytest.raises(LoraError, match="no known module of architecture t5"):
        check_names(model, {"encoder.block.0.layer.0.SelfAttention.x": "enc.blk.0.attn_q"}, tmp_path)


def check_names(model, places, tmp_path):
    """Changes of modules are those of these tensors, in their shapes."""
    tensors = {}
    for named, tensor in places.items():
        n_out, n_in = model.adaptable[f"{tensor}.weight"].shape
        tensors |= module(named, np.ones((RANK, n_in), np.float32), np.ones((n_out, RANK), np.float32))
    lora = Lora.load(write_peft(tmp_path / "peft", tensors, r=RANK))
    assert set(lora.changes(model.spec)) == {f"{tensor}.weight" for tensor in places.values()}
    LoraRegistry(model.spec, lambda: model.adaptable).load("x", lora)


def test_layers_of_stacks_that_are_counted_apart(tmp_path):
    model = loaded(tiny("hrm_text", tmp_path))
    n, tensors = model.spec.n_layers // 2, {}
    for stack in ("L_module", "H_module"):
        shape = model.adaptable["blk.0.attn_gate.weight"].shape
        factors = np.ones((RANK, shape[1]), np.float32), np.ones((shape[0], RANK), np.float32)
        tensors |= module(f"model.{stack}.layers.1.self_attn.gate_proj", *factors)
    lora = Lora.load(write_peft(tmp_path / "peft", tensors, r=RANK))
    assert set(lora.changes(model.spec)) == {"blk.1.attn_gate.weight", f"blk.{n + 1}.attn_gate.weight"}
    beyond = {name.replace("layers.1.", f"layers.{n}."): factors for name, factors in tensors.items()}
    with pytest.raises(LoraError, match=rf"L_module\.layers\.{n}\.self_attn\.gate_proj is no module of this model"):
        Lora.load(write_peft(tmp_path / "beyond", beyond, r=RANK)).changes(model.spec)


@pytest.mark.parametrize("name", MODULES)
def test_rows_are_where_the_converter_puts_them(name, tmp_path):
    model = loaded(tiny(name, tmp_path))
    spec, tensors, expected = model.spec, {}, {}
    for named, parts in MODULES[name].items():
        stems = parts(np.zeros((4 * (sum(heads(spec)[:2]) or 100) * spec.head_dim, 1)), spec)
        shapes = [model.adaptable[f"blk.0.{stem}.weight"].shape for stem in stems]
        a = RNG.standard_normal((RANK, shapes[0][-1])).astype(np.float32)
        b = RNG.standard_normal((sum(shape[0] for shape in shapes), RANK)).astype(np.float32)
        tensors |= module(named, a, b)
        expected |= {f"blk.0.{stem}.weight": part for stem, part in parts(b.astype(np.float64) @ a, spec).items()}
    lora = Lora.load(write_peft(tmp_path / "peft", tensors, r=RANK, lora_alpha=RANK))
    found = lora.changes(spec)
    assert set(found) == set(expected)
    for tensor, change in found.items():
        assert np.allclose(change.b.astype(np.float64) @ change.a, expected[tensor], atol=1e-12), tensor
    LoraRegistry(spec, lambda: model.adaptable).load("x", lora)  # the model has all of these, in these shapes


@pytest.mark.parametrize(
    ("name", "pattern", "parts"),
    [
        ("jamba", "model.layers.{i}.feed_forward.experts.{e}.{part}_proj", ("gate", "down", "up")),
        ("lfm2moe", "model.layers.{i}.feed_forward.experts.{e}.{part}", ("w1", "w2", "w3")),
        ("hunyuan-moe", "model.layers.{i}.mlp.experts.{e}.{part}_proj", ("gate", "down", "up")),
    ],
)
def test_experts_of_other_families(name, pattern, parts, tmp_path):
    model = loaded(tiny(name, tmp_path))
    i = next(i for i in range(model.spec.n_layers) if f"blk.{i}.ffn_up_exps.weight" in model.adaptable)
    tensors, expected = {}, {}
    for part, stem in zip(parts, ("gate", "down", "up"), strict=True):
        tensor = f"blk.{i}.ffn_{stem}_exps.weight"
        shape = model.adaptable[tensor].shape
        expected[tensor] = np.zeros(shape)
        for e in (0, shape[0] - 1):
            a = RNG.standard_normal((RANK, shape[2])).astype(np.float32)
            b = RNG.standard_normal((shape[1], RANK)).astype(np.float32)
            tensors |= module(pattern.format(i=i, e=e, part=part), a, b)
            expected[tensor][e] = b.astype(np.float64) @ a
    lora = Lora.load(write_peft(tmp_path / "peft", tensors, r=RANK, lora_alpha=RANK))
    for tensor, change in lora.changes(model.spec).items():
        assert np.allclose(change.b.astype(np.float64) @ change.a, expected[tensor], atol=1e-12), tensor
    LoraRegistry(model.spec, lambda: model.adaptable).load("x", lora)


def test_the_shared_expert_of_a_granite_without_experts_is_its_network(tmp_path):
    spec = replace(loaded(tiny("granitehybrid", tmp_path)).spec, experts=None)
    a, b = RNG.standard_normal((RANK, 8)).astype(np.float32), RNG.standard_normal((6, RANK)).astype(np.float32)
    named = {"model.layers.0.shared_mlp.input_linear": b, "model.layers.0.shared_mlp.output_linear": b}
    tensors = {key: value for name, rows in named.items() for key, value in module(name, a, rows).items()}
    found = Lora.load(write_peft(tmp_path / "peft", tensors, r=RANK, lora_alpha=RANK)).changes(spec)
    rows = {name: change.b.tolist() for name, change in found.items()}
    gate, up, down = (f"blk.0.ffn_{part}.weight" for part in ("gate", "up", "down"))
    assert rows == {gate: b[:3].tolist(), up: b[3:].tolist(), down: b.tolist()}


def test_rows_that_can_t_be_divided(tmp_path):
    for name, named in (
        ("refact", f"{GPT}attn.kv"),
        ("internlm2", f"{LLAMA}attention.wqkv"),
        ("qwen35", f"{LINEAR}in_proj_z"),
        ("qwen3next", f"{LLAMA}linear_attn.in_proj_qkvz"),
    ):
        model = loaded(tiny(name, tmp_path))
        tensors = module(named, np.ones((RANK, 8), np.float32), np.ones((17, RANK), np.float32))
        lora = Lora.load(write_peft(tmp_path / "peft", tensors, r=RANK, lora_alpha=RANK))
        with pytest.raises(LoraError, match="factor B has 17 rows"):
            lora.changes(model.spec)


def test_columns_that_can_t_be_divided(tmp_path):
    model = loaded(tiny("qwen35", tmp_path))
    tensors = module(f"{LINEAR}out_proj", np.ones((RANK, 17), np.float32), np.ones((64, RANK), np.float32))
    with pytest.raises(LoraError, match="factor A has 17 columns"):
        Lora.load(write_peft(tmp_path / "peft", tensors, r=RANK, lora_alpha=RANK)).changes(model.spec)
