"""Quantising and dequantising without a file."""

import numpy as np
import pytest

import oxillama.gguf as gguf
from oxillama.errors import QuantError


@pytest.mark.parametrize("name", ["Q8_0", "F16", "BF16"])
def test_quantize_and_dequantize_are_inverse_within_a_step(name):
    x = np.linspace(-1, 1, 256, dtype=np.float32).reshape(4, 64)
    data = gguf.quantize(x, name)
    assert isinstance(data, bytes)
    step = {"Q8_0": 1 / 127, "F16": 2**-11, "BF16": 2**-8}[name]
    assert np.abs(gguf.dequantize(data, name, 256) - x.ravel()).max() <= step
    with pytest.raises(QuantError):
        gguf.dequantize(data[1:], name, 256)


def test_quantize_names_what_does_not_fit():
    with pytest.raises(QuantError, match=r"shape \(2, 48\); Q8_0 needs rows of a multiple of 32"):
        gguf.quantize(np.zeros((2, 48)), "Q8_0")
    with pytest.raises(QuantError, match="unknown tensor format 'F31'"):
        gguf.quantize(np.zeros(4), "F31")
