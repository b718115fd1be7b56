"""Hyper-parameters of a model, read from metadata and checked against each other before anything large is allocated."""

from __future__ import annotations

from dataclasses import dataclass, replace

from oxillama.errors import LoadError, MissingKeyError, UnsupportedModelError
from oxillama.gguf import GGUFArray, GGUFFile, Metadata
from oxillama.layer_state import KvShape, LayerShape
from oxillama.models.delta_spec import DeltaSpec
from oxillama.models.experts import ExpertSpec, read_experts
from oxillama.models.rope import RopeSpec
from oxillama.models.traits import Traits, all_but_each, all_but_first

# Keys that change what a model computes, with the values under which they change nothing. An architecture that has no
# use for a key (Traits.keys) refuses any other value by name: such a file would load, and be wrong.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "activation_sparsity_scale": (),
    "attention.clamp_kqv": (0.0,),
    "attention.key_length_swa": (),
    "attention.max_alibi_bias": (0.0,),
    "attention.output_scale": (0.0, 1.0),
    "attention.scale": (0.0,),
    "attention.shared_kv_layers": (0,),
    "attention.temperature_length": (0,),
    "attention.temperature_scale": (0.0,),
    "attention.value_length_swa": (),
    "attention.value_scale": (0.0, 1.0),
    "attn_logit_softcapping": (0.0,),
    "embedding_length_per_layer_input": (0,),
    "embedding_scale": (0.0, 1.0),
    "hidden_activation": (),
    "kda.safe_gate": (False,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "moe_latent_size": (0,),
    "num_loops": (1,),
    "rescale_every_n_layers": (0,),
    "residual_scale": (0.0, 1.0),
    "rope.dimension_count_swa": (),
    "rope.dimension_sections": (),
    "router_logit_softcapping": (0.0,),
    "swiglu_clamp_exp": (0.0,),
    "swiglu_clamp_shexp": (0.0,),
    "token_shift_count": (2,),
    "use_parallel_residual": (False,),
}


@dataclass(frozen=True)
class LayerSpec:
    """Properties that may differ between layers. A layer without attention has no heads; ``window`` 0: it sees all
    before.

    ``rotates``: metadata's word on whether its queries and keys are rotated, where the architecture has them so.
    """

    n_heads: int
    n_kv_heads: int
    n_ff: int
    window: int
    rotates: bool = True


@dataclass(frozen=True)
class ModelSpec:
    """Hyper-parameters of a loaded model. Sizes are in elements; those that may differ between layers are the largest.

    ``states``: what each layer remembers of a sequence. ``causal``: a position sees none after its own. ``delta``: the
    gated delta rule of layers that have no heads. ``mixer_values``: floats of a token in a recurrent mixer, or in an
    index of keys; 0: of a recurrent one as in most, ten times the width. ``shares_choice``: layers without an index
    attend to the keys that the last layer with one has chosen. ``denoises``: it isn't causal, and has logits; others
    that aren't make embeddings alone. ``decoder_start``: where an encoder reads the prompt, the first token after it.
    ``shifted``: logits of a denoising model are for the place after their own.
    """

    arch: str
    name: str
    n_vocab: int
    n_embd: int
    n_layers: int
    head_dim: int
    v_head_dim: int
    context_length: int
    norm_eps: float
    causal: bool
    rope: RopeSpec | None
    experts: ExpertSpec | None
    layers: tuple[LayerSpec, ...]
    scales: Scales
    states: tuple[LayerShape, ...] = ()
    delta: DeltaSpec | None = None
    mixer_values: int = 0
    shares_choice: bool = False
    denoises: bool = False
    decoder_start: int | None = None
    shifted: bool = False

    @property
    def n_heads(self) -> int:
        return max(layer.n_heads for layer in self.layers)

    @property
    def n_kv_heads(self) -> int:
        return max(layer.n_kv_heads for layer in self.layers)

    @property
    def n_ff(self) -> int:
        return max(layer.n_ff for layer in self.layers)

    @property
    def window(self) -> int:
        return max(layer.window for layer in self.layers)


@dataclass(frozen=True)
class Scales:
    """Factors and bounds along the way of an activation; 1 and 0 change nothing.

    value: of attention's values. stream: of the normalised stream that a branch is added to. sharpening: queries are
    multiplied by ``1 + sharpening * ln(1 + floor((position + sharpening_offset) / sharpening_length))``.
    """

    embedding: float = 1.0
    attention: float = 0.0  # of scores; 0: 1 / sqrt(head_dim)
    residual: float = 1.0
    logits: float = 1.0
    clamp_qkv: float = 0.0
    alibi: float = 8.0  # slopes of ALiBi fall to two to the power of minus this
    value: float = 1.0
    stream: float = 1.0
    attention_cap: float = 0.0
    logit_cap: float = 0.0
    sharpening: float = 0.0
    sharpening_length: int = 1
    sharpening_offset: int = 0


def read_spec(file: GGUFFile, traits: Traits) -> ModelSpec:
    """The hyper-parameters of a model of attention layers, and of the like parts of others.

    A file's last blocks may propose tokens further ahead from what the others have computed (``nextn_predict_layers``).
    They are no part of the model, which has ``n_layers`` without them.
    """
    m = file.metadata
    arch = m.arch
    check_neutral(m, arch, traits.keys)
    n_embd = m.get_int(f"{arch}.embedding_length", minimum=1, maximum=1 << 20)
    n_blocks = m.get_int(f"{arch}.block_count", minimum=1, maximum=1 << 12)
    n_layers = n_blocks - m.get_int(f"{arch}.nextn_predict_layers", 0, minimum=0, maximum=n_blocks - 1)
    experts = read_experts(m, arch)
    layers = read_layers(m, arch, n_blocks, traits, experts)[:n_layers]
    n_heads = max(layer.n_heads for layer in layers)
    head_dim, v_head_dim = head_sizes(m, arch, n_embd, n_heads)
    context_length = m.get_int(f"{arch}.context_length", minimum=1, maximum=1 << 31)
    spec = ModelSpec(
        arch=arch,
        name=m.get_str("general.name", ""),
        n_vocab=vocabulary_size(file),
        n_embd=n_embd,
        n_layers=n_layers,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        context_length=context_length,
        norm_eps=read_epsilon(m, arch, traits),
        causal=m.get_bool(f"{arch}.attention.causal", traits.causal),
        rope=RopeSpec.read(m, arch, head_dim, context_length) if traits.rope != "none" and n_heads else None,
        experts=experts,
        layers=layers,
        scales=read_scales(m, arch, n_embd, traits),
    )
    if spec.causal != traits.causal:
        raise UnsupportedModelError(f"{arch}.attention.causal is {spec.causal}, which {arch} is not computed with")
    return replace(spec, states=attention_states(spec))


def read_epsilon(m: Metadata, arch: str, traits: Traits) -> float:
    """Epsilon that norms add to a variance."""
    rms = traits.norm in ("rms", "rms_plain") if traits.rms_epsilon is None else traits.rms_epsilon
    key, other = (f"{arch}.attention.layer_norm_{'rms_' * kind}epsilon" for kind in (rms, not rms))
    if traits.either_epsilon and key not in m:
        if other not in m:
            raise MissingKeyError(f"metadata has no key {key}, and none {other}")
        key = other
    return m.get_float(key, minimum=0.0, maximum=1.0)


def attention_states(spec: ModelSpec) -> tuple[LayerShape, ...]:
    """Keys and values of each layer that has heads."""
    return tuple(
        (KvShape(layer.n_kv_heads, spec.head_dim, spec.v_head_dim, layer.window * spec.causal),)
        if layer.n_kv_heads
        else ()
        for layer in spec.layers
    )


def check_neutral(m: Metadata, arch: str, used: frozenset[str]) -> None:
    for name, neutral in NEUTRAL.items():
        key = f"{arch}.{name}"
        if name not in used and key in m and m[key] not in neutral:
            allowed = f"; supported: {', '.join(map(str, neutral))}" if neutral else ""
            raise UnsupportedModelError(f"{key} is {m[key]}, which architecture {arch} is not computed with{allowed}")


def read_layers(
    m: Metadata, arch: str, n_layers: int, traits: Traits, experts: ExpertSpec | None
) -> tuple[LayerSpec, ...]:
    key = f"{arch}.attention.head_count"
    least = 0 if traits.recurrent or traits.may_skip else 1
    heads = per_layer(m, key, n_layers, minimum=least)
    kv_heads = per_layer(m, f"{key}_kv", n_layers, heads, minimum=least)
    n_ff = per_layer(m, f"{arch}.feed_forward_length", n_layers, (experts.n_ff,) * n_layers if experts else None, least)
    windows = read_windows(m, arch, n_layers, traits)
    key_rotates = f"{arch}.attention.rope_pattern"
    rotates = read_switches(m, key_rotates, n_layers, "rotate") if key_rotates in m else [True] * n_layers
    for n, n_kv in zip(heads, kv_heads, strict=True):
        if n_kv and n % n_kv:
            raise LoadError(f"{key}_kv is {n_kv}, which does not divide head_count {n}")
        if n and not n_kv and least:
            raise LoadError(f"{key}_kv is {n_kv} for {n} heads")
    return tuple(LayerSpec(*layer) for layer in zip(heads, kv_heads, n_ff, windows, rotates, strict=True))


def per_layer(
    m: Metadata, key: str, n_layers: int, default: tuple[int, ...] | None = None, minimum: int = 1
) -> tuple[int, ...]:
    """A count that may stand once or once per layer."""
    if key not in m and default is not None:
        return default
    if key not in m or isinstance(m[key], int):
        return (m.get_int(key, minimum=minimum, maximum=1 << 24),) * n_layers
    array = m.get_array(key, int)
    if len(array) != n_layers:
        raise LoadError(f"{key} has {len(array)} values for {n_layers} layers")
    values = tuple(int(value) for value in array)
    for value in values:
        if not minimum <= value <= 1 << 24:
            raise LoadError(f"{key} is {value}; it must lie in {minimum}..{1 << 24}")
    return values


def per_layer_float(
    m: Metadata, key: str, n_layers: int, default: float | None, maximum: float, minimum: float = 0.0
) -> tuple[float, ...]:
    """A number from ``minimum`` to ``maximum`` that may stand once or once per layer; no ``default``: it must stand."""
    if key not in m and default is not None:
        return (default,) * n_layers
    if key not in m or not isinstance(m[key], GGUFArray):
        return (m.get_float(key, minimum=minimum, maximum=maximum),) * n_layers
    array = m.get_array(key, float)
    if len(array) != n_layers:
        raise LoadError(f"{key} has {len(array)} values for {n_layers} layers")
    values = tuple(float(value) for value in array)
    for value in values:
        if not minimum <= value <= maximum:
            raise LoadError(f"{key} is {value}; it must lie in {minimum:g}..{maximum:g}")
    return values


def read_windows(m: Metadata, arch: str, n_layers: int, traits: Traits) -> tuple[int, ...]:
    """Each layer's window: metadata's, in the layers that metadata or else the architecture give one to."""
    window = m.get_int(f"{arch}.attention.sliding_window", traits.window, minimum=0, maximum=1 << 31)
    key = f"{arch}.attention.sliding_window_pattern"
    rule = traits.windows
    if key in m and isinstance(m[key], int) and not isinstance(m[key], bool):
        rule = (all_but_first if traits.whole_first else all_but_each)(m.get_int(key, minimum=0, maximum=1 << 12))
    elif key in m:
        rule = read_switches(m, key, n_layers, "have a window").__getitem__
    return tuple(window if rule(i) else 0 for i in range(n_layers))


def read_switches(m: Metadata, key: str, n_layers: int, meaning: str) -> list[bool]:
    """Yes or no for each layer, which some converters write as 1 or 0: those that ``meaning``."""
    array = m[key]
    as_numbers = isinstance(array, GGUFArray) and array.item_type.name != "BOOL"
    array = m.get_array(key, int if as_numbers else bool)
    if len(array) != n_layers:
        raise LoadError(f"{key} has {len(array)} values for {n_layers} layers")
    for value in array:
        if value not in (0, 1):
            raise LoadError(f"{key} has a value {value}; only 0 and 1 say which layers {meaning}")
    return [bool(value) for value in array]


def head_sizes(m: Metadata, arch: str, n_embd: int, n_heads: int) -> tuple[int, int]:
    """Values of a key and of a value."""
    key = f"{arch}.attention.key_length"
    if key not in m and n_heads and n_embd % n_heads:
        raise LoadError(f"{arch}.attention.head_count is {n_heads}, which does not divide embedding_length {n_embd}")
    head_dim = m.get_int(key, n_embd // max(n_heads, 1), minimum=1, maximum=1 << 12)
    return head_dim, m.get_int(f"{arch}.attention.value_length", head_dim, minimum=1, maximum=1 << 12)


def read_scales(m: Metadata, arch: str, n_embd: int, traits: Traits) -> Scales:
    def scale(name: str, neutral: float) -> float:
        if name not in traits.keys:
            return neutral
        value = m.get_float(f"{arch}.{name}", 0.0, minimum=0.0, maximum=1e6)
        if 0 < value < 1e-6:
            raise LoadError(f"{arch}.{name} is {value}; at least 1e-06 is needed, or 0 for none")
        return value or neutral

    logits = scale("logit_scale", 1.0)
    return Scales(
        embedding=float(n_embd**0.5) if traits.embedding_scale == "sqrt" else scale("embedding_scale", 1.0),
        attention=scale("attention.scale", 0.0),
        residual=scale("residual_scale", 1.0),
        logits=1 / logits if traits.logit_scale == "divides" else logits,
        clamp_qkv=scale("attention.clamp_kqv", 0.0),
        alibi=scale("attention.max_alibi_bias", 8.0),
        value=scale("attention.value_scale", 1.0),
        attention_cap=scale("attn_logit_softcapping", 0.0),
        logit_cap=scale("final_logit_softcapping", 0.0),
    )


def vocabulary_size(file: GGUFFile) -> int:
    """Rows of the embedding table."""
    table = file.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise LoadError("token_embd.weight is missing or not a matrix: the file holds no model")
    return int(table.shape[0])
