"""How snapshots change: their bytes, their descriptions and their arrays, signed anew.

So changes get beyond the digests to what reads the values.
"""

import json
import struct

import numpy as np
from blake3 import blake3

from oxillama.errors import SnapshotError
from oxillama.snapshot.format.layout import HEADER_BYTES, MAGIC, RAW, SIGNED_BYTES
from oxillama.snapshot.format.reader import ArrayRows, Contents, SnapshotReader
from oxillama.snapshot.format.source import MemorySource
from oxillama.snapshot.format.writer import packed
from tests.fuzz.mutate import BYTES, copied_value
from tests.fuzz.targets.json_values import put, random_value, remove, transplant

ENTRY, AT_OFFSET, AT_DIGEST = 144, 88, 112
LARGEST = 1 << 24  # bytes of arrays, as they are in memory


def signed(data, fits=True, depth=0):
    """The digests of what is there, in snapshots within snapshots, too. fits: the header says the right size."""
    if data[:8] != MAGIC or len(data) < HEADER_BYTES or depth > 2:
        return data
    (version, n) = struct.unpack_from("<II", data, 8)
    end = HEADER_BYTES + ENTRY * n
    if version != 2 or not 0 < n < 2000 or end > len(data):
        return data
    out = bytearray(data)
    for at in range(HEADER_BYTES, end, ENTRY):
        offset, size = struct.unpack_from("<QQ", out, at + AT_OFFSET)
        if offset + size <= len(out):
            out[offset : offset + size] = signed(bytes(out[offset : offset + size]), depth=depth + 1)
            out[at + AT_DIGEST : at + ENTRY] = blake3(out[offset : offset + size]).digest()
    if fits:
        struct.pack_into("<Q", out, 16, len(out))
    out[SIGNED_BYTES:HEADER_BYTES] = blake3(bytes(out[:SIGNED_BYTES] + out[HEADER_BYTES:end])).digest()
    return bytes(out)


def then_signed(mutator):
    def mutate(draw, data, other):
        return signed(mutator(draw, data, other), draw.random() < 0.9)

    return mutate


def in_table(draw, data, other):
    """Header, table or description: arrays are most of the bytes, and the least of the parser."""
    if data[:8] != MAGIC or len(data) < HEADER_BYTES:
        return data
    end = HEADER_BYTES + ENTRY * min(2000, struct.unpack_from("<I", data, 12)[0])
    head, rest = data[:end], data[end:]
    return signed(draw.choice(BYTES)(draw, head, other[:end])[:end].ljust(end, b"\0") + rest)


def unpacked(data):
    """What is saved, and whether it is compressed."""
    reader = SnapshotReader(MemorySource(data))
    sections = reader.sections
    if sum(section.nbytes for section in sections.values()) > LARGEST:
        raise SnapshotError("what is compressed grew to more than can be changed")
    tensors = {name: ArrayRows(r[0], sections[name].first, reader.array(name)) for name, r in reader.ranges.items()}
    state = json.loads(json.dumps(dict(reader.state)))
    del state["tensors"]
    return Contents(state, tensors), any(section.codec != RAW for section in sections.values())


def on_parts(change):
    """A mutator of bytes from one of what is saved: change(draw, saved, other saved)."""

    def mutate(draw, data, other):
        try:
            saved, squeeze = unpacked(data)
            try:
                others, _ = unpacked(other)
            except SnapshotError:
                others = saved
            change(draw, saved, others)
            return packed(saved, squeeze=squeeze and draw.random() < 0.9)
        except (SnapshotError, ValueError, KeyError, IndexError, TypeError, RecursionError, struct.error):
            return data

    return mutate


def new_value(draw, saved, others):
    saved.state = put(draw, saved.state, random_value(draw))


def other_value(draw, saved, others):
    saved.state = transplant(draw, saved.state, others.state)


def drop_value(draw, saved, others):
    saved.state = remove(draw, saved.state, others.state)


def near_value(draw, saved, others):
    """Numbers one up or down, and texts cut: values that nearly fit."""
    text = json.dumps(saved.state)
    numbers = [i for i, c in enumerate(text) if c.isdigit() and not text[i - 1].isdigit()]
    at = draw.choice(numbers)
    end = next(i for i in range(at, len(text)) if not text[i].isdigit())
    changed = max(0, int(text[at:end]) + draw.choice((-1, 1, 2, 100, -100)))
    saved.state = json.loads(text[:at] + str(changed) + text[end:])


def rows_of(draw, saved):
    name = draw.choice(list(saved.tensors))
    return name, saved.tensors[name]


def new_items(draw, saved, others):
    name, rows = rows_of(draw, saved)
    data = rows.data.copy()
    flat = data.reshape(-1).view(np.uint8)
    for _ in range(draw.choice((1, 1, 4))):
        flat[draw.randrange(len(flat))] = draw.choice((0, 1, 127, 128, 255))
    saved.tensors[name] = ArrayRows(rows.start, rows.first, data)


def new_shape(draw, saved, others):
    name, rows = rows_of(draw, saved)
    data = rows.data
    with np.errstate(invalid="ignore"):
        other = data.astype(draw.choice((np.int32, np.float32, np.float64, np.uint64, np.uint8)))
    twice = np.concatenate([data, data])
    data = draw.choice((data[:-1], data[:0], data[1:], twice, data.reshape(-1), data[None], other))
    start = draw.choice((rows.start, rows.start, 0, 1))
    saved.tensors[name] = ArrayRows(
        start, max(start, draw.choice((rows.first, rows.first, start, rows.first + 1))), data
    )


def other_array(draw, saved, others):
    name, _ = rows_of(draw, saved)
    saved.tensors[name] = rows_of(draw, others)[1]


def drop_array(draw, saved, others):
    del saved.tensors[rows_of(draw, saved)[0]]


def rename_array(draw, saved, others):
    name, rows = rows_of(draw, saved)
    del saved.tensors[name]
    saved.tensors[draw.choice((name + "x", "kv.0.0.k", "kv.9.0.v", "logits", rows_of(draw, others)[0]))] = rows


OF_STATE = (new_value, new_value, other_value, drop_value, near_value, near_value)
OF_ARRAYS = (new_items, new_shape, other_array, drop_array, rename_array)
CHANGES = [on_parts(change) for change in (*OF_STATE, *OF_ARRAYS)]
MUTATORS = (
    *CHANGES, *CHANGES, *CHANGES, *map(then_signed, BYTES), *BYTES[:4], copied_value, in_table, in_table, in_table,
)  # fmt: skip
