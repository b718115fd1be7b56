"""Pending tensors of a writer: their bytes, or a function that returns them, checked against shape and format."""

import math
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oxillama.errors import ConfigError
from oxillama.gguf.formats import Format, format_by_name
from oxillama.gguf.parse import MAX_DIMS
from oxillama.gguf.tensors import PLAIN_DTYPES, TensorInfo

__all__ = ["Bytes", "Pending", "parts_of", "pending"]

Bytes = bytes | bytearray | memoryview | NDArray[Any]

_FORMAT_OF_DTYPE = {dtype.str: name for name, dtype in PLAIN_DTYPES.items()}


class Pending(NamedTuple):
    """A tensor's entry in a file, and its bytes or a function that returns them, whole or in parts."""

    name: str
    shape: tuple[int, ...]
    format: Format
    nbytes: int
    data: memoryview | Callable[[], Bytes | Iterator[Bytes]]


def pending(
    name: str,
    data: Bytes | TensorInfo | Callable[[], Bytes | Iterator[Bytes]],
    shape: Iterable[int] | None,
    type: str | None,
) -> Pending:
    """The pending tensor of the arguments of `GGUFWriter.add_tensor`, which documents them and the errors."""
    if isinstance(data, TensorInfo):
        shape, type, data = shape or data.shape, type or data.type, data.data
    if isinstance(data, np.ndarray) and type in (None, _FORMAT_OF_DTYPE.get(data.dtype.str)):
        data, shape, type = _plain(name, data, shape)
    if shape is None or type is None:
        raise ConfigError(f"tensor {name!r}: bytes need shape and type")
    fmt = format_by_name(type)
    dims = _check_shape(name, shape, fmt)
    nbytes = fmt.nbytes(math.prod(dims))
    return Pending(name, dims, fmt, nbytes, data if callable(data) else _run(name, data, nbytes))


def _plain(name: str, array: NDArray[Any], shape: Iterable[int] | None) -> tuple[NDArray[Any], tuple[int, ...], str]:
    found = _FORMAT_OF_DTYPE.get(array.dtype.newbyteorder("<").str)
    if found is None:
        known = ", ".join(d.name for d in PLAIN_DTYPES.values())
        raise ConfigError(f"tensor {name!r}: dtype {array.dtype}; GGUF has {known}; others need bytes and a type")
    dims = array.shape if shape is None else tuple(shape)
    if math.prod(dims) != array.size:
        raise ConfigError(f"tensor {name!r}: shape {dims} for an array of shape {array.shape}")
    return np.ascontiguousarray(array, PLAIN_DTYPES[found]), dims, found


def _check_shape(name: str, shape: Iterable[int], fmt: Format) -> tuple[int, ...]:
    try:
        dims = tuple(operator.index(d) for d in shape)
    except TypeError:
        raise ConfigError(f"tensor {name!r}: shape {shape!r}; a sequence of integers is needed") from None
    if not 1 <= len(dims) <= MAX_DIMS or min(dims) < 1 or math.prod(dims) >= 1 << 63:
        raise ConfigError(f"tensor {name!r}: shape {dims}; 1 to {MAX_DIMS} dimensions of at least 1 are needed")
    if dims[-1] % fmt.block_values:
        raise ConfigError(f"tensor {name!r}: rows of {dims[-1]}; {fmt.name} needs a multiple of {fmt.block_values}")
    return dims


def parts_of(t: Pending) -> Iterator[memoryview]:
    """A tensor's bytes in parts. Raises ConfigError unless their sum is the tensor's size."""
    data = t.data() if callable(t.data) else t.data
    if not isinstance(data, Iterator):
        yield _run(t.name, data, t.nbytes)
        return
    done = 0
    for part in data:
        view = _view(t.name, part)
        done += view.nbytes
        if done > t.nbytes:
            break
        yield view
    if done != t.nbytes:
        raise ConfigError(f"tensor {t.name!r}: {done} bytes of data; its shape and type need {t.nbytes}")


def _run(name: str, data: Bytes, nbytes: int) -> memoryview:
    """``data`` as one run of ``nbytes`` bytes; ConfigError if it isn't."""
    view = _view(name, data)
    if view.nbytes != nbytes:
        raise ConfigError(f"tensor {name!r}: {view.nbytes} bytes of data; its shape and type need {nbytes}")
    return view


def _view(name: str, data: Bytes) -> memoryview:
    if isinstance(data, np.ndarray):
        view = np.ascontiguousarray(data).data
    elif isinstance(data, bytes | bytearray | memoryview):
        view = memoryview(data)
    else:
        raise ConfigError(f"tensor {name!r}: data of type {data.__class__.__name__}; an array or bytes are needed")
    return view.cast("B") if view.c_contiguous else memoryview(view.tobytes())
