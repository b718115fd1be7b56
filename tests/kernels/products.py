"""Matrix products of one tier, with its own packing and activations, on random weights of any format."""

import numpy as np

from oxillama.kernels import _check, _table
from tests.kernels.tiers import Buffer

FORMATS = _table.kernel_formats()
INTEGER = [f for f in FORMATS if f not in ("F32", "F16", "BF16")]


def floats(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# Where the halves that scale a block lie, if not at its start alone.
HALF_SCALES = {
    "Q4_1": [0, 2], "Q5_1": [0, 2], "Q8_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "Q2_K": [80, 82],
    "Q3_K": [108], "TQ1_0": [52], "TQ2_0": [64], "Q8_K": [], "MXFP4": [], "NVFP4": [], "IQ1_M": [],
}  # fmt: skip


def stored(type):
    """The format that a product's weights are stored in."""
    return "BF16" if type == "bf16 rows" else type


def blocks(type, n_rows, k, seed=0, fill=None):
    """Random bytes (or ``fill``, as many) as rows of a format, with scales that are small finite numbers."""
    type = stored(type)
    values, size = next((v, b) for _, n, v, b in _table.formats() if n == type)
    rng = np.random.default_rng(seed)
    if type == "F32":
        return rng.standard_normal((n_rows, k)).astype(np.float32).view(np.uint8)
    if type == "F16":
        return rng.standard_normal((n_rows, k)).astype(np.float16).view(np.uint8)
    if type == "BF16":
        bits = rng.standard_normal((n_rows, k)).astype(np.float32).view(np.uint32)
        return (bits >> 16).astype(np.uint16).view(np.uint8)
    raw = rng.integers(0, 256, (n_rows, k // values, size), np.uint8)
    if fill is not None:
        raw[:] = fill.reshape(raw.shape)
    for at in HALF_SCALES.get(type, [0]):
        scale = rng.uniform(-0.02, 0.02, (n_rows, k // values)).astype(np.float16)
        raw[:, :, at : at + 2] = scale[..., None].view(np.uint8)
    if type == "Q8_K":
        raw[:, :, :4] = rng.uniform(-0.02, 0.02, (n_rows, k // values, 1)).astype(np.float32).view(np.uint8)
    elif type == "MXFP4":
        raw[:, :, 0] = rng.integers(118, 124, raw.shape[:2])
    elif type == "NVFP4":
        raw[:, :, :4] = rng.choice(np.array([0, 1, 7, 8, 20, 33, 0x7F, 0x80, 0xA1], np.uint8), (*raw.shape[:2], 4))
    elif type == "IQ1_M":  # a half in the top four bits of four words, lowest bits first: 2^-6 to 2^-5
        raw[:, :, [49, 51, 53, 55]] &= 0x0F
        raw[:, :, [49, 51, 53]] |= rng.integers(0, 16, (*raw.shape[:2], 3), np.uint8) << 4
        raw[:, :, 53] &= 0x3F
        raw[:, :, 55] |= 0x20
    return raw.reshape(n_rows, -1)


def gemm(tier, type, rows, x, n_out, *, y=None, x_rows=None, y_rows=None):
    """``x @ W.T`` through pack and gemm of one tier, with guards around the result."""
    t = _check.Tier(tier)
    k = x.shape[1]
    values, size = _check.packed_block(stored(type))
    panel = -(-k // values) * size
    packed = Buffer(-(-n_out // 16) * panel)
    for p in range(-(-n_out // 16)):
        part = rows[16 * p : 16 * p + 16]
        t.pack(stored(type), part.reshape(-1), rows.shape[1], len(part), k, packed.bytes[p * panel : (p + 1) * panel])
    if type in INTEGER:
        q8 = Buffer(len(x) * _check.q8_row_bytes(k))
        for i, row in enumerate(x):
            t.quantise_q8(row.view(np.uint8), q8.bytes[i * _check.q8_row_bytes(k) :], k)
        source, stride = q8, _check.q8_row_bytes(k)
    elif type == "bf16 rows":
        stride = _check.bf16_row_bytes(k)
        source = Buffer(len(x) * stride)
        for i, row in enumerate(x):
            t.round_bf16(row.view(np.uint8), source.bytes[i * stride :], k)
    else:
        source, stride = Buffer.of(x), 4 * k
    n_tokens = len(x) if x_rows is None else len(x_rows)
    out = Buffer.of(np.zeros((n_tokens, n_out), np.float32) if y is None else y, 4)
    t.gemm(
        type, packed.bytes, panel, k, n_out, source.bytes, stride, out.bytes, n_tokens, y is not None, x_rows, y_rows
    )
    for b in (packed, source, out):
        b.check()
    return out.floats().reshape(n_tokens, n_out)


def bf16(x):
    """The nearest bfloat16 values, ties to even, of finite float32 ones."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
