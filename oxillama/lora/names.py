"""Hugging Face's names of modules as names of GGUF tensors, by architecture.

What converters do to the values is done to the factors alike: rows of queries and keys that rotate in pairs are put
side by side, and heads that stand interleaved are taken apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from oxillama.errors import LoraError, UnsupportedModelError
from oxillama.lora.factors import Change
from oxillama.models import ModelSpec

__all__ = ["to_gguf"]

Rows = Callable[[np.ndarray, ModelSpec, int], np.ndarray]  # of b, as the file has them; the layer's number

# Only of the text: the vision towers of some models have layers with the same names.
TRUNK = (
    r"(?:(?:model|transformer|gpt_neox|backbone|model\.language_model|language_model\.model|transformer\.encoder|"
    r"encoder|bert\.encoder)\.)?"
)
LAYER = re.compile(TRUNK + r"(?:layers|layer|h)\.(\d{1,4})\.(.+)")
TABLE = re.compile(TRUNK + r"(?:(?:bert\.)?embeddings\.|embedding\.)?(\w+)")
EXPERT = re.compile(r"(.*experts)\.(\d{1,4})\.(.+)")
TOP = {
    "embed_tokens": "token_embd",
    "embed_in": "token_embd",
    "wte": "token_embd",
    "word_embeddings": "token_embd",
    "embeddings": "token_embd",
    "embedding": "token_embd",
    "wpe": "position_embd",
    "position_embeddings": "position_embd",
    "lm_head": "output",
    "embed_out": "output",
    "output_layer": "output",
}

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
LFM2 = {f"feed_forward.{w}": f"ffn_{part}" for w, part in W123.items()} | {
    **ATTENTION,
    "self_attn.out_proj": "attn_output",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
}


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


@dataclass(frozen=True)
class Naming:
    """Names within a layer, and what is done to rows of some tensors."""

    names: Mapping[str, str]
    rows: Mapping[str, Rows]


ROTATED: dict[str, Rows] = {"attn_q": rotated_queries, "attn_k": rotated_keys}
GROUPED: dict[str, Rows] = {"attn_qkv": heads_apart}
PLAIN: dict[str, Rows] = {}


def naming(rows: Mapping[str, Rows], *names: Mapping[str, str]) -> Naming:
    return Naming({key: value for one in names for key, value in one.items()}, rows)


# Architectures whose converter keeps values as they are, but for what is named beside them. Others are refused by name.
NAMINGS = {
    "llama": naming(ROTATED, LLAMA, MIXTRAL),
    "mistral3": naming(ROTATED, LLAMA),
    "smollm3": naming(ROTATED, LLAMA),
    "granite": naming(ROTATED, LLAMA),
    "arcee": naming(ROTATED, LLAMA),
    "minicpm": naming(ROTATED, LLAMA),
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
    "chatglm": naming(PLAIN, under("mlp", OLD), {"self_attention.query_key_value": "attn_qkv",
                                                 "self_attention.dense": "attn_output"}),
    "deepseek2": naming(PLAIN, DEEPSEEK2, GATED, EXPERTS),
    "mamba": naming(PLAIN, under("mixer", MAMBA)),
    "mamba2": naming(PLAIN, under("mixer", MAMBA)),
    "nemotron_h": naming(PLAIN, NEMOTRON_H, under("mixer", MAMBA)),
    "lfm2": naming(PLAIN, LFM2),
    "bert": naming(PLAIN, BERT),
    "gpt-oss": naming(PLAIN, ATTENTION, {"mlp.router": "ffn_gate_inp"}),
}  # fmt: skip
LIKE_LLAMA = """
qwen2 qwen3 qwen2vl qwen3vl gemma gemma2 gemma3 gemma-embedding command-r cohere2 olmo2 stablelm ernie4_5 exaone4
hunyuan-dense nemotron seed_oss orion pangu-embedded
"""
WITH_EXPERTS = "qwen2moe qwen3moe qwen3vlmoe olmoe dots1 glm4moe ernie4_5-moe"
NAMINGS |= dict.fromkeys(LIKE_LLAMA.split(), naming(PLAIN, LLAMA))
NAMINGS |= dict.fromkeys(WITH_EXPERTS.split(), naming(PLAIN, LLAMA, EXPERTS))


def to_gguf(changes: Mapping[str, Change], spec: ModelSpec) -> dict[str, Change]:
    """The changes by GGUF tensor name, as the model's file has its values.

    Raises UnsupportedModelError for an architecture whose names are not known here, LoraError for a module that is none
    of the model's.
    """
    if spec.arch not in NAMINGS:
        raise UnsupportedModelError(
            f"PEFT folders for architecture {spec.arch} are not supported: convert the adapter to GGUF (llama.cpp's "
            "convert_lora_to_gguf.py does)"
        )
    found: dict[str, Change] = {}
    stacks: dict[str, dict[int, Change]] = {}
    for module, change in changes.items():
        name, expert, i = tensor_name(module, spec)
        change = with_rows(module, change, name, spec, i)
        if expert is None:
            if name in found:
                raise LoraError(f"{module}: another module of the adapter is {name}, too")
            found[name] = change
        else:
            stacks.setdefault(name, {})[expert] = change
    return found | {name: stacked(name, stack, spec) for name, stack in stacks.items()}


def tensor_name(module: str, spec: ModelSpec) -> tuple[str, int | None, int]:
    """The tensor, the expert in it, and the layer (0 where there is none)."""
    match = LAYER.fullmatch(module)
    if match is None:
        table = TABLE.fullmatch(module)
        name = TOP.get(table[1]) if table else None
        if name is None:
            raise LoraError(f"{module[:200]} is no module of architecture {spec.arch} that is known here")
        return f"{name}.weight", None, 0
    i, inner, expert = int(match[1]), match[2], None
    if (inside := EXPERT.fullmatch(inner)) is not None:
        inner, expert = f"{inside[1]}.{inside[3]}", int(inside[2])
    name = NAMINGS[spec.arch].names.get(inner)
    if name is None or i >= spec.n_layers:
        raise LoraError(f"{module[:200]} is no module of this model: {spec.arch} with {spec.n_layers} layers")
    return f"blk.{i}.{name}.weight", expert, i


def with_rows(module: str, change: Change, name: str, spec: ModelSpec, i: int) -> Change:
    """The change with the rows of ``b`` where the file has them."""
    rows = NAMINGS[spec.arch].rows.get(name.split(".")[-2])
    if rows is None:
        return change
    try:
        return replace(change, b=np.ascontiguousarray(rows(change.b, spec, i)))
    except ValueError:
        raise LoraError(f"{module}: factor B has {len(change.b)} rows, which are no heads of this model") from None


def stacked(name: str, stack: Mapping[int, Change], spec: ModelSpec) -> Change:
    """Experts' changes as one: nothing for those that have none, and zeros up to the highest rank."""
    n = spec.experts.n_experts if spec.experts is not None else 0
    if max(stack) >= n:
        raise LoraError(f"{name}: expert {max(stack)} is changed, but the model has {n}")
    rank = max(change.rank for change in stack.values())
    one = stack[max(stack)]
    a = np.zeros((n, rank, one.a.shape[-1]), np.float32)
    b = np.zeros((n, one.b.shape[0], rank), np.float32)
    for e, change in stack.items():
        if change.a.shape[1] != a.shape[2] or change.b.shape[0] != b.shape[1]:
            raise LoraError(f"{name}: experts {max(stack)} and {e} are changed in different shapes")
        a[e, : change.rank], b[e, :, : change.rank] = change.a * np.float32(change.scale), change.b
    return Change(a, b, 1.0)
