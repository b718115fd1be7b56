"""Attention over the blocks of positions that an index chooses, for each head of keys: MiniMax, "MiniMax-M3", 2026.

A block's score is that of its best key, by a short key per token and a short query per head of keys. Blocks near the
query are always chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from oxillama.errors import LoadError
from oxillama.gguf import GGUFFile, Metadata
from oxillama.kernels.attention import KvSlab, store
from oxillama.kernels.batch import Batch
from oxillama.kernels.chosen import Choice, attend_chosen, choose
from oxillama.kernels.matmul import linear, matmul
from oxillama.kernels.rope import rotate_
from oxillama.kernels.rows import Rows, take_rows
from oxillama.layer_state import KvShape
from oxillama.models.attention import HeadNorm, SelfAttention
from oxillama.models.layers import LayerSlabs, Mixer, Residual
from oxillama.models.spec import ModelSpec, read_spec
from oxillama.models.traits import Traits
from oxillama.models.weights import Weights


@dataclass(frozen=True)
class BlockSpec:
    """``n_heads`` queries of a token, as wide as a key, choose ``top_k`` blocks of ``size`` positions each.

    A query chooses for one head of keys, or for as many neighbours if there are fewer queries.
    The ``local`` ones that end with the query's own are among them.
    """

    n_heads: int
    dim: int
    top_k: int
    size: int
    local: int

    @classmethod
    def read(cls, m: Metadata, spec: ModelSpec) -> BlockSpec:
        """Reads metadata; LoadError names the key that contradicts others."""
        p = f"{spec.arch}.attention.indexer."
        n_heads = m.get_int(p + "head_count", minimum=1, maximum=1 << 10)
        for layer in spec.layers:
            if layer.n_kv_heads % n_heads:
                raise LoadError(
                    f"{p}head_count is {n_heads}, which does not divide the {layer.n_kv_heads} heads of keys"
                )
        dim = m.get_int(p + "key_length", minimum=1, maximum=1 << 12)
        if spec.rope is not None and dim < spec.rope.n_rot:
            raise LoadError(f"{p}key_length is {dim}, but {spec.arch}.rope.dimension_count is {spec.rope.n_rot}")
        top_k = m.get_int(p + "top_k", minimum=1, maximum=1 << 16)
        return cls(
            n_heads=n_heads,
            dim=dim,
            top_k=top_k,
            size=m.get_int(p + "block_size", minimum=1, maximum=1 << 16),
            local=m.get_int(p + "local_blocks", 1, minimum=0, maximum=top_k),
        )


def has_index(i: int) -> str:
    """Name of a tensor that layers with an index have."""
    return f"blk.{i}.indexer.k_proj.weight"


def read_chosen_blocks(file: GGUFFile, traits: Traits) -> ModelSpec:
    """Layers with an index keep its keys too."""
    spec = read_spec(file, traits)
    found = [has_index(i) in file.tensors for i in range(spec.n_layers)]
    if not any(found):
        return spec
    index = BlockSpec.read(file.metadata, spec)
    key = KvShape(1, index.dim, 0)
    states = tuple((*kept, key) if chooses else kept for kept, chooses in zip(spec.states, found, strict=True))
    return replace(spec, states=states, mixer_values=index.n_heads * (index.dim + index.top_k))


class BlockIndex:
    """Keys of a layer, and queries that choose among them."""

    def __init__(self, spec: ModelSpec, w: Weights, prefix: str, neox: bool) -> None:
        p, sizes = prefix + "indexer.", BlockSpec.read(w.metadata, spec)
        self.q = w.linear(p + "q_proj", sizes.n_heads * sizes.dim, spec.n_embd)
        self.k = w.linear(p + "k_proj", sizes.dim, spec.n_embd)
        self.q_norm, self.k_norm = (HeadNorm(w.vector(f"{p}{part}_norm.weight", sizes.dim)) for part in "qk")
        self.sizes, self.eps, self.neox = sizes, spec.norm_eps, neox

    def remember(self, k: Rows, cos_sin: Rows | None, slab: KvSlab, batch: Batch) -> None:
        self.prepare(k, self.k_norm, cos_sin)
        store(k, None, slab, batch)

    def choice(self, h: Rows, cos_sin: Rows | None, slab: KvSlab, batch: Batch) -> Choice:
        """Choice of the keys that each row of ``h`` attends to."""
        s = self.sizes
        made = Choice(batch, s.top_k, unit=s.size, n_heads=s.n_heads, local=s.local)
        if made.chooses:
            q = linear(h, self.q, batch)
            self.prepare(q, self.q_norm, cos_sin)
            choose(q, None, slab, batch, made)
        return made

    def prepare(self, x: Rows, norm: HeadNorm, cos_sin: Rows | None) -> None:
        norm(x, self.eps)
        if cos_sin is not None:
            rotate_(x, cos_sin, self.sizes.dim, self.neox)


class ChosenBlocks(SelfAttention):
    """Self-attention over chosen blocks. Its second slab holds the keys of the index."""

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, i: int, residual: Residual) -> None:
        super().__init__(spec, traits, w, i, residual)
        self.index = BlockIndex(spec, w, f"blk.{i}.", self.neox)

    def add_to(self, x: Rows, h: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        q, k, v, index_k = matmul(h, self.q, self.k, self.v, self.index.k, batch=batch)
        self.remember(k, v, cos_sin, slabs[0], batch)
        self.index.remember(index_k, cos_sin, slabs[1], batch)
        self.look_back(x, h, q, cos_sin, slabs, batch)

    def add_outputs_to(self, x: Rows, h: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        """The last layer: all rows store keys and values, but ``x`` has only the rows of the output."""
        k, v, index_k = matmul(h, self.k, self.v, self.index.k, batch=batch)
        self.remember(k, v, cos_sin, slabs[0], batch)
        self.index.remember(index_k, cos_sin, slabs[1], batch)
        if x.n:
            angles = None if cos_sin is None else take_rows(cos_sin, batch.output_rows)
            h = take_rows(h, batch.output_rows)
            self.look_back(x, h, linear(h, self.q, batch.outputs), angles, slabs, batch.outputs)

    def look_back(self, x: Rows, h: Rows, q: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        """Adds what the chosen part of the past gives to the queries ``q`` of the input ``h``."""
        choice = self.index.choice(h, cos_sin, slabs[1], batch)
        self.prepare(q, self.q_norm, cos_sin)
        self.residual.add_product(x, attend_chosen(q, slabs[0], batch, self.rule, choice), self.out, batch)


def read_attention(spec: ModelSpec, traits: Traits, w: Weights, i: int, residual: Residual) -> Mixer:
    kind = ChosenBlocks if has_index(i) in w else SelfAttention
    return kind(spec, traits, w, i, residual)
