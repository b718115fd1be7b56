"""Latent attention over the keys that an index chooses: DeepSeek-AI, "DeepSeek-V3.2", 2025, section 2.1.

Each layer keeps one short key per token beside the latent vector. A token scores all keys of its past by several short
queries, ``sum over heads of weight * relu(q . k)``, and attends to the best. GLM-5.2 scores in some of its layers, and
those between use the choice of the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from oxillama.errors import LoadError
from oxillama.gguf import GGUFArray, GGUFFile, Metadata
from oxillama.kernels.attention import KvSlab, store
from oxillama.kernels.batch import Batch
from oxillama.kernels.chosen import Choice, attend_chosen, choose
from oxillama.kernels.matmul import linear, matmul
from oxillama.kernels.rope import rotate_
from oxillama.kernels.rows import Rows, take_rows
from oxillama.layer_state import KvShape, LayerShape
from oxillama.models.decoder import Decoder
from oxillama.models.latent import LatentAttention, LatentSpec
from oxillama.models.layers import LayerNorm, LayerSlabs, Residual
from oxillama.models.spec import ModelSpec, read_switches
from oxillama.models.traits import Traits
from oxillama.models.weights import Weights

KEY_EPSILON = 1e-6  # of the norm of keys, in the authors' code
CHOOSING_LAYERS = "attention.indexer.types"


@dataclass(frozen=True)
class IndexSpec:
    """``n_heads`` queries of a token, as wide as a key, choose ``top_k`` positions in ``layers`` that are True."""

    n_heads: int
    dim: int
    top_k: int
    layers: tuple[bool, ...]

    @classmethod
    def read(cls, m: Metadata, has: Callable[[str], bool], arch: str, n_layers: int, n_rot: int) -> IndexSpec:
        """Reads metadata; LoadError names the key that contradicts others. ``has``: whether the file has a tensor."""
        p = f"{arch}.attention.indexer."
        dim = m.get_int(p + "key_length", minimum=1, maximum=1 << 12)
        if dim < n_rot:
            raise LoadError(f"{p}key_length is {dim}, but {arch}.rope.dimension_count is {n_rot}")
        return cls(
            n_heads=m.get_int(p + "head_count", minimum=1, maximum=1 << 10),
            dim=dim,
            top_k=m.get_int(p + "top_k", minimum=1, maximum=1 << 20),
            layers=choosing_layers(m, has, arch, n_layers),
        )


def choosing_layers(m: Metadata, has: Callable[[str], bool], arch: str, n_layers: int) -> tuple[bool, ...]:
    """Layers that choose keys: those of metadata, all of DeepSeek's, or those of GLM-5 that have the tensors for it.

    The layers that predict tokens further ahead may be in metadata or not.
    """
    key = f"{arch}.{CHOOSING_LAYERS}"
    if key in m:
        n_blocks, found = m.get_int(f"{arch}.block_count"), m[key]
        with_more = isinstance(found, GGUFArray) and len(found) == n_blocks
        layers = read_switches(m, key, n_blocks if with_more else n_layers, "choose keys")[:n_layers]
    else:
        layers = [arch != "glm-dsa" or has(f"blk.{i}.indexer.attn_k.weight") for i in range(n_layers)]
    if not layers[0]:
        raise LoadError(f"{key} has the first layer use the choice of an earlier one, or that layer has no index")
    return tuple(layers)


def read_indexed(file: GGUFFile, spec: ModelSpec) -> ModelSpec:
    """Reads what each layer keeps: the latent vector, and a key of the index if the layer chooses."""
    sizes = LatentSpec.read(file.metadata, spec.arch, spec.n_heads)
    index = IndexSpec.read(file.metadata, file.tensors.__contains__, spec.arch, spec.n_layers, sizes.rotated)
    if not sizes.q_rank:
        raise LoadError(f"{spec.arch}.attention.q_lora_rank is 0, but the queries of the index are made of that vector")
    latent, key = KvShape(1, sizes.cached, sizes.rank), KvShape(1, index.dim, 0)
    states: tuple[LayerShape, ...] = tuple((latent, key) if chooses else (latent,) for chooses in index.layers)
    n_values = index.n_heads * (index.dim + 1) + index.top_k
    return replace(spec, states=states, mixer_values=n_values, shares_choice=not all(index.layers))


class Index:
    """Keys of a layer, and queries that choose among them."""

    def __init__(self, sizes: LatentSpec, index: IndexSpec, w: Weights, prefix: str, n_embd: int, neox: bool) -> None:
        p = prefix + "indexer."
        self.q = w.linear(p + "attn_q_b", index.n_heads * index.dim, sizes.q_rank)
        self.k = w.linear(p + "attn_k", index.dim, n_embd)
        self.weights = w.linear(p + "proj", index.n_heads, n_embd)
        weight, bias = w.vector(p + "k_norm.weight", index.dim), w.vector(p + "k_norm.bias", index.dim)
        self.norm = LayerNorm(weight, bias, KEY_EPSILON)
        self.dim, self.neox, self.scale = index.dim, neox, (index.dim * index.n_heads) ** -0.5

    def remember(self, k: Rows, cos_sin: Rows | None, slab: KvSlab, batch: Batch) -> None:
        k = self.norm(k)
        self.rotate(k, cos_sin)
        store(k, None, slab, batch)

    def choose(self, h: Rows, latent: Rows, cos_sin: Rows | None, slab: KvSlab, batch: Batch, choice: Choice) -> None:
        if choice.chooses:
            q = linear(latent, self.q, batch)
            self.rotate(q, cos_sin)
            choose(q, linear(h, self.weights, batch), slab, batch, choice, self.scale)

    def rotate(self, x: Rows, cos_sin: Rows | None) -> None:
        if cos_sin is not None:
            rotate_(x, cos_sin, self.dim, self.neox)


class IndexedAttention(LatentAttention):
    """Latent attention over chosen keys. The last of its slabs is the pass's choice, which layers hand on."""

    index_neox = True  # how rotated pairs lie in queries and keys of the index

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, i: int, residual: Residual) -> None:
        super().__init__(spec, traits, w, i, residual)
        sizes = IndexSpec.read(w.metadata, w.__contains__, spec.arch, spec.n_layers, self.sizes.rotated)
        self.index = Index(self.sizes, sizes, w, f"blk.{i}.", spec.n_embd, self.index_neox) if sizes.layers[i] else None

    def add_to(self, x: Rows, h: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        choice, index = slabs[-1], self.index
        if index is None:
            super().add_to(x, h, cos_sin, slabs, batch)
            return
        q, kv, k = matmul(h, self.q, self.kv, index.k, batch=batch)
        self.remember(kv, cos_sin, slabs, batch)
        index.remember(k, cos_sin, slabs[1], batch)
        latent = self.latent(q)
        index.choose(h, latent, cos_sin, slabs[1], batch, choice)
        self.residual.add_product(x, self.attend(latent, cos_sin, slabs, batch), self.out, batch)

    def add_outputs_to(self, x: Rows, h: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        """The last layer: all rows store their keys, but ``x`` has only the rows of the output."""
        choice, index = slabs[-1], self.index
        choice.take_outputs(batch)
        if index is None:
            super().add_outputs_to(x, h, cos_sin, slabs, batch)
            return
        kv, k = matmul(h, self.kv, index.k, batch=batch)
        self.remember(kv, cos_sin, slabs, batch)
        index.remember(k, cos_sin, slabs[1], batch)
        if x.n:
            angles = None if cos_sin is None else take_rows(cos_sin, batch.output_rows)
            h, batch = take_rows(h, batch.output_rows), batch.outputs
            latent = self.latent(linear(h, self.q, batch))
            index.choose(h, latent, angles, slabs[1], batch, choice)
            self.residual.add_product(x, self.attend(latent, angles, slabs, batch), self.out, batch)

    def look_back(self, q: Rows, slabs: LayerSlabs, batch: Batch) -> Rows:
        return attend_chosen(q, slabs[0], batch, self.rule, slabs[-1])


class InterleavedIndexAttention(IndexedAttention):
    """Attention of GLM-5, whose index rotates neighbours."""

    index_neox = False


class IndexedDecoder(Decoder):
    """The decoder, whose layers hand on what a pass's rows have chosen."""

    def __init__(
        self,
        spec: ModelSpec,
        traits: Traits,
        w: Weights,
        context_size: int,
        attention: type[IndexedAttention] = IndexedAttention,
    ) -> None:
        super().__init__(spec, traits, w, context_size, attention)
        self.top_k = w.metadata.get_int(f"{spec.arch}.attention.indexer.top_k")

    def forward(self, batch: Batch, states: Sequence[LayerSlabs]) -> Rows:
        """Hidden states of the rows that leave the model; see `Decoder.forward`."""
        choice = Choice(batch, self.top_k)
        return super().forward(batch, [(*slabs, choice) for slabs in states])
