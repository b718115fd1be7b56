"""Routing against a float64 twin."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.errors import ConfigError
from oxillama.kernels.routing import route, take_weights
from oxillama.kernels.rows import Vector, Workspace

GATINGS = ("softmax", "sigmoid", "softmax_chosen", "sparsemixer")


def floats(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def softmax(x):
    p = np.exp(x - x.max())
    return p / p.sum()


def best(x, k):
    """Ids of the k largest; of equals the lower one."""
    return np.argsort(-x, kind="stable")[:k]


def sparsemixer(logits):
    """Two rounds of: the largest, with its probability among those within 2 % of it. As Phi-3.5's own code does it."""
    ids, weights, left = [], [], logits.copy()
    for _ in range(2):
        ids.append(int(np.argmax(left)))
        top = left[ids[-1]]
        with np.errstate(invalid="ignore", divide="ignore"):
            far = (top - logits) / np.maximum(np.abs(logits), top) > 0.02
        weights.append(softmax(np.where(far, -np.inf, left))[ids[-1]])
        left[ids[-1]] = -np.inf
    return np.array(ids), np.array(weights)


def twin(logits, k, *, gating, normalise=True, scale=1.0, bias=None, n_groups=1, n_groups_used=1):
    """One row's experts and weights in float64."""
    logits = logits.astype(np.float64)
    scores = {"softmax": softmax, "sigmoid": lambda x: 1 / (1 + np.exp(-x))}.get(gating, lambda x: x)(logits)
    choice = scores if bias is None else scores + bias
    groups = choice.reshape(n_groups, -1)
    spokesmen = np.sort(groups, 1)[:, -2:] if gating == "sigmoid" else groups.max(1, keepdims=True)
    kept = np.isin(np.arange(n_groups), best(spokesmen.sum(1), n_groups_used))
    ids = best(np.where(kept[:, None], groups, -np.inf).reshape(-1), k)
    weights = softmax(logits[ids]) if gating == "softmax_chosen" else scores[ids]
    if gating == "sparsemixer":
        ids, weights = sparsemixer(logits)
    return ids, (weights / weights.sum() if normalise else weights) * scale


@st.composite
def cases(draw):
    """Logits from a coarse grid, so that there are ties, but none that depend on rounding.

    The grid has no centre, about which pairs of sigmoids would all have the sum 1.
    """
    gating = draw(st.sampled_from(GATINGS))
    n_groups, size = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    n_groups_used = draw(st.integers(1, n_groups))
    k = draw(st.integers(1, n_groups_used * size))
    if gating == "sparsemixer":
        n_groups, n_groups_used, size, k = 1, 1, size + 1, 2
    n, n_experts = draw(st.integers(1, 6)), n_groups * size
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    logits = (rng.integers(-20, 20, (n, n_experts)) / draw(st.sampled_from([4, 64])) + 0.05).astype(np.float32)
    biased = gating in ("softmax", "sigmoid") and draw(st.booleans())
    return logits, {
        "k": k,
        "gating": gating,
        "normalise": draw(st.booleans()),
        "scale": draw(st.sampled_from([1.0, 2.5])),
        "bias": rng.integers(-8, 8, n_experts).astype(np.float32) / 8 if biased else None,
        "n_groups": n_groups,
        "n_groups_used": n_groups_used,
    }


@given(cases())
@settings(max_examples=400)
def test_routing_is_that_of_its_twin(case):
    logits, options = case
    bias = options["bias"]
    routing = route(Workspace(2).from_array(logits), **{**options, "bias": None if bias is None else Vector(bias)})
    for row, experts, weights in zip(logits, routing.experts, routing.weights, strict=True):
        ids, expected = twin(row, **options)
        assert experts.tolist() == ids.tolist()
        np.testing.assert_allclose(weights, expected, rtol=2e-5)
    assert routing.counts.tolist() == np.bincount(routing.experts.reshape(-1), minlength=logits.shape[1]).tolist()


def test_ties_go_to_the_lower_id():
    equal = np.zeros((1, 8), np.float32)
    for gating in GATINGS:
        assert route(Workspace(1).from_array(equal), 2, gating=gating).experts.tolist() == [[0, 1]]
    grouped = route(Workspace(1).from_array(equal), 4, gating="sigmoid", n_groups=4, n_groups_used=2)
    assert grouped.experts.tolist() == [[0, 1, 2, 3]]


def test_the_correction_bias_chooses_but_does_not_weigh():
    logits = np.array([[1.0, 0.0, -1.0, 0.5]], np.float32)
    routing = route(
        Workspace(1).from_array(logits), 2, gating="sigmoid", normalise=False, bias=Vector(np.float32([0, 0, 5, 1]))
    )
    assert routing.experts.tolist() == [[2, 3]]
    np.testing.assert_allclose(routing.weights, [1 / (1 + np.exp([1.0, -0.5]))], rtol=1e-6)


def test_two_scores_speak_for_a_group_of_sigmoids_and_one_for_a_group_of_a_softmax():
    """A group with the best expert against one with the best two: DeepSeek-V2 takes the first, V3 the second."""
    logits = np.array([[3.0, -9.0, 2.0, 1.9]], np.float32)
    for gating, experts in (("softmax", [0, 1]), ("sigmoid", [2, 3])):
        routing = route(Workspace(1).from_array(logits), 2, gating=gating, n_groups=2, n_groups_used=1)
        assert routing.experts.tolist() == [experts]


def test_weights_that_vanish_are_normalised_to_no_nan():
    logits = np.full((1, 4), -200.0, np.float32)
    assert np.isfinite(route(Workspace(1).from_array(logits), 2, gating="sigmoid").weights).all()


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_routing_many_rows_gives_the_bits_of_each_alone(num_threads):
    logits, bias = floats(0, 300, 64), Vector(floats(1, 64))
    options = {"gating": "sigmoid", "scale": 2.5, "bias": bias, "n_groups": 8, "n_groups_used": 3}
    many = route(Workspace(num_threads).from_array(logits), 6, **options)
    for row in range(300):
        one = route(Workspace(1).from_array(logits[row : row + 1]), 6, **options)
        assert (one.experts[0] == many.experts[row]).all()
        assert (one.weights[0] == many.weights[row]).all()


@pytest.mark.parametrize(
    ("k", "options", "message"),
    [
        (0, {}, "0 of 8 experts"),
        (9, {}, "9 of 8 experts"),
        (2, {"gating": "argmax"}, "gating='argmax'"),
        (2, {"bias": Vector(np.zeros(7, np.float32))}, "bias of 7 values for 8 experts"),
        (2, {"n_groups": 3, "n_groups_used": 1}, "in 1 of 3 groups"),
        (2, {"n_groups": 4, "n_groups_used": 5}, "in 5 of 4 groups"),
        (2, {"n_groups": 4, "n_groups_used": 0}, "in 0 of 4 groups"),
        (5, {"n_groups": 4, "n_groups_used": 2}, "5 of 8 experts, in 2 of 4 groups"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(k, options, message):
    with pytest.raises(ConfigError, match=message):
        route(Workspace(1).from_array(floats(0, 1, 8)), k, **options)


def test_weights_are_taken_once():
    """What experts' inputs are multiplied by doesn't multiply their outputs too."""
    ws = Workspace(1)
    routing = route(ws.from_array(floats(3, 9, 6)), 2, gating="sigmoid", normalise=False)
    weights = routing.weights
    assert (take_weights(routing).numpy() == weights).all()
    assert (routing.weights == 1).all()
