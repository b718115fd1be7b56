"""DeepSeek-V2 and V3 in plain numpy, float64: keys and values of every head are unfolded, nothing is absorbed."""

import numpy as np

import oxillama.gguf as gguf

from .naive import norm, rotate


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def silu(x):
    return x / (1 + np.exp(-x))


class Naive:
    def __init__(self, path):
        with gguf.open(path) as file:
            self.w = {k: v.dequantize().astype(np.float64) for k, v in file.tensors.items()}
            self.m = dict(file.metadata)

    def key(self, name, default=None):
        return self.m.get(f"deepseek2.{name}", default)

    def logits(self, tokens, *, frequencies=None, scale=1.0):
        """``scale``: what scores are multiplied by beside 1 / sqrt(key_length_mla)."""
        x = self.w["token_embd.weight"][tokens]
        rope = self.key("rope.dimension_count")
        if frequencies is None:
            frequencies = self.key("rope.freq_base") ** (-np.arange(0, rope, 2) / rope)
        angles, eps = np.outer(np.arange(len(tokens)), frequencies), self.key("attention.layer_norm_rms_epsilon")
        for layer in range(self.key("block_count")):
            self.p = f"blk.{layer}."
            x = x + self.attention(norm(x, self.w[self.p + "attn_norm.weight"], eps), angles, eps, scale)
            h = norm(x, self.w[self.p + "ffn_norm.weight"], eps)
            dense = layer < self.key("leading_dense_block_count", 0)
            x = x + (self.swiglu(h, "") if dense else self.experts(h) + self.swiglu(h, "_shexp"))
        return norm(x, self.w["output_norm.weight"], eps) @ self.w.get("output.weight", self.w["token_embd.weight"]).T

    def linear(self, h, name):
        return h @ self.w[f"{self.p}{name}.weight"].T

    def swiglu(self, h, suffix):
        hidden = silu(self.linear(h, "ffn_gate" + suffix)) * self.linear(h, "ffn_up" + suffix)
        return self.linear(hidden, "ffn_down" + suffix)

    def attention(self, h, angles, eps, scale):
        n, heads, rank = len(h), self.key("attention.head_count"), self.key("attention.kv_lora_rank")
        if self.p + "attn_q.weight" in self.w:
            q = self.linear(h, "attn_q")
        else:
            q = self.linear(norm(self.linear(h, "attn_q_a"), self.w[self.p + "attn_q_a_norm.weight"], eps), "attn_q_b")
        q = q.reshape(n, heads, -1)
        nope = q.shape[2] - 2 * angles.shape[1]
        kv = self.linear(h, "attn_kv_a_mqa")
        latent = norm(kv[:, :rank], self.w[self.p + "attn_kv_a_norm.weight"], eps)
        k, v = self.unfolded(latent, heads, nope)
        shared = np.repeat(rotate(kv[:, None, rank:], angles, 1.0), heads, 1)
        q = np.concatenate([q[:, :, :nope], rotate(q[:, :, nope:], angles, 1.0)], 2)
        scores = np.einsum("ihd,jhd->hij", q, np.concatenate([k, shared], 2)) * scale / np.sqrt(q.shape[2])
        p = softmax(np.where(np.tri(n, dtype=bool), scores, -np.inf))
        return self.linear(np.einsum("hij,jhd->ihd", p, v).reshape(n, -1), "attn_output")

    def unfolded(self, latent, heads, nope):
        """Keys and values of every head, [tokens, heads, dims]."""
        if self.p + "attn_kv_b.weight" in self.w:
            both = self.linear(latent, "attn_kv_b").reshape(len(latent), heads, -1)
            return both[:, :, :nope], both[:, :, nope:]
        k_b, v_b = (self.w[f"{self.p}attn_{name}_b.weight"] for name in "kv")
        return np.einsum("tr,hrd->thd", latent, k_b), np.einsum("tr,hdr->thd", latent, v_b)

    def experts(self, h):
        logits = self.linear(h, "ffn_gate_inp")
        sigmoid = self.key("expert_gating_func", 1) == 2
        p = 1 / (1 + np.exp(-logits)) if sigmoid else softmax(logits)
        chosen = self.choose(p + self.w.get(self.p + "exp_probs_b.bias", 0.0))
        weights = np.take_along_axis(p, chosen, 1)
        if self.key("expert_weights_norm", False):
            weights = weights / weights.sum(1, keepdims=True)
        weights = weights * self.key("expert_weights_scale", 1.0)
        gate, up, down = (self.w[f"{self.p}ffn_{name}_exps.weight"] for name in ("gate", "up", "down"))
        out = np.zeros_like(h)
        for row, (experts, shares) in enumerate(zip(chosen, weights, strict=True)):
            for e, share in zip(experts, shares, strict=True):
                out[row] += share * (down[e] @ (silu(gate[e] @ h[row]) * (up[e] @ h[row])))
        return out

    def choose(self, scores):
        """The best experts of the groups whose two best experts are best together."""
        n_groups, used = self.key("expert_group_count", 1), self.key("expert_group_used_count", 1)
        if n_groups > 1:
            groups = scores.reshape(len(scores), n_groups, -1)
            worth = np.sort(groups, 2)[:, :, -2:].sum(2)
            out = np.argsort(-worth, 1, kind="stable")[:, used:]
            groups = groups.copy()
            np.put_along_axis(groups, out[:, :, None], -np.inf, 1)
            scores = groups.reshape(len(scores), -1)
        return np.argsort(-scores, 1, kind="stable")[:, : self.key("expert_used_count")]
