"""Quantisation and dequantisation of arrays, without a file."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oxillama.errors import QuantError
from oxillama.gguf.formats import format_by_name

__all__ = ["dequantize", "quantize"]


def quantize(array: ArrayLike, type: str) -> bytes:
    """The blocks of format ``type`` for finite numbers, whose last dimension is a multiple of the format's block.

    Raises QuantError if the format is unknown or can't be quantised to, or the values don't fit it.
    """
    from oxillama.kernels import convert

    fmt = format_by_name(type)
    values = np.asarray(array, np.float32)
    if values.ndim == 0 or values.shape[-1] % fmt.block_values:
        raise QuantError(f"an array of shape {values.shape}; {fmt.name} needs rows of a multiple of {fmt.block_values}")
    return convert.quantize(values, fmt.name).tobytes()


def dequantize(data: bytes | bytearray | memoryview | NDArray[np.uint8], type: str, n: int) -> NDArray[np.float32]:
    """The ``n`` values, float32 ``[n]``, of blocks of format ``type``; QuantError if sizes don't fit."""
    from oxillama.kernels import matmul

    return matmul.dequantize(np.frombuffer(data, np.uint8), format_by_name(type).name, n)
