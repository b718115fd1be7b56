"""File types: the format of each tensor, by llama.cpp's names and mixes.

The rules are those of llama.cpp's quantiser (2025), so that a file has the size and the quality that its name promises:
a type has a main format; the output matrix, values (`attn_v`), down projections and a few others get more bits. The
rules don't depend on the values of a tensor.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from oxillama.errors import QuantError
from oxillama.gguf.formats import format_by_name

__all__ = ["FILE_TYPES", "FileType", "ModelFacts", "file_type", "fitting_format", "is_quantised", "mixed_format"]


class FileType(NamedTuple):
    """``id`` is the value of ``general.file_type``; ``format`` the one that most tensors get."""

    name: str
    id: int
    format: str


FILE_TYPES: Mapping[str, FileType] = {
    name: FileType(name, id, format)
    for name, id, format in (
        ("F32", 0, "F32"), ("F16", 1, "F16"), ("BF16", 32, "BF16"),
        ("Q4_0", 2, "Q4_0"), ("Q4_1", 3, "Q4_1"), ("Q5_0", 8, "Q5_0"), ("Q5_1", 9, "Q5_1"), ("Q8_0", 7, "Q8_0"),
        ("Q2_K", 10, "Q2_K"), ("Q2_K_S", 21, "Q2_K"),
        ("Q3_K_S", 11, "Q3_K"), ("Q3_K_M", 12, "Q3_K"), ("Q3_K_L", 13, "Q3_K"),
        ("Q4_K_S", 14, "Q4_K"), ("Q4_K_M", 15, "Q4_K"), ("Q5_K_S", 16, "Q5_K"), ("Q5_K_M", 17, "Q5_K"),
        ("Q6_K", 18, "Q6_K"), ("IQ4_NL", 25, "IQ4_NL"), ("IQ4_XS", 30, "IQ4_XS"),
        ("TQ1_0", 36, "TQ1_0"), ("TQ2_0", 37, "TQ2_0"),
        ("MXFP4_MOE", 38, "MXFP4"), ("NVFP4", 39, "NVFP4"), ("Q1_0", 40, "Q1_0"), ("Q2_0", 41, "Q2_0"),
    )
}  # fmt: skip

# Common short names of mixes.
_ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "MXFP4": "MXFP4_MOE"}

# Formats with smaller blocks of about as many bits, for rows that are not whole blocks of 256.
_SMALLER = {
    "TQ1_0": "Q4_0", "TQ2_0": "Q4_0", "Q2_K": "Q4_0", "Q3_K": "Q4_0", "IQ4_XS": "IQ4_NL",
    "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
}  # fmt: skip


def file_type(name: str) -> FileType:
    """The file type with this name, in any case; QuantError if there is none."""
    upper = name.upper() if isinstance(name, str) else ""
    found = FILE_TYPES.get(_ALIASES.get(upper, upper))
    if found is None:
        raise QuantError(f"unknown file type {name!r}; there are {', '.join(FILE_TYPES)}")
    return found


class ModelFacts(NamedTuple):
    """Properties of a model that the rules depend on.

    ``values`` are the layers of the tensors that hold values (`attn_v`, or a tensor that contains it), in order.
    """

    arch: str
    n_layers: int
    n_experts: int
    n_gqa: int
    has_output: bool
    values: tuple[int, ...]


def layer_of(name: str) -> int:
    """The N of ``blk.N.``, -1 for other tensors."""
    parts = name.split(".", 2)
    return int(parts[1]) if len(parts) == 3 and parts[0] == "blk" and parts[1].isdecimal() else -1


def value_layers(names: Iterable[str]) -> tuple[int, ...]:
    """`ModelFacts.values` of a model with these tensors."""
    holders = ("attn_v.weight", "attn_qkv.weight", "attn_kv_b.weight")
    return tuple(sorted(layer_of(name) for name in names if name.endswith(holders)))


# Small, or too sensitive to be quantised: norms, routers, convolutions, positions, mixers of RWKV.
_KEPT = (
    "_norm.weight", "ffn_gate_inp.weight", "altup", "laurel", "per_layer_model_proj", "ssm_conv1d",
    "shortconv.conv.weight", "attn_rel_b.weight", ".position_embd.", "time_mix_first.weight", "time_mix_w0.weight",
    "time_mix_w1.weight", "time_mix_w2.weight", "time_mix_v0.weight", "time_mix_v1.weight", "time_mix_v2.weight",
    "time_mix_a0.weight", "time_mix_a1.weight", "time_mix_a2.weight", "time_mix_g1.weight", "time_mix_g2.weight",
    "time_mix_decay_w1.weight", "time_mix_decay_w2.weight", "time_mix_lerp_fused.weight",
)  # fmt: skip
_KEPT_WHOLE = ("position_embd.weight", "token_types.weight")


def is_quantised(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor gets the file's type: matrices and stacks of them, except those that keep theirs."""
    matrix = sum(d > 1 for d in shape[:-1]) > 0
    return name.endswith("weight") and matrix and name not in _KEPT_WHOLE and not any(part in name for part in _KEPT)


def fitting_format(format: str, row: int) -> str:
    """``format``, or its substitute if rows of ``row`` values are not whole blocks."""
    if row % format_by_name(format).block_values == 0:
        return format
    smaller = _SMALLER.get(format, "F16")
    return smaller if row % format_by_name(smaller).block_values == 0 else "F16"


def mixed_format(type: FileType, name: str, shape: tuple[int, ...], model: ModelFacts) -> str:
    """The format of a tensor for which `is_quantised`, before `fitting_format`."""
    embedding = name in ("token_embd.weight", "per_layer_token_embd.weight")
    if name == "output.weight" or (embedding and not model.has_output):
        return _output_format(type, model)
    if type.name == "MXFP4_MOE":
        return "MXFP4" if len(shape) > 2 and shape[-3] > 1 else "Q8_0"
    if embedding:
        return "Q4_K" if type.name in ("TQ1_0", "TQ2_0") else type.format
    for part, rule in _RULES.items():
        if part in name:
            return rule(type, layer_of(name), model) or type.format
    return type.format


def _output_format(type: FileType, model: ModelFacts) -> str:
    if type.name in ("F32", "F16", "BF16"):
        return type.format
    return "Q8_0" if type.name in ("MXFP4_MOE", "Q8_0") or model.arch == "falcon" else "Q6_K"


def _more_bits(layer: int, n_layers: int) -> bool:
    """The first and the last eighth of the layers, and every third between."""
    eighth = n_layers // 8
    return layer < eighth or layer >= 7 * n_layers // 8 or (layer - eighth) % 3 == 2


def _attn_v(type: FileType, layer: int, model: ModelFacts) -> str | None:
    index, n = (model.values.index(layer) if layer in model.values else 0), len(model.values)
    shared = model.n_gqa >= 4  # so many heads use each value that it is small
    found = {
        "Q2_K": "Q4_K" if shared else "Q3_K",
        "Q2_K_S": "Q4_K" if shared else None,
        "Q3_K_M": "Q5_K" if index < 2 else "Q4_K",
        "Q3_K_L": "Q5_K",
        "IQ4_NL": "Q5_K" if shared else None,
        "IQ4_XS": "Q5_K" if shared else None,
        "Q4_K_M": "Q6_K" if _more_bits(index, n) else None,
        "Q5_K_M": "Q6_K" if _more_bits(index, n) else None,
        "Q4_K_S": "Q5_K" if index < 4 else None,
    }.get(type.name)
    # The 70B shapes: eight heads share a value.
    large = model.n_layers == 80 and model.arch in ("llama", "deci", "qwen2")
    if large and (found or type.format) in ("Q3_K", "Q4_K"):
        found = "Q5_K"
    return "Q8_0" if _takes_more(type, model) else found


def _attn_k(type: FileType, layer: int, model: ModelFacts) -> str | None:
    return "Q8_0" if _takes_more(type, model) else None


def _takes_more(type: FileType, model: ModelFacts) -> bool:
    """Whether keys and values get more bits: with eight experts, they are next to nothing of the file."""
    return model.n_experts == 8 and type.name not in ("F32", "F16", "BF16")


def _ffn_down(type: FileType, layer: int, model: ModelFacts) -> str | None:
    n, falcon = model.n_layers, model.arch == "falcon"
    more = _more_bits(layer, n)
    if falcon and type.name == "Q4_K_M":
        return "Q6_K" if layer < n // 16 else "Q5_K" if more else "Q4_K"
    return {
        "Q2_K": "Q3_K",
        "Q2_K_S": "Q4_K" if layer < n // 8 else None,
        "Q3_K_M": "Q5_K" if layer < n // 16 else "Q3_K" if falcon and not more else "Q4_K",
        "Q3_K_L": "Q4_K" if falcon else "Q5_K",
        "Q4_K_M": "Q6_K" if more else None,
        "Q5_K_M": "Q6_K" if more else None,
        "IQ4_NL": "Q5_K" if layer < n // 8 else None,
        "IQ4_XS": "Q5_K" if layer < n // 8 else None,
        "Q4_K_S": "Q5_K" if layer < n // 8 and not falcon else None,
    }.get(type.name)


def _attn_output(type: FileType, layer: int, model: ModelFacts) -> str | None:
    if model.arch == "falcon":
        return "Q4_K" if type.name == "Q3_K_L" else None
    if model.n_experts == 8:
        small = ("Q2_K", "Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M", "IQ4_XS")
        return "Q5_K" if type.name in small else None
    return {"Q2_K": "Q3_K", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K"}.get(type.name)


def _latent(type: FileType, layer: int, model: ModelFacts) -> str | None:
    """Format of latent projections, which all heads' keys and values pass through, and are small beside experts.

    In random models of DeepSeek-V3's form, 16 bits here instead of 8 halve how often a token gets other experts.
    """
    if type.format in ("F32", "F16", "BF16"):
        return None
    return "F16" if type.name == "Q8_0" else "Q8_0"


_RULES = {
    "attn_v.weight": _attn_v,
    "attn_qkv.weight": _attn_v,
    "attn_kv_b.weight": _attn_v,
    "attn_k.weight": _attn_k,
    "ffn_down": _ffn_down,
    "attn_output.weight": _attn_output,
    "attn_kv_a_mqa.weight": _latent,
    "attn_k_b.weight": _latent,
    "attn_v_b.weight": _latent,
}
