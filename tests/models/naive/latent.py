"""Multi-head latent attention (DeepSeek-V2, 2024), with full keys and values made from the latent for every head.

Nothing is absorbed here: this is how the paper writes it, equations 37 to 47.
"""

import math

import numpy as np

from . import rotary
from .attention import attend, hidden_past, split_heads
from .dense import Arch, norm
from .experts import SOFTMAX, experts
from .parts import rms_norm


def latent_layer(arch, layer, x, options):
    x = x + latent_attention(arch, layer, norm(arch, layer, "attn_norm", x), options)
    return x + arch.ffn(layer, norm(arch, layer, "ffn_norm", x))


def minicpm3_layer(arch, layer, x, options):
    """MiniCPM3-4B, whose configuration says scale_depth 1.4; files don't."""
    factor = 1.4 / math.sqrt(layer.file.n_layers)
    x = x + factor * latent_attention(arch, layer, norm(arch, layer, "attn_norm", x), options)
    return x + factor * arch.ffn(layer, norm(arch, layer, "ffn_norm", x))


def latent_attention(arch, layer, h, options, hidden=None):
    """``hidden``: what tokens must not see, if it is more than what follows them."""
    hidden = hidden_past(len(h), 0) if hidden is None else hidden
    n_rot = layer.get("rope.dimension_count")
    rank = layer.get("attention.kv_lora_rank")
    q = split_heads(queries(arch, layer, h), key_length(layer))
    q_plain, q_turned = q[..., :-n_rot], q[..., -n_rot:]
    compressed = layer.linear("attn_kv_a_mqa", h)
    latent = norm(arch, layer, "attn_kv_a_norm", compressed[:, :rank])
    k_turned = np.repeat(compressed[:, None, rank:], layer.heads, axis=1)
    k_plain, v = expand(layer, latent)
    q = np.concatenate([q_plain, turn(layer, q_turned, options, arch.pairing)], axis=-1)
    k = np.concatenate([k_plain, turn(layer, k_turned, options, arch.pairing)], axis=-1)
    out = attend(q, k, v, scale(layer), hidden=hidden)
    return layer.linear("attn_output", arch.gate(layer, h, out))


def key_length(layer):
    """Of a head, rotated part included; files from before the split of attn_kv_b have it in key_length."""
    return layer.get("attention.key_length_mla", 0) or layer.k_dim


def queries(arch, layer, h):
    """Through a low rank, but for the small models."""
    if "attn_q.weight" in layer:
        return layer.linear("attn_q", h)
    return layer.linear("attn_q_b", norm(arch, layer, "attn_q_a_norm", layer.linear("attn_q_a", h)))


def expand(layer, latent):
    """Every head's keys (the part that isn't rotated) and values.

    attn_k_b [heads, rank, dim], attn_v_b [heads, dim, rank]; older files hold both in attn_kv_b, head by head.
    """
    if "attn_kv_b.weight" in layer:
        both = layer.linear("attn_kv_b", latent).reshape(len(latent), layer.heads, -1)
        return np.split(both, [both.shape[-1] - layer.v_dim], axis=-1)
    keys = np.einsum("tr,hrd->thd", latent, layer["attn_k_b.weight"])
    values = np.einsum("tr,hdr->thd", latent, layer["attn_v_b.weight"])
    return keys, values


def turn(layer, x, options, pairing):
    """No ``pairing``: no rotation."""
    if pairing is None:
        return x
    frequencies = rotary.global_frequencies(layer.file, x.shape[-1], options.context_size)
    angles = np.outer(np.arange(len(x)), frequencies)
    magnitude = layer.get("rope.scaling.attn_factor", 1.0) if log_multiplier(layer) else rotary.magnitude(layer.file)
    return rotary.rotate(x, angles, magnitude, pairing)


def log_multiplier(layer):
    """0.1 mscale_all_dim. With it, YaRN's temperature is in the scores instead of in sines and cosines."""
    yarn = layer.get("rope.scaling.type") == "yarn"
    return layer.get("rope.scaling.yarn_log_multiplier", 0.0) if yarn else 0.0


def scale(layer):
    temperature = 1 + log_multiplier(layer) * math.log(rotary.scaling_factor(layer.file))
    return temperature**2 / math.sqrt(key_length(layer))


MINICPM3 = Arch(
    minicpm3_layer,
    pairing=rotary.HALVES,
    embed=lambda file, tokens, arch: 12.0 * file.w["token_embd.weight"][tokens],
    finish=lambda file, logits: logits / (file.n_embd / 256),
)
DEEPSEEK = Arch(latent_layer, norm=rms_norm, ffn=experts(normalise=False, gating=SOFTMAX))

ARCHS = {"minicpm3": MINICPM3, "deepseek2": DEEPSEEK, "mistral4": DEEPSEEK}
