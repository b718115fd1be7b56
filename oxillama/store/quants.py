"""Quantisations by the names of files: which one a file has, and which file of a repository is wanted."""

from __future__ import annotations

import re

__all__ = ["USUAL", "bits_of", "is_companion", "kind_of", "nearest_quant", "quant_of_file", "quant_of_tag"]

USUAL = "Q4_K_M"
_QUANT = r"(?:UD[-_])?(?:I?Q[1-8](?:_[A-Z0-9]{1,3}){0,3}|TQ[12]_0|MXFP4(?:_MOE)?|NVFP4|BF16|FP?16|FP?32|INT[48])"
_IN_NAME = re.compile(rf"(?<![A-Z0-9])({_QUANT})(?![A-Z0-9])", re.IGNORECASE)
_WHOLE = re.compile(_QUANT, re.IGNORECASE)
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
_SAME = {"FP16": "F16", "FP32": "F32", "MXFP4_MOE": "MXFP4", "Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
# Bits of a weight, about, by which quantisations are near to each other.
_BITS = {
    "Q1": 1.6, "TQ1_0": 1.7, "IQ1_S": 1.6, "IQ1_M": 1.8, "TQ2_0": 2.1, "IQ2_XXS": 2.1, "IQ2_XS": 2.3, "IQ2_S": 2.5,
    "IQ2_M": 2.7, "Q2_K_S": 2.8, "Q2_K": 3.0, "Q2_K_L": 3.1, "Q2_K_XL": 3.2, "IQ3_XXS": 3.1, "IQ3_XS": 3.3,
    "IQ3_S": 3.4, "Q3_K_S": 3.4, "IQ3_M": 3.6, "Q3_K_M": 3.9, "Q3_K_L": 4.2, "Q3_K_XL": 4.3, "IQ4_XS": 4.3,
    "IQ4_NL": 4.5, "Q4_0": 4.5, "MXFP4": 4.3, "NVFP4": 4.5, "Q4_K_S": 4.6, "Q4_K_M": 4.85, "Q4_K_L": 4.95,
    "Q4_K_XL": 4.95, "Q4_1": 5.0, "Q5_0": 5.5, "Q5_K_S": 5.5, "Q5_K_M": 5.7, "Q5_K_L": 5.8, "Q5_K_XL": 5.8,
    "Q5_1": 6.0, "Q6_K": 6.6, "Q6_K_L": 6.7, "Q6_K_XL": 6.7, "Q8_0": 8.5, "INT8": 8.5, "INT4": 4.5, "Q8_K": 8.5,
    "Q8_K_XL": 9.0, "F16": 16.0, "BF16": 16.1, "F32": 32.0,
}  # fmt: skip
UNKNOWN_BITS = 64.0
# Files beside a model that are none by themselves.
_COMPANIONS = {
    "mmproj": re.compile(r"(?:^|[-_.])mmproj(?:[-_.]|$)", re.IGNORECASE),
    "draft": re.compile(r"(?:^|[-_.])(?:draft|mtp|eagle3?|medusa)(?:[-_.]|$)", re.IGNORECASE),
    "imatrix": re.compile(r"imatrix|(?:^|[-_.])importance", re.IGNORECASE),
    "vocabulary": re.compile(r"(?:^|[-_.])vocab(?:[-_.]|$)", re.IGNORECASE),
    "adapter": re.compile(r"(?:^|[-_.])(?:lora|adapter)(?:[-_.]|$)", re.IGNORECASE),
}


def quant_of_tag(tag: str) -> str | None:
    """The quantisation that a tag is, in capitals and by its usual name; None for a tag that is none."""
    return _usual(tag) if _WHOLE.fullmatch(tag) else None


def quant_of_file(filename: str) -> str | None:
    """The quantisation that the name of a file, or else of its folder, says; None if neither does."""
    folder, _, name = filename.rpartition("/")
    for text in (_SHARD.sub("", re.sub(r"\.gguf$", "", name, flags=re.IGNORECASE)), folder.rpartition("/")[2]):
        if found := _IN_NAME.findall(text):
            return _usual(found[-1])
    return None


def _usual(quant: str) -> str:
    """The usual name of a quantisation; what Unsloth calls dynamic (UD-) keeps its mark."""
    upper = quant.upper().replace("UD_", "UD-")
    mark, plain = ("UD-", upper[3:]) if upper.startswith("UD-") else ("", upper)
    return mark + _SAME.get(plain, plain)


def bits_of(quant: str | None) -> float:
    """Bits of a weight, about."""
    plain = (quant or "").removeprefix("UD-")
    return _BITS.get(plain, UNKNOWN_BITS)


def nearest_quant(there: list[str], wanted: str = USUAL) -> str:
    """The quantisation that is nearest by its bits, of equally near ones the larger; the wanted one if it is there, or
    the same with Unsloth's mark."""
    for one in (wanted, f"UD-{wanted}"):
        if one in there:
            return one
    aim = bits_of(wanted)
    return min(there, key=lambda quant: (abs(bits_of(quant) - aim), -bits_of(quant), quant))


def kind_of(filename: str) -> str | None:
    """Kind of a file that stands beside models: "mmproj", "draft", "imatrix", "vocabulary", "adapter"; None for a
    model's own."""
    name = filename.rpartition("/")[2].lower().removesuffix(".gguf")
    return next((kind for kind, pattern in _COMPANIONS.items() if pattern.search(name)), None)


def is_companion(filename: str) -> bool:
    """Whether a file stands beside models."""
    return kind_of(filename) is not None
