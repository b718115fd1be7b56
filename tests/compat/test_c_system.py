"""Functions of llama.h about the system: each has the one true answer of a package that computes on CPUs."""

import ctypes
import logging

import pytest

import oxillama.compat as llama_cpp
from oxillama.compat import c_system
from oxillama.errors import ConfigError


def test_what_is_supported():
    assert llama_cpp.llama_supports_gpu_offload() is False
    assert llama_cpp.llama_supports_rpc() is False
    assert llama_cpp.llama_supports_mlock() is False
    assert llama_cpp.llama_supports_mmap() is True
    assert llama_cpp.llama_max_devices() == llama_cpp.LLAMA_MAX_DEVICES
    assert llama_cpp.llama_max_parallel_sequences() == 1
    assert llama_cpp.llama_max_tensor_buft_overrides() == 0


def test_begin_and_end():
    assert llama_cpp.llama_backend_init() is None
    assert llama_cpp.llama_backend_init(False) is None
    assert llama_cpp.llama_numa_init(llama_cpp.GGML_NUMA_STRATEGY_DISABLED) is None
    assert llama_cpp.llama_backend_free() is None


def test_times_go_forward():
    first = llama_cpp.llama_time_us()
    assert 0 <= llama_cpp.llama_time_us() - first < 60_000_000


def test_names_of_numbers():
    kinds = (llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO, llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED, ctypes.c_int(1), 7)
    assert [llama_cpp.llama_flash_attn_type_name(k) for k in kinds] == [b"auto", b"disabled", b"enabled", None]
    assert llama_cpp.llama_load_mode_name(llama_cpp.LLAMA_LOAD_MODE_MMAP) == b"mmap"
    assert llama_cpp.llama_load_mode_from_str(b"mmap+mlock") == llama_cpp.LLAMA_LOAD_MODE_MMAP_MLOCK
    assert llama_cpp.llama_load_mode_from_str(b"other") == llama_cpp.LLAMA_LOAD_MODE_AUTO
    with pytest.raises(ConfigError, match="flash_attn_type must be an integer, not 'x'"):
        llama_cpp.llama_flash_attn_type_name("x")


@pytest.mark.parametrize(
    ("tier", "bf16", "has", "lacks"),
    [
        ("scalar", False, "CPU : OPENMP = 1 | ", "AVX"),
        ("avx2", False, "AVX2 = 1 | F16C = 1 | ", "AVX512"),
        ("avx_vnni", False, "AVX_VNNI = 1 | ", "AVX512"),
        ("avx512", True, "AVX512_VNNI = 1 | AVX512_BF16 = 1 | ", "AVX_VNNI"),
        ("amx", True, "AMX_INT8 = 1 | ", "NEON"),
        ("neon_dot", True, "NEON = 1 | ARM_FMA = 1 | DOTPROD = 1 | BF16 = 1 | ", "MATMUL_INT8"),
    ],
)
def test_what_the_kernels_use(monkeypatch, tier, bf16, has, lacks):
    from oxillama import kernels

    monkeypatch.setattr(kernels, "config", lambda: {"tier_in_use": tier, "bf16_products": bf16})
    text = llama_cpp.llama_print_system_info().decode()
    assert text.startswith("CPU : ")
    assert text.endswith("REPACK = 1 | ")
    assert has in text
    assert lacks not in text


def test_of_this_machine():
    assert llama_cpp.llama_print_system_info().startswith(b"CPU : ")


@pytest.fixture
def log():
    logger = logging.getLogger("oxillama")
    yield logger
    llama_cpp.llama_log_set(None, None)
    assert not any(isinstance(handler, c_system._Forwarded) for handler in logger.handlers)


def test_a_callback_gets_the_lines_of_the_log(log):
    lines = []

    @llama_cpp.llama_log_callback
    def called(level, text, user_data):
        lines.append((level, text, user_data))

    llama_cpp.llama_log_set(called, ctypes.c_void_p(0))
    log.warning("a line of %s", "text")
    log.error("a fault")
    assert lines == [(3, b"a line of text\n", None), (4, b"a fault\n", None)]
    other = []
    llama_cpp.llama_log_set(lambda *line: other.append(line), "mine")  # takes the place of the one before
    log.warning("x")
    assert (len(lines), other) == (2, [(3, b"x\n", "mine")])
    llama_cpp.llama_log_set(llama_cpp.llama_log_callback(), None)  # a null pointer
    log.warning("x")
    assert len(other) == 1


def test_a_callback_that_fails_harms_nobody(log, monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)

    def fails(level, text, user_data):
        raise RuntimeError

    llama_cpp.llama_log_set(fails, None)
    log.warning("x")
