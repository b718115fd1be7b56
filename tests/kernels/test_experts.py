"""Routing and grouped products against a loop over rows."""

import numpy as np
import pytest

from oxillama.errors import QuantError
from oxillama.kernels.experts import combine_, expert_matmul, route_softmax
from oxillama.kernels.matmul import Matrix, linear, quantize
from oxillama.kernels.rows import Workspace, zeros


def floats(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("normalise", [False, True])
def test_routing(normalise):
    logits = floats(0, 50, 7)
    logits[3] = 1.0  # all alike: ties go to the lower id
    routing = route_softmax(Workspace(1).from_array(logits), 3, normalise)
    p = np.exp(logits.astype(np.float64))
    p /= p.sum(1, keepdims=True)
    order = np.argsort(-p, 1, kind="stable")[:, :3]
    expected = np.take_along_axis(p, order, 1)
    if normalise:
        expected /= expected.sum(1, keepdims=True)
    assert (routing.experts == order).all()
    assert routing.experts[3].tolist() == [0, 1, 2]
    np.testing.assert_allclose(routing.weights, expected, rtol=2e-6)
    assert routing.counts.sum() == 150


@pytest.mark.parametrize("type", ["F32", "Q8_0"])
@pytest.mark.parametrize("repack", [False, True])
@pytest.mark.parametrize("n", [1, 5, 40])
def test_products_equal_those_of_each_row_alone(type, repack, n):
    w = floats(1, 6, 40, 64)
    stack = Matrix(quantize(w, type), type, w.shape, repack=repack)
    single = [Matrix(quantize(m, type), type, m.shape) for m in w]
    ws = Workspace(2)
    x = floats(2, n, 64)
    routing = route_softmax(ws.from_array(floats(3, n, 6)), 2, True)
    (pairs,) = expert_matmul(ws.from_array(x), routing, [stack])
    (again,) = expert_matmul(ws.from_array(np.repeat(x, 2, 0)), routing, [stack], by_pair=True)
    out = zeros(ws, n, 40)
    combine_(out, pairs, routing)
    for row in range(n):
        total = np.zeros(40, np.float64)
        for slot in range(2):
            alone = linear(ws.from_array(x[row : row + 1]), single[routing.experts[row, slot]]).numpy()[0]
            assert (pairs.numpy()[2 * row + slot] == alone).all()
            assert (again.numpy()[2 * row + slot] == alone).all()
            total += np.float64(routing.weights[row, slot]) * alone
        np.testing.assert_allclose(out.numpy()[row], total, rtol=1e-5, atol=1e-5)


def test_input_of_another_width_is_refused():
    ws = Workspace(1)
    stack = Matrix(quantize(floats(0, 2, 4, 32), "F32"), "F32", (2, 4, 32), name="blk.0.ffn_up_exps.weight")
    routing = route_softmax(ws.from_array(floats(1, 1, 2)), 1, True)
    with pytest.raises(QuantError, match="ffn_up_exps"):
        expert_matmul(ws.from_array(floats(2, 1, 64)), routing, [stack])


@pytest.mark.parametrize(("n_rows", "by_pair"), [(2, False), (4, False), (3, True), (7, True)])
def test_rows_that_are_not_those_of_the_routing_are_refused(n_rows, by_pair):
    ws = Workspace(1)
    stack = Matrix(quantize(floats(0, 4, 16, 32), "F32"), "F32", (4, 16, 32))
    routing = route_softmax(ws.from_array(floats(1, 3, 4)), 2, True)
    with pytest.raises(QuantError, match=f"{n_rows} rows for a routing of 3 rows to 2 experts"):
        expert_matmul(ws.from_array(floats(2, n_rows, 32)), routing, [stack], by_pair=by_pair)


@pytest.mark.parametrize("n_routed", [2, 8])
def test_a_stack_of_another_number_of_experts_is_refused(n_routed):
    ws = Workspace(1)
    stack = Matrix(quantize(floats(0, 4, 16, 32), "F32"), "F32", (4, 16, 32), name="blk.0.ffn_up_exps.weight")
    routing = route_softmax(ws.from_array(floats(1, 3, n_routed)), 2, True)
    with pytest.raises(QuantError, match=f"ffn_up_exps.* 4 experts for a routing among {n_routed}"):
        expert_matmul(ws.from_array(floats(2, 3, 32)), routing, [stack])
