"""`planted_parser` as a target: a small parser with known faults, to see whether the fuzzer finds them."""

from tests.fuzz.mutate import BYTES
from tests.fuzz.target import Target

SEEN = ("tests.fuzz.planted_parser",)


def run(data):
    from tests.fuzz.planted_parser import Refused, parse

    try:
        return [parse(data)]
    except Refused as error:
        return [str(error)]


TARGET = Target("planted", run, lambda: [b"", bytes(24)], BYTES, work=(10_000, 10), memory=(1 << 20, 100))
