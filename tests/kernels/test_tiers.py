"""Every slot of every tier against the scalar one: odd sizes, buffers at any address, guard bytes on both sides."""

import numpy as np
import pytest

from oxillama.kernels import _check, _table
from tests.kernels.products import FORMATS, INTEGER, bf16, blocks, floats, gemm, stored
from tests.kernels.tiers import TIERS, Buffer, both

# "bf16 rows": BF16 weights times activations rounded to bfloat16, where the CPU multiplies such.
PRODUCTS = [
    (tier, type)
    for tier in [*TIERS, "scalar"]
    for type in [*FORMATS, *(["bf16 rows"] if _check.Tier(tier).has_bf16 else [])]
]
FLOATS = [(tier, type) for tier, type in PRODUCTS if type not in INTEGER]
SIZES = [1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 255, 256, 257]


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("n", SIZES)
def test_rows(tier, n):
    """The scalar tier's bits; that those are right, tests of norms, activations and attention say."""
    x, y, w = floats(1, n), floats(2, n), floats(3, n)

    def same(call, *arrays, output=None):
        scalar, fast = both(tier, call, *arrays, output=np.zeros(n, np.float32) if output is None else output)
        assert (scalar == fast).all(), call

    same(lambda k, x, w, y: k.rms_norm(x, w, y, n, 1e-5), x, w)
    same(lambda k, x, y: k.add(x, y, n), x, output=y)
    same(lambda k, x, y: k.add_scaled(x, 0.3, y, n), x, output=y)
    same(lambda k, g, u, y: k.swiglu(g, u, y, n), 20 * x, w)
    same(lambda k, y: k.softmax(y, n), output=10 * x)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("n", [s for s in SIZES if s % 2 == 0])
@pytest.mark.parametrize("slot", ["rope_neox", "rope_norm"])
def test_rope(tier, n, slot):
    angle = floats(4, n // 2)
    table = np.concatenate([np.cos(angle), np.sin(angle)]).astype(np.float32)
    scalar, fast = both(tier, lambda k, t, x: getattr(k, slot)(x, t, n), table, output=floats(5, n))
    assert (scalar == fast).all()


EXTREMES = np.array(
    [0, -0.0, np.nan, 1e38, -1e38, 65519, 65520, 1e-7, -6e-8, 1e-40, 88, -88, 200, -200] * 3, np.float32
)


@pytest.mark.parametrize("tier", TIERS)
def test_halves_of_extreme_values(tier):
    x = np.append(EXTREMES, [np.inf, -np.inf]).astype(np.float32)
    scalar, fast = both(tier, lambda k, x, y: k.to_f16(x, y, len(EXTREMES) + 2), x, output=np.zeros(len(x), np.float16))
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    for got in (scalar, fast):
        np.testing.assert_array_equal(got.view(np.float16), expected)


@pytest.mark.parametrize("tier", TIERS)
def test_softmax_masks_to_exact_zero(tier):
    x = np.array([1.0, -np.inf, 2.0, -np.inf, -200.0] * 5, np.float32)
    out = Buffer.of(x)
    _check.Tier(tier).softmax(out.bytes, len(x))
    p = out.floats()
    assert (p[1::5] == 0).all()
    assert (p[3::5] == 0).all()
    assert p.sum() == pytest.approx(1)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("k", [32, 64, 96, 512])
def test_activation_codes_are_equal_bit_for_bit(tier, k):
    # Magnitudes from where the inverse of the scale would overflow to where squares would.
    powers = np.resize([0, -36.3, -36.6, -37, -38, -44, 5, 18, 30, 37, -20, -30], k // 32)
    x = (floats(6, k).astype(np.float64) * np.repeat(10.0**powers, 32)).astype(np.float32)
    n_bytes = k + k // 32 * 20
    scalar, fast = both(tier, lambda t, x, y: t.quantise_q8(x, y, k), x, output=np.zeros(n_bytes, np.uint8), shift=0)
    assert (scalar == fast).all()
    assert scalar[:k].view(np.int8).min() >= -127
    scales = scalar[k : k + k // 8].copy().view(np.float32)
    seen = scalar[:k].view(np.int8).reshape(-1, 32) * scales[:, None].astype(np.float64)
    assert (np.abs(seen - x.reshape(-1, 32)).max(1) <= np.maximum(scales * 0.500001, 4e-37)).all()


@pytest.mark.parametrize("tier", [*TIERS, "scalar"])
def test_activation_codes_part_by_part(tier):
    x, t = floats(6, 320), _check.Tier(tier)
    whole, parts = Buffer(_check.q8_row_bytes(320)), Buffer(_check.q8_row_bytes(320))
    t.quantise_q8(x.view(np.uint8), whole.bytes, 320)
    for first, n in ((96, 160), (0, 96), (256, 64)):
        t.quantise_q8(x.view(np.uint8), parts.bytes, 320, first, n)
        parts.check()
    assert (parts.bytes == whole.bytes).all()


@pytest.mark.parametrize("tier", [*TIERS, "scalar"])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_activations_do_not_hide_what_is_not_finite(tier, poison):
    x = floats(7, 64)
    x[40] = poison
    row = Buffer(_check.q8_row_bytes(64))
    _check.Tier(tier).quantise_q8(x.view(np.uint8), row.bytes, 64)
    d = row.bytes[64:72].copy().view(np.float32)
    assert np.isfinite(d[0])
    assert np.isnan(d[1])


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("type", FORMATS)
def test_dequantise_and_pack_are_equal_bit_for_bit(tier, type):
    values, _ = _check.packed_block(type)
    for n_rows in (1, 5, 16):
        k = 7 if values < 32 else 2 * values
        rows = blocks(type, n_rows, k)
        size = -(-k // values) * _check.packed_block(type)[1]
        scalar, fast = both(
            tier,
            lambda t, s, y, n=n_rows, k=k, w=rows.shape[1]: t.pack(type, s, w, n, k, y),
            rows,
            output=np.zeros(size, np.uint8),
            shift=0,
        )
        assert (scalar == fast).all()
        scalar, fast = both(
            tier, lambda t, s, y, k=k: t.dequantise(type, s, y, k), rows[0], output=np.zeros(k, np.float32)
        )
        assert (scalar == fast).all()


def weights(type, rows, k):
    """The values of rows as files store them, by the scalar tier."""
    w = np.zeros((len(rows), k), np.float32)
    for r in range(len(rows)):
        _check.Tier("scalar").dequantise(stored(type), rows[r], w[r].view(np.uint8), k)
    return w


@pytest.mark.sweep(9)
@pytest.mark.parametrize("tier", [*TIERS, "scalar"])
@pytest.mark.parametrize("type", INTEGER)
def test_sums_of_extreme_codes_do_not_overflow(tier, type):
    """Every byte repeated, extreme bytes mixed; activations of 127 and -127, with the signs of the largest sums."""
    values, size = next((v, b) for _, n, v, b in _table.formats() if n == type)
    k, n_out, rng = 1024 if tier == "amx" else max(values, 64), 256 + 144, np.random.default_rng(12)
    fill = np.repeat(np.arange(256, dtype=np.uint8)[:, None], k // values * size, 1)
    mixed = rng.choice(np.array([0, 0x0F, 0x77, 0x7F, 0x80, 0x88, 0xF0, 0xFF], np.uint8), (144, k // values * size))
    rows = blocks(type, n_out, k, fill=np.concatenate([fill, mixed]))
    w = weights(type, rows, k)
    ones = np.ones(k, np.float32)
    pairs = np.tile(np.array([1, 1, -1, -1], np.float32), k // 4)
    along = np.where(w[[0, 255, 300, 301, 302, 303, 304]] < 0, -1, 1).astype(np.float32)  # with the signs of a row
    x = np.concatenate([[ones, -ones, pairs, np.resize([1, -1], k)], along, -along]).astype(np.float32)
    expected = x.astype(np.float64) @ w.T.astype(np.float64)
    bound = (np.abs(x) @ np.abs(w.T)).max() * 2.0**-22 * np.sqrt(k)
    x, expected = np.resize(x, (54, k)), np.resize(expected, (54, n_out))  # as many as any body waits for
    for n in (1, 3, 18, len(x)):  # a tile's bodies differ by the number of their tokens
        for first in range(0, len(x) - n + 1, n):
            got = gemm(tier, type, rows, x[first : first + n], n_out)
            assert np.abs(got - expected[first : first + n]).max() <= bound


@pytest.mark.parametrize(("tier", "type"), PRODUCTS)
def test_gemm_against_float64(tier, type):
    """The naive twin: weights dequantised by the scalar tier, activations rounded as documented, numpy in float64."""
    values = next(v for _, n, v, _ in _table.formats() if n == stored(type))
    k = 3 * max(values, 32) if values > 1 else 67
    n_out, n_tokens = 37, 11
    rows, x = blocks(type, n_out, k), floats(8, n_tokens, k)
    w = weights(type, rows, k)
    seen = (bf16(x) if type == "bf16 rows" else x).astype(np.float64)
    if type in INTEGER:
        d = np.abs(x.reshape(n_tokens, -1, 32)).max(-1, keepdims=True) * np.float32(1 / 127)
        seen = (np.rint(x.reshape(d.shape[0], -1, 32) / d) * d.astype(np.float64)).reshape(x.shape)
    expected = seen @ w.T.astype(np.float64)
    # Each of the k terms is rounded a few times; an activation may fall to the other side of a tie.
    bound = (np.abs(seen) @ np.abs(w.T)).max() * 2.0**-22 * np.sqrt(k) + (0 if type not in INTEGER else 1e-4)
    assert np.abs(gemm(tier, type, rows, x, n_out) - expected).max() <= bound


@pytest.mark.sweep(9)
@pytest.mark.parametrize("type", FORMATS)
def test_products_are_the_same_bits_on_every_tier(type):
    """Sums of integers are exact, and all else is the same operations of floats in the same order."""
    k = 3 * max(next(v for _, n, v, _ in _table.formats() if n == type), 32)
    rows, x = blocks(type, 37, k), floats(11, 13, k)
    for n in (1, 2, 7, 13):
        first, *others = (gemm(tier, type, rows, x[:n], 37) for tier in ("scalar", *TIERS))
        assert all((other == first).all() for other in others)


@pytest.mark.parametrize(("tier", "type"), PRODUCTS)
def test_gemm_row_does_not_depend_on_its_company(tier, type):
    """One row, any number of rows, gathered rows, an offset panel: equal bits."""
    # More tokens and more chunks than are unpacked at a time, and not a multiple of either.
    values = next(v for _, n, v, _ in _table.formats() if n == stored(type))
    k = 512 if values == 256 else 384
    rows, x = blocks(type, 50, k), floats(9, 75, k)
    whole = gemm(tier, type, rows, x, 50)
    for n in (*range(1, 10), 16, 17, 64, 65, 72):
        assert (gemm(tier, type, rows, x[:n], 50) == whole[:n]).all()
    assert (gemm(tier, type, rows[:7], x, 7) == whole[:, :7]).all()
    assert (gemm(tier, type, rows[16:], x, 34) == whole[:, 16:]).all()
    base = floats(10, 75, 50)
    assert (gemm(tier, type, rows, x, 50, y=base) == base + whole).all()
    pick, place = np.array([4, 4, 0, 18, 7], np.int32), np.array([3, 0, 4, 1, 2], np.int32)
    out = gemm(tier, type, rows, x, 50, x_rows=pick, y_rows=place)
    assert (out[place] == whole[pick]).all()


# Beyond every block of the float kernels: odd widths around 256 and 512 columns or pairs, 19 panels, 51 tokens.
@pytest.mark.sweep(20)
@pytest.mark.parametrize(("tier", "type"), [f for f in FLOATS if f[0] != "scalar"])
@pytest.mark.parametrize("k", [255, 513, 1037])
def test_float_gemm_in_blocks(tier, type, k):
    rows, x = blocks(type, 293, k), floats(11, 51, k)
    seen, w = bf16(x) if type == "bf16 rows" else x, weights(type, rows, k)
    whole = gemm(tier, type, rows, x, 293)
    # Rounding errors of k additions add up like a random walk; four standard deviations of it.
    bound = 4 * np.sqrt(k) * 2.0**-24 * np.linalg.norm(seen, axis=1)[:, None] * np.linalg.norm(w, axis=1)
    assert (np.abs(whole - seen.astype(np.float64) @ w.T.astype(np.float64)) <= bound).all()
    for n in (*range(1, 14), 24, 25, 48):
        assert (gemm(tier, type, rows, x[:n], 293) == whole[:n]).all(), n
    assert (gemm(tier, type, rows[:1], x, 1) == whole[:, :1]).all()
    assert (gemm(tier, type, rows[112:], x[20:40], 181) == whole[20:40, 112:]).all()
    base = floats(12, 51, 293)
    assert (gemm(tier, type, rows, x, 293, y=base) == base + whole).all()
    pick = np.random.default_rng(13).integers(0, 51, 30).astype(np.int32)
    assert (gemm(tier, type, rows, x, 293, x_rows=pick) == whole[pick]).all()


@pytest.mark.parametrize(("tier", "type"), FLOATS)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_float_gemm_does_not_hide_what_is_not_finite(tier, type, poison):
    rows, x = blocks(type, 20, 67), floats(14, 9, 67)
    clean = gemm(tier, type, rows, x, 20)
    for at in (0, 33, 66):
        bad = x.copy()
        bad[4, at] = poison
        for n in (5, 9):
            out = gemm(tier, type, rows, bad[:n], 20)
            assert not np.isfinite(out[4]).any()
            others = np.arange(n) != 4
            assert (out[others] == clean[:n][others]).all()


BF16_TIERS = [t for t in _table.usable_tiers() if _check.Tier(t).has_bf16]


@pytest.mark.parametrize("tier", BF16_TIERS)
@pytest.mark.parametrize("n", SIZES)
def test_activations_in_bfloat16(tier, n):
    """Nearest, ties to even; what is not finite stays so; below 2^-126 zero; a zero fills the last pair."""
    x = (floats(15, n).astype(np.float64) * 10.0 ** np.resize([0, -30, 30, 37], n)).astype(np.float32)
    special = np.array([0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x80000000, 0x3F807FFF], np.uint32)
    x = np.concatenate([special.view(np.float32), x])[:n]
    source, row = Buffer.of(x, 4), Buffer((n + 1) // 2 * 4)
    _check.Tier(tier).round_bf16(source.bytes, row.bytes, n)
    row.check()
    codes = row.bytes.copy().view(np.uint16)
    assert (codes[:n].astype(np.uint32) << 16 == bf16(x).view(np.uint32)).all()
    assert (codes[n:] == 0).all()
    for value in (np.nan, -np.nan, 1e-40):
        _check.Tier(tier).round_bf16(np.full(n, value, np.float32).view(np.uint8), row.bytes, n)
        out = (row.bytes.view(np.uint16)[:n].astype(np.uint32) << 16).view(np.float32)
        assert (np.isnan(out) if np.isnan(value) else out == 0).all()


@pytest.mark.parametrize("tier", BF16_TIERS)
def test_bfloat16_products_differ_by_the_rounding_of_activations_only(tier):
    """Against the slot of the same tier that takes floats: 2^-9 of each product, and the rounding of sums."""
    k = 300
    rows, x = blocks("BF16", 37, k), floats(16, 7, k)
    exact, rounded = (gemm(tier, type, rows, x, 37) for type in ("BF16", "bf16 rows"))
    magnitude = np.abs(x) @ np.abs(weights("BF16", rows, k)).T
    assert (np.abs(exact - rounded) <= (2.0**-9 + k * 2.0**-23) * magnitude).all()
    assert (exact != rounded).any()
