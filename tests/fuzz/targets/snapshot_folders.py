"""Folders of snapshots as one input: a file, those that it needs, and the blocks that are shared.

After ``FOLDER1`` and a line's end come the files: name behind its length (u16), bytes behind theirs (u32). The first
is the one that is opened.
"""

import re
import struct
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from blake3 import blake3

from oxillama.snapshot.format.layout import MAGIC, SIGNED_BYTES
from tests.fuzz.targets.snapshot_changes import signed

FOLDER = b"FOLDER1\n"
NAME = re.compile(r"[a-z0-9]{1,70}(/[a-z0-9]{1,70}){0,2}")
MEMORY = Path("/dev/shm")


def folded(files):
    parts = [FOLDER]
    for name, data in files.items():
        parts += [struct.pack("<H", len(name)), name.encode(), struct.pack("<I", len(data)), data]
    return b"".join(parts)


def unfolded(data):
    """{name: bytes}; what can't be read is left out."""
    found, at = {}, len(FOLDER)
    while at + 2 <= len(data):
        (n,) = struct.unpack_from("<H", data, at)
        name, at = data[at + 2 : at + 2 + n].decode("latin-1"), at + 2 + n
        if at + 4 > len(data):
            break
        (size,) = struct.unpack_from("<I", data, at)
        if NAME.fullmatch(name):
            found[name] = data[at + 4 : at + 4 + size]
        at += 4 + size
    return found


def gathered(folder, first):
    """The files of a folder, but for locks, the first before all."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    found = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    return {first: found[first]} | found


@contextmanager
def laid_out(files):
    """The path of the first file, in a folder where all are."""
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        for name, data in files.items():
            path = Path(folder, name)
            if not path.is_dir() and not any(p.is_file() for p in path.parents):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        yield Path(folder, next(iter(files), "none"))


def linked(before, after):
    """Files that refer to those that were changed refer to them again, under their new names and digests."""
    files, changed = dict(after), [name for name in after if before.get(name) != after[name]]
    told = {name: digest_of(name, data) for name, data in before.items()}  # as others say
    for _ in range(20):  # files may need each other in a circle
        if not changed:
            break
        name = changed.pop()
        was, now = told.get(name, ""), digest_of(name, files[name])
        if name.startswith("blocks/"):
            was, new = name[7:].replace("/", ""), f"blocks/{now[:2]}/{now[2:]}"
            files = {new if n == name else n: d for n, d in files.items()}
        told[name] = now
        if len(was) == len(now) == 64 and was != now:
            users = [n for n, d in files.items() if d[:8] == MAGIC and was.encode() in d]
            files |= {n: signed(files[n].replace(was.encode(), now.encode())) for n in users}
            changed += users
    return files


def digest_of(name, data):
    """In hexadecimal, as a snapshot says it of what it needs."""
    return blake3(data).hexdigest() if name.startswith("blocks/") else data[SIGNED_BYTES : SIGNED_BYTES + 32].hex()


# ---- changes


def in_folder(mutator):
    """The same for one of the files of a folder."""

    def mutate(draw, data, other):
        if other.startswith(FOLDER):
            other = draw.choice([*unfolded(other).values(), b""])
        files = unfolded(data) if data.startswith(FOLDER) else {}
        if not files:
            return mutator(draw, data, other)
        snapshots = [name for name in files if not name.startswith("blocks/")]
        name = draw.choice(snapshots if snapshots and draw.random() < 0.8 else list(files))
        changed = files | {name: mutator(draw, files[name], other)}
        return folded(linked(files, changed) if draw.random() < 0.9 else changed)

    return mutate


def on_files(change):
    def mutate(draw, data, other):
        files = unfolded(data) if data.startswith(FOLDER) else {"a": data}
        others = unfolded(other) if other.startswith(FOLDER) else {"b": other}
        return folded(change(draw, files, others)) if files and others else data

    return mutate


def without(draw, files, others):
    gone = draw.choice(list(files))
    return {name: data for name, data in files.items() if name != gone}


def swapped(draw, files, others):
    a, b = (draw.choice(list(files)) for _ in range(2))
    return files | {a: files[b], b: files[a]}


def together(draw, files, others):
    return files | others if draw.random() < 0.5 else others | files


def opened(draw, files, others):
    first = draw.choice(list(files))
    return {first: files[first]} | files


def replaced(draw, files, others):
    """Another file in the place of one, to which what needs it refers."""
    changed = files | {draw.choice(list(files)): draw.choice(list(others.values()))}
    return linked(files, changed) if draw.random() < 0.8 else changed


def renamed(draw, files, others):
    """What referred to one file refers to another name, and maybe to itself."""
    old, new = (draw.choice([*files, "x"]).encode() for _ in range(2))
    changed = {
        name: signed(data.replace(b'"file":"' + old + b'"', b'"file":"' + new + b'"')) if len(old) == len(new) else data
        for name, data in files.items()
    }
    return linked(files, changed)


FOLDER_CHANGES = [on_files(change) for change in (without, swapped, together, opened, replaced, renamed)]
