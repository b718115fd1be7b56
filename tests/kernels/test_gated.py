"""The gated layer in one pass against the operations that it is made of: equal bits."""

import numpy as np
import pytest

from oxillama.errors import ConfigError, QuantError
from oxillama.kernels.activations import geglu_, geglu_erf_, swiglu_, swiglu_limited_, swiglu_oai_
from oxillama.kernels.gated import gated
from oxillama.kernels.matmul import linear, linear_add_, matmul, quantize
from oxillama.kernels.matrix import Matrix
from oxillama.kernels.rows import Vector, Workspace, add_bias_

ACTIVATIONS = {"silu": swiglu_, "gelu": geglu_, "gelu_erf": geglu_erf_, "swiglu_oai": swiglu_oai_}


def floats(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def matrix(type, seed, n_out, n_in, *, bias=False, repack=True):
    vector = Vector(floats(seed + 50, n_out)) if bias else None
    return Matrix(quantize(floats(seed, n_out, n_in), type), type, (n_out, n_in), bias=vector, repack=repack)


def parts(h, gate, up, activation="silu"):
    g, u = (linear(h, Matrix(quantize(floats(s, *m.shape), m.type), m.type, m.shape)) for s, m in ((1, gate), (2, up)))
    for y, m in ((g, gate), (u, up)):
        if m.bias is not None:
            add_bias_(y, m.bias)
    return ACTIVATIONS[activation](g, u)


@pytest.mark.sweep(60)
# Enough multiplications for a parallel region, tasks that don't come out even, and a last panel that is not full.
@pytest.mark.parametrize("repack", [True, False])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("types", [("Q8_0", "Q8_0"), ("F32", "F32"), ("Q8_0", "F16")])
@pytest.mark.parametrize(("n", "n_out"), [(1, 100), (1, 4000), (3, 1504), (40, 488)])
@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_it_has_the_bits_of_its_parts(activation, num_threads, n, n_out, types, bias, repack):
    gate, up = (matrix(t, s, n_out, 96, bias=bias, repack=repack) for s, t in ((1, types[0]), (2, types[1])))
    h = Workspace(num_threads).from_array(floats(0, n, 96))
    assert (gated(h, gate, up, activation).numpy() == parts(h, gate, up, activation).numpy()).all()


@pytest.mark.parametrize("repack", [True, False])
@pytest.mark.parametrize(("n", "n_ff"), [(1, 96), (1, 4064), (40, 480)])
@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_codes_of_the_result_are_those_made_afterwards(activation, num_threads, n, n_ff, repack):
    gate, up = (matrix("Q8_0", s, n_ff, 64, repack=repack) for s in (1, 2))
    down = matrix("Q8_0", 3, 64, n_ff)
    ws = Workspace(num_threads)
    h = ws.from_array(floats(0, n, 64))
    fused, unfused = gated(h, gate, up, activation, True), parts(h, gate, up, activation)
    assert (linear(fused, down).numpy() == linear(unfused, down).numpy()).all()


@pytest.mark.parametrize(("n", "n_out"), [(1, 100), (1, 4000), (40, 488)])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_limits(num_threads, n, n_out):
    """The bits of its parts; another limit, or none, is another result."""
    gate, up = (matrix("Q8_0", s, n_out, 96) for s in (1, 2))
    h = Workspace(num_threads).from_array(floats(0, n, 96))
    got = gated(h, gate, up, "silu", limit=1.5).numpy().copy()
    assert (got == swiglu_limited_(linear(h, gate), linear(h, up), 1.5).numpy()).all()
    assert (got != gated(h, gate, up, "silu").numpy()).any()
    for activation, limit in (("gelu", 1.0), ("silu", -1.0), ("silu", np.inf), ("silu", np.nan)):
        with pytest.raises(ConfigError, match="a limit of"):
            gated(h, gate, up, activation, limit=limit)


def test_biases_come_last():
    with_bias, without = (matrix("F32", 1, 33, 20, bias=b) for b in (True, False))
    ws = Workspace(2)
    x, y, b = floats(0, 4, 20), floats(9, 4, 33), with_bias.bias.numpy()
    rows = ws.from_array(x)
    product = linear(rows, without).numpy()
    assert (matmul(rows, without, with_bias)[1].numpy() == product + b).all()
    total = ws.from_array(y)
    linear_add_(total, rows, with_bias)
    assert (total.numpy() == (y + product) + b).all()


def test_what_does_not_fit_is_refused():
    shapes = ((32, "a"), (64, "b"))
    h = Workspace(1).from_array(floats(0, 1, 64))
    with pytest.raises(QuantError, match=r"a .*\(32, 64\) and b .*\(64, 64\) don't make a gated layer"):
        gated(h, *(Matrix(quantize(floats(0, n, 64), "F32"), "F32", (n, 64), name=m) for n, m in shapes), "silu")
    with pytest.raises(QuantError, match="gated"):
        gated(h, matrix("F32", 1, 40, 64), matrix("F32", 2, 40, 64), "silu", True)
    with pytest.raises(QuantError, match="width 64"):
        gated(h, matrix("F32", 1, 40, 32), matrix("F32", 2, 40, 32), "silu")
    with pytest.raises(ConfigError, match="activation 'relu'; known: silu, gelu"):
        gated(h, matrix("F32", 1, 40, 64), matrix("F32", 2, 40, 64), "relu")
    with pytest.raises(QuantError, match="bias of 5 values"):
        Matrix(quantize(floats(0, 4, 8), "F32"), "F32", (4, 8), bias=Vector(floats(1, 5)))
