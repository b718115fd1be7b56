"""A GGUF file in parts, as lists that can be changed and written again with all lengths and places right."""

import struct

from tests.gguf import build as b

INTERESTING = (
    0,
    1,
    2,
    3,
    4,
    5,
    8,
    16,
    31,
    32,
    64,
    255,
    1 << 16,
    1 << 20,
    1 << 24,
    (1 << 31) - 1,
    (1 << 32) - 1,
    1 << 62,
)
NOT_WHOLE = (struct.error, IndexError, KeyError, OverflowError)
SIZES = {type_id: struct.calcsize(code) for type_id, code in b.CODES.items()}


class Parts:
    """version, kvs [[key, type, payload]], tensors [[name, dims, type, data]]; sizes and offsets follow from them."""

    def __init__(self, version, kvs, tensors):
        self.version, self.kvs, self.tensors = version, kvs, tensors

    @classmethod
    def of(cls, data):
        """The parts of a whole file; one of NOT_WHOLE of another."""
        magic, version, n_tensors, n_kvs = struct.unpack_from("<4sIQQ", data)
        if magic != b"GGUF" or n_kvs > 1000 or n_tensors > 1000:
            raise IndexError
        at, kvs, infos = 24, [], []
        for _ in range(n_kvs):
            key, at = _text(data, at)
            (kind,) = struct.unpack_from("<I", data, at)
            end = _end(data, at + 4, kind)
            kvs.append([key, kind, data[at + 4 : end]])
            at = end
        for _ in range(n_tensors):
            name, at = _text(data, at)
            (n,) = struct.unpack_from("<I", data, at)
            *dims, kind, offset = struct.unpack_from(f"<{min(n, 8)}QIQ", data, at + 4)
            at += 16 + 8 * len(dims)
            infos.append((name, dims, kind, offset))
        start = at + -at % alignment_of(kvs)
        ends = sorted({offset for *_, offset in infos} | {len(data) - start})
        tensors = []
        for name, dims, kind, offset in infos:
            end = next((e for e in ends if e > offset), offset)
            tensors.append([name, dims, kind, data[start + offset : start + end]])
        return cls(version, kvs, tensors)

    def write(self):
        alignment, data, infos = alignment_of(self.kvs), b"", []
        for name, dims, kind, raw in self.tensors:
            infos.append(b.tensor(name, dims, kind, len(data)))
            data += raw + bytes(-len(raw) % alignment)
        kvs = [b.kv_raw(*kv) for kv in self.kvs]
        return b.gguf(kvs, infos, data, version=self.version, alignment=alignment)


def alignment_of(kvs):
    for key, kind, payload in kvs:
        if key == b"general.alignment" and kind == b.U32 and len(payload) == 4:
            (value,) = struct.unpack("<I", payload)
            if value in (1, 2, 4, 8, 16, 32, 64, 128):
                return value
    return 32


def _text(data, at):
    (n,) = struct.unpack_from("<Q", data, at)
    if n > len(data):
        raise IndexError
    return data[at + 8 : at + 8 + n], at + 8 + n


def _end(data, at, kind):
    if kind == b.STRING:
        return _text(data, at)[1]
    if kind != b.ARRAY:
        return at + SIZES[kind]
    item, n = struct.unpack_from("<IQ", data, at)
    at += 12
    if item == b.STRING:
        for _ in range(min(n, len(data))):
            at = _text(data, at)[1]
        return at
    return at + SIZES[item] * n


def changing(change):
    """A mutator of bytes from one of parts: change(draw, parts, other parts). What has no parts stays as it is."""

    def mutate(draw, data, other):
        try:
            parts = Parts.of(data)
            try:
                others = Parts.of(other)
            except NOT_WHOLE:
                others = parts
            change(draw, parts, others)
            return parts.write()
        except (*NOT_WHOLE, ValueError):  # or it has nothing to change
            return data

    mutate.__name__ = change.__name__
    return mutate


def value(draw, kind, old=b""):
    """The bytes of some value of a type."""
    if kind == b.STRING:
        return b.text(
            draw.choice((b"", b"x", b"llama", b"\xff", b"none", old[8:] * 2, old[8:-1], b"a b", "é".encode()))
        )
    if kind == b.ARRAY:
        item = draw.choice((b.U8, b.I32, b.F32, b.BOOL, b.STRING, b.U64))
        n = draw.choice((0, 1, 2, 3, 24, 300))
        return struct.pack("<IQ", item, n) + b"".join(value(draw, item) for _ in range(n))
    if kind in (b.F32, b.F64):
        number = draw.choice((0.0, -1.0, 1.0, 0.5, 1e-30, 1e30, float("inf"), float("nan"), 10000.0))
        return struct.pack("<" + b.CODES[kind], number)
    number = draw.choice(INTERESTING) if draw.random() < 0.8 else draw.randrange(200)
    if kind == b.BOOL:
        number %= draw.choice((2, 2, 3))
    return (number & (1 << 8 * SIZES[kind]) - 1).to_bytes(SIZES[kind], "little")


def drop_key(draw, parts, others):
    del parts.kvs[draw.randrange(len(parts.kvs))]


def copy_key(draw, parts, others):
    kv = draw.choice(others.kvs)
    same = [i for i, (key, *_) in enumerate(parts.kvs) if key == kv[0]]
    if same and draw.random() < 0.9:
        parts.kvs[same[0]] = kv
    else:
        parts.kvs.insert(draw.randrange(len(parts.kvs) + 1), kv)


def new_value(draw, parts, others):
    kv = draw.choice(parts.kvs)
    kv[2] = value(draw, kv[1], kv[2])


def new_type(draw, parts, others):
    kv = draw.choice(parts.kvs)
    kv[1] = draw.randrange(14)
    if kv[1] < 13 and draw.random() < 0.8:
        kv[2] = value(draw, kv[1])


def rename_key(draw, parts, others):
    kv, other = draw.choice(parts.kvs), draw.choice(others.kvs)
    prefix, _, rest = other[0].partition(b".")
    kv[0] = draw.choice((other[0], kv[0].partition(b".")[0] + b"." + rest, prefix + b"." + kv[0].partition(b".")[2]))


def items(payload):
    """Type and items of an array's bytes."""
    item, n = struct.unpack_from("<IQ", payload)
    at, found = 12, []
    for _ in range(min(n, len(payload))):
        end = _end(payload, at, item)
        found.append(payload[at:end])
        at = end
    return item, found


def change_array(draw, parts, others):
    """Items of an array: fewer, more, in another order, others."""
    kv = draw.choice([kv for kv in parts.kvs if kv[1] == b.ARRAY] or parts.kvs)
    item, found = items(kv[2])
    for _ in range(draw.choice((1, 1, 2, 5))):
        at = draw.randrange(len(found) + 1)
        kind = draw.randrange(5)
        if kind == 0:
            del found[at : at + draw.choice((1, 1, 5))]
        elif kind == 1:
            found.insert(at, value(draw, item))
        elif kind == 2 and found:
            found.insert(at, draw.choice(found))
        elif kind == 3 and len(found) > 1:
            i, j = draw.sample(range(len(found)), 2)
            found[i], found[j] = found[j], found[i]
        elif at < len(found):
            found[at] = value(draw, item, found[at])
    kv[2] = struct.pack("<IQ", item, len(found)) + b"".join(found)


def drop_tensor(draw, parts, others):
    del parts.tensors[draw.randrange(len(parts.tensors))]


def copy_tensor(draw, parts, others):
    tensor = list(draw.choice(others.tensors))
    if draw.random() < 0.5:
        tensor[0] = draw.choice(parts.tensors)[0]
    parts.tensors.insert(draw.randrange(len(parts.tensors) + 1), tensor)


def rename_tensor(draw, parts, others):
    draw.choice(parts.tensors)[0] = draw.choice(others.tensors)[0]


def new_shape(draw, parts, others):
    tensor = draw.choice(parts.tensors)
    dims = tensor[1]
    kind = draw.randrange(5)
    if kind == 0:
        draw.shuffle(dims)
    elif kind == 1:
        dims.insert(draw.randrange(len(dims) + 1), 1)
    elif kind == 2:
        del dims[draw.randrange(len(dims))]
    elif kind == 3:
        dims[draw.randrange(len(dims))] = draw.choice(INTERESTING)
    else:
        tensor[1] = list(draw.choice(parts.tensors)[1])
        n = 4
        for d in tensor[1]:
            n *= d
        tensor[3] = bytes(n) if n < 1 << 14 else tensor[3]


def new_format(draw, parts, others):
    """Another format, often with as many bytes as it takes."""
    tensor = draw.choice(parts.tensors)
    tensor[2] = draw.randrange(42)
    n = draw.choice((len(tensor[3]), 2 * len(tensor[3]), len(tensor[3]) // 2, len(tensor[3]) // 4))
    tensor[3] = (tensor[3] * 2)[:n]


def new_data(draw, parts, others):
    tensor = draw.choice(parts.tensors)
    raw = bytearray(tensor[3])
    at = draw.randrange(len(raw) // 4) * 4
    raw[at : at + 4] = draw.choice((b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff" * 4, bytes(4), draw.randbytes(4)))
    tensor[3] = bytes(raw)


def new_version(draw, parts, others):
    parts.version = draw.choice((0, 1, 2, 3, 4, 0x03000000))


CHANGES = [
    changing(change)
    for change in (drop_key, copy_key, copy_key, new_value, new_value, new_value, new_type, rename_key, change_array,
                   change_array, drop_tensor, copy_tensor, rename_tensor, new_shape, new_format, new_data, new_version)
]  # fmt: skip
