"""GGUF files: read, check, describe, write.

>>> import oxillama as ox
>>> with ox.gguf.open("model.gguf") as file:
...     print(file.metadata.arch, len(file.tensors))

A file is checked completely when opened, and mapped, not read; arrays and tensors are decoded on access.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from oxillama.gguf.arrays import GGUFArray
from oxillama.gguf.metadata import REQUIRED, Metadata
from oxillama.gguf.quants import dequantize, quantize
from oxillama.gguf.reader import GGUFFile
from oxillama.gguf.reader import open_gguf as open
from oxillama.gguf.tensors import TensorInfo
from oxillama.gguf.values import ValueType
from oxillama.gguf.writer import GGUFWriter, copy, write_gguf

if TYPE_CHECKING:
    from oxillama.gguf.info import describe
    from oxillama.gguf.recoding import QuantizeSummary, quantize_file

__all__ = [
    "REQUIRED",
    "GGUFArray",
    "GGUFFile",
    "GGUFWriter",
    "Metadata",
    "QuantizeSummary",
    "TensorInfo",
    "ValueType",
    "copy",
    "dequantize",
    "describe",
    "open",
    "quantize",
    "quantize_file",
    "write_gguf",
]

# Imported when first used: models are loaded without them.
_LATE = {"QuantizeSummary": "recoding", "describe": "info", "quantize_file": "recoding"}


def __getattr__(name: str) -> Any:
    if name in _LATE.values():
        return importlib.import_module(f"oxillama.gguf.{name}")
    if name not in _LATE:
        raise AttributeError(f"module 'oxillama.gguf' has no attribute {name!r}")
    return getattr(importlib.import_module(f"oxillama.gguf.{_LATE[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_LATE.values()})
