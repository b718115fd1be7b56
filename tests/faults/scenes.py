"""What is done while a fault happens: saves of every kind, their loading, collecting garbage, a step that reads.

A scene is prepared once, in a folder, and acted in copies of that folder by forked children, each with its own fault.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import oxillama as ox
from oxillama.core.loading import shipped_model
from oxillama.snapshot.format import codec as compression
from oxillama.snapshot.format import codec as hashing
from oxillama.snapshot.format.block_garbage import collect_garbage
from tests.fakes import core_of
from tests.snapshot.models import load, path_of, tokens_of, told

NAME = "session"
hashing.LONG = 1  # small models too have their hashes from a thread
BEFORE, NOW = 70, 150  # tokens: of the file that is there, and of the one that takes its place


@dataclass
class Scene:
    """act: in a folder like the one that it was prepared in. proof: what the engine gives then; always the same."""

    act: Callable[[Path], object]
    proof: Callable[[], object]


def session(folder: Path, options: dict[str, object]) -> Scene:
    engine = load("llama")
    tokens = tokens_of(engine, NOW)
    engine.prefill(tokens[:BEFORE])
    engine.snapshot(folder / NAME, **_without_base(options))
    if "base" in options:
        engine.snapshot(folder / "base")
    engine.prefill(tokens[BEFORE:])
    return Scene(
        lambda place: engine.snapshot(place / NAME, **_in(place, options)),
        lambda: (engine.snapshot_bytes(), _next_row(engine)),
    )


def request(folder: Path, options: dict[str, object]) -> Scene:
    engine = load("jamba", context_size=256)
    stream = engine.stream(tokens_of(engine, BEFORE), max_tokens=120, seed=1, ignore_eos=True)
    first = [next(stream) for _ in range(5)]
    stream.snapshot(folder / NAME, **_without_base(options))
    if "base" in options:
        stream.snapshot(folder / "base")
    assert told(first + [next(stream) for _ in range(NOW - BEFORE)])
    return Scene(
        lambda place: stream.snapshot(place / NAME, **_in(place, options)),
        lambda: (told(engine.resume(stream.snapshot())), engine.generate([5, 6], max_tokens=5, seed=1).token_ids),
    )


def speculative(folder: Path, options: dict[str, object]) -> Scene:
    engine, draft = load("llama"), ox.DraftModel(path_of("llama"), num_threads=1)
    spec = ox.SpeculativeEngine(engine, draft, 4, 7)
    tokens = tokens_of(engine, NOW)
    engine.prefill(tokens[:BEFORE])
    spec.snapshot(folder / NAME, **options)
    spec.generate(tokens[BEFORE:], max_tokens=8, ignore_eos=True)
    totals = core_of(engine).drafting.totals
    totals[draft] = replace(spec.stats, elapsed=0.0, draft_seconds=0.0)  # what is measured is never the same twice
    return Scene(
        lambda place: spec.snapshot(place / NAME, **options),
        lambda: (spec.snapshot_bytes(), engine.generate([5, 6], max_tokens=5, seed=1).token_ids),
    )


def garbage(folder: Path) -> Scene:
    engine = load("llama")
    for seed in (1, 2):
        engine.reset()
        engine.prefill(tokens_of(engine, NOW, seed=seed))
        engine.snapshot(folder / f"{seed}", shared=True)
    (folder / "1").unlink()
    (folder / f".{NAME}.0123456789ab.tmp").write_bytes(b"of one who was killed")
    return Scene(collect_garbage, engine.snapshot_bytes)


def resume(folder: Path, options: dict[str, object]) -> Scene:
    """Of a file that needs others, where the options say so."""
    scene = session(folder, options)
    scene.act(folder)
    engine = load("llama")

    def act(place: Path) -> None:
        with engine.resume(place / NAME) as found:
            assert found.position == NOW

    act(folder)
    return Scene(act, lambda: engine.generate([5, 6], max_tokens=5, seed=1).token_ids)


def paged_step(folder: Path) -> Scene:
    """A request of which every step reads weights, and rows of the embedding."""
    engine = ox.load(num_threads=1, offload=os.path.getsize(shipped_model()) // 3)
    engine.generate("Once", max_tokens=2, seed=1)
    return Scene(
        lambda place: engine.generate("Once upon", max_tokens=2, seed=1),
        lambda: engine.generate("Once upon a", max_tokens=3, seed=1).token_ids,
    )


def _next_row(engine: ox.Engine) -> bytes:
    with engine.fork() as session:
        return session.forward_one(5).tobytes()


def _in(folder: Path, options: dict[str, object]) -> dict[str, object]:
    return options | {"base": folder / "base"} if "base" in options else options


def _without_base(options: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in options.items() if name != "base"}


_HOW: dict[str, dict[str, object]] = {
    "plain": {},
    "base": {"base": "base"},
    "shared": {"shared": True},
    "version 1": {"format": 1},
}
if compression._library()[0]:
    _HOW["compressed"] = {"compress": True}

SAVES: dict[str, Callable[[Path], Scene]] = {
    f"{what.__name__}, {name}": partial(what, options=options)
    for what, names in (
        (session, _HOW.keys()),
        (request, _HOW.keys() - {"version 1"}),
        (speculative, _HOW.keys() - {"base", "shared"}),
    )
    for name, options in _HOW.items()
    if name in names
}
OTHERS: dict[str, Callable[[Path], Scene]] = {
    "collect_garbage": garbage,
    "resume, plain": partial(resume, options={}),
    "resume, base": partial(resume, options={"base": "base"}),
    "resume, shared": partial(resume, options={"shared": True}),
    "a step that reads weights": paged_step,
}
SCENES = SAVES | OTHERS
