"""Bytes as a snapshot: refused with an error of ours, or gone on with, twice the same, and written again as they were.

Also a folder of files that need each other (`snapshot_folders`), and what is compressed, where zstd is there.
"""

import itertools
import zlib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import oxillama as ox
from oxillama.errors import OxiLlamaError, SnapshotError
from oxillama.snapshot import snapshot_info
from oxillama.snapshot.format import codec as compression
from oxillama.snapshot.format.block_garbage import collect_garbage
from oxillama.snapshot.format.layout import MAGIC
from oxillama.snapshot.format.v1 import SPEC_MAGIC, EngineV1, SpeculativeV1
from tests.fakes import core_of
from tests.fuzz.target import Target, told
from tests.fuzz.targets.snapshot_changes import MUTATORS, signed
from tests.fuzz.targets.snapshot_folders import (
    FOLDER,
    FOLDER_CHANGES,
    folded,
    gathered,
    in_folder,
    laid_out,
    linked,
    unfolded,
)
from tests.fuzz.targets.snapshot_requests import (
    LONG,
    PROMPT,
    dialogue,
    engine,
    engine_for,
    requests,
    searches,
    sessions,
)
from tests.fuzz.targets.snapshot_states import changed_state
from tests.snapshot.models import path_of
from tests.snapshot.version1 import ENGINE, SPECULATIVE

OPTIONS = {
    "max_tokens": 8,
    "seed": 1,
    "grammar": "root ::= [a-z ]+",
    "logprobs": 1,
    "stop": ["zzz"],
    "dry_multiplier": 0.5,
}
MOST = 12  # chunks that a resumed request is read for
MOST_ROUNDS = 4


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
        found += [own.snapshot_bytes(compress=bool(i)) for i in range(1 + bool(compression._library()[0]))]
        own.reset()
        found += of_several(own)
    found += [*requests(engine("llama")), *sessions(engine("llama")), *searches(engine("llama"))]
    with ox.SpeculativeEngine(engine("llama"), path_of("llama"), 3, 3) as spec:
        spec.engine.prefill(PROMPT)
        found.append(spec.snapshot_bytes())
    engine("llama").reset()
    return [*map(placeless, found), *folders()]


def of_several(own):
    for stream in (own.stream(PROMPT, n=2, max_tokens=4, seed=1), own.beam_rounds(PROMPT, beam_width=2)):
        next(stream)
        yield stream.snapshot()
        stream.close()


def folders():
    """One file that needs another that needs a third, and some that have their blocks in common."""
    for name in ("llama", "jamba"):
        for compress in [False, True] if compression._library()[0] else [False]:
            with TemporaryDirectory() as place:
                saved_after(engine(name), Path(place), compress)
                yield named(gathered(Path(place), "c"))
        with TemporaryDirectory() as place:
            saved_together(engine(name), Path(place))
            yield named(gathered(Path(place), "a"))


def saved_after(own, folder, compress):
    for i, letter in enumerate("abc"):
        own.prefill(LONG[20 * i : 20 * (i + 1)])
        base = folder / "ab"[i - 1] if i else None
        own.snapshot(folder / letter, base=base, compress=compress)
    own.reset()


def saved_together(own, folder):
    own.prefill(LONG)
    own.snapshot(folder / "a", shared=True)
    own.forward_one(5)
    own.snapshot(folder / "b", shared=True)
    own.reset()


def named(files):
    """Without paths of this machine."""
    return folded(linked(files, {name: placeless(data) for name, data in files.items()}))


def placeless(data):
    """Without the paths of this machine, so that it can be kept."""
    for name in ("llama", "jamba"):
        path = path_of(name).encode()
        data = data.replace(path, b"m" * len(path))
    return signed(data)


def run(data):
    if not data.startswith(FOLDER):
        return checked(data, data)
    with laid_out(unfolded(data)) as path:
        return checked(path, data)


def checked(place, data):
    try:
        info = snapshot_info(place)
    except SnapshotError as error:
        return [told(error), *original(data)]
    return [f"{info.version} {info.kind}", *original(data), *gone_on(place, data, info)]


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


def gone_on(place, data, info):
    name = info.arch_id if info.arch_id in ("llama", "jamba") else "llama"
    own = engine_for(name, data)
    try:
        if info.kind == "speculative":
            yield from speculative(place)
        elif info.version == 1:
            yield from own_engine(place, name)
        elif info.kind == "conversation":
            yield from dialogue(own, place)
        elif info.kind in ("text", "texts"):
            yield from request(own, place)
        elif info.kind == "beams":
            yield from beams(own, place)
        else:
            yield from session(own, place, data, name)
    except OxiLlamaError as error:
        yield told(error)
    for used in (own, engine("llama"), engine("jamba")):
        assert not core_of(used).scheduler.live
        for pool in (core_of(used).pool.blocks, core_of(used).pool.slots):
            pool.check_invariants()


def request(own, place):
    """The same chunks each time."""
    results = []
    for _ in range(2):
        stream = own.resume(place)
        chunks = [(c.text, c.token_ids, c.finish_reason) for c, _ in zip(stream, range(MOST), strict=False)]
        stream.close()
        results.append(chunks)
    assert results[0] == results[1]
    yield f"{len(results[0])} chunks, {results[0][-1][2] if results[0] else ''}"


def beams(own, place):
    """The same beams each time, also from what is saved of it."""
    with own.resume(place) as search:
        whole = beams_of(search, MOST_ROUNDS)
    with own.resume(place) as search:
        found = beams_of(search, 1)
        saved = search.snapshot()
    with own.resume(saved) as search:
        found += beams_of(search, MOST_ROUNDS - 1)
    assert found == whole
    yield f"{len(whole)} rounds"


def beams_of(search, n):
    return [[(h.token_ids, h.score) for h in found] for found in itertools.islice(search, n)]


def session(own, place, data, name):
    """The same logits when it is resumed, when it is written again, and from an engine of its own."""
    with own.resume(place) as resumed:
        again = resumed.snapshot_bytes()
        row = resumed.forward_one(5).copy()
        if data is not place:
            in_a_folder(own, place, resumed)
    with own.resume(again) as twin:
        assert np.array_equal(twin.forward_one(5), row, equal_nan=True)
    yield "resumed"
    if zlib.crc32(data) % 4 == 0:
        yield from own_engine(place, name)


def in_a_folder(own, place, session):
    """Written beside it, on its base and with shared blocks, it is the same; and so when the garbage is collected."""
    row, folder = session.logits, place.parent
    for name, options in (("zbase", {"base": place}), ("zshared", {"shared": True})):
        session.snapshot(folder / name, **options)
        with own.resume(folder / name) as twin:
            assert np.array_equal(twin.logits, row, equal_nan=True)
    try:
        collect_garbage(folder)
    except SnapshotError:  # of another file there
        return
    for path in (place, folder / "zbase", folder / "zshared"):
        own.resume(path).close()


def restore(kind, place, *models):
    return (kind.restore if isinstance(place, Path) else kind.restore_bytes)(place, *models)


def own_engine(place, name):
    """An engine with the settings that the file has, which then saves the same."""
    with restore(ox.Engine, place, path_of(name)) as restored:
        again = restored.snapshot_bytes()
        row = restored.forward_one(5).copy()
    with restore(ox.Engine, again, path_of(name)) as twin:
        assert np.array_equal(twin.forward_one(5), row, equal_nan=True)
    yield "restored"


def speculative(place):
    with restore(ox.SpeculativeEngine, place, path_of("llama"), path_of("llama")) as spec:
        spec.engine.forward_one(5)
        again = spec.snapshot_bytes()
    with restore(ox.SpeculativeEngine, again, path_of("llama"), path_of("llama")) as twin:
        assert twin.options == spec.options
    yield "speculative"


TARGET = Target(
    "snapshot",
    run,
    seeds,
    (*map(in_folder, (*MUTATORS, *[changed_state] * 8)), *FOLDER_CHANGES),
    words=[MAGIC, SPEC_MAGIC],
    max_bytes=1 << 17,
    work=(500_000, 200),
    memory=(256 << 20, 100),
)
