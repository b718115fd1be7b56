"""Multi-head latent attention: DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1.

All heads' keys and values are unfolded from one short vector per token. That vector and one rotated key, which the
heads share, are what the cache holds. The matrices that would unfold them are absorbed into queries and into what
attention gives, so that it runs over a single key/value head; always, as the two forms of the product don't give the
same bits and a prompt may be taken in any chunks.
"""

from __future__ import annotations

from dataclasses import dataclass

from oxillama.errors import LoadError, MissingTensorError
from oxillama.gguf import Metadata
from oxillama.kernels.activations import sigmoid_
from oxillama.kernels.attention import Attention, attend, store
from oxillama.kernels.batch import Batch
from oxillama.kernels.heads import heads_matmul, join_heads, split_heads
from oxillama.kernels.matmul import linear, matmul
from oxillama.kernels.matrix import Matrix
from oxillama.kernels.rope import rotate_
from oxillama.kernels.rows import Rows, mul_heads_, take_rows
from oxillama.models.adaptable import Factors
from oxillama.models.layers import LayerSlabs, Residual, RmsNorm
from oxillama.models.spec import ModelSpec
from oxillama.models.traits import Traits
from oxillama.models.weights import Weights


@dataclass(frozen=True)
class LatentSpec:
    """Widths. ``rank``: of what keys and values are unfolded from; ``q_rank``: of what queries are, 0: of the input.

    Queries and keys of a head have ``plain`` values that know nothing of positions, then ``rotated`` ones; its values
    have ``v_dim``.
    """

    n_heads: int
    rank: int
    q_rank: int
    plain: int
    rotated: int
    v_dim: int

    @property
    def head_dim(self) -> int:
        return self.plain + self.rotated

    @property
    def cached(self) -> int:
        """Width of a key in the cache; a value's is ``rank``."""
        return self.rank + self.rotated

    @classmethod
    def read(cls, m: Metadata, arch: str, n_heads: int, hybrid: bool = False) -> LatentSpec:
        """Reads metadata; LoadError names the keys that contradict each other.

        Files since 2025 describe the cache by key_length and value_length, and heads by key_length_mla and
        value_length_mla; the former names are the heads' in older ones. Without a length, values are as wide as heads
        that divide the stream. ``hybrid``: not all layers have this attention, so that heads are counted by layer;
        what such files have as value_length means nothing.
        """
        p, rope = f"{arch}.attention.", f"{arch}.rope.dimension_count"
        rank = m.get_int(p + "kv_lora_rank", minimum=1, maximum=1 << 16)
        rotated = m.get_int(rope, minimum=2, maximum=1 << 12)
        suffix = "_mla" if p + "key_length_mla" in m or p + "value_length_mla" in m else ""
        if suffix:
            check_equal(m, p + "key_length", rank + rotated, f"{p}kv_lora_rank {rank} and {rope} {rotated} make")
        if suffix and not hybrid:
            check_equal(m, p + "value_length", rank, f"{p}kv_lora_rank is")
        if not hybrid:
            check_equal(
                m, p + "head_count_kv", 1 if suffix else n_heads, "keys and values are unfolded from one head to"
            )
        head_dim = m.get_int(f"{p}key_length{suffix}", minimum=1, maximum=1 << 12)
        if head_dim <= rotated:
            raise LoadError(f"{p}key_length{suffix} is {head_dim}, which {rope} {rotated} leaves nothing of")
        v_dim = m.get_int(f"{arch}.embedding_length", minimum=1, maximum=1 << 20) // n_heads
        return cls(
            n_heads=n_heads,
            rank=rank,
            q_rank=m.get_int(p + "q_lora_rank", 0, minimum=0, maximum=1 << 16),
            plain=head_dim - rotated,
            rotated=rotated,
            v_dim=m.get_int(f"{p}value_length{suffix}", v_dim, minimum=1, maximum=1 << 12),
        )


def check_equal(m: Metadata, key: str, value: int, why: str) -> None:
    found = m.get_int(key, value)
    if found != value:
        raise LoadError(f"{key} is {found}, but {why} {value}")


class LatentAttention:
    """``x += out(v_b(attention([k_b(plain q), rotated q]; [latent, rotated k], latent)))`` of one layer."""

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, i: int, residual: Residual) -> None:
        p, n_embd, eps = f"blk.{i}.", spec.n_embd, spec.norm_eps
        self.sizes = sizes = LatentSpec.read(w.metadata, spec.arch, spec.n_heads, traits.recurrent)
        q_dim = sizes.n_heads * sizes.head_dim
        self.q_norm = None
        if sizes.q_rank:
            self.q = w.linear(p + "attn_q_a", sizes.q_rank, n_embd)
            self.q_norm = RmsNorm(w.vector(p + "attn_q_a_norm.weight", sizes.q_rank), eps)
            self.q_b = w.linear(p + "attn_q_b", q_dim, sizes.q_rank)
        else:
            self.q = w.linear(p + "attn_q", q_dim, n_embd)
        self.kv = w.linear(p + "attn_kv_a_mqa", sizes.cached, n_embd)
        self.kv_norm = RmsNorm(w.vector(p + "attn_kv_a_norm.weight", sizes.rank), eps)
        self.k_b, self.v_b = read_unfolding(w, p, sizes)
        self.out = w.linear(p + "attn_output", n_embd, sizes.n_heads * sizes.v_dim)
        self.codes, self.residual, self.neox = self.kv.integer, residual, traits.rope == "neox"
        factor = 1.0 if spec.rope is None else spec.rope.attention_factor
        self.rule = Attention(factor * sizes.head_dim**-0.5)

    def add_to(self, x: Rows, h: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        q, kv = matmul(h, self.q, self.kv, batch=batch)
        self.remember(kv, cos_sin, slabs, batch)
        self.residual.add_product(x, self.attend(self.latent(q), cos_sin, slabs, batch), self.out, batch)

    def add_outputs_to(self, x: Rows, h: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        """The last layer: all rows store keys and values, but ``x`` has only the rows of the output."""
        self.remember(linear(h, self.kv, batch), cos_sin, slabs, batch)
        if x.n:
            angles = None if cos_sin is None else take_rows(cos_sin, batch.output_rows)
            q = linear(take_rows(h, batch.output_rows), self.q, batch.outputs)
            y = self.attend(self.latent(q), angles, slabs, batch.outputs)
            self.residual.add_product(x, y, self.out, batch.outputs)

    def remember(self, kv: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        latent, key = split_heads(kv, 1, self.sizes.rank)
        latent = self.kv_norm(latent)
        self.rotate(key, cos_sin)
        store(join_heads(latent, key, 1), latent, slabs[0], batch)

    def latent(self, q: Rows) -> Rows:
        """Rows that queries are unfolded from; or the queries, in models that don't unfold them."""
        return q if self.q_norm is None else self.q_norm(q, self.q_b.integer)

    def attend(self, q: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> Rows:
        """Input of the last projection, of queries from ``latent``."""
        if self.q_norm is not None:
            q = linear(q, self.q_b, batch)
        plain, rotated = split_heads(q, self.sizes.n_heads, self.sizes.plain)
        self.rotate(rotated, cos_sin)
        q = join_heads(heads_matmul(plain, self.k_b, batch), rotated, self.sizes.n_heads)
        return heads_matmul(self.look_back(q, slabs, batch), self.v_b, batch)

    def look_back(self, q: Rows, slabs: LayerSlabs, batch: Batch) -> Rows:
        return attend(q, slabs[0], batch, self.rule)

    def rotate(self, x: Rows, cos_sin: Rows | None) -> None:
        if cos_sin is not None:
            rotate_(x, cos_sin, self.sizes.rotated, self.neox)


class GatedLatentAttention(LatentAttention):
    """``x += out(v_b(attention(...)) * sigmoid(gate(h)))``; the gate has a value for each head (Ling 3.0, 2026)."""

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, i: int, residual: Residual) -> None:
        super().__init__(spec, traits, w, i, residual)
        self.gate = w.linear(f"blk.{i}.attn_gate", self.sizes.n_heads, spec.n_embd)

    def add_to(self, x: Rows, h: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        q, kv, gate = matmul(h, self.q, self.kv, self.gate, batch=batch)
        self.remember(kv, cos_sin, slabs, batch)
        self.add_gated(x, self.attend(self.latent(q), cos_sin, slabs, batch), gate, batch)

    def add_outputs_to(self, x: Rows, h: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        self.remember(linear(h, self.kv, batch), cos_sin, slabs, batch)
        if x.n:
            angles = None if cos_sin is None else take_rows(cos_sin, batch.output_rows)
            q, gate = matmul(take_rows(h, batch.output_rows), self.q, self.gate, batch=batch.outputs)
            self.add_gated(x, self.attend(self.latent(q), angles, slabs, batch.outputs), gate, batch.outputs)

    def add_gated(self, x: Rows, y: Rows, gate: Rows, batch: Batch) -> None:
        sigmoid_(gate)
        mul_heads_(y, gate)
        self.residual.add_product(x, y, self.out, batch)


def read_unfolding(w: Weights, p: str, sizes: LatentSpec) -> tuple[Matrix, Matrix]:
    """Each head's matrix from its queries to the latent vector, and from that to its values.

    Files before 2025 have both in one tensor: a head's keys, below them its values. The keys' part must be transposed,
    which blocks of a format don't survive: it becomes float32, with the same values. The values' keeps its format.
    """
    joint, n_heads = p + "attn_kv_b.weight", sizes.n_heads
    if joint not in w:
        if p + "attn_k_b.weight" not in w:
            raise MissingTensorError(f"tensor {p}attn_k_b.weight is missing, and so is {joint}")
        k_b = w.matrix(p + "attn_k_b.weight", n_heads, sizes.rank, sizes.plain)
        return k_b, w.matrix(p + "attn_v_b.weight", n_heads, sizes.v_dim, sizes.rank)
    shape = (n_heads * (sizes.plain + sizes.v_dim), sizes.rank)
    info = w.tensor(joint, shape)
    by_head = (n_heads, sizes.plain + sizes.v_dim, -1)
    keys = info.dequantize().reshape(by_head)[:, : sizes.plain].transpose(0, 2, 1)
    values = info.data.reshape(by_head)[:, sizes.plain :]
    k_b = w.rearranged(joint, keys.tobytes(), "F32", n_heads, sizes.rank, sizes.plain)
    v_b = w.rearranged(joint, values.tobytes(), info.type, n_heads, sizes.v_dim, sizes.rank)
    w.adapts(joint, shape, k_b, lambda factors: unfolded(factors, sizes)[0])
    w.adapts(joint, shape, v_b, lambda factors: unfolded(factors, sizes)[1])
    return k_b, v_b


def unfolded(factors: Factors, sizes: LatentSpec) -> tuple[Factors, Factors]:
    """Divides a change of both in one tensor: that of the keys' part, which is transposed, and that of the values'."""
    a, b = factors
    by_head = b.reshape(sizes.n_heads, sizes.plain + sizes.v_dim, -1)
    keys, values = by_head[:, : sizes.plain], by_head[:, sizes.plain :]
    return (keys.transpose(0, 2, 1), a.T), (a, values)
