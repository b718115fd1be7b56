"""Lightning attention: linear attention whose past fades at a constant pace, by head and by layer.

Qin et al., "Lightning Attention-2", 2024; MiniMax, "MiniMax-01", 2025.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oxillama._util.rounded import power
from oxillama.errors import LoadError
from oxillama.gguf import Metadata
from oxillama.kernels import elementary
from oxillama.kernels.activations import sigmoid_, silu_
from oxillama.kernels.batch import Batch
from oxillama.kernels.dplr import decaying
from oxillama.kernels.heads import split_heads
from oxillama.kernels.matmul import matmul
from oxillama.kernels.norms import rms_norm
from oxillama.kernels.recurrent import RecurrentSlab
from oxillama.kernels.rows import Rows, Vector, mul_
from oxillama.layer_state import RecurrentShape, panels
from oxillama.models.layers import Residual
from oxillama.models.mamba import Recurrent
from oxillama.models.spec import ModelSpec
from oxillama.models.weights import Weights

MAX_STATE = 1 << 28  # values of one layer
NORM_EPS = 1e-6  # of what the heads give, in the authors' code; metadata have that of the other norms


def lightning_shape(m: Metadata, head_dim: int) -> RecurrentShape:
    """Shape of what a layer keeps: a matrix from keys to values for each head. LoadError for one too large."""
    key = f"{m.arch}.attention.head_count"
    n_heads = m.get_int(key, minimum=1, maximum=1 << 16)
    n_values = n_heads * head_dim * panels(head_dim)
    if n_values > MAX_STATE:
        raise LoadError(
            f"{key} {n_heads} and {m.arch}.attention.key_length {head_dim} make a state of {n_values} values in each "
            f"layer; at most {MAX_STATE} can be"
        )
    return RecurrentShape(n_values)


def fading(n_heads: int, i: int, n_layers: int) -> NDArray[np.float32]:
    """Rates by which each head's state fades with a token in layer ``i``: float32 [n_heads].

    The slopes of ALiBi for a power of two, less steep from layer to layer; MiniMax's own code for the small numbers.
    """
    slopes = np.array([power(2.0, -8.0 * head / n_heads) for head in range(1, n_heads + 1)])
    return elementary.exp(-slopes * (1 - i / (n_layers - 1 + 1e-5) + 1e-5)).astype(np.float32)


class LightningAttention(Recurrent):
    """``out(norm(S^T q) * sigmoid(gate(h)))``, where ``S = decay S + k v^T`` and q, k, v = silu(qkv(h)), by head."""

    def __init__(self, spec: ModelSpec, w: Weights, i: int, residual: Residual) -> None:
        p = f"blk.{i}."
        self.n_heads = w.metadata.get_int(f"{spec.arch}.attention.head_count")
        self.head_dim, inner = spec.head_dim, self.n_heads * spec.head_dim
        super().__init__(w, p + "attn_output", inner, spec, residual)
        self.project = w.linear(p + "attn_qkv", 3 * inner, spec.n_embd)  # of each head: query, key, value
        self.gate = w.linear(p + "attn_gate", inner, spec.n_embd)
        self.norm = w.vector(p + "attn_norm_2.weight", inner)
        self.decays = Vector(np.repeat(fading(self.n_heads, i, spec.n_layers), self.head_dim))
        self.codes = self.project.integer

    def mix(self, h: Rows, slab: RecurrentSlab, batch: Batch) -> Rows:
        qkv, gate = matmul(h, self.project, self.gate, batch=batch)
        silu_(qkv)
        q, kv = split_heads(qkv, self.n_heads, self.head_dim)
        k, v = split_heads(kv, self.n_heads, self.head_dim)
        y = rms_norm(decaying(q, k, v, self.decays, self.n_heads, slab, batch), self.norm, NORM_EPS)
        sigmoid_(gate)
        mul_(y, gate)
        return y
