"""Recipes of Qwen3-Next and its successors: gated delta rule and gated attention in turns."""

from dataclasses import replace

from . import recipes as r
from . import shape as t
from .layers import attends
from .recipes import Recipe

# A head's norm turns sums that are nearly zero into numbers as large as others, with all of their rounding: less so
# with an epsilon that counts.
EPSILON, GAINS = 0.01, {"ssm_out": 0.5}
# Heads of values are `n_ssm_heads` of `ssm_dim`, heads of keys `n_groups` of `n_state`.


def rule(s, joint):
    n_conv = 2 * s.n_groups * s.n_state + s.inner
    shapes = t.weights(
        attn_qkv=(n_conv, s.n_embd),
        attn_gate=(s.inner, s.n_embd),
        ssm_conv1d=(n_conv, s.d_conv),
        ssm_norm=(s.ssm_dim,),
        ssm_out=(s.n_embd, s.inner),
    )
    shapes |= t.biases(ssm_dt=(s.n_ssm_heads,)) | {"ssm_a": (s.n_ssm_heads,)}
    if joint:
        return shapes | t.weights(ssm_ba=(2 * s.n_ssm_heads, s.n_embd))
    return shapes | t.weights(ssm_alpha=(s.n_ssm_heads, s.n_embd), ssm_beta=(s.n_ssm_heads, s.n_embd))


def attention(s):
    """A head's queries and behind them its gates."""
    return t.qkv(s) | t.weights(attn_q=(2 * s.q_dim, s.n_embd)) | t.output(s) | t.head_norms(s)


def dense(s):
    return t.gated(s)


def sparse(s):
    shared = t.gated(s, "_shexp", s.n_ff - 16) | t.weights(ffn_gate_inp_shexp=(1, s.n_embd))
    return t.experts(s, s.n_ff - 32) | shared


def layer(ffn, joint=False):
    def of(s, i):
        norms = t.norms(s, "attn_norm", "post_attention_norm")
        return norms | (attention(s) if attends(i) else rule(s, joint)) | ffn(s)

    return of


def layer_of_2025(s, i):
    """Queries, keys, values and gates in one matrix."""
    shapes = layer(sparse, joint=True)(s, i)
    if attends(i):
        return shapes
    n = shapes.pop("attn_qkv.weight")[0] + shapes.pop("attn_gate.weight")[0]
    return shapes | t.weights(ssm_in=(n, s.n_embd))


def keys(s):
    return t.ssm_keys(s) | r.partial(s) | {
        "attention.recurrent_layers": [not attends(i) for i in range(s.n_layers)],
        "full_attention_interval": 4,
        "rope.freq_base": 1e7,
        "attention.layer_norm_rms_epsilon": EPSILON,
    }  # fmt: skip


def sections(s):
    return {"rope.dimension_sections": [s.n_rot // 2 - s.n_rot // 3, s.n_rot // 3, 0, 0]}


def sparse_keys(s):
    return r.moe_keys(s) | {
        "expert_feed_forward_length": s.n_ff - 32,
        "expert_shared_feed_forward_length": s.n_ff - 16,
    }


def guessing_block(s):
    """What guesses a token further ahead, behind the layers of the model: attention, and what joins two streams."""
    shapes = layer(sparse)(s, 1) | t.norms(s, "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm")
    shapes |= t.weights(**{"nextn.eh_proj": (s.n_embd, 2 * s.n_embd)})
    return {f"blk.{s.n_layers}.{name}": dims for name, dims in shapes.items()}


def with_guessing_block(s):
    kinds = [*keys(s)["attention.recurrent_layers"], False]
    return {"attention.recurrent_layers": kinds, "block_count": s.n_layers + 1, "nextn_predict_layers": 1}


QWEN35 = Recipe("qwen35", layer(dense), r.all_of(keys, sections), head_size=True, gains=GAINS)
QWEN35MOE = Recipe("qwen35moe", layer(sparse), r.all_of(keys, sections, sparse_keys), head_size=True, gains=GAINS)
QWEN3NEXT = Recipe("qwen3next", layer(sparse, joint=True), r.all_of(keys, sparse_keys), head_size=True, gains=GAINS)

RECIPES = {
    "qwen3next": QWEN3NEXT,
    "qwen3next-2025": replace(QWEN3NEXT, layer=layer_of_2025),
    "qwen35": QWEN35,
    "qwen35-tied": replace(QWEN35, tied=True),
    "qwen35moe": QWEN35MOE,
    "qwen35moe-mtp": replace(QWEN35MOE, keys=r.all_of(QWEN35MOE.keys, with_guessing_block), extra=guessing_block),
}
