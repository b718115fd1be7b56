"""Rotation against multiplication of complex numbers."""

import numpy as np
import pytest

from oxillama.kernels.batch import Batch
from oxillama.kernels.rope import angles, rotate_
from oxillama.kernels.rows import Workspace


@pytest.mark.parametrize("neox", [False, True])
@pytest.mark.parametrize(
    ("n", "heads", "head_dim", "n_rot"), [(3, 2, 16, 16), (200, 3, 48, 48), (5, 2, 40, 24), (1, 1, 6, 2)]
)
def test_rotation(neox, n, heads, head_dim, n_rot):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, heads, head_dim)).astype(np.float32)
    frequencies = 10000.0 ** (-np.arange(n_rot // 2) / (n_rot // 2))
    start = 70_000
    ws = Workspace(2)
    batch = Batch([(range(n), start, [0])], ws)
    rows = ws.from_array(x.reshape(n, -1))
    rotate_(rows, angles(batch, frequencies, 1.25), head_dim, neox)
    turn = 1.25 * np.exp(1j * np.outer(np.arange(start, start + n), frequencies))[:, None]
    expected = x.astype(np.float64).copy()
    first, second = (
        (slice(0, n_rot // 2), slice(n_rot // 2, n_rot)) if neox else (slice(0, n_rot, 2), slice(1, n_rot, 2))
    )
    turned = (x[..., first] + 1j * x[..., second]) * turn
    expected[..., first], expected[..., second] = turned.real, turned.imag
    assert np.abs(rows.numpy().reshape(x.shape) - expected).max() < 1e-6
    assert (rows.numpy().reshape(x.shape)[..., n_rot:] == x[..., n_rot:]).all()
