"""Recorded snapshots of version 1, and comparisons of what is read from them."""

from pathlib import Path

import numpy as np

from oxillama.snapshot.format.v1 import KvV1, SsmV1
from tests.snapshot.models import same

FOLDER = Path(__file__).parents[1] / "data" / "oxisnap"
ENGINE = (FOLDER / "engine.oxsnap1").read_bytes()
SPECULATIVE = (FOLDER / "speculative.oxispec1").read_bytes()


def same_fields(a, b, but=()):
    for name, value in vars(a).items():
        other = getattr(b, name)
        if isinstance(value, KvV1 | SsmV1):
            same_fields(value, other)
        elif isinstance(value, list) and value and isinstance(value[0], np.ndarray):
            assert len(value) == len(other)
            assert all(same(x, y) for x, y in zip(value, other, strict=True)), name
        elif name not in but:
            assert value == other, name
