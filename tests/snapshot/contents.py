"""What a snapshot describes, read and changed."""

import json
from dataclasses import replace

from oxillama.snapshot.format.layout import HEADER_BYTES, read_head, read_size
from oxillama.snapshot.format.reader import ArrayRows, Contents, SnapshotReader
from oxillama.snapshot.format.source import MemorySource


def sections_of(data):
    size = read_size(data[:HEADER_BYTES], "x")
    return read_head(data[:size], len(data), "x"), size


def unpacked(data):
    reader = SnapshotReader(MemorySource(data))
    saved = Contents(
        dict(reader.state), {name: ArrayRows.whole(reader.array(name), r[0]) for name, r in reader.ranges.items()}
    )
    del saved.state["tensors"]
    return saved


def placed_state(saved, path, value):
    state = json.loads(json.dumps(saved.state))
    at = state
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value
    return replace(saved, state=state)


def paths(state, prefix=()):
    for name, value in state.items():
        yield (*prefix, name)
        if isinstance(value, dict):
            yield from paths(value, (*prefix, name))
