"""Functions of llama.h about the system and the library: what it supports, its log, its clock."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from oxillama.compat.c_types import integer
from oxillama.compat.constants import CONSTANTS

__all__ = ["FUNCTIONS"]

_LOG = logging.getLogger("oxillama")
Callback = Callable[[int, bytes, Any], object]


def llama_backend_init(numa: Any = False) -> None:
    """Does nothing: the kernels were chosen when they were imported."""


def llama_backend_free() -> None:
    """Does nothing: `Llama.close` frees a model."""


def llama_numa_init(numa: Any = 0) -> None:
    """Does nothing: the system places pages where they are first used."""


def llama_supports_gpu_offload() -> bool:
    """False: everything is computed on CPUs."""
    return False


def llama_supports_rpc() -> bool:
    """False: nothing is computed by other machines."""
    return False


def llama_supports_mmap() -> bool:
    """True: files are mapped, and stay so with `oxillama.load(repack=False)`."""
    return True


def llama_supports_mlock() -> bool:
    """False: pages of weights can't be locked."""
    return False


def llama_max_devices() -> int:
    """Length of a `tensor_split`: `LLAMA_MAX_DEVICES`."""
    return CONSTANTS["LLAMA_MAX_DEVICES"]


def llama_max_parallel_sequences() -> int:
    """Sequences that a batch of `llama_decode` may have: 1."""
    return 1


def llama_max_tensor_buft_overrides() -> int:
    """0: there is one kind of memory."""
    return 0


def llama_time_us() -> int:
    """Microseconds of a clock that only goes forward."""
    return time.monotonic_ns() // 1000


_FLASH_ATTENTION = {-1: b"auto", 0: b"disabled", 1: b"enabled"}
_LOAD_MODES = {-1: b"auto", 0: b"none", 1: b"mmap", 2: b"mlock", 3: b"mmap+mlock", 4: b"dio"}


def llama_flash_attn_type_name(flash_attn_type: Any) -> bytes | None:
    """Name of a `LLAMA_FLASH_ATTN_TYPE_…`; None of another number."""
    return _FLASH_ATTENTION.get(integer("flash_attn_type", flash_attn_type))


def llama_load_mode_name(load_mode: Any) -> bytes | None:
    """Name of a `LLAMA_LOAD_MODE_…`; None of another number."""
    return _LOAD_MODES.get(integer("load_mode", load_mode))


def llama_load_mode_from_str(value: bytes) -> int:
    """Number of a `LLAMA_LOAD_MODE_…` by its name; that of AUTO for another text."""
    return next((number for number, name in _LOAD_MODES.items() if name == value), -1)


# What the kernels of each tier use of a CPU, as llama.cpp names it; each tier has that of those before it, too.
_X86 = {
    "avx2": ("SSE3", "SSSE3", "AVX", "AVX2", "F16C", "FMA"),
    "avx_vnni": (),
    "avx512": ("AVX512", "AVX512_VNNI"),
    "amx": ("AMX_INT8",),
}
_ARM = {"neon": ("NEON", "ARM_FMA"), "neon_dot": ("DOTPROD",), "neon_i8mm": ("MATMUL_INT8",)}


def llama_print_system_info() -> bytes:
    """Features of the CPU that the kernels in use have, as `NAME = 1` between bars."""
    from oxillama.kernels import config

    found = config()
    names = _features(str(found["tier_in_use"]))
    if found["bf16_products"]:
        names.append("BF16" if "NEON" in names else "AVX512_BF16")
    return f"CPU : {''.join(f'{name} = 1 | ' for name in (*names, 'OPENMP', 'REPACK'))}".encode()


def _features(tier: str) -> list[str]:
    names: list[str] = []
    for tiers in (_X86, _ARM):
        for one in list(tiers)[: list(tiers).index(tier) + 1] if tier in tiers else ():
            names += tiers[one]
    return [*names, "AVX_VNNI"] if tier == "avx_vnni" else names


class _Forwarded(logging.Handler):
    """Gives the lines of the logger `oxillama` to a callback of C, or of Python."""

    # Numbers of ggml.h's enumeration.
    LEVELS = ((logging.ERROR, 4), (logging.WARNING, 3), (logging.INFO, 2), (logging.DEBUG, 1))

    def __init__(self, callback: Callback, user_data: Any) -> None:
        super().__init__()
        self.callback, self.user_data = callback, user_data

    def emit(self, record: logging.LogRecord) -> None:
        level = next((number for least, number in self.LEVELS if record.levelno >= least), 0)
        try:
            self.callback(level, f"{self.format(record)}\n".encode(), self.user_data)
        except Exception:
            self.handleError(record)


_forwarded: list[_Forwarded] = []


def llama_log_set(log_callback: Any, user_data: Any = None) -> None:
    """Has a function called for each line of the logger `oxillama`: (level, text, user_data); None for no such.

    The logger's own handlers and level stay as they are.
    """
    for handler in _forwarded:
        _LOG.removeHandler(handler)
    _forwarded.clear()
    if log_callback:  # a pointer to a function may be null
        handler = _Forwarded(log_callback, user_data)
        _forwarded.append(handler)
        _LOG.addHandler(handler)


FUNCTIONS = (
    llama_backend_init, llama_backend_free, llama_numa_init, llama_supports_gpu_offload,
    llama_supports_rpc, llama_supports_mmap, llama_supports_mlock, llama_max_devices, llama_max_parallel_sequences,
    llama_max_tensor_buft_overrides, llama_time_us, llama_flash_attn_type_name, llama_load_mode_name,
    llama_load_mode_from_str, llama_print_system_info, llama_log_set,
)  # fmt: skip
