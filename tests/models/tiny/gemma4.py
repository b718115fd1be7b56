"""Recipes of Gemma 4: dense, with embeddings of layers and shared keys, and with experts; and of Gemma 3n."""

import math
from dataclasses import replace

from . import shape as t
from .recipes import Recipe, moe_keys

WIDTH, STREAMS = 6, 4  # of a layer's embeddings; of what Gemma 3n updates


def whole(i):
    return i % 3 == 1


def heads(s, i):
    """Whole layers have heads of twice the width, and one of keys."""
    return replace(s, head_dim=2 * s.head_dim, n_kv_heads=1) if whole(i) else s


def n_shared(s):
    """The last layers, but that each kind has keys."""
    return max(0, s.n_layers - 2)


def layer(s, i, own_values=True, shared=0):
    s = heads(s, i)
    norms = t.norms(s, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    shapes = norms | t.qkv(s) | t.output(s) | t.head_norms(s) | t.gated(s) | t.weights(layer_output_scale=(1,))
    missing = set()
    if whole(i) and not own_values:
        missing = {"attn_v.weight"}
    if i >= s.n_layers - shared:
        missing = {"attn_k.weight", "attn_v.weight", "attn_k_norm.weight"}
    return {name: dims for name, dims in shapes.items() if name not in missing}


def edge_layer(s, i):
    shapes = layer(s, i, shared=n_shared(s)) | t.norms(s, "post_norm")
    return shapes | t.weights(inp_gate=(WIDTH, s.n_embd), proj=(s.n_embd, WIDTH))


def sparse_layer(s, i):
    n, n_ff = s.n_experts, s.n_ff - 32
    shapes = layer(s, i, own_values=False) | t.norms(s, "post_ffw_norm_1", "post_ffw_norm_2", "pre_ffw_norm_2")
    shapes |= {"ffn_gate_inp.scale": (s.n_embd,), "ffn_down_exps.scale": (n,)}
    return shapes | t.weights(
        ffn_gate_inp=(n, s.n_embd), ffn_gate_up_exps=(n, 2 * n_ff, s.n_embd), ffn_down_exps=(n, s.n_embd, n_ff)
    )


def keys(s, shared=0, width=0):
    return {
        "rope.freq_base": 1e6,
        "rope.freq_base_swa": 1e4,
        "rope.dimension_count": 2 * s.head_dim,
        "rope.dimension_count_swa": s.head_dim,
        "attention.head_count_kv": [heads(s, i).n_kv_heads for i in range(s.n_layers)],
        "attention.key_length": 2 * s.head_dim,
        "attention.value_length": 2 * s.head_dim,
        "attention.key_length_swa": s.head_dim,
        "attention.value_length_swa": s.head_dim,
        "attention.sliding_window": s.window,
        "attention.sliding_window_pattern": [not whole(i) for i in range(s.n_layers)],
        "attention.shared_kv_layers": shared,
        "embedding_length_per_layer_input": width,
        "final_logit_softcapping": 9.0,
    }


def edge_tensors(s):
    total = s.n_layers * WIDTH
    shapes = t.weights(per_layer_model_proj=(total, s.n_embd), per_layer_proj_norm=(WIDTH,))
    return factors(s) | shapes | {"per_layer_token_embd.weight": (s.n_vocab, total)}


def factors(s):
    return t.weights(rope_freqs=(s.head_dim,))


def layer_of_2025(s, i):
    """The last layers have keys and values that nothing reads."""
    names = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm", "laurel_post_norm")
    shapes = t.norms(s, *names, "altup_router_norm") | t.qkv(s) | t.output(s) | t.head_norms(s) | t.gated(s)
    return shapes | t.weights(
        altup_correct_coef=(STREAMS, STREAMS),
        altup_correct_scale=(s.n_embd,),
        altup_predict_coef=(STREAMS**2, STREAMS),
        altup_router=(STREAMS, s.n_embd),
        inp_gate=(WIDTH, s.n_embd),
        laurel_l=(s.rank, s.n_embd),
        laurel_r=(s.n_embd, s.rank),
        proj=(s.n_embd, WIDTH),
    )


def keys_of_2025(s):
    return {
        "rope.freq_base": 1e6,
        "rope.freq_base_swa": 1e4,
        "feed_forward_length": [s.n_ff] * s.n_layers,
        "attention.sliding_window": s.window,
        "attention.sliding_window_pattern": [not whole(i) for i in range(s.n_layers)],
        "attention.shared_kv_layers": n_shared(s),
        "altup.active_idx": 0,
        "altup.num_inputs": STREAMS,
        "activation_sparsity_scale": [(1.6448536, -math.inf, 0.5)[i % 3] for i in range(s.n_layers)],
        "embedding_length_per_layer_input": WIDTH,
        "final_logit_softcapping": 9.0,
    }


def tensors_of_2025(s):
    stack = (STREAMS - 1, s.n_embd, s.n_embd)
    shapes = {name: dims for name, dims in edge_tensors(s).items() if name != "rope_freqs.weight"}
    return shapes | t.weights(altup_proj=stack, altup_unembd_proj=stack)


DENSE = Recipe(
    "gemma4",
    lambda s, i: layer(s, i, own_values=False),
    keys,
    tied=True,
    extra=factors,
    head_size=True,
    gains={"attn_q_norm": 0.15},  # scores are scaled by nothing else
)

RECIPES = {
    "gemma3n": Recipe(
        "gemma3n",
        layer_of_2025,
        keys_of_2025,
        tied=True,
        extra=tensors_of_2025,
        head_size=True,
        gains={"attn_q_norm": 0.15},
    ),
    "gemma4": DENSE,
    "gemma4-e4b": replace(
        DENSE, layer=edge_layer, keys=lambda s: keys(s, shared=n_shared(s), width=WIDTH), extra=edge_tensors
    ),
    "gemma4-moe": replace(
        DENSE,
        layer=sparse_layer,
        keys=lambda s: keys(s) | moe_keys(s) | {"expert_feed_forward_length": s.n_ff - 32},
    ),
}
