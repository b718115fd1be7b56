"""How inputs change when nothing is known of their format."""

import struct

__all__ = ["BYTES", "TEXT", "copied_value", "replaced_pair"]

NUMBERS = (
    *(0, 1, 2, 3, 4, 7, 8, 16, 31, 32, 63, 64, 127, 128, 255, 256),
    *(1 << 15, (1 << 16) - 1, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32),
    *(1 << 47, 1 << 61, (1 << 63) - 1, 1 << 63, (1 << 64) - 8, (1 << 64) - 1),
)
known = []  # more of them, of whoever reads the inputs
CODES = {1: "<B", 2: "<H", 4: "<I", 8: "<Q"}


def number(draw, size):
    """size bytes of a number that is on some edge."""
    kind = draw.random()
    value = draw.choice(known if kind < 0.3 and known else NUMBERS)
    if kind > 0.7:
        value = draw.getrandbits(draw.randrange(1, 8 * size + 1))
    return struct.pack(CODES[size], value & (1 << 8 * size) - 1)


def span(draw, data, most=64):
    """Two places, not far from each other."""
    start = draw.randrange(len(data) + 1)
    length = draw.choice((1, 1, 2, 4, 8, draw.randrange(1, most)))
    return start, min(len(data), start + length)


def flip(draw, data, other):
    if not data:
        return data
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def set_number(draw, data, other):
    """Overwrites, at a place that is likely to hold a number."""
    size = draw.choice((1, 2, 4, 4, 8, 8))
    if len(data) < size:
        return data
    at = draw.randrange(len(data) - size + 1)
    return data[:at] + number(draw, size) + data[at + size :]


def add_to_number(draw, data, other):
    size = draw.choice((1, 2, 4, 8))
    if len(data) < size:
        return data
    at = draw.randrange(len(data) - size + 1)
    (value,) = struct.unpack_from(CODES[size], data, at)
    value = value + draw.choice((-35, -16, -8, -4, -2, -1, 1, 2, 4, 8, 16, 35)) & (1 << 8 * size) - 1
    return data[:at] + struct.pack(CODES[size], value) + data[at + size :]


def delete(draw, data, other):
    start, end = span(draw, data)
    return data[:start] + data[end:]


def cut(draw, data, other):
    return data[: draw.randrange(len(data) + 1)]


def double(draw, data, other):
    start, end = span(draw, data)
    at = draw.choice((end, draw.randrange(len(data) + 1)))
    return data[:at] + data[start:end] * draw.choice((1, 1, 1, 2, 30)) + data[at:]


def overwrite(draw, data, other):
    start, end = span(draw, other)
    at = draw.randrange(len(data) + 1)
    return data[:at] + other[start:end] + data[at + end - start :]


def splice(draw, data, other):
    return data[: draw.randrange(len(data) + 1)] + other[draw.randrange(len(other) + 1) :]


def insert(draw, data, other):
    start, end = span(draw, other, 200)
    at = draw.randrange(len(data) + 1)
    return data[:at] + other[start:end] + data[at:]


def noise(draw, data, other):
    start, end = span(draw, data, 8)
    return data[:start] + draw.randbytes(draw.choice((1, 2, 4))) + data[end:]


BYTES = (flip, set_number, set_number, add_to_number, delete, cut, double, overwrite, splice, insert, noise)
CHARACTERS = b"abxz019 \n\t\"'()[]{}<>|*+?.,:;-_^$\\/#!&=%~@\0\x7f\xc3\xa9\xff"


def character(draw, data, other):
    at = draw.randrange(len(data) + 1)
    return data[:at] + bytes([draw.choice(CHARACTERS)]) + data[at + draw.randrange(2) :]


def digits(draw, data, other):
    """Another number in the place of one, or anywhere."""
    places = [i for i, byte in enumerate(data) if 48 <= byte < 58]
    at = draw.choice(places) if places else draw.randrange(len(data) + 1)
    end = at
    while end < len(data) and 48 <= data[end] < 58:
        end += 1
    value = draw.choice((draw.choice(NUMBERS), draw.randrange(12), 10 ** draw.randrange(25)))
    return data[:at] + str(value).encode() + data[end:]


def swap_lines(draw, data, other):
    lines, others = data.split(b"\n"), other.split(b"\n")
    lines[draw.randrange(len(lines))] = draw.choice(lines + others)
    return b"\n".join(lines)


def nest(draw, data, other):
    """Something between brackets once more between them."""
    start, end = sorted((draw.randrange(len(data) + 1), draw.randrange(len(data) + 1)))
    left, right = draw.choice((b"()", b"[]", b"{}", b'""', (b"(", b")*"), (b"[", b"]"), (b"(?:", b")+")))
    n = draw.choice((1, 1, 2, 50))
    as_bytes = [x if isinstance(x, bytes) else bytes([x]) for x in (left, right)]
    return data[:start] + as_bytes[0] * n + data[start:end] + as_bytes[1] * n + data[end:]


TEXT = (character, character, digits, swap_lines, nest, delete, double, splice, insert, flip, cut, noise)


def with_word(words):
    """A mutator that writes one of the words somewhere."""

    def put(draw, data, other):
        start, end = span(draw, data, 16)
        return data[:start] + draw.choice(words) + data[draw.choice((start, end)) :]

    return put


def copied_value(draw, data, other):
    """A number from one place of the input in another: lengths and offsets that fit other things."""
    size = draw.choice((4, 8))
    if len(data) < 2 * size:
        return data
    a, b = (draw.randrange(len(data) - size + 1) for _ in range(2))
    return data[:b] + data[a : a + size] + data[b + size :]


def spellings(value):
    """How a value may stand in an input."""
    if isinstance(value, bytes):
        return [value]
    if isinstance(value, str):
        return [value.encode("utf-8", "surrogatepass")]
    sizes = [size for size in (8, 4, 2, 1) if -(1 << 8 * size - 1) <= value < 1 << 8 * size]
    return [str(value).encode(), *((value & (1 << 8 * s) - 1).to_bytes(s, "little") for s in sizes)]


def replaced_pair(draw, data, pair):
    """The input with what was compared replaced by what it was compared with; as it is where that isn't in it."""
    have, want = pair
    if isinstance(have, int) and isinstance(want, int):
        want += draw.choice((0, 0, 0, 1, -1))
    there = [spelt for spelt in spellings(have) if (len(spelt) > 1 or not isinstance(have, int)) and spelt in data]
    if not there:
        return data
    spelt = draw.choice(there)
    places, at = [], data.find(spelt)
    while at >= 0 and len(places) < 32:
        places.append(at)
        at = data.find(spelt, at + 1)
    at = draw.choice(places)
    same = [s for s in spellings(want) if isinstance(have, str | bytes) or len(s) == len(spelt) or spelt.isdigit()]
    return data[:at] + same[0] + data[at + len(spelt) :] if same else data
