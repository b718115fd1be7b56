"""Dequantising and quantising against ggml's own blocks, and what is refused."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from oxillama.errors import ConfigError, GenerateError, QuantError
from oxillama.kernels import _table
from oxillama.kernels.matmul import dequantize, embed, linear, linear_add_, matmul, quantize
from oxillama.kernels.matrix import Matrix
from oxillama.kernels.rows import Workspace

QUANTS = np.load(Path(__file__).parent.parent / "data" / "quants.npz")
FORMATS = [f for f in _table.kernel_formats() if f + ".bytes" in QUANTS.files]


@pytest.mark.parametrize("type", FORMATS)
def test_dequantises_bit_for_bit(type):
    for raw, expected in zip(QUANTS[type + ".bytes"], QUANTS[type + ".f32"], strict=True):
        ours = dequantize(np.ascontiguousarray(raw), type, len(expected))
        assert (ours.view(np.uint32) == expected.view(np.uint32)).all()


@pytest.mark.parametrize("type", [f for f in _table.writable_formats() if f in FORMATS])
def test_quantises_as_near_as_ggml(type):
    for source, theirs in zip(QUANTS[type + ".src"], QUANTS[type + ".f32"], strict=False):
        ours = dequantize(quantize(source, type), type, len(source))
        assert np.square(ours - source).sum() <= 1.02**2 * np.square(theirs - source).sum()


def test_every_kernel_format_is_known_by_id_and_name():
    table = {name: (id, values, size) for id, name, values, size in _table.formats()}
    assert table["Q4_K"] == (12, 256, 144)
    assert set(_table.kernel_formats()) <= set(table)
    assert len({id for id, *_ in _table.formats()}) == len(table)


def test_refuses_what_does_not_fit():
    with pytest.raises(QuantError, match="unknown tensor format 'Q9_9'"):
        dequantize(np.zeros(4, np.uint8), "Q9_9", 1)
    with pytest.raises(QuantError, match="I32 has no kernels yet"):
        dequantize(np.zeros(4, np.uint8), "I32", 1)
    with pytest.raises(QuantError, match="17 bytes of Q4_0"):
        dequantize(np.zeros(17, np.uint8), "Q4_0", 32)
    with pytest.raises(QuantError, match="31 values are not whole blocks of Q8_0"):
        quantize(np.zeros(31, np.float32), "Q8_0")
    with pytest.raises(QuantError, match="NaN or infinity"):
        quantize(np.full(32, np.nan, np.float32), "Q8_0")
    with pytest.raises(QuantError, match="IQ3_S is not supported"):
        quantize(np.zeros(256, np.float32), "IQ3_S")
    with pytest.raises(QuantError, match="w: 100 bytes of F32"):
        Matrix(np.zeros(100, np.uint8), "F32", (5, 4), name="w")


def test_matrix_refuses_an_input_of_another_width():
    w = Matrix(quantize(np.ones((4, 32)), "Q8_0"), "Q8_0", (4, 32), name="blk.0.attn_q.weight")
    with pytest.raises(QuantError, match=r"blk\.0\.attn_q\.weight: input of width 64"):
        linear(Workspace(1).from_array(np.ones((1, 64))), w)


def test_a_stack_of_matrices_is_not_taken_for_its_first():
    w = Matrix(quantize(np.ones((3, 4, 32)), "Q8_0"), "Q8_0", (3, 4, 32), name="blk.0.ffn_up_exps.weight")
    x = Workspace(1).from_array(np.ones((1, 32)))
    for product in (linear, matmul, lambda x, w: linear_add_(Workspace(1).new(1, 4), x, w)):
        with pytest.raises(QuantError, match="a stack of 3 matrices"):
            product(x, w)


@pytest.mark.parametrize("n", [1, 6, 30])
def test_matrices_of_any_formats_share_an_input(n):
    """Each takes its own form of the same rows: floats, codes of 8 bits, bfloat16. Packed on the way in, equal bits."""
    rng = np.random.default_rng(n)
    types = ["BF16", "Q8_0", "F16", "BF16", "F32", "Q8_0"]
    stored = [quantize(rng.standard_normal((83, 288)), type) for type in types]
    x = rng.standard_normal((n, 288))

    def products(*matrices, num_threads=1):
        return [y.numpy().copy() for y in matmul(Workspace(num_threads).from_array(x), *matrices)]

    packed = [Matrix(data, type, (83, 288)) for data, type in zip(stored, types, strict=True)]
    alone = [products(w)[0] for w in packed]
    mapped = [Matrix(data, type, (83, 288), repack=False) for data, type in zip(stored, types, strict=True)]
    for together in (products(*packed), products(*packed, num_threads=2), products(*mapped)):
        assert all((a == b).all() for a, b in zip(alone, together, strict=True))


def at_address(data, past_line):
    """A copy of the bytes that begins so many behind a multiple of 64."""
    memory = np.empty(data.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + past_line
    memory[start : start + data.nbytes] = data
    return memory[start : start + data.nbytes]


@pytest.mark.parametrize("type", _table.writable_formats())
def test_rows_as_stored_give_the_bits_of_panels(type):
    """Some numbers of rows go through panels on the way and others don't; the last 7 rows are no whole panel."""
    rng = np.random.default_rng(1)
    stored = quantize(rng.standard_normal((55, 768)), type)
    packed = Matrix(stored, type, (55, 768))
    for n, past_line in itertools.product(range(1, 11), (0, 32)):
        mapped = Matrix(at_address(stored, past_line), type, (55, 768), repack=False)
        x = Workspace(1).from_array(rng.standard_normal((n, 768)))
        assert (linear(x, packed).numpy() == linear(x, mapped).numpy()).all(), (n, past_line)


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("type", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("n_in", [1, 15, 16, 24, 31, 32, 33, 48, 67, 96, 112, 130, 320])
def test_float_rows_of_any_width_and_address_give_the_bits_of_panels(type, n_in, rounds):
    """Whole lines of the cache, halves of them and what is left are multiplied in ways of their own."""
    rng = np.random.default_rng(n_in)
    stored = quantize(rng.standard_normal((48, n_in)), type)
    packed = Matrix(stored, type, (48, n_in), rounds=rounds)
    for n, past_line in itertools.product(range(1, 6), (0, 2, 4, 17, 32, 63)):
        mapped = Matrix(at_address(stored, past_line), type, (48, n_in), repack=False, rounds=rounds)
        x = Workspace(1).from_array(rng.standard_normal((n, n_in)))
        assert (linear(x, packed).numpy() == linear(x, mapped).numpy()).all(), (n, past_line)


@pytest.mark.parametrize("type", ["F32", "F16", "BF16"])
def test_float_rows_as_stored_keep_special_values(type):
    """Infinity, NaN and the smallest values, each in a row of its own, are what they are in panels."""
    w = np.random.default_rng(1).standard_normal((32, 80)).astype(np.float32)
    w[3, 5], w[4, 70], w[17, 0], w[18, 79], w[19] = np.inf, -np.inf, np.nan, np.nan, 6e-8
    stored = w.tobytes() if type == "F32" else w.astype(np.float16).tobytes()
    if type == "BF16":
        stored = (w.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    stored = np.frombuffer(stored, np.uint8)
    x = Workspace(1).from_array(np.ones((1, 80)))
    packed, mapped = (linear(x, Matrix(stored, type, (32, 80), repack=r)).numpy() for r in (True, False))
    assert (packed.view(np.uint32) == mapped.view(np.uint32)).all()
    assert np.isnan(mapped[0, [17, 18]]).all()
    assert (mapped[0, [3, 4]] == [np.inf, -np.inf]).all()


def test_embedding_refuses_tokens_beyond_the_table():
    table = quantize(np.ones((4, 32)), "Q8_0")
    for token in (-1, 4):
        with pytest.raises(GenerateError, match=rf"token id {token} is not in 0\.\.3"):
            embed(Workspace(1), table, "Q8_0", 32, np.array([0, token], np.int32))


def test_repacking_lets_go_of_every_byte_once():
    """Large enough for several parts; experts whose rows are no whole panels."""
    shape = (3, 1001, 2048)
    data = np.zeros(4 * np.prod(shape), np.uint8)
    parts = []
    w = Matrix(data, "F32", shape, repack=False)
    w.repack(release=parts.append)
    w.repack(release=parts.append)
    assert len(parts) > 1
    ends = [p.ctypes.data - data.ctypes.data + p.nbytes for p in parts]
    starts = [p.ctypes.data - data.ctypes.data for p in parts]
    assert starts == [0, *ends[:-1]]
    assert ends[-1] == data.nbytes


def test_sizes_are_compared_without_overflow():
    with pytest.raises(QuantError, match="0 bytes of F32"):
        dequantize(np.zeros(0, np.uint8), "F32", 2**62)
    with pytest.raises(QuantError, match="0 bytes of F32"):
        Matrix(np.zeros(0, np.uint8), "F32", (2**31, 2**31))


@pytest.mark.parametrize(("type", "value"), [("Q8_0", 1e38), ("F16", 1e6)])
def test_values_beyond_a_format_are_refused(type, value):
    with pytest.raises(QuantError, match=f"too large for {type}"):
        quantize(np.full(32, value, np.float32), type)


def test_too_many_matrices_for_one_region():
    w = Matrix(quantize(np.ones((4, 32)), "F32"), "F32", (4, 32))
    with pytest.raises(ConfigError, match="9 matrices in one call; at most 8"):
        matmul(Workspace(1).from_array(np.ones((1, 32))), *[w] * 9)


def test_tiny_matrices_are_not_blown_up():
    """4096 experts of one row: sixteen times the file if each got a panel of its own."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((4096, 1, 64)).astype(np.float32)
    stack = Matrix(quantize(w, "F32"), "F32", w.shape)
    assert not stack.repacked
    assert stack.nbytes == 0
