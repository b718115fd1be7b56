"""Text of float32: every value is read back as it was."""

import json
import math

import numpy as np
import pytest

from oxillama._util.float_text import json_of
from oxillama.errors import ConfigError


def read_back(values):
    return np.array(json.loads(json_of(values)), np.float32)


def test_values_of_all_bits_are_read_back():
    rng = np.random.default_rng(0)
    values = rng.integers(0, 1 << 32, 100_000, np.uint32).view(np.float32)
    values = values[np.isfinite(values)]
    assert read_back(values).tobytes() == values.tobytes()


@pytest.mark.parametrize("scale", [1e-7, 1e-4, 0.03, 1, 1e3, 1e8, 1e11])
def test_values_of_one_size_are_read_back(scale):
    values = (np.random.default_rng(1).standard_normal(50_000) * scale).astype(np.float32)
    assert read_back(values).tobytes() == values.tobytes()


def test_values_at_powers_of_ten():
    powers = np.array([10.0**e for e in range(-12, 13)], np.float32)
    values = np.concatenate([np.nextafter(powers, np.float32(0)), powers, np.nextafter(powers, np.float32(1e30))])
    assert read_back(values).tobytes() == values.tobytes()
    assert read_back(-values).tobytes() == (-values).tobytes()


def test_texts_are_short():
    assert (
        json_of(np.array([0, 1, -2.5, 100, 0.001, 0.1], np.float32))
        == b"[0.0,1.0,-2.5,100.0,0.00100000005,0.100000001]"
    )
    assert json_of(np.empty(0, np.float32)) == b"[]"
    zero = json.loads(json_of(np.array([-0.0], np.float32)))[0]
    assert math.copysign(1, zero) == -1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_lacks(value):
    with pytest.raises(ConfigError, match=r"^value 1 is -?(nan|inf), which JSON lacks"):
        json_of(np.array([0, value], np.float32))
