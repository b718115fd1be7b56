"""Operations over the C kernels, named by what they do; the tier in use and what this build can run."""

import platform
import sys

from oxillama.kernels._spin import short_spins

with short_spins() as _idle_spins:  # the first module that brings in the OpenMP library
    from oxillama.kernels import _threads

    _threads.start_openmp()

from oxillama.kernels import _cores, _table
from oxillama.kernels.attention import flash_attention

__all__ = ["config", "flash_attention", "show_config"]


def config() -> dict[str, object]:
    """Compiled tiers, those that this machine can run, and the one in use; threads, and the limit that decided."""
    single = _threads.single_threaded_after_fork()
    threads = _cores.default_threads()
    return {
        "tiers_compiled": _table.compiled_tiers(),
        "tier_detected": _table.detected_tier(),
        "tier_in_use": _table.tier(),
        "bf16_products": _table.multiplies_bf16(),
        "formats": _table.kernel_formats(),
        "threads": 1 if single else threads.n,
        "threads_by": "1: this process was forked after inference" if single else str(threads),
        "idle_spins": _idle_spins[_threads.openmp_variable()],
        "machine": platform.machine(),
        "compiler": _table.compiler(),
        "python": sys.version.split()[0],
    }


def show_config() -> None:
    """Print :func:`config`, a line each."""
    for key, value in config().items():
        print(f"{key:15} {', '.join(value) if isinstance(value, tuple) else value}")
