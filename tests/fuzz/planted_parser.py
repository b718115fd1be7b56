"""Reads a length, a kind and a body, as files do, and goes wrong in several ways deep inside."""

import struct

MAGIC = b"PLANTED1"


class Refused(Exception):
    """What the parser raises on purpose."""


def parse(data):
    if data[:8] != MAGIC:
        raise Refused("magic")
    if len(data) < 20:
        raise Refused("short")
    version, kind, n = struct.unpack_from("<III", data, 8)
    if version != 40961:
        raise Refused("version")
    body = data[20:]
    if n != len(body):
        raise Refused("length")
    for number, read in KINDS.items():
        if kind == number:
            return read(body)
    raise Refused("kind")


def index(body):
    """IndexError for a body of nothing."""
    return f"begins with a letter: {body[0] > 64}"


def endless(body):
    """Never ends for a body of zeros, or of nothing."""
    while not any(body):
        pass
    return "ended"


def greedy(body):
    """Takes what a number of the body says."""
    if len(body) != 4:
        raise Refused("four bytes")
    return f"took {len(bytes(int.from_bytes(body, 'little') & 0xFFFFFFF)) > 0}"


def deadly(body):
    """Ends the process."""
    if body == b"die":
        import ctypes

        ctypes.string_at(0)
    return "lives"


KINDS = {7: index, 1000: endless, 70_000: greedy, 1 << 30: deadly}
