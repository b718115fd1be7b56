"""Sizes of a tiny model, and the names and shapes of what converters write for its parts (numpy order, out before in).

Every function gives ``{name: shape}`` of one layer's tensors, without ``blk.i.``, or ``{key: value}``, without the
architecture's name.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """``n_embd`` gives way to ``n_heads * head_dim`` in architectures whose files have no head size of their own."""

    n_layers: int = 3
    n_embd: int = 64
    n_heads: int = 3
    n_kv_heads: int = 1
    head_dim: int = 16
    n_ff: int = 96
    n_vocab: int = 131
    context: int = 256
    window: int = 5
    n_experts: int = 5
    n_used: int = 2
    rank: int = 24  # of latent attention
    n_chosen: int = 11  # keys that a token chooses
    n_ssm_heads: int = 6
    ssm_dim: int = 12  # of one of them
    n_state: int = 8
    n_groups: int = 2  # of Mamba-2's B and C, which divide its heads, and of grouped experts
    d_conv: int = 4

    @property
    def n_rot(self):
        """About half a head, even."""
        return 2 * (self.head_dim // 4) or 2

    @property
    def q_dim(self):
        return self.n_heads * self.head_dim

    @property
    def kv_dim(self):
        return self.n_kv_heads * self.head_dim

    @property
    def inner(self):
        return self.n_ssm_heads * self.ssm_dim


def weights(**shapes):
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def biases(**shapes):
    return {f"{name}.bias": shape for name, shape in shapes.items()}


def norms(s, *names, bias=False):
    sizes = dict.fromkeys(names, (s.n_embd,))
    return weights(**sizes) | (biases(**sizes) if bias else {})


# Attention.


def qkv(s, bias=False):
    rows = {"attn_q": s.q_dim, "attn_k": s.kv_dim, "attn_v": s.kv_dim}
    shapes = weights(**{name: (n, s.n_embd) for name, n in rows.items()})
    return shapes | (biases(**{name: (n,) for name, n in rows.items()}) if bias else {})


def fused_qkv(s, bias=False):
    n = s.q_dim + 2 * s.kv_dim
    return weights(attn_qkv=(n, s.n_embd)) | (biases(attn_qkv=(n,)) if bias else {})


def output(s, bias=False):
    return weights(attn_output=(s.n_embd, s.q_dim)) | (biases(attn_output=(s.n_embd,)) if bias else {})


def head_norms(s):
    return weights(attn_q_norm=(s.head_dim,), attn_k_norm=(s.head_dim,))


def each_head_norms(s):
    return weights(attn_q_norm=(s.n_heads, s.head_dim), attn_k_norm=(s.n_kv_heads, s.head_dim))


def projection_norms(s):
    return weights(attn_q_norm=(s.q_dim,), attn_k_norm=(s.kv_dim,))


def latent(s, low_rank_queries, split=True, v_dim=None):
    """The part of a head that isn't rotated is ``head_dim``, values are two shorter unless they have ``v_dim``."""
    v_dim = v_dim or s.head_dim - 2
    q_dim = s.n_heads * (s.head_dim + s.n_rot)
    shapes = weights(
        attn_kv_a_mqa=(s.rank + s.n_rot, s.n_embd),
        attn_kv_a_norm=(s.rank,),
        attn_output=(s.n_embd, s.n_heads * v_dim),
    )
    if split:
        shapes |= weights(attn_k_b=(s.n_heads, s.rank, s.head_dim), attn_v_b=(s.n_heads, v_dim, s.rank))
    else:
        shapes |= weights(attn_kv_b=(s.n_heads * (s.head_dim + v_dim), s.rank))
    if not low_rank_queries:
        return shapes | weights(attn_q=(q_dim, s.n_embd))
    return shapes | weights(attn_q_a=(40, s.n_embd), attn_q_a_norm=(40,), attn_q_b=(q_dim, 40))


# Feed-forward parts.


def gated(s, suffix="", n_ff=None):
    n = n_ff or s.n_ff
    parts = {"ffn_gate": (n, s.n_embd), "ffn_up": (n, s.n_embd), "ffn_down": (s.n_embd, n)}
    return weights(**{name + suffix: shape for name, shape in parts.items()})


def gate_in_up(s):
    return weights(ffn_up=(2 * s.n_ff, s.n_embd), ffn_down=(s.n_embd, s.n_ff))


def plain(s, bias=True):
    shapes = weights(ffn_up=(s.n_ff, s.n_embd), ffn_down=(s.n_embd, s.n_ff))
    return shapes | (biases(ffn_up=(s.n_ff,), ffn_down=(s.n_embd,)) if bias else {})


def experts(s, n_ff=None):
    n, f = s.n_experts, n_ff or s.n_ff
    return weights(
        ffn_gate_inp=(n, s.n_embd),
        ffn_gate_exps=(n, f, s.n_embd),
        ffn_up_exps=(n, f, s.n_embd),
        ffn_down_exps=(n, s.n_embd, f),
    )


def expert_biases(s):
    n, f = s.n_experts, s.n_ff
    return biases(ffn_gate_inp=(n,), ffn_gate_exps=(n, f), ffn_up_exps=(n, f), ffn_down_exps=(n, s.n_embd))


# Recurrent parts.


def mamba(s, norms_of_inputs=False):
    r = s.n_ssm_heads
    shapes = weights(
        ssm_in=(2 * s.inner, s.n_embd),
        ssm_conv1d=(s.inner, s.d_conv),
        ssm_x=(r + 2 * s.n_state, s.inner),
        ssm_dt=(s.inner, r),
        ssm_out=(s.n_embd, s.inner),
    )
    shapes |= biases(ssm_conv1d=(s.inner,), ssm_dt=(s.inner,)) | {"ssm_a": (s.inner, s.n_state), "ssm_d": (s.inner,)}
    if norms_of_inputs:
        shapes |= weights(ssm_dt_norm=(r,), ssm_b_norm=(s.n_state,), ssm_c_norm=(s.n_state,))
    return shapes


def mamba2(s, norm=True):
    n_conv = s.inner + 2 * s.n_groups * s.n_state
    shapes = weights(
        ssm_in=(s.inner + n_conv + s.n_ssm_heads, s.n_embd),
        ssm_conv1d=(n_conv, s.d_conv),
        ssm_out=(s.n_embd, s.inner),
    )
    shapes |= biases(ssm_conv1d=(n_conv,), ssm_dt=(s.n_ssm_heads,))
    shapes |= {"ssm_a": (s.n_ssm_heads, 1), "ssm_d": (s.n_ssm_heads, 1)}
    return shapes | (weights(ssm_norm=(s.n_groups, s.inner // s.n_groups)) if norm else {})


def ssm_keys(s, groups=True):
    keys = {
        "ssm.conv_kernel": s.d_conv,
        "ssm.inner_size": s.inner,
        "ssm.state_size": s.n_state,
        "ssm.time_step_rank": s.n_ssm_heads,
    }
    return keys | ({"ssm.group_count": s.n_groups} if groups else {})


def short_convolution(s):
    return {
        "shortconv.conv.weight": (s.n_embd, s.d_conv),
        "shortconv.in_proj.weight": (3 * s.n_embd, s.n_embd),
        "shortconv.out_proj.weight": (s.n_embd, s.n_embd),
    }
