"""Quantisers: near the best that blocks can hold, on any values, with the same bytes on every tier and thread count."""

import numpy as np
import pytest

from oxillama.errors import QuantError
from oxillama.kernels import _check, _table
from oxillama.kernels.convert import convert, quantize
from oxillama.kernels.matmul import block_size, dequantize
from tests.kernels.tiers import TIERS, both

TYPES = [f for f in _table.writable_formats() if f not in ("F32", "F16", "BF16")]
IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float64)
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float64)

# Codes that a scale multiplies, and how many values share it.
CODES = {
    "Q4_0": (np.arange(-8, 8), 32), "Q5_0": (np.arange(-16, 16), 32), "Q8_0": (np.arange(-127, 128), 32),
    "IQ4_NL": (IQ4, 32), "Q1_0": (np.array([-1, 1]), 128), "Q2_0": (np.arange(-1, 3), 64),
    "TQ1_0": (np.arange(-1, 2), 256), "TQ2_0": (np.arange(-1, 2), 256),
    "Q6_K": (np.arange(-32, 32), 16), "Q3_K": (np.arange(-4, 4), 16), "IQ4_XS": (IQ4, 32),
}  # fmt: skip
# Every scale of one byte, and how many values share it.
E4M3 = [(m + 8 * (e > 0)) * 2.0 ** (max(e, 1) - 10) for e in range(16) for m in range(8)][1:127]
SCALES = {"MXFP4": (2.0 ** np.arange(-127, 128), 32), "NVFP4": (np.array(E4M3), 16)}
# Largest code, values that share a scale and an offset, and whether the offset is at most 0.
LINES = {
    "Q4_1": (15, 32, False), "Q5_1": (31, 32, False),
    "Q4_K": (15, 32, True), "Q5_K": (31, 32, True), "Q2_K": (3, 16, True),
}  # fmt: skip


def kinds(seed=0, rows=4, n=1024):
    """Rows of several shapes of distribution, by name."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, n))
    spikes = np.where(rng.random((rows, n)) < 0.01, 30 * x, 0.05 * x)
    scales = np.exp(2 * rng.standard_normal((rows, n // 32))).repeat(32, 1)
    found = {"normal": 0.02 * x, "heavy": rng.standard_t(3, (rows, n)), "spikes": spikes, "scales": x * scales}
    found |= {
        "flat": rng.uniform(-1, 1, (rows, n)),
        "shifted": 0.1 * x + 1,
        "sparse": x * (rng.random((rows, n)) < 0.05),
    }
    return {name: v.astype(np.float32) for name, v in found.items()}


def errors(x, type, group):
    """Square errors of what comes back, for each ``group`` values."""
    back = dequantize(quantize(x, type), type, x.size).astype(np.float64)
    return np.square(back - x.ravel()).reshape(-1, group).sum(1)


def nearest(codes, v):
    """The nearest of sorted ``codes`` to each value."""
    return codes[np.searchsorted((codes[1:] + codes[:-1]) / 2, v)]


def best_scale_error(x, codes):
    """The least square error of one scale for each row, over a fine grid of scales of both signs."""
    top = np.abs(x).max(1, keepdims=True)
    least = np.square(x).sum(1)
    for taken in np.linspace(0.3, 1.35, 400) * np.abs(codes).max():
        for sign in (-1, 1):
            d = sign * np.maximum(top, 1e-30) / taken
            least = np.minimum(least, np.square(x - d * nearest(codes, x / d)).sum(1))
    return least


def best_line_error(x, top, below):
    """The least square error of a scale and an offset for each row, over a fine grid of both."""
    low, high = x.min(1, keepdims=True), x.max(1, keepdims=True)
    if below:
        low = np.minimum(low, 0)
    span, least = np.maximum(high - low, 1e-30), np.full(len(x), np.inf)
    for d in np.linspace(0.5, 1.2, 60):
        for o in np.linspace(-0.1, 0.5, 40):
            step, offset = d * span / top, low + o * span
            offset = np.minimum(offset, 0) if below else offset
            back = step * np.clip(np.rint((x - offset) / step), 0, top) + offset
            least = np.minimum(least, np.square(x - back).sum(1))
    return least


def best_byte_error(x, type):
    """The least square error of each group that any of its scales leaves."""
    scales, group = SCALES[type]
    codes, rows = np.r_[-FP4[:0:-1], FP4], x.reshape(-1, group).astype(np.float64)
    return np.min([np.square(rows - d * nearest(codes, rows / d)).sum(1) for d in scales], 0)


@pytest.mark.parametrize("kind", ["normal", "heavy", "flat", "spikes", "scales", "shifted", "sparse"])
def test_mxfp4_finds_the_best_of_all_scales(kind):
    x = kinds()[kind]
    assert (errors(x, "MXFP4", 32) <= 1.001 * best_byte_error(x, "MXFP4") + 1e-30).all()


@pytest.mark.parametrize("kind", ["normal", "heavy"])
def test_nvfp4_is_near_the_best_of_all_scales(kind):
    """Six scales of the 126 are tried."""
    x = kinds()[kind]
    assert errors(x, "NVFP4", 16).sum() <= 1.05 * best_byte_error(x, "NVFP4").sum()


# What is lost by scales being stored in a few bits (6 or 8 of a super-block, 4 of Q2_K), and Q8_0's not being searched.
LOSS = {"Q3_K": 1.12, "IQ4_XS": 1.05, "Q6_K": 1.1, "Q8_0": 1.4, "Q4_K": 1.1, "Q5_K": 1.15, "Q2_K": 1.25}


@pytest.mark.sweep(10)
@pytest.mark.parametrize("kind", ["normal", "heavy", "flat"])
@pytest.mark.parametrize("type", sorted(CODES) + sorted(LINES))
def test_is_near_the_best_scale_that_there_is(type, kind):
    """Against a search by brute force, which is free to choose any real scale (and offset) for each group."""
    x = kinds()[kind]
    if type in CODES:
        codes, group = CODES[type]
        best = best_scale_error(x.reshape(-1, group).astype(np.float64), codes.astype(np.float64))
    else:
        top, group, below = LINES[type]
        best = best_line_error(x.reshape(-1, group).astype(np.float64), top, below)
    assert errors(x, type, group).sum() <= LOSS.get(type, 1.02) * best.sum()


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("type", TYPES)
def test_bytes_are_equal_on_every_tier(tier, type):
    values, n_bytes = block_size(type)
    rng = np.random.default_rng(1)
    rows = [row for kind in kinds(1, rows=1).values() for row in kind]
    rows += [np.full(512, c, np.float32) for c in (0, 1, -3.3, 1e-6, 1e-30, 60000)]
    for n in (1, 3, 4, 5, 8, 11, 17):
        rows.append((rng.standard_normal(n * values) * 10.0 ** rng.integers(-6, 4)).astype(np.float32))
    for row in rows:
        n = len(row) // values * values
        out = np.zeros(n // values * n_bytes, np.uint8)
        scalar, fast = both(tier, lambda t, x, y, n=n: t.quantise(type, x, y, n), row[:n], output=out)
        assert (scalar == fast).all()


@pytest.mark.parametrize("type", TYPES)
def test_a_block_does_not_depend_on_its_neighbours(type):
    values, n_bytes = block_size(type)
    x = np.concatenate([v.ravel() for v in kinds(2, rows=1).values()])[: 21 * values]
    together = quantize(x, type)
    for i in range(len(x) // values):
        alone = quantize(x[i * values : (i + 1) * values], type)
        assert (alone == together[i * n_bytes : (i + 1) * n_bytes]).all()


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("num_threads", [2, 3, 16])
def test_bytes_are_equal_for_every_number_of_threads(type, num_threads):
    x = np.random.default_rng(3).standard_normal(5 * 8192 + 768).astype(np.float32)
    assert (quantize(x, type, num_threads=num_threads) == quantize(x, type)).all()


@pytest.mark.parametrize("type", TYPES)
def test_zeros_stay_zeros(type):
    values = block_size(type)[0]
    for zero in (0.0, -0.0):
        x = np.full(3 * values, zero, np.float32)
        x[values : 2 * values] = np.linspace(-1, 1, values)
        back = dequantize(quantize(x, type), type, x.size)
        assert not back[:values].any()
        assert not back[2 * values :].any()
        assert back[values : 2 * values].any()


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("value", [1.0, -0.7, 1234.5, 0.02])
def test_constants_come_back(type, value):
    """As near as a half is, or the float of a byte."""
    x = np.full(512, value, np.float32)
    loss = {"MXFP4": 1 / 3, "NVFP4": 0.3 if abs(value) < 0.1 else 1 / 16}.get(type, 2**-9)
    if abs(value) < 0.1:
        loss = max(loss, 0.005)  # a scale that is times 31 * 63 is a subnormal half
    assert np.abs(dequantize(quantize(x, type), type, 512) / value - 1).max() <= loss


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("power", [-149, -140, -126, -100, -30, -24, -20, -14, 0, 8])
def test_any_magnitude_gives_numbers_no_worse_than_zeros(type, power):
    """Scales that are subnormal halves, or vanish; blocks of subnormal floats."""
    x = np.ldexp(np.random.default_rng(4).standard_normal(1024), power).astype(np.float32)
    back = dequantize(quantize(x, type), type, x.size)
    assert np.isfinite(back).all()
    assert np.square(np.float64(back) - x).sum() <= 1.0001 * np.square(np.float64(x)).sum()


@pytest.mark.parametrize("type", TYPES)
def test_values_that_scales_cannot_hold_are_refused(type):
    x = np.zeros(3 * 8192, np.float32)
    x[8192 + 5] = 3e38
    with pytest.raises(QuantError, match=rf"blk\.1: the values are too large for {type}"):
        quantize(x, type, name="blk.1", num_threads=2)


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 8191, 8192, 16383])
def test_what_is_no_number_is_refused_wherever_it_stands(type, bad, at):
    x = np.ones(16384, np.float32)
    x[at] = bad
    with pytest.raises(QuantError, match=f"NaN or infinity can't be quantised to {type}"):
        quantize(x, type, num_threads=2)


@pytest.mark.parametrize("source", ["F16", "BF16", "Q8_0", "Q4_K", "IQ2_XXS"])
def test_converting_is_decoding_and_encoding(source):
    rng = np.random.default_rng(5)
    if source in _table.writable_formats():
        data = quantize(rng.standard_normal(9 * 1024), source)
    else:
        data = np.zeros(36 * block_size(source)[1], np.uint8)
    decoded = dequantize(data, source, 9 * 1024)
    for type in ("Q4_0", "Q6_K", "F32"):
        assert (convert(data, source, type, num_threads=2) == quantize(decoded, type)).all()


def test_convert_names_what_does_not_fit():
    with pytest.raises(QuantError, match="w: 33 bytes are not whole blocks of Q8_0, 34 bytes each"):
        convert(np.zeros(33, np.uint8), "Q8_0", "Q4_0", name="w")
    with pytest.raises(QuantError, match="32 values are not whole blocks of Q4_K, 256 values each"):
        convert(np.zeros(34, np.uint8), "Q8_0", "Q4_K")
    with pytest.raises(QuantError, match="quantising to IQ3_S is not supported"):
        convert(np.zeros(34, np.uint8), "Q8_0", "IQ3_S")
    assert convert(np.zeros(0, np.uint8), "F32", "Q4_K").size == 0


@pytest.mark.parametrize("type", ["Q4_0", "Q6_K"])
def test_scalar_tier_is_what_the_public_function_gives(type):
    x = np.random.default_rng(6).standard_normal(4096).astype(np.float32)
    values, n_bytes = block_size(type)
    out = np.zeros(4096 // values * n_bytes, np.uint8)
    _check.Tier("scalar").quantise(type, x.view(np.uint8), out, 4096)
    assert (out == quantize(x, type)).all()
