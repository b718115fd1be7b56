"""The table of kernels in use: chosen once, at import, by what the CPU can do and by ``OXILLAMA_TIER``."""

import os

from oxillama.errors import ConfigError, QuantError

cdef const ox_kernels *_table = NULL


cdef const ox_kernels *table() noexcept nogil:
    return _table


cdef const ox_kernels *table_of(int tier) except NULL:
    """The table of a tier that this machine can run; ConfigError where the system refuses its state to this process."""
    cdef const ox_kernels *t = ox_table(<ox_tier>tier)
    if t == NULL:
        name = ox_tier_name(<ox_tier>tier).decode()
        raise ConfigError(
            f"the tier {name} can't be used: Linux refuses the state of its tiles to this process, by a sandbox that "
            f"stops arch_prctl, or because a thread has a signal stack that is too small for them")
    return t


cdef const ox_format_info *format_info(int index) noexcept nogil:
    return &ox_formats[index]


cdef int find_format(str name) except -1:
    """Index into ox_formats of a format's name."""
    cdef int i
    cdef bytes wanted = name.encode()
    for i in range(ox_n_formats):
        if ox_formats[i].name == wanted:
            return i
    raise QuantError(f"unknown tensor format {name!r}; known: {', '.join([f[0] for f in formats_by_name()])}")


cdef int find_kernel_format(str name) except -1:
    """Index into ox_formats of a format that has kernels."""
    cdef int i = find_format(name)
    if ox_formats[i].kernel < 0:
        have = ", ".join([n for n, f in formats_by_name() if f])
        raise QuantError(f"tensor format {name} has no kernels yet; those that have: {have}")
    return i


def formats_by_name():
    """``(name, has kernels)`` of every format."""
    return [(ox_formats[i].name.decode(), ox_formats[i].kernel >= 0) for i in range(ox_n_formats)]


def formats():
    """Every tensor format: ``(id in GGUF, name, values in a block, bytes of a block)``."""
    return tuple([(ox_formats[i].id, ox_formats[i].name.decode(), ox_formats[i].values, ox_formats[i].bytes)
                  for i in range(ox_n_formats)])


def kernel_formats():
    """Names of the formats that can be multiplied, dequantised and packed."""
    return tuple([name for name, has_kernels in formats_by_name() if has_kernels])


def writable_formats():
    """Names of the formats that floats can be quantised to."""
    cdef const ox_kernels *t = ox_table(OX_TIER_SCALAR)
    return tuple([ox_formats[i].name.decode() for i in range(ox_n_formats)
                  if ox_formats[i].kernel >= 0 and t.quantise[ox_formats[i].kernel] != NULL])


def compiled_tiers():
    """Names of the tiers in this build, lowest first."""
    return tuple([ox_tier_name(<ox_tier>i).decode() for i in range(OX_N_TIERS) if ox_tier_name(<ox_tier>i) != NULL])


def usable_tiers():
    """Names of the compiled tiers that this machine can run, lowest first."""
    return tuple([ox_tier_name(<ox_tier>i).decode() for i in range(OX_N_TIERS) if ox_runs(<ox_tier>i)])


def detected_tier():
    """The highest tier that this build has and this machine can run."""
    tiers = usable_tiers()
    return tiers[len(tiers) - 1]


def compiler():
    """Name and version of the compiler that built the kernels."""
    return ox_compiler().decode()


def tier():
    """The tier in use."""
    return _table.name.decode()


def multiplies_bf16():
    """Whether BF16 weights meet activations rounded to bfloat16, in the CPU's own dot products."""
    return _table.gemm_bf16 != NULL


def tier_index(str name):
    """The number of a usable tier; ConfigError for others."""
    for i in range(OX_N_TIERS):
        if ox_tier_name(<ox_tier>i) != NULL and ox_tier_name(<ox_tier>i).decode() == name and name in usable_tiers():
            return i
    raise ConfigError(f"OXILLAMA_TIER={name!r}: this build on this machine can use {', '.join(usable_tiers())}")


cdef void _choose() except *:
    global _table
    forced = os.environ.get("OXILLAMA_TIER")
    cdef int tier = tier_index(forced) if forced else <int>ox_detect_tier()
    _table = table_of(tier)


_choose()
