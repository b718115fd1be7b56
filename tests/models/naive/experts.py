"""Feed-forward parts: one network, or experts that a router chooses for each token."""

import numpy as np

from .parts import sigmoid, silu, softmax

SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN = 1, 2, 3  # values of expert_gating_func


def gated(activation):
    """down(act(gate(h)) * up(h)); where there is no ffn_gate, ffn_up holds the gate and then up (Phi 3, GLM 4)."""

    def forward(layer, h, suffix=""):
        up = layer.linear("ffn_up" + suffix, h)
        if f"ffn_gate{suffix}.weight" in layer:
            gate = layer.linear("ffn_gate" + suffix, h)
        else:
            gate, up = np.split(up, 2, axis=1)
        return layer.linear("ffn_down" + suffix, activation(gate) * up)

    return forward


def plain(activation):
    """down(act(up(h)))"""
    return lambda layer, h: layer.linear("ffn_down", activation(layer.linear("ffn_up", h)))


def experts(*, normalise, gating=SOFTMAX, expert=None, dense=None, shared=None):
    """Experts in layers that have a router, ``dense`` in the others.

    ``normalise`` and ``gating`` are what holds where metadata don't say. ``router_input``: what experts are chosen by,
    if not by what they get.
    """
    dense, expert, shared = dense or gated(silu), expert or swiglu_expert, shared or shared_expert

    def forward(layer, h, router_input=None):
        if "ffn_gate_inp.weight" not in layer:
            return dense(layer, h)
        func = layer.get("expert_gating_func", 0) or gating
        seen = h if router_input is None else router_input
        weights = routing(layer, layer.linear("ffn_gate_inp", seen), func, normalise)
        out = np.zeros_like(h)
        for e in range(weights.shape[1]):
            out += weights[:, e : e + 1] * expert(layer, e, h)
        return out + shared(layer, h)

    return forward


def routing(layer, scores, gating, normalise):
    """Weight of every expert for every token; zero for those that are not chosen."""
    n_used = layer.get("expert_used_count")
    p = {SOFTMAX: softmax, SIGMOID: sigmoid, SOFTMAX_OF_CHOSEN: lambda s: s}[gating](scores)
    chosen = top(choice_scores(layer, p, gating), n_used)
    if gating == SOFTMAX_OF_CHOSEN:
        return softmax(np.where(chosen, p, -np.inf))
    weights = np.where(chosen, p, 0.0)
    if layer.get("expert_weights_norm", normalise):
        weights = weights / weights.sum(-1, keepdims=True)
    return weights * (layer.get("expert_weights_scale", 0.0) or 1.0)


def choice_scores(layer, p, gating):
    """What experts are chosen by: probabilities with the correction bias, only in the best groups (DeepSeek)."""
    for name in ("exp_probs_b.bias", "exp_probs_b"):  # the second in Hy3's files
        p = p + layer[name] if name in layer else p
    n_groups = layer.get("expert_group_count", 0)
    if n_groups <= 1:
        return p
    groups = p.reshape(len(p), n_groups, -1)
    kept = top(group_scores(groups, gating), layer.get("expert_group_used_count"))
    return np.where(kept[:, :, None], groups, -np.inf).reshape(p.shape)


def group_scores(groups, gating):
    """DeepSeek-V3 takes the sum of a group's two best, DeepSeek-V2 (softmax) its best."""
    ordered = np.sort(groups, axis=-1)
    return ordered[..., -2:].sum(-1) if gating == SIGMOID else ordered[..., -1]


def top(scores, n):
    """True at the n largest of each row."""
    order = np.argsort(-scores, axis=-1, kind="stable")[:, :n]
    chosen = np.zeros(scores.shape, bool)
    np.put_along_axis(chosen, order, True, axis=-1)
    return chosen


def expert_linear(layer, name, e, h):
    bias = layer[name + ".bias"][e] if name + ".bias" in layer else 0.0
    return h @ layer[name + ".weight"][e].T + bias


def gate_and_up(layer, e, h):
    """Two matrices, or one with the rows of the gate and then those of the other."""
    if "ffn_gate_up_exps.weight" in layer:
        return np.split(expert_linear(layer, "ffn_gate_up_exps", e, h), 2, axis=1)
    return tuple(expert_linear(layer, name, e, h) for name in ("ffn_gate_exps", "ffn_up_exps"))


def swiglu_expert(layer, e, h, activation=silu):
    gate, up = gate_and_up(layer, e, h)
    return expert_linear(layer, "ffn_down_exps", e, activation(gate) * up)


def gpt_oss_expert(layer, e, h, alpha=1.702, limit=7.0):
    """gate * sigmoid(alpha gate) * (up + 1), the gate bounded from above, up from both sides."""
    gate = np.minimum(expert_linear(layer, "ffn_gate_exps", e, h), limit)
    up = np.clip(expert_linear(layer, "ffn_up_exps", e, h), -limit, limit)
    return expert_linear(layer, "ffn_down_exps", e, gate * sigmoid(alpha * gate) * (up + 1))


def shared_expert(layer, h):
    """One more expert for all tokens, where there is one; Qwen weighs it by a sigmoid of its own."""
    if "ffn_down_shexp.weight" not in layer:
        return 0.0
    y = gated(silu)(layer, h, "_shexp")
    return y * sigmoid(layer.linear("ffn_gate_inp_shexp", h)) if "ffn_gate_inp_shexp.weight" in layer else y
