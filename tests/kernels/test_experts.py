"""Layers of experts against a loop over rows."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from oxillama.errors import ConfigError, QuantError
from oxillama.kernels.activations import (
    geglu_,
    gelu_,
    gelu_erf_,
    reglu_,
    relu2_,
    silu_,
    swiglu_,
    swiglu_limited_,
    swiglu_oai_,
)
from oxillama.kernels.experts import expert_add_, expert_hidden, expert_hidden_joint
from oxillama.kernels.matmul import linear, quantize
from oxillama.kernels.matrix import Matrix
from oxillama.kernels.routing import route
from oxillama.kernels.rows import Vector, Workspace, add_bias_, zeros


def floats(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Stack:
    """The matrices of some experts, as one stack and each alone."""

    def __init__(self, seed, type, n, n_out, n_in, *, bias=False, repack=True):
        w, b = floats(seed, n, n_out, n_in), floats(seed + 50, n, n_out)
        self.stack = Matrix(quantize(w, type), type, w.shape, repack=repack, bias=Vector(b) if bias else None)
        self.single = [Matrix(quantize(m, type), type, m.shape) for m in w]
        self.bias = [Vector(row) for row in b] if bias else None

    def alone(self, x, expert):
        y = linear(x, self.single[expert])
        if self.bias is not None:
            add_bias_(y, self.bias[expert])
        return y


@pytest.mark.sweep(11)
@pytest.mark.parametrize("types", [("F32", "F32", "F32"), ("Q8_0", "Q8_0", "Q8_0"), ("Q4_K", "Q6_K", "F16")])
@pytest.mark.parametrize("repack", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("n", "num_threads", "n_ff"), [(1, 1, 256), (1, 2, 512), (5, 3, 256), (40, 2, 768)])
def test_layers_equal_those_of_each_row_alone(types, repack, bias, n, num_threads, n_ff):
    n_experts, k, n_embd = 6, 3, 256
    gate, up = (Stack(i, types[i], n_experts, n_ff, n_embd, bias=bias, repack=repack) for i in (0, 1))
    down = Stack(2, types[2], n_experts, n_embd, n_ff, bias=bias, repack=repack)
    ws = Workspace(num_threads)
    x, y = floats(3, n, n_embd), floats(4, n, n_embd)
    routing = route(ws.from_array(floats(5, n, n_experts)), k)
    hidden = expert_hidden(ws.from_array(x), routing, gate.stack, up.stack, "silu", down.stack.integer)
    out = ws.from_array(y)
    expert_add_(out, hidden, routing, down.stack)
    for row in range(n):
        one = ws.from_array(x[row : row + 1])
        terms = [y[row].astype(np.float64)]
        for i, e in enumerate(routing.experts[row]):
            alone = swiglu_(gate.alone(one, e), up.alone(one, e))
            assert (hidden.numpy()[k * row + i] == alone.numpy()[0]).all()
            terms.append(np.float64(routing.weights[row, i]) * down.alone(alone, e).numpy()[0])
        bound = (k + 1) * 2.0**-23 * np.abs(terms).sum(0)  # each product and each sum is rounded once
        assert (np.abs(out.numpy()[row] - np.sum(terms, 0)) <= bound).all()


@pytest.mark.parametrize(("n_embd", "n_ff"), [(1, 1), (17, 50), (64, 95)])
def test_widths_that_fill_no_panel(n_embd, n_ff):
    ws = Workspace(3)
    gate, up = (Stack(i, "F32", 3, n_ff, n_embd, bias=True) for i in (0, 1))
    down = Stack(2, "F32", 3, n_embd, n_ff)
    x = floats(3, 90, n_embd)
    routing = route(ws.from_array(floats(4, 90, 3)), 1, normalise=False)
    hidden = expert_hidden(ws.from_array(x), routing, gate.stack, up.stack)
    out = zeros(ws, 90, n_embd)
    expert_add_(out, hidden, routing, down.stack)
    for row, e in enumerate(routing.experts[:, 0]):
        one = ws.from_array(x[row : row + 1])
        alone = swiglu_(gate.alone(one, e), up.alone(one, e))
        assert (hidden.numpy()[row] == alone.numpy()[0]).all()
        assert (out.numpy()[row] == routing.weights[row, 0] * down.alone(alone, e).numpy()[0]).all()


@pytest.mark.parametrize(
    ("gated", "function"), [("gelu", geglu_), ("swiglu_oai", swiglu_oai_), ("silu", swiglu_), ("relu", reglu_)]
)
@pytest.mark.parametrize("n", [1, 30])
def test_activations_of_experts_with_a_gate(gated, function, n):
    ws = Workspace(2)
    gate, up = (Stack(i, "Q8_0", 4, 320, 256, bias=True) for i in (0, 1))
    x = floats(2, n, 256)
    routing = route(ws.from_array(floats(3, n, 4)), 2)
    hidden = expert_hidden(ws.from_array(x), routing, gate.stack, up.stack, gated, True).numpy()
    for pair, e in enumerate(routing.experts.reshape(-1)):
        one = ws.from_array(x[pair // 2 : pair // 2 + 1])
        assert (function(gate.alone(one, e), up.alone(one, e)).numpy()[0] == hidden[pair]).all()
    with pytest.raises(ConfigError, match="a gate and the activation 'relu2'"):
        expert_hidden(ws.from_array(x), routing, gate.stack, up.stack, "relu2")


@pytest.mark.parametrize("n", [1, 30])
def test_limits_of_experts(n):
    ws = Workspace(2)
    gate, up = (Stack(i, "Q8_0", 4, 320, 256) for i in (0, 1))
    x = floats(2, n, 256)
    routing = route(ws.from_array(floats(3, n, 4)), 2)
    hidden = expert_hidden(ws.from_array(x), routing, gate.stack, up.stack, "silu", True, 1.5).numpy()
    for pair, e in enumerate(routing.experts.reshape(-1)):
        one = ws.from_array(x[pair // 2 : pair // 2 + 1])
        assert (swiglu_limited_(gate.alone(one, e), up.alone(one, e), 1.5).numpy()[0] == hidden[pair]).all()
    for stack, activation, limit in ((gate.stack, "gelu", 1.0), (None, "silu", 1.0), (gate.stack, "silu", -1.0)):
        with pytest.raises(ConfigError, match="a limit of"):
            expert_hidden(ws.from_array(x), routing, stack, up.stack, activation, False, limit)


@pytest.mark.parametrize("type", ["F32", "Q8_0"])
@pytest.mark.parametrize(("n", "n_ff"), [(1, 33), (30, 160)])
@pytest.mark.parametrize("repack", [False, True])
def test_both_matrices_in_one(type, n, n_ff, repack):
    """The same bits as with the gate's rows in one stack and the others in another."""
    ws = Workspace(3)
    gate, up = (floats(i, 4, n_ff, 256) for i in (0, 1))
    joint = np.concatenate([gate, up], axis=1)

    def stack(values):
        return Matrix(quantize(values.reshape(-1, 256), type), type, values.shape, name="w", repack=repack)

    x = ws.from_array(floats(2, n, 256))
    routing = route(ws.from_array(floats(3, n, 4)), 2)
    two = expert_hidden(x, routing, stack(gate), stack(up)).numpy().copy()
    assert (expert_hidden_joint(x, routing, stack(joint)).numpy() == two).all()
    with pytest.raises(QuantError, match="does not hold two matrices"):
        expert_hidden_joint(x, routing, stack(joint[:, :-1]))
    with pytest.raises(ConfigError, match="a gate and the activation 'relu2'"):
        expert_hidden_joint(x, routing, stack(joint), "relu2")


@pytest.mark.parametrize("plain", [silu_, gelu_, gelu_erf_, relu2_])
@pytest.mark.parametrize("n", [1, 30])
@pytest.mark.parametrize("repack", [False, True])
def test_experts_without_a_gate(plain, n, repack):
    ws = Workspace(2)
    up = Stack(1, "Q8_0", 4, 320, 256, bias=True, repack=repack)
    x = floats(2, n, 256)
    routing = route(ws.from_array(floats(3, n, 4)), 2)
    hidden = expert_hidden(ws.from_array(x), routing, None, up.stack, plain.__name__[:-1], True).numpy()
    for pair, e in enumerate(routing.experts.reshape(-1)):
        alone = up.alone(ws.from_array(x[pair // 2 : pair // 2 + 1]), e)
        plain(alone)
        assert (alone.numpy()[0] == hidden[pair]).all()
    with pytest.raises(ConfigError, match="without a gate and the activation 'swiglu_oai'"):
        expert_hidden(ws.from_array(x), routing, None, up.stack, "swiglu_oai")


@pytest.mark.parametrize("type", ["F32", "Q8_0", "Q4_K"])
@pytest.mark.parametrize("repack", [False, True])
def test_company_changes_no_bit(type, repack):
    """Each row alone against all in one call, and any number of threads."""
    stacks = [Stack(i, type, 8, 256, 256, repack=repack).stack for i in range(3)]

    def layer(x, logits, num_threads):
        ws = Workspace(num_threads)
        routing = route(ws.from_array(logits), 3)
        hidden = expert_hidden(ws.from_array(x), routing, stacks[0], stacks[1], "silu", stacks[2].integer)
        y = zeros(ws, len(x), 256)
        expert_add_(y, hidden, routing, stacks[2])
        return y.numpy().copy()

    x, logits = floats(6, 33, 256), floats(7, 33, 8)
    together = layer(x, logits, 2)
    assert (layer(x, logits, 1) == together).all()
    for row in range(33):
        assert (layer(x[row : row + 1], logits[row : row + 1], 3)[0] == together[row]).all()


@pytest.mark.parametrize("type", ["F32", "Q8_0", "Q4_K"])
@pytest.mark.parametrize("repack", [False, True])
def test_experts_that_no_row_chose_are_not_touched(type, repack):
    """The others' weights are NaN, which spoils all that touches it, were it multiplied by zero."""
    n, chosen = 8, (2, 5)
    ws = Workspace(2)
    logits = np.full((20, n), -30, np.float32)
    logits[:, chosen] = floats(0, 20, 2)
    stacks = []
    for seed in range(3):
        w = quantize(floats(seed, n, 256, 256), type).reshape(n, -1)
        w[[e for e in range(n) if e not in chosen]] = 0xFF  # NaN as a float, and as the scale of any block
        stacks.append(Matrix(w.reshape(-1), type, (n, 256, 256), repack=repack))
    routing = route(ws.from_array(logits), 2)
    assert routing.counts.tolist() == [0, 0, 20, 0, 0, 20, 0, 0]
    hidden = expert_hidden(ws.from_array(floats(9, 20, 256)), routing, *stacks[:2], "silu", stacks[2].integer)
    y = zeros(ws, 20, 256)
    expert_add_(y, hidden, routing, stacks[2])
    assert np.isfinite(y.numpy()).all()
    spoilt = route(ws.from_array(np.zeros((1, n), np.float32)), 1)
    hidden = expert_hidden(ws.from_array(floats(9, 1, 256)), spoilt, *stacks[:2])
    assert np.isnan(hidden.numpy()).all()


LOCKED = """
import ctypes, mmap, sys
import numpy as np
from oxillama.kernels.experts import expert_add_, expert_hidden, expert_hidden_joint
from oxillama.kernels.matmul import quantize
from oxillama.kernels.matrix import Matrix
from oxillama.kernels.routing import route
from oxillama.kernels.rows import Workspace, zeros

type, repack, locked = sys.argv[1], sys.argv[2] == "True", [int(e) for e in sys.argv[3].split(",")]
maps = []

def pages(n_bytes):
    maps.append(np.frombuffer(mmap.mmap(-1, n_bytes), np.uint8))
    return maps[-1]

def stack(seed):
    data = quantize(np.random.default_rng(seed).standard_normal((8, 256, 256), np.float32), type).reshape(-1)
    raw = pages(data.nbytes)
    raw[:] = data
    w = Matrix(raw, type, (8, 256, 256), repack=False)
    if repack:
        w.repack(allocate=pages)
    return w, maps[-1], (maps[-1].nbytes - 64 * repack) // 8

stacks = [stack(i) for i in range(3)]
protect = ctypes.CDLL(None, use_errno=True).mprotect
for w, memory, n_bytes in stacks:
    assert n_bytes % mmap.PAGESIZE == 0
    for e in locked:
        start = ctypes.c_void_p(memory.ctypes.data + e * n_bytes)
        assert protect(start, ctypes.c_size_t(n_bytes), 0) == 0
ws = Workspace(2)
logits = np.full((20, 8), -30, np.float32)
logits[:, [2, 5]] = 0
routing = route(ws.from_array(logits), 2)
gate, up, down = (w for w, _, _ in stacks)
hidden = expert_hidden(ws.from_array(np.ones((20, 256), np.float32)), routing, gate, up, "silu", down.integer)
y = zeros(ws, 20, 256)
expert_add_(y, hidden, routing, down)
assert np.isfinite(y.numpy()).all()
"""


@pytest.mark.sweep(3)
@pytest.mark.skipif(sys.platform != "linux", reason="protects pages by mprotect")
@pytest.mark.parametrize("type", ["F32", "Q8_0"])
@pytest.mark.parametrize("repack", [False, True])
@pytest.mark.parametrize(("locked", "status"), [("0,1,3,4,6,7", 0), ("5", -signal.SIGSEGV)])
def test_memory_of_experts_that_no_row_chose_is_not_read(type, repack, locked, status):
    """Their pages can't be read: a process that tries dies, as it does when those of a chosen one can't."""
    options = os.environ.get("ASAN_OPTIONS", "") + ":handle_segv=0"  # the sanitiser ends a process in its own way
    run = subprocess.run(
        [sys.executable, "-c", LOCKED, type, str(repack), locked],
        env=os.environ | {"ASAN_OPTIONS": options}, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == status, run.stderr


def test_no_rows():
    ws = Workspace(2)
    stack = Stack(0, "Q8_0", 2, 32, 32).stack
    routing = route(zeros(ws, 0, 2), 1)
    assert routing.experts.shape == routing.weights.shape == (0, 1)
    hidden = expert_hidden(zeros(ws, 0, 32), routing, stack, stack, "silu", True)
    expert_add_(zeros(ws, 0, 32), hidden, routing, stack)
    assert hidden.n == 0


def stack_of(n, n_out=16, n_in=32):
    return Matrix(quantize(floats(0, n, n_out, n_in), "F32"), "F32", (n, n_out, n_in), name="blk.0.ffn_exps.weight")


def test_input_of_another_width_is_refused():
    ws = Workspace(1)
    routing = route(ws.from_array(floats(1, 1, 2)), 1)
    with pytest.raises(QuantError, match="ffn_exps"):
        expert_hidden(ws.from_array(floats(2, 1, 64)), routing, stack_of(2), stack_of(2))
    with pytest.raises(QuantError, match="ffn_exps"):
        expert_add_(zeros(ws, 1, 16), zeros(ws, 1, 16), routing, stack_of(2))
    with pytest.raises(QuantError, match="ffn_exps"):
        expert_add_(zeros(ws, 1, 17), zeros(ws, 1, 32), routing, stack_of(2))


@pytest.mark.parametrize("n_rows", [2, 4])
def test_rows_that_are_not_those_of_the_routing_are_refused(n_rows):
    ws = Workspace(1)
    routing = route(ws.from_array(floats(1, 3, 4)), 2)
    with pytest.raises(QuantError, match=f"{n_rows} rows for a routing of 3 rows to 2 experts"):
        expert_hidden(ws.from_array(floats(2, n_rows, 32)), routing, stack_of(4), stack_of(4))
    with pytest.raises(QuantError, match=f"{n_rows} rows for a routing of 3 rows to 2 experts"):
        expert_add_(zeros(ws, 3, 16), zeros(ws, n_rows, 32), routing, stack_of(4))
    with pytest.raises(QuantError, match=f"{n_rows} x 16 for 3 rows"):
        expert_add_(zeros(ws, n_rows, 16), zeros(ws, 6, 32), routing, stack_of(4))


@pytest.mark.parametrize("n_routed", [2, 8])
def test_a_stack_of_another_number_of_experts_is_refused(n_routed):
    ws = Workspace(1)
    routing = route(ws.from_array(floats(1, 3, n_routed)), 2)
    with pytest.raises(QuantError, match=f"ffn_exps.* 4 experts for a routing among {n_routed}"):
        expert_hidden(ws.from_array(floats(2, 3, 32)), routing, stack_of(4), stack_of(4))


def test_stacks_that_make_no_gated_layer_are_refused():
    ws = Workspace(1)
    routing = route(ws.from_array(floats(1, 3, 4)), 2)
    with pytest.raises(QuantError, match="don't make a layer"):
        expert_hidden(ws.from_array(floats(2, 3, 32)), routing, stack_of(4), stack_of(4, n_out=32))


def test_a_bias_of_another_size_is_refused():
    with pytest.raises(QuantError, match="a bias of 16 values"):
        Matrix(quantize(floats(0, 2, 16, 32), "F32"), "F32", (2, 16, 32), bias=Vector(floats(1, 16)))
