"""Hugging Face tensor names: the GGUF tensor of each module, by architecture, and the converters' change of its rows.

Names joined by "+" are several tensors that the file has for one module's rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from oxillama.models import ModelSpec
from oxillama.models.delta_spec import DeltaSpec

__all__ = ["EXPERT", "HEADS", "LAYER", "PART", "REFUSED", "STACK", "TABLE", "TOP", "Naming", "naming_of"]

Rows = Callable[[np.ndarray, ModelSpec, int], np.ndarray]  # (b, spec, layer) -> b with the file's order of rows

# Only modules of the text model: the vision towers of some models have layers with the same names.
TRUNK = (
    r"(?:(?:model|transformer|model\.transformer|gpt_neox|backbone|model\.language_model|language_model\.model|"
    r"transformer\.encoder|(?:(?:bert|roberta)\.)?encoder|distilbert\.transformer)\.)?"
)
LAYER = re.compile(TRUNK + r"(?:layers|layer|h|blocks)\.(\d{1,4})\.(.+)")
PART = re.compile(r"(?:transformer\.)?(enc|dec)oder\.block\.(\d{1,4})\.(.+)")  # of an encoder-decoder
STACK = re.compile(r"(?:model\.)?(\w+)\.layers\.(\d{1,4})\.(.+)")
TABLE = re.compile(TRUNK + r"(?:(?:(?:bert|roberta|distilbert)\.)?embeddings\.|embedding\.)?(\w+)")
EXPERT = re.compile(r"(.*experts)\.(\d{1,4})\.(.+)")
TOP = {
    "embed_tokens": "token_embd",
    "embed_in": "token_embd",
    "wte": "token_embd",
    "word_embeddings": "token_embd",
    "embeddings": "token_embd",
    "embedding": "token_embd",
    "tok_embeddings": "token_embd",
    "token_embeddings": "token_embd",
    "shared": "token_embd",
    "wpe": "position_embd",
    "position_embeddings": "position_embd",
    "token_type_embeddings": "token_types",
    "lm_head": "output",
    "embed_out": "output",
    "output_layer": "output",
    "output": "output",
}
# Encoders with a classifier.
HEADS = {"classifier.dense": "cls", "classifier.out_proj": "cls.output"}

ATTENTION = {f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"} | {"self_attn.o_proj": "attn_output"}
GATED = {f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")}
LLAMA = ATTENTION | GATED
GPT2 = {"attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
OLD = {"dense": "attn_output", "dense_h_to_4h": "ffn_up", "dense_4h_to_h": "ffn_down"}
PHI2 = ATTENTION | {"self_attn.dense": "attn_output", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"}
PHI3 = {
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
W123 = {"w1": "gate", "w2": "down", "w3": "up"}
MIXTRAL = ATTENTION | {"block_sparse_moe.gate": "ffn_gate_inp"}
MIXTRAL |= {f"block_sparse_moe.experts.{w}": f"ffn_{part}_exps" for w, part in W123.items()}
EXPERTS = {f"mlp.experts.{part}_proj": f"ffn_{part}_exps" for part in ("gate", "up", "down")}
EXPERTS |= {"mlp.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp"}
EXPERTS |= {
    f"mlp.{shared}.{part}_proj": f"ffn_{part}_shexp"
    for shared in ("shared_expert", "shared_experts")
    for part in ("gate", "up", "down")
}
DEEPSEEK2 = {
    "self_attn.q_proj": "attn_q",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_b_proj": "attn_kv_b",
    "self_attn.o_proj": "attn_output",
}
INDEXER = {"wq_b": "indexer.attn_q_b", "wk": "indexer.attn_k", "weights_proj": "indexer.proj"}
INDEXER = {f"self_attn.indexer.{name}": tensor for name, tensor in INDEXER.items()}
MINIMAX_M3 = {f"self_attn.indexer.{part}_proj": f"indexer.{part}_proj" for part in "qk"} | {
    "mlp.gate_up_proj": "ffn_gate+ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_experts.gate_up_proj": "ffn_gate_shexp+ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}
MAMBA = {f"{part}_proj": f"ssm_{name}" for part, name in (("in", "in"), ("x", "x"), ("dt", "dt"), ("out", "out"))}
NEMOTRON_H = {f"mixer.{part}_proj": f"attn_{part}" for part in "qkv"} | {
    "mixer.o_proj": "attn_output",
    "mixer.up_proj": "ffn_up",
    "mixer.down_proj": "ffn_down",
}
BERT = {f"attention.self.{name}": f"attn_{name[0]}" for name in ("query", "key", "value")} | {
    "attention.output.dense": "attn_output",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
}
DISTILBERT = {f"attention.{part}_lin": f"attn_{part}" for part in "qkv"} | {
    "attention.out_lin": "attn_output",
    "ffn.lin1": "ffn_up",
    "ffn.lin2": "ffn_down",
}
T5 = {f"layer.0.SelfAttention.{part}": f"attn_{part}" for part in "qkvo"} | {
    **{f"layer.1.EncDecAttention.{part}": f"cross_attn_{part}" for part in "qkvo"},
    **{
        f"layer.{i}.DenseReluDense.{name}": f"ffn_{part}"
        for i in (1, 2)
        for name, part in (("wi", "up"), ("wi_0", "gate"), ("wi_1", "up"), ("wo", "down"))
    },
}
NOMIC = {
    "attn.Wqkv": "attn_qkv",
    "attn.out_proj": "attn_output",
    "mlp.fc11": "ffn_up",
    "mlp.fc12": "ffn_gate",
    "mlp.fc2": "ffn_down",
}
LFM2 = {f"feed_forward.{w}": f"ffn_{part}" for w, part in W123.items()} | {
    **ATTENTION,
    "self_attn.out_proj": "attn_output",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
}
FORWARD_EXPERTS = {f"feed_forward.experts.{w}": f"ffn_{part}_exps" for w, part in W123.items()} | {
    "feed_forward.gate": "ffn_gate_inp"
}
JAMBA = {f"feed_forward.{part}_proj": f"ffn_{part}" for part in W123.values()} | {
    **{f"feed_forward.experts.{part}_proj": f"ffn_{part}_exps" for part in W123.values()},
    "feed_forward.router": "ffn_gate_inp",
}
HUNYUAN = {f"mlp.shared_mlp.{part}_proj": f"ffn_{part}_shexp" for part in W123.values()} | {
    "mlp.gate.wg": "ffn_gate_inp"
}
DBRX = {
    "norm_attn_norm.attn.Wqkv": "attn_qkv",
    "norm_attn_norm.attn.out_proj": "attn_output",
    "ffn.router.layer": "ffn_gate_inp",
}
# Without routed experts, the shared expert has a dense network's names.
GRANITE_DENSE = {"shared_mlp.input_linear": "ffn_gate+ffn_up", "shared_mlp.output_linear": "ffn_down"}
GRANITE_MOE = {
    "block_sparse_moe.router.layer": "ffn_gate_inp",
    "shared_mlp.input_linear": "ffn_gate_shexp+ffn_up_shexp",
    "shared_mlp.output_linear": "ffn_down_shexp",
}
MPT = {
    "attn.Wqkv": "attn_qkv",
    "attn.out_proj": "attn_output",
    "ffn.up_proj": "ffn_up",
    "ffn.down_proj": "ffn_down",
}
INTERNLM2 = {f"feed_forward.{w}": f"ffn_{part}" for w, part in W123.items()} | {
    "attention.wqkv": "attn_q+attn_k+attn_v",
    "attention.wo": "attn_output",
}
OPENELM = {
    "attn.qkv_proj": "attn_qkv",
    "attn.out_proj": "attn_output",
    "ffn.proj_1": "ffn_gate+ffn_up",
    "ffn.proj_2": "ffn_down",
}
REFACT = {
    "attn.q": "attn_q",
    "attn.kv": "attn_k+attn_v",
    "attn.c_proj": "attn_output",
    "mlp.gate_up_proj": "ffn_gate+ffn_up",
    "mlp.c_proj": "ffn_down",
}
EXAONE = {f"attn.attention.{part}_proj": f"attn_{part}" for part in "qkv"} | {
    "attn.attention.out_proj": "attn_output",
    "mlp.c_fc_0": "ffn_gate",
    "mlp.c_fc_1": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
QWEN = {
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.w1": "ffn_up",
    "mlp.w2": "ffn_gate",
    "mlp.c_proj": "ffn_down",
}
ATTENTION_GATE = {"self_attn.g_proj": "attn_gate", "self_attn.gate_proj": "attn_gate"}
BAILING = {"attention.query_key_value": "attn_qkv", "attention.dense": "attn_output"}
SMALLTHINKER = {f"block_sparse_moe.experts.{part}": f"ffn_{part}_exps" for part in W123.values()} | {
    "block_sparse_moe.primary_router": "ffn_gate_inp"
}
NEMOTRON_H_MOE = {f"mixer.experts.{part}_proj": f"ffn_{part}_exps" for part in ("up", "down")} | {
    **{f"mixer.shared_experts.{part}_proj": f"ffn_{part}_shexp" for part in ("up", "down")},
    "mixer.gate": "ffn_gate_inp",
    "mixer.fc1_latent_proj": "ffn_latent_down",
    "mixer.fc2_latent_proj": "ffn_latent_up",
}
NOMIC_MOE = {
    "attn.Wqkv": "attn_qkv",
    "attn.out_proj": "attn_output",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    "mlp.router.layer": "ffn_gate_inp",
}
JINA2 = BERT | {"mlp.gated_layers": "ffn_up", "mlp.wo": "ffn_down"}
JINA3 = {"mixer.Wqkv": "attn_qkv", "mixer.out_proj": "attn_output", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"}
MODERN = {"attn.Wqkv": "attn_qkv", "attn.Wo": "attn_output", "mlp.Wi": "ffn_up", "mlp.Wo": "ffn_down"}
GEMMA4 = {
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "router.proj": "ffn_gate_inp",
}
GEMMA3N = {
    "altup.modality_router": "altup_router",
    "altup.prediction_coefs": "altup_predict_coef",
    "altup.correction_coefs": "altup_correct_coef",
    "laurel.linear_left": "laurel_l",
    "laurel.linear_right": "laurel_r",
}
LLAMA4 = {f"feed_forward.{part}_proj": f"ffn_{part}" for part in W123.values()} | {
    **{f"feed_forward.shared_expert.{part}_proj": f"ffn_{part}_shexp" for part in W123.values()},
    "feed_forward.router": "ffn_gate_inp",
}
LINEAR_ATTENTION = {
    "in_proj_qkv": "attn_qkv",
    "in_proj_z": "attn_gate",
    "in_proj_ba": "ssm_ba",
    "in_proj_b": "ssm_beta",
    "in_proj_a": "ssm_alpha",
    "out_proj": "ssm_out",
}
KIMI = {f"self_attn.{part}_proj": f"ssm_{part}" for part in ("f_a", "f_b", "g_a", "g_b")} | {
    "self_attn.b_proj": "ssm_beta",
    **{f"block_sparse_moe.shared_experts.{part}_proj": f"ffn_{part}_shexp" for part in W123.values()},
}
LING3 = {"self_attn.forget_gate.f_proj": "ssm_f_a", "self_attn.b_proj": "ssm_beta"}
MINIMAX01 = {"qkv_proj": "attn_qkv", "output_gate": "attn_gate", "out_proj": "attn_output"}
LLADA = {f"{part}_proj": f"attn_{part}" for part in "qkv"} | {
    "attn_out": "attn_output",
    "ff_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "ff_out": "ffn_down",
}
RWKV7 = {f"attn.{part}_proj": f"time_mix_{name}" for part, name in (
    ("r", "receptance"), ("k", "key"), ("v", "value"), ("o", "output")
)} | {f"attn.{part}_lora.lora.{place}": f"time_mix_{part}{place // 2 + 1}" for part in "wavg" for place in (0, 2)} | {
    f"ffn.{part}": f"channel_mix_{part}" for part in ("key", "value")
}  # fmt: skip
APART_BY_KIND, JOINT = {"in_proj_qkvz": "attn_qkv+attn_gate"}, {"in_proj_qkvz": "ssm_in"}


def under(prefix: str, names: Mapping[str, str]) -> dict[str, str]:
    return {f"{prefix}.{name}": tensor for name, tensor in names.items()}


def pairs_together(b: np.ndarray, n_heads: int) -> np.ndarray:
    """Rows i and i + n/2 of each head become 2i and 2i + 1."""
    return b.reshape(n_heads, 2, len(b) // n_heads // 2, -1).swapaxes(1, 2).reshape(b.shape)


def rotated_queries(b: np.ndarray, spec: ModelSpec, i: int) -> np.ndarray:
    return pairs_together(b, spec.layers[i].n_heads)


def rotated_keys(b: np.ndarray, spec: ModelSpec, i: int) -> np.ndarray:
    return pairs_together(b, spec.layers[i].n_kv_heads)


def heads_apart(b: np.ndarray, spec: ModelSpec, i: int) -> np.ndarray:
    """Groups of some queries, a key and a value become all queries, all keys, all values."""
    layer = spec.layers[i]
    queries = layer.n_heads // layer.n_kv_heads
    groups = b.reshape(layer.n_kv_heads, queries + 2, spec.head_dim, -1)
    parts = (groups[:, :queries], groups[:, queries : queries + 1], groups[:, queries + 1 :])
    return np.concatenate([part.reshape(-1, b.shape[-1]) for part in parts])


def kinds_together(b: np.ndarray, spec: ModelSpec, i: int) -> np.ndarray:
    """Query, key, values and gates of each head of keys, put together as all queries, all keys, values and gates."""
    rule = delta_of(spec)
    values = rule.n_inner // rule.n_keys
    groups = b.reshape(rule.n_keys, 2 * (rule.k_dim + values), -1)
    places = np.cumsum([rule.k_dim, rule.k_dim, values])
    return np.concatenate([part.reshape(-1, b.shape[-1]) for part in np.split(groups, places, axis=1)])


def neighbours_apart(b: np.ndarray, spec: ModelSpec, i: int) -> np.ndarray:
    """Heads of values that share one of keys, from places beside each other to those with equal numbers modulo keys."""
    rule = delta_of(spec)
    heads = b.reshape(rule.n_keys, rule.n_heads // rule.n_keys, len(b) // rule.n_heads, -1)
    return heads.swapaxes(0, 1).reshape(b.shape)


def values_apart(b: np.ndarray, spec: ModelSpec, i: int) -> np.ndarray:
    """`neighbours_apart` of the values, which come behind queries and keys."""
    first = delta_of(spec).n_convolved - delta_of(spec).n_inner
    return np.concatenate([b[:first], neighbours_apart(b[first:], spec, i)])


def delta_of(spec: ModelSpec) -> DeltaSpec:
    assert spec.delta is not None
    return spec.delta


@dataclass(frozen=True)
class Naming:
    """Names within a layer, and what is done to rows of some tensors, and to columns of some.

    ``recurrent``: names that mean other tensors in layers without heads of attention. ``stacks``: names of parts of the
    model that have as many layers each, counted anew in each; none: layers are counted once.
    """

    names: Mapping[str, str]
    rows: Mapping[str, Rows]
    columns: Mapping[str, Rows] = field(default_factory=dict)
    recurrent: Mapping[str, str] = field(default_factory=dict)
    stacks: tuple[str, ...] = ()


ROTATED: dict[str, Rows] = {"attn_q": rotated_queries, "attn_k": rotated_keys}
GROUPED: dict[str, Rows] = {"attn_qkv": heads_apart}
GROUPED_AND_ROTATED: dict[str, Rows] = {"attn_q+attn_k+attn_v": heads_apart, **ROTATED}
PLAIN: dict[str, Rows] = {}
NEIGHBOURS: dict[str, Rows] = {"attn_qkv+attn_gate": kinds_together}
APART: dict[str, Rows] = {"attn_qkv": values_apart} | dict.fromkeys(
    ("attn_gate", "ssm_alpha", "ssm_beta"), neighbours_apart
)


def naming(rows: Mapping[str, Rows], *names: Mapping[str, str]) -> Naming:
    return Naming({key: value for one in names for key, value in one.items()}, rows)


# Architectures whose converter keeps values, except for the changes named beside them. Others are refused by name.
NAMINGS = {
    "llama": naming(ROTATED, LLAMA, MIXTRAL),
    "mistral3": naming(ROTATED, LLAMA),
    "smollm3": naming(ROTATED, LLAMA),
    "granite": naming(ROTATED, LLAMA),
    "arcee": naming(ROTATED, LLAMA),
    "minicpm": naming(ROTATED, LLAMA),
    "minicpm3": naming(PLAIN, DEEPSEEK2, GATED),
    "deci": naming(ROTATED, LLAMA, {"self_attn.linear_attn": "attn_output"}),
    "baichuan": naming(ROTATED, LLAMA, {"self_attn.W_pack": "attn_q+attn_k+attn_v"}),
    "bitnet": naming(PLAIN, LLAMA),
    "nanbeige": naming(ROTATED, LLAMA),
    "olmo": naming(ROTATED, LLAMA),
    "deepseek": naming(ROTATED, LLAMA, EXPERTS),
    "phi2": naming(PLAIN, PHI2),
    "phi3": naming(PLAIN, PHI3),
    "phimoe": naming(PLAIN, MIXTRAL),
    "glm4": naming(PLAIN, ATTENTION, PHI3),
    "gpt2": naming(PLAIN, GPT2),
    "starcoder": naming(PLAIN, GPT2),
    "starcoder2": naming(PLAIN, ATTENTION, GPT2),
    "bloom": naming(GROUPED, under("mlp", OLD), {"self_attention.query_key_value": "attn_qkv",
                                                 "self_attention.dense": "attn_output"}),
    "falcon": naming(GROUPED, under("mlp", OLD), {"self_attention.query_key_value": "attn_qkv",
                                                  "self_attention.dense": "attn_output"}),
    "gptneox": naming(GROUPED, under("mlp", OLD), {"attention.query_key_value": "attn_qkv",
                                                   "attention.dense": "attn_output"}),
    "chatglm": naming(PLAIN, ATTENTION, PHI3, under("mlp", OLD), {"self_attention.query_key_value": "attn_qkv",
                                                                  "self_attention.dense": "attn_output"}),
    "deepseek2": naming(PLAIN, DEEPSEEK2, GATED, EXPERTS),
    "deepseek32": naming(PLAIN, DEEPSEEK2, GATED, EXPERTS, INDEXER),
    "glm-dsa": naming(PLAIN, DEEPSEEK2, GATED, EXPERTS, INDEXER),
    "mpt": naming(PLAIN, MPT),
    "mamba": naming(PLAIN, under("mixer", MAMBA)),
    "mamba2": naming(PLAIN, under("mixer", MAMBA)),
    "nemotron_h": naming(PLAIN, NEMOTRON_H, under("mixer", MAMBA)),
    "lfm2": naming(PLAIN, LFM2),
    "lfm2moe": naming(PLAIN, LFM2, FORWARD_EXPERTS),
    "jamba": naming(PLAIN, ATTENTION, JAMBA, under("mamba", MAMBA)),
    "granitemoe": naming(ROTATED, ATTENTION, GRANITE_MOE),
    "granitehybrid": naming(ROTATED, ATTENTION, GRANITE_MOE, under("mamba", MAMBA)),
    "granitehybrid without experts": naming(ROTATED, ATTENTION, GRANITE_DENSE, under("mamba", MAMBA)),
    "hunyuan-moe": naming(PLAIN, ATTENTION, EXPERTS, HUNYUAN),
    "dbrx": naming(PLAIN, DBRX),
    "internlm2": naming(GROUPED_AND_ROTATED, INTERNLM2),
    "xverse": naming(ROTATED, LLAMA),
    "exaone": naming(PLAIN, EXAONE),
    "qwen": naming(PLAIN, QWEN),
    "codeshell": naming(PLAIN, GPT2),
    "openelm": naming(PLAIN, OPENELM),
    "refact": naming(PLAIN, REFACT),
    "bert": naming(PLAIN, BERT, DISTILBERT),
    "t5": naming(PLAIN, T5),
    "t5encoder": naming(PLAIN, T5),
    "nomic-bert": naming(PLAIN, NOMIC),
    "nomic-bert-moe": naming(PLAIN, NOMIC_MOE),
    "jina-bert-v2": naming(PLAIN, JINA2),
    "jina-bert-v3": naming(PLAIN, JINA3),
    "modern-bert": naming(PLAIN, MODERN),
    "llama-embed": naming(ROTATED, LLAMA),
    "llada": naming(ROTATED, LLADA),
    "gemma3n": naming(PLAIN, LLAMA, GEMMA4, GEMMA3N),
    "gemma4": naming(PLAIN, LLAMA, GEMMA4),
    "llama4": naming(PLAIN, ATTENTION, LLAMA4),
    "minimax-m2": naming(PLAIN, MIXTRAL),
    "minimax-m3": naming(PLAIN, MIXTRAL, MINIMAX_M3),
    "minimax-01": naming(PLAIN, MIXTRAL, under("self_attn", MINIMAX01)),
    "afmoe": naming(PLAIN, LLAMA, EXPERTS, ATTENTION_GATE, {"mlp.router.gate": "ffn_gate_inp"}),
    "bailingmoe2": naming(PLAIN, BAILING, GATED, EXPERTS),
    "bailingmoe3": replace(
        naming(PLAIN, DEEPSEEK2, LLAMA, EXPERTS, ATTENTION_GATE, LING3), recurrent={"self_attn.g_proj": "ssm_g_a"}
    ),
    "hrm_text": replace(naming(PLAIN, LLAMA, ATTENTION_GATE), stacks=("L_module", "H_module")),
    "hy_v3": naming(PLAIN, LLAMA, EXPERTS, HUNYUAN, {"mlp.router.gate": "ffn_gate_inp"}),
    "laguna": naming(PLAIN, LLAMA, EXPERTS, ATTENTION_GATE),
    "step35": naming(PLAIN, LLAMA, EXPERTS, ATTENTION_GATE),
    "smallthinker": naming(PLAIN, ATTENTION, SMALLTHINKER),
    "mistral4": naming(PLAIN, DEEPSEEK2, GATED, EXPERTS),
    "muse-glimmer": naming(ROTATED, LLAMA, ATTENTION_GATE),
    "nemotron_h_moe": naming(PLAIN, NEMOTRON_H, NEMOTRON_H_MOE, under("mixer", MAMBA)),
    "qwen3next": naming(NEIGHBOURS, LLAMA, EXPERTS, under("linear_attn", LINEAR_ATTENTION | APART_BY_KIND)),
    "qwen3next with joint heads": naming(PLAIN, LLAMA, EXPERTS, under("linear_attn", LINEAR_ATTENTION | JOINT)),
    "qwen35": replace(
        naming(APART, LLAMA, EXPERTS, under("linear_attn", LINEAR_ATTENTION)), columns={"ssm_out": neighbours_apart}
    ),
    "rwkv7": naming(PLAIN, RWKV7),
    "kimi-linear": naming(PLAIN, DEEPSEEK2, LLAMA, MIXTRAL, EXPERTS, KIMI),
    "gpt-oss": naming(PLAIN, ATTENTION, {"mlp.router": "ffn_gate_inp"}),
}  # fmt: skip
LIKE_LLAMA = """
qwen2 qwen3 qwen2vl qwen3vl gemma gemma2 gemma3 gemma-embedding command-r cohere2 olmo2 stablelm ernie4_5 exaone4
hunyuan-dense nemotron apertus seed_oss orion pangu-embedded eurobert jais2 dream
"""
WITH_EXPERTS = (
    "qwen2moe qwen3moe qwen3vlmoe olmoe dots1 glm4moe ernie4_5-moe exaone-moe mellum mimo2 cohere2moe rnd1 llada-moe"
)
NAMINGS["qwen35moe"] = NAMINGS["qwen35"]
NAMINGS |= dict.fromkeys(LIKE_LLAMA.split(), naming(PLAIN, LLAMA))
NAMINGS |= dict.fromkeys(WITH_EXPERTS.split(), naming(PLAIN, LLAMA, EXPERTS))

REFUSED = {
    "falcon-h1": "its files have multipliers in the weights that only the original configuration has",
}


def naming_of(spec: ModelSpec) -> Naming | None:
    """The naming of an architecture; None without a mapping."""
    bare, joint = f"{spec.arch} without experts", f"{spec.arch} with joint heads"
    if spec.delta is not None and spec.delta.joint:
        return NAMINGS.get(joint)
    return NAMINGS.get(bare if spec.experts is None and bare in NAMINGS else spec.arch)
