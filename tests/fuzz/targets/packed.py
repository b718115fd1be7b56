"""A file of packed weights, named for a model: it gives the model's bits, or a typed error, whatever its header says.

Inputs are made with right checksums too, since these keep out accidents and not an author.
"""

import json
import os
import tempfile
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
from blake3 import blake3

import oxillama.gguf as gguf
from oxillama.errors import LoadError
from oxillama.models.packed import pack_model
from oxillama.models.packed.layout import FIXED_BYTES, MAGIC, VERSION, padded
from tests.fuzz.mutate import BYTES, TEXT
from tests.fuzz.target import Target, told
from tests.fuzz.targets.json_values import put, random_value, remove, transplant
from tests.models.packed.packing import open_runner
from tests.models.tiny import Shape, tiny
from tests.offload.paged import rows

FOLDER = Path(tempfile.mkdtemp(prefix="oxillama-fuzz-"))
SHAPE = Shape(n_layers=1, n_embd=32, n_heads=2, n_kv_heads=1, head_dim=16, n_ff=64, n_vocab=64, context=32)
TOKENS = [1, 5, 3, 7]
# Without a cache, nothing is noted of an input, and each is read in full.
NOWHERE = {"OXILLAMA_CACHE": os.devnull}


@cache
def models():
    plain = tiny("llama", FOLDER, SHAPE)
    small = FOLDER / "q8.gguf"
    gguf.quantize_file(plain, small, "Q8_0", pure=True)
    return plain, small


@cache
def seeds():
    return [pack_model(model, FOLDER / "seed", 1).read_bytes() for model in models()]


@cache
def expected(model):
    with patch.dict(os.environ, NOWHERE):
        return rows(open_runner(model, pack_model(model, FOLDER / "plain", 1), threads=1), TOKENS)


def run(data):
    path = FOLDER / "input"
    path.write_bytes(data)
    found = []
    for model, seed in zip(models(), seeds(), strict=True):
        try:
            with patch.dict(os.environ, NOWHERE):
                runner = open_runner(model, path, threads=1)
        except LoadError as error:
            found.append(told(error))
            continue
        computed = rows(runner, TOKENS)
        if data == seed:
            assert np.array_equal(computed, expected(model))
        found.append("loads")
    return found


# ---- changes


def split(data):
    """Text of the header, and the rest."""
    n = int.from_bytes(data[12:16], "little")
    return data[FIXED_BYTES : FIXED_BYTES + n], data[len(padded(data[: FIXED_BYTES + n], 4096)) :]


def joined(text, weights):
    head = MAGIC + VERSION.to_bytes(4, "little") + len(text).to_bytes(4, "little") + blake3(text).digest()
    return padded(head + text, 4096) + weights


def of_header(change):
    """The header, with its checksum right again."""

    def mutate(draw, data, other):
        text, weights = split(data)
        try:
            return joined(json.dumps(change(draw, json.loads(text))).encode(), weights)
        except (ValueError, IndexError, KeyError, TypeError, RecursionError):
            return joined(draw.choice(TEXT)(draw, text, other), weights)

    return mutate


def new_value(draw, value):
    return put(draw, value, random_value(draw))


def of_weights(draw, data, other):
    """Bytes of the weights, with all checksums right again."""
    text, weights = split(data)
    try:
        fields = json.loads(text)
        first = fields["entries"][0][5]
        row = draw.choice(fields["entries"])
        start = row[5] - first
        part = draw.choice(BYTES)(draw, weights[start : start + row[4]], other)
        part = (part + bytes(row[4]))[: row[4]]
        row[6] = blake3(part).hexdigest()
        weights = weights[:start] + part + weights[start + row[4] :]
    except (ValueError, IndexError, KeyError, TypeError):
        return data
    return joined(json.dumps(fields).encode(), weights)


TARGET = Target(
    "packed",
    run,
    seeds,
    (*BYTES, *[of_header(change) for change in (new_value, remove, transplant)], of_weights, of_weights),
    words=(b"entries", b"file_size", b"layout", b"model", b"plan", b"Q8_0", b"F32"),
    max_bytes=1 << 17,
)
