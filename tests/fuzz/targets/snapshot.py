"""Bytes as a snapshot: refused with an error of ours, or gone on with, twice the same, and written again as they were.

Changes are signed anew, so that they get beyond the digests to what reads the values.
"""

import json
import struct
import zlib
from functools import cache

import numpy as np
from blake3 import blake3

import oxillama as ox
from oxillama.errors import OxiLlamaError, SnapshotError
from oxillama.snapshot import snapshot_info
from oxillama.snapshot.layout import HEADER_BYTES, MAGIC, SIGNED_BYTES
from oxillama.snapshot.saved import Reader, Rows, Saved
from oxillama.snapshot.sources import MemorySource
from oxillama.snapshot.version1 import SPEC_MAGIC, EngineV1, SpeculativeV1
from oxillama.snapshot.writing import packed
from tests.fuzz.mutate import BYTES, copied_value
from tests.fuzz.target import Target, told
from tests.fuzz.targets.json_values import put, random_value, remove, transplant
from tests.snapshot.models import load, path_of
from tests.snapshot.test_version1 import ENGINE, SPECULATIVE

ENTRY, AT_OFFSET, AT_DIGEST = 144, 88, 112
OPTIONS = {
    "max_tokens": 8,
    "seed": 1,
    "grammar": "root ::= [a-z ]+",
    "logprobs": 1,
    "stop": ["zzz"],
    "dry_multiplier": 0.5,
}
MOST = 12  # chunks that a resumed request is read for
PROMPT = list(range(3, 12))


@cache
def engine(name):
    return load(name, context_size=64)


@cache
def seeds():
    """Sessions and requests with state of each kind, a speculative engine's, and the original's files."""
    found = [ENGINE, SPECULATIVE]
    for name in ("llama", "jamba"):
        own = engine(name)
        for options in (OPTIONS, {"max_tokens": 5, "mirostat": 2, "temperature": 1.5, "xtc_probability": 0.3}):
            stream = own.stream(PROMPT, **options)
            next(stream), next(stream)
            found.append(stream.snapshot())
            stream.close()
        own.prefill(PROMPT)
        found.append(own.snapshot_bytes())
        own.reset()
    with ox.SpeculativeEngine(engine("llama"), path_of("llama"), 3, 3) as spec:
        spec.engine.prefill(PROMPT)
        found.append(spec.snapshot_bytes())
    engine("llama").reset()
    return [*map(placeless, found)]


def placeless(data):
    """Without the paths of this machine, so that it can be kept."""
    for name in ("llama", "jamba"):
        path = path_of(name).encode()
        data = data.replace(path, b"m" * len(path))
    return signed(data)


def run(data):
    try:
        info = snapshot_info(data)
    except SnapshotError as error:
        return [told(error), *original(data)]
    return [f"{info.version} {info.kind}", *original(data), *gone_on(data, info)]


def original(data):
    """A file of the original that is read is written again as it was."""
    for kind in (EngineV1, SpeculativeV1):
        try:
            once = kind.decode(data).encode()
        except SnapshotError as error:
            yield told(error)
            continue
        assert kind.decode(once).encode() == once
        assert len(once) == len(data)


def gone_on(data, info):
    name = info.arch_id if info.arch_id in ("llama", "jamba") else "llama"
    try:
        if info.kind == "speculative":
            yield from speculative(data)
        elif info.version == 1:
            yield from own_engine(data, name)
        elif info.kind == "text":
            yield from request(engine(name), data)
        else:
            yield from session(engine(name), data, name)
    except OxiLlamaError as error:
        yield told(error)
    for own in (engine("llama"), engine("jamba")):
        assert not own._core.scheduler.live
        for pool in (own._core.pool.blocks, own._core.pool.slots):
            pool.check_invariants()


def request(own, data):
    """The same chunks each time."""
    results = []
    for _ in range(2):
        stream = own.resume(data)
        chunks = [(c.text, c.token_ids, c.finish_reason) for c, _ in zip(stream, range(MOST), strict=False)]
        stream.close()
        results.append(chunks)
    assert results[0] == results[1]
    yield f"{len(results[0])} chunks, {results[0][-1][2] if results[0] else ''}"


def session(own, data, name):
    """The same logits when it is resumed, when it is written again, and from an engine of its own."""
    with own.resume(data) as resumed:
        again = resumed.snapshot_bytes()
        row = resumed.forward_one(5).copy()
    with own.resume(again) as twin:
        assert np.array_equal(twin.forward_one(5), row, equal_nan=True)
    yield "resumed"
    if zlib.crc32(data) % 4 == 0:
        yield from own_engine(data, name)


def own_engine(data, name):
    """An engine with the settings that the file has, which then saves the same."""
    with ox.Engine.restore_bytes(data, path_of(name)) as restored:
        again = restored.snapshot_bytes()
        row = restored.forward_one(5).copy()
    with ox.Engine.restore_bytes(again, path_of(name)) as twin:
        assert np.array_equal(twin.forward_one(5), row, equal_nan=True)
    yield "restored"


def speculative(data):
    with ox.SpeculativeEngine.restore_bytes(data, path_of("llama"), draft=path_of("llama")) as spec:
        spec.engine.forward_one(5)
        again = spec.snapshot_bytes()
    with ox.SpeculativeEngine.restore_bytes(again, path_of("llama"), draft=path_of("llama")) as twin:
        assert twin.options == spec.options
    yield "speculative"


# ---- changes


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
    reader = Reader(MemorySource(data))
    tensors = {name: Rows.whole(reader.array(name), r[0]) for name, r in reader.ranges.items()}
    state = json.loads(json.dumps(dict(reader.state)))
    del state["tensors"]
    return Saved(state, tensors)


def on_parts(change):
    """A mutator of bytes from one of what is saved: change(draw, saved, other saved)."""

    def mutate(draw, data, other):
        try:
            saved = unpacked(data)
            try:
                others = unpacked(other)
            except SnapshotError:
                others = saved
            change(draw, saved, others)
            return packed(saved)
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
    saved.tensors[name] = Rows.whole(data, rows.start)


def new_shape(draw, saved, others):
    name, rows = rows_of(draw, saved)
    data = rows.data
    with np.errstate(invalid="ignore"):
        other = data.astype(draw.choice((np.int32, np.float32, np.float64, np.uint64, np.uint8)))
    twice = np.concatenate([data, data])
    data = draw.choice((data[:-1], data[:0], data[1:], twice, data.reshape(-1), data[None], other))
    saved.tensors[name] = Rows.whole(data, draw.choice((rows.start, rows.start, 0, 1)))


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

TARGET = Target(
    "snapshot",
    run,
    seeds,
    (*CHANGES, *CHANGES, *CHANGES, *map(then_signed, BYTES), *BYTES[:4], copied_value, in_table, in_table, in_table),
    words=[MAGIC, SPEC_MAGIC],
    max_bytes=1 << 17,
    work=(500_000, 200),
    memory=(256 << 20, 100),
)
