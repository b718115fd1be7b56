"""Attention whose result is gated by its input: Qiu et al., "Gated Attention for Large Language Models", 2025."""

from __future__ import annotations

from oxillama.errors import LoadError
from oxillama.kernels.activations import sigmoid_, softplus_
from oxillama.kernels.attention import KvSlab
from oxillama.kernels.batch import Batch
from oxillama.kernels.heads import split_heads
from oxillama.kernels.matmul import linear, matmul
from oxillama.kernels.matrix import Matrix
from oxillama.kernels.rows import Rows, mul_, mul_heads_, take_rows
from oxillama.models.attention import SelfAttention
from oxillama.models.layers import LayerSlabs, Mixer, Residual
from oxillama.models.spec import LayerSpec, ModelSpec
from oxillama.models.traits import Traits
from oxillama.models.weights import Weights

FUNCTIONS = {"sigmoid": sigmoid_, "softplus": softplus_}


class GatedAttention(SelfAttention):
    """``x += out(attention(q, k, v) * f(gate(h)))``; the gate has a value for each value, or one for each head."""

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, i: int, residual: Residual) -> None:
        super().__init__(spec, traits, w, i, residual)
        self.gate, self.by_head = read_gate(spec, w, i)
        self.function = FUNCTIONS[traits.gate]

    def add_to(self, x: Rows, h: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        (slab,) = slabs
        q, k, v, gate = matmul(h, self.q, self.k, self.v, self.gate, batch=batch)
        self.remember(k, v, cos_sin, slab, batch)
        self.add_gated(x, self.attend(q, cos_sin, slab, batch), gate, batch)

    def add_outputs_to(self, x: Rows, h: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        """The last layer: all rows store keys and values, but ``x`` has only the rows of the output."""
        (slab,) = slabs
        k, v = matmul(h, self.k, self.v, batch=batch)
        self.remember(k, v, cos_sin, slab, batch)
        if x.n:
            angles = None if cos_sin is None else take_rows(cos_sin, batch.output_rows)
            h, outputs = take_rows(h, batch.output_rows), batch.outputs
            gate = linear(h, self.gate, outputs)
            self.add_gated(x, self.attend(linear(h, self.q, outputs), angles, slab, outputs), gate, outputs)

    def add_gated(self, x: Rows, y: Rows, gate: Rows, batch: Batch) -> None:
        self.function(gate)
        if self.by_head:
            mul_heads_(y, gate)
        else:
            mul_(y, gate)
        self.residual.add_product(x, y, self.out, batch)


class JointlyGatedAttention(SelfAttention):
    """Attention like `GatedAttention`, with one matrix for queries and gates: of each head its queries, then its
    gates."""

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, i: int, residual: Residual) -> None:
        if spec.v_head_dim != spec.head_dim:
            raise LoadError(
                f"{spec.arch}.attention.value_length is {spec.v_head_dim}, but attn_q has as many gates as queries: "
                f"attention.key_length {spec.head_dim}"
            )
        super().__init__(spec, traits, w, i, residual)
        self.n_heads = spec.layers[i].n_heads

    def read_projections(
        self, spec: ModelSpec, layer: LayerSpec, traits: Traits, w: Weights, prefix: str
    ) -> list[Matrix]:
        q_dim, kv_dim = layer.n_heads * spec.head_dim, layer.n_kv_heads * spec.head_dim
        sizes = {"q": 2 * q_dim, "k": kv_dim, "v": kv_dim}
        return [w.linear(f"{prefix}attn_{part}", n, spec.n_embd) for part, n in sizes.items()]

    def add_attended(self, x: Rows, q: Rows, cos_sin: Rows | None, slab: KvSlab, batch: Batch) -> None:
        q, gate = split_heads(q, self.n_heads, self.head_dim)
        y = self.attend(q, cos_sin, slab, batch)
        sigmoid_(gate)
        mul_(y, gate)
        self.residual.add_product(x, y, self.out, batch)


def read_gate(spec: ModelSpec, w: Weights, i: int) -> tuple[Matrix, bool]:
    """The gate of a layer, and whether it has one value for each head. Its size alone says which."""
    name, heads = f"blk.{i}.attn_gate.weight", spec.layers[i].n_heads
    by_head = name in w and w.n_values(name) == heads * spec.n_embd
    n = heads if by_head else heads * spec.v_head_dim
    return w.linear(f"blk.{i}.attn_gate", n, spec.n_embd), by_head


def gated_if_there(spec: ModelSpec, traits: Traits, w: Weights, i: int, residual: Residual) -> Mixer:
    """The layer's attention, gated in files that have gates."""
    kind = GatedAttention if w.has(f"blk.{i}.attn_gate.weight") else SelfAttention
    return kind(spec, traits, w, i, residual)
