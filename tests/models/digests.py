"""python -m tests.models.digests: digests of what every recorded model gives, in the tier that OXILLAMA_TIER names.

With --write they are recorded, which is for a version that computes something more exactly, and says so.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

from tests.models.references import MODELS, QUANTIZED, logits, path_of, tokens_of

RECORDED = Path(__file__).with_name("bits.json")
KV_TYPES = ("f32", "f16", "q8_0", "q4_0")


def digest_of(values):
    """The first 64 bits of a SHA-256 of floats, of which none may be NaN: those have no bits of their own."""
    assert not np.isnan(values).any()
    return hashlib.sha256(values.astype("<f4").tobytes()).hexdigest()[:16]


def digests():
    """Of logits, by the model's name; of quantised models with each type of keys and values."""
    found = {name: digest_of(logits(path_of(name), tokens_of(name), portable=True)) for name in MODELS}
    for name in QUANTIZED:
        for kv_type in KV_TYPES:
            computed = logits(path_of(name), tokens_of(name), kv_type=kv_type, portable=True)
            found[f"{name} {kv_type}"] = digest_of(computed)
    return found


if __name__ == "__main__":
    shown = json.dumps(digests(), indent=1) + "\n"
    if "--write" in sys.argv:
        RECORDED.write_text(shown)
    else:
        print(shown, end="")
