"""Rotation against multiplication of complex numbers."""

import numpy as np
import pytest

from oxillama.errors import ConfigError
from oxillama.kernels.batch import Batch, Span
from oxillama.kernels.rope import angles, rotate_, sharpen_
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
    batch = Batch([Span(range(n), start, [0])], ws)
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


def test_sharpening():
    """Untouched to the bit within the first length, then in steps."""
    x = np.random.default_rng(0).standard_normal((100, 24)).astype(np.float32)
    ws = Workspace(2)
    batch = Batch([Span(range(40), 0, [0]), Span(range(60), 1000, [0])], ws)
    rows = ws.from_array(x)
    sharpen_(rows, batch, 0.3, 16)
    positions = np.concatenate([np.arange(40), np.arange(1000, 1060)])
    expected = x * (1 + 0.3 * np.log(1 + positions // 16))[:, None]
    assert np.abs(rows.numpy() - expected).max() < 1e-6
    assert (rows.numpy()[:16] == x[:16]).all()
    later = ws.from_array(x)
    sharpen_(later, batch, 0.3, 16, 1)
    expected = x * (1 + 0.3 * np.log(1 + (positions + 1) // 16))[:, None]
    assert np.abs(later.numpy() - expected).max() < 1e-6
    with pytest.raises(ConfigError, match="positions of 100 rows for 99, in steps of 16"):
        sharpen_(ws.from_array(x[:99]), batch, 0.3, 16)
    with pytest.raises(ConfigError, match="in steps of 0"):
        sharpen_(rows, batch, 0.3, 0)
