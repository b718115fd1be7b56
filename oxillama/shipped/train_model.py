"""The Llama architecture in a few torch functions; parameters live in a dict keyed by their GGUF tensor names."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

Params = dict[str, torch.Tensor]
Tables = tuple[torch.Tensor, torch.Tensor]
EMBEDDING_DEVIATION = 0.05


class Shape(NamedTuple):
    """Sizes of a model. Every input dimension is a multiple of 32 (the Q8_0 block); the default's, of 256 too."""

    n_vocab: int
    n_embd: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    n_ff: int
    head_dim: int = 32
    context: int = 1024
    rope_base: float = 10000.0
    norm_eps: float = 1e-5


SHAPES = {
    "default": Shape(1536, 256, 4, 8, 2, 512),
    "draft": Shape(1536, 64, 3, 2, 1, 192),
}


def init_params(shape: Shape, seed: int) -> Params:
    """Normal weights of deviation 1 / sqrt(inputs); zero where a layer writes to the residual stream."""
    generator = torch.Generator().manual_seed(seed)
    d, q, kv = shape.n_embd, shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    sizes = {"token_embd.weight": (shape.n_vocab, d), "output_norm.weight": (d,)}
    for i in range(shape.n_layers):
        names = {"attn_norm": (d,), "attn_q": (q, d), "attn_k": (kv, d), "attn_v": (kv, d), "attn_output": (d, q)}
        names |= {"ffn_norm": (d,), "ffn_gate": (shape.n_ff, d), "ffn_up": (shape.n_ff, d), "ffn_down": (d, shape.n_ff)}
        sizes |= {f"blk.{i}.{name}.weight": size for name, size in names.items()}
    params = {}
    for name, size in sizes.items():
        writes = "attn_output" in name or "ffn_down" in name
        scale = 0.0 if writes else EMBEDDING_DEVIATION if "embd" in name else size[-1] ** -0.5
        weight = torch.ones(size) if len(size) == 1 else torch.randn(size, generator=generator) * scale
        params[name] = weight.requires_grad_()
    return params


def rope_tables(shape: Shape, start: int, length: int) -> Tables:
    """cos and sin of position / base^(2i / head_dim), each [length, head_dim / 2]."""
    inverse = shape.rope_base ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
    angles = torch.outer(torch.arange(start, start + length).float(), inverse)
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, tables: Tables) -> torch.Tensor:
    """RoPE on adjacent pairs (2i, 2i + 1), as the llama architecture of GGUF has it; x is [..., length, head_dim]."""
    cos, sin = (table.to(x.dtype) for table in tables)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def attention(p: Params, i: int, shape: Shape, x: torch.Tensor, tables: Tables) -> torch.Tensor:
    """Causal grouped-query attention of layer i; x is [rows, length, n_embd]."""
    rows, length, _ = x.shape

    def heads(name: str, n: int) -> torch.Tensor:
        return F.linear(x, p[f"blk.{i}.{name}.weight"]).view(rows, length, n, shape.head_dim).transpose(1, 2)

    query = rotate(heads("attn_q", shape.n_heads), tables)
    group = shape.n_heads // shape.n_kv_heads
    key = rotate(heads("attn_k", shape.n_kv_heads), tables).repeat_interleave(group, 1)
    value = heads("attn_v", shape.n_kv_heads).repeat_interleave(group, 1)
    mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    return F.linear(mixed.transpose(1, 2).reshape(rows, length, -1), p[f"blk.{i}.attn_output.weight"])


def forward(p: Params, shape: Shape, ids: torch.Tensor) -> torch.Tensor:
    """Hidden states after the last norm, [rows, length, n_embd], of ids [rows, length]."""
    tables = rope_tables(shape, 0, ids.shape[1])
    x = F.embedding(ids, p["token_embd.weight"])
    for i in range(shape.n_layers):
        normed = F.rms_norm(x, (shape.n_embd,), p[f"blk.{i}.attn_norm.weight"], shape.norm_eps)
        x = x + attention(p, i, shape, normed, tables)
        normed = F.rms_norm(x, (shape.n_embd,), p[f"blk.{i}.ffn_norm.weight"], shape.norm_eps)
        gate, up = (F.linear(normed, p[f"blk.{i}.ffn_{name}.weight"]) for name in ("gate", "up"))
        x = x + F.linear(F.silu(gate) * up, p[f"blk.{i}.ffn_down.weight"])
    return F.rms_norm(x, (shape.n_embd,), p["output_norm.weight"], shape.norm_eps)


def logits(p: Params, hidden: torch.Tensor) -> torch.Tensor:
    """Scores over the vocabulary: the embedding table read backwards (tied)."""
    return F.linear(hidden, p["token_embd.weight"]).float()
