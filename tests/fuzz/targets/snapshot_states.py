"""Descriptions of snapshots changed value by value, under right hashes: what a stranger can write who knows the format.

Every value that is one becomes others of its type and of other types; lists are cut, made longer, and have an item
twice; objects lose keys, and get some. `every` gives all changes of a file in turn, `changed_state` is a mutator.
"""

import copy
import itertools
import json
import struct
from dataclasses import fields, is_dataclass, replace

import numpy as np
from blake3 import blake3

from oxillama.errors import SnapshotError
from oxillama.snapshot.format.layout import BYTES, MAGIC, RAW, head_of, placed
from oxillama.snapshot.format.reader import STATE, SnapshotReader
from oxillama.snapshot.format.source import MemorySource
from oxillama.snapshot.format.v1 import SPEC_MAGIC, EngineV1, SpeculativeV1
from tests.fuzz.targets.json_values import at, places

HUGE = (1 << 31, 1 << 53, 1 << 62, (1 << 63) - 1, 1 << 64, 10**40)
NUMBERS = (0, -1, 1, 2, 3, *HUGE, -(1 << 62), 0.5, -0.0, 1e308, 1e-320)
OTHERS = (None, True, False, "", "0", "a", "\0", "\ud800", [], [0], ["a"], {}, {"a": 1})
LONG = 3000


def restated(data, change):
    """A file of version 2 with another description: change(state) -> state."""
    reader = SnapshotReader(MemorySource(data))
    state = change(json.loads(json.dumps(dict(reader.state))))
    stored = {s.name: bytes(data[s.offset : s.offset + s.n_stored]) for s in reader.sections.values()}
    stored[STATE] = json.dumps(state, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return assembled(reader, stored)


def assembled(reader, stored):
    lines = [
        (s.name, BYTES, RAW, (len(stored[s.name]),), 0, len(stored[s.name]), bytes(32))
        if s.name == STATE
        else (s.name, s.code, s.codec, shape_of(s, stored[s.name]), s.first, len(stored[s.name]), bytes(32))
        for s in reader.sections.values()
    ]
    sections = [replace(s, digest=blake3(stored[s.name]).digest()) for s in placed(lines)]
    out = bytearray(head_of(sections))
    for s in sections:
        out += bytes(s.offset - len(out)) + stored[s.name]
    return bytes(out)


def shape_of(section, stored):
    """Of a part that is a snapshot and has another length now, this; of arrays, what it was."""
    return (len(stored),) if section.code == 1 and len(section.shape) == 1 and section.codec == RAW else section.shape


def parts_of(data):
    """Names of the sections that are snapshots themselves."""
    reader = SnapshotReader(MemorySource(data))
    return [s.name for s in reader.sections.values() if s.name != STATE and data[s.offset : s.offset + 8] == MAGIC]


def with_part(data, name, part):
    """A file of several with another part in it, whose length the description of arrays has too."""
    reader = SnapshotReader(MemorySource(data))
    stored = {s.name: bytes(data[s.offset : s.offset + s.n_stored]) for s in reader.sections.values()}
    stored[name] = part
    state = json.loads(json.dumps(dict(reader.state)))
    state["tensors"][name] = [0, len(part)]
    stored[STATE] = json.dumps(state, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return assembled(reader, stored)


def part_of(data, name):
    section = SnapshotReader(MemorySource(data)).sections[name]
    return bytes(data[section.offset : section.offset + section.n_stored])


# ---- changes of one value


def variants(value):
    """Other values for one, with names."""
    if isinstance(value, bool) or value is None:
        return [*OTHERS, *NUMBERS[:4], "stop", {"file": "x", "digest": "00"}]
    if isinstance(value, int | float):
        near = [value + d for d in (-2, -1, 1, 2, 100)] + [value * 2, -value, value / 2, float(value)]
        return [*near, *NUMBERS, *OTHERS]
    if isinstance(value, str):
        texts = [value[:-1], value + "x", value * 2, value.upper(), value[::-1], "x" * LONG, "../" + value, "/dev/zero"]
        return [*texts, *OTHERS, *NUMBERS[:4]]
    if isinstance(value, list):
        return [*lists_of(value), *OTHERS, *NUMBERS[:3]]
    return [*objects_of(value), *OTHERS, *NUMBERS[:3]]


def lists_of(value):
    again, first = [copy.deepcopy(item) for item in value], value[:1]
    longer = [[*value, more] for more in (None, 0, -1, 1 << 62, "a", [], {}, copy.deepcopy(value[-1]) if value else 1)]
    return [value + again, value[::-1], value[:-1], value[1:], [value], [*value, *first * LONG], *longer]


def objects_of(value):
    found = [{name: v for name, v in value.items() if name != gone} for gone in value]
    found += [value | {"extra": item} for item in (1, None, {})] + [value | {"": 0, "a" * 300: 1}]
    names = list(value)
    for one, other in itertools.pairwise(names):
        found.append(value | {one: value[other], other: value[one]})
    return found


def replaced(state, path, value):
    """A copy with another value in a place."""
    if not path:
        return value
    found = copy.deepcopy(state)
    at(found, path[:-1])[path[-1]] = value
    return found


def every(data):
    """(name, changed file) for each change of each value of a file, and of each snapshot in it."""
    if data[:8] == SPEC_MAGIC or data[:9] == MAGIC + b"\1":
        yield from every_of_version1(data)
        return
    state = json.loads(json.dumps(dict(SnapshotReader(MemorySource(data)).state)))
    for path in places(state):
        for i, value in enumerate(variants(at(state, path))):
            changed = made(lambda _, p=path, v=value: replaced(state, p, v), data)
            if changed is not None:
                yield f"{'.'.join(map(str, path))} #{i} {value!r:.40}", changed
    for name in parts_of(data):
        for told, part in every(part_of(data, name)):
            yield f"{name}: {told}", with_part(data, name, part)


def made(change, data):
    try:
        return restated(data, change)
    except (SnapshotError, TypeError, ValueError, struct.error):  # what no file can say
        return None


# ---- version 1


def every_of_version1(data):
    whole = (SpeculativeV1 if data[:8] == SPEC_MAGIC else EngineV1).decode(data)
    for told, changed in changes_of(whole):
        try:
            yield told, changed.encode()
        except (SnapshotError, TypeError, ValueError, OverflowError, AttributeError, struct.error):
            continue


def changes_of(record):
    """The same for the fields of a structure of version 1, which has types."""
    for field in fields(record):
        value = getattr(record, field.name)
        if not field.init:
            continue
        if is_dataclass(value):
            for told, changed in changes_of(value):
                yield f"{field.name}.{told}", replace(record, **{field.name: changed})
        for i, other in enumerate(others_of(value)):
            yield f"{field.name} #{i} {other!r:.40}", replace(record, **{field.name: other})


def others_of(value):
    if isinstance(value, bool | int | float):
        return [0, 1, 2, value + 1, value - 1, value * 2, *HUGE[:5], 1.5, float("nan"), float("inf"), -1.0, 1e30, 1e-40]
    if isinstance(value, str):
        return ["", value + "x", "x" * LONG, "\0", "/dev/zero", None]
    if isinstance(value, bytes):
        return [b"", value[::-1], value + b"\0", bytes(32)]
    if isinstance(value, list):
        own = [value[:-1], value[1:], value * 2, []]
        if value and isinstance(value[0], np.ndarray):
            return [
                *own,
                [a[:-1] for a in value],
                [*value[:-1], value[0][:1]],
                [np.full_like(a, np.nan) for a in value],
            ]
        return [*own, [*value, 1 << 31], [*value, 0], [0] * LONG]
    return [None, 0, 1, (1 << 64) - 1, "root ::= [", "root ::= root", 'root ::= "a"']


# ---- a mutator


def changed_state(draw, data, other):
    """One change of one value, or several."""
    try:
        names = parts_of(data)
        if names and draw.random() < 0.7:
            name = draw.choice(names)
            return with_part(data, name, changed_state(draw, part_of(data, name), other))
        return restated(data, lambda state: changed_values(draw, state))
    except (SnapshotError, TypeError, ValueError, KeyError, IndexError, RecursionError, OverflowError, struct.error):
        return data


def changed_values(draw, state):
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        if not isinstance(state, dict):
            break
        path = draw.choice(list(places(state)))
        state = replaced(state, path, draw.choice(variants(at(state, path))))
    return state
