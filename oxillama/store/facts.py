"""Facts of a model from the header of its file alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from oxillama.errors import OxiLlamaError
from oxillama.gguf import GGUFFile
from oxillama.gguf.mixes import FILE_TYPES

__all__ = ["HeaderFacts", "header_facts", "quantisation_of"]


@dataclass(frozen=True)
class HeaderFacts:
    """Facts that a header tells. n_parameters: values of all tensors. quant: by what the header says, else the format
    that most of the bytes have."""

    architecture: str
    name: str
    n_parameters: int
    quant: str


def header_facts(file: GGUFFile) -> HeaderFacts:
    """The facts of an open file; texts are empty where the header lacks them."""
    metadata = file.metadata
    return HeaderFacts(
        _text(file, "general.architecture"),
        _text(file, "general.name"),
        sum(tensor.n_values for tensor in file.tensors.values()),
        quantisation_of(file) if len(metadata) else "",
    )


def quantisation_of(file: GGUFFile) -> str:
    """The quantisation of a file: its type, or the format of most of its bytes."""
    try:
        number = file.metadata.get_int("general.file_type")
    except OxiLlamaError:
        number = -1
    known = next((kind.name for kind in FILE_TYPES.values() if kind.id == number), "")
    counts: Counter[str] = Counter()
    for tensor in file.tensors.values():
        counts[tensor.type] += tensor.nbytes
    most = counts.most_common(1)[0][0] if counts else ""
    return known or most


def _text(file: GGUFFile, key: str) -> str:
    try:
        return file.metadata.get_str(key)
    except OxiLlamaError:
        return ""
