"""Hyper-parameters of a model, read from metadata and checked against each other before anything large is allocated."""

from __future__ import annotations

from dataclasses import dataclass

from oxillama.errors import LoadError, UnsupportedModelError
from oxillama.gguf import GGUFFile, Metadata
from oxillama.kv_cache.shapes import KvShape, LayerShape
from oxillama.models.rope import RopeSpec


@dataclass(frozen=True)
class ExpertSpec:
    """A layer's mixture of experts: ``n_used`` of ``n_experts`` per token, each ``n_ff`` wide."""

    n_experts: int
    n_used: int
    n_ff: int
    n_ff_shared: int
    normalise: bool


# Keys that change what a model computes, with the values under which it computes what we do. Any other value is refused
# by name: such a file would load, and be wrong.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.scale": (0.0,),
    "attention.sliding_window_pattern": (0, 1),
    "attn_logit_softcapping": (0.0,),
    "embedding_scale": (0.0, 1.0),
    "expert_gating_func": (0, 1),  # 1: softmax
    "expert_group_count": (0, 1),
    "expert_weights_scale": (0.0, 1.0),
    "final_logit_softcapping": (0.0,),
    "leading_dense_block_count": (0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "rope.dimension_sections": (),
    "use_parallel_residual": (False,),
}


@dataclass(frozen=True)
class ModelSpec:
    """What was loaded. Sizes are in elements; ``window`` is 0 where attention sees the whole past."""

    arch: str
    name: str
    n_vocab: int
    n_embd: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_ff: int
    context_length: int
    norm_eps: float
    window: int
    rope: RopeSpec
    experts: ExpertSpec | None
    causal: bool = True  # a row sees no position after its own; False: texts are computed whole, for `embed` alone

    @property
    def states(self) -> tuple[LayerShape, ...]:
        """What each layer keeps of the past."""
        return ((KvShape(self.n_kv_heads, self.head_dim, self.head_dim),),) * self.n_layers

    @classmethod
    def read(cls, file: GGUFFile) -> ModelSpec:
        """From a file's metadata; LoadError names the key and the values that contradict each other."""
        m = file.metadata
        arch = m.arch
        check_neutral(m, arch)
        n_embd = m.get_int(f"{arch}.embedding_length", minimum=1, maximum=1 << 20)
        n_heads = uniform(m, f"{arch}.attention.head_count")
        n_kv_heads = uniform(m, f"{arch}.attention.head_count_kv", n_heads)
        context_length = m.get_int(f"{arch}.context_length", minimum=1, maximum=1 << 31)
        head_dim = m.get_int(f"{arch}.attention.key_length", n_embd // n_heads, minimum=1, maximum=1 << 12)
        check_heads(m, arch, n_embd, n_heads, n_kv_heads, head_dim)
        experts = read_experts(m, arch)
        return cls(
            arch=arch,
            name=m.get_str("general.name", ""),
            n_vocab=vocabulary_size(file),
            n_embd=n_embd,
            n_layers=m.get_int(f"{arch}.block_count", minimum=1, maximum=1 << 12),
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            n_ff=uniform(m, f"{arch}.feed_forward_length", experts.n_ff if experts else None),
            context_length=context_length,
            norm_eps=m.get_float(f"{arch}.attention.layer_norm_rms_epsilon", minimum=0.0, maximum=1.0),
            window=m.get_int(f"{arch}.attention.sliding_window", 0, minimum=0, maximum=1 << 31),
            rope=RopeSpec.read(m, arch, head_dim, context_length),
            experts=experts,
        )


def check_neutral(m: Metadata, arch: str) -> None:
    for name, neutral in NEUTRAL.items():
        key = f"{arch}.{name}"
        if key in m and m[key] not in neutral:
            allowed = f"; supported: {', '.join(map(str, neutral))}" if neutral else ""
            raise UnsupportedModelError(f"{key} is {m[key]}, which architecture {arch} is not computed with{allowed}")


def uniform(m: Metadata, key: str, default: int | None = None) -> int:
    """A count that may stand once or once per layer; per layer it must be the same."""
    if key in m and not isinstance(m[key], int):
        values = set(m.get_array(key, int))
        if len(values) != 1:
            raise UnsupportedModelError(f"{key} differs between layers: {sorted(values)}")
        value = values.pop()
        if not 1 <= value <= 1 << 24:
            raise LoadError(f"{key} is {value}; it must lie in 1..{1 << 24}")
        return int(value)
    if default is None:
        return m.get_int(key, minimum=1, maximum=1 << 24)
    return m.get_int(key, default, minimum=1, maximum=1 << 24)


def check_heads(m: Metadata, arch: str, n_embd: int, n_heads: int, n_kv_heads: int, head_dim: int) -> None:
    if n_heads % n_kv_heads:
        raise LoadError(f"{arch}.attention.head_count_kv is {n_kv_heads}, which does not divide head_count {n_heads}")
    if f"{arch}.attention.key_length" not in m and n_embd % n_heads:
        raise LoadError(f"{arch}.attention.head_count is {n_heads}, which does not divide embedding_length {n_embd}")
    value_length = m.get_int(f"{arch}.attention.value_length", head_dim)
    if value_length != head_dim:
        raise UnsupportedModelError(f"{arch}.attention.value_length is {value_length}, but key_length is {head_dim}")


def read_experts(m: Metadata, arch: str) -> ExpertSpec | None:
    n = m.get_int(f"{arch}.expert_count", 0, minimum=0, maximum=1 << 16)
    if n == 0:
        return None
    own = f"{arch}.expert_feed_forward_length"
    return ExpertSpec(
        n_experts=n,
        n_used=m.get_int(f"{arch}.expert_used_count", minimum=1, maximum=n),
        n_ff=uniform(m, f"{arch}.{'expert_' * (own in m)}feed_forward_length"),
        n_ff_shared=m.get_int(f"{arch}.expert_shared_feed_forward_length", 0, minimum=0),
        normalise=m.get_bool(f"{arch}.expert_weights_norm", arch != "qwen2moe"),
    )


def vocabulary_size(file: GGUFFile) -> int:
    """Rows of the embedding table."""
    table = file.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise LoadError("token_embd.weight is missing or not a matrix: the file holds no model")
    return int(table.shape[0])
