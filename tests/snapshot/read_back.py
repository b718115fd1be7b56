"""Read-back of snapshots to the bit, python -m tests.snapshot.read_back [MODEL...]; an hour for all models.

The truth is `Engine.forward_logits`, which knows neither sessions nor files: every file's session must be put back with
as many tokens computed as it had (not computed again), and go on with the logits of its tokens.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import oxillama as ox
from oxillama.errors import ConfigError
from oxillama.snapshot.format import codec as compression
from oxillama.snapshot.format.block_garbage import collect_garbage
from tests.fakes import sequence_of, session_of
from tests.snapshot.models import DECODERS, load, same, tokens_of, told

# So that layers with a window have blocks of their own in a context as short as these models'.
SMALL_STEPS = {"prefill_chunk_size": 16, "context_size": 250}
SHORT = {"bloom": 64, "chatglm-split": 48}  # contexts
# One of each kind of state and attention, and all with windows.
KINDS = (
    "llama", "gemma2", "gemma3", "gpt-oss", "cohere2", "exaone4", "mimo2", "gemma4-e4b", "mamba2", "jamba", "falcon-h1",
    "deepseek2", "glm-dsa", "nanbeige",
)  # fmt: skip
EDGES = (1, 15, 16, 17, 20, 31, 33, 60, 63, 64, 65, 78, 79, 80, 81, 100, 111, 143, 144, 160, 170, 200, 207)
LAST = 3  # lengths right before one, each of which is its base
COMPRESS = bool(compression._library()[0])


def opened(name: str, **fields: Any) -> ox.Engine:
    own = {"context_size": SHORT[name]} if name in SHORT else {}
    return load(name, **{**SMALL_STEPS, **own, **fields})


def check(engine: ox.Engine, path: Path, tokens: list[int], n_computed: int) -> None:
    """A file goes on as a session of these tokens does."""
    with engine.resume(path) as session:
        assert session.tokens == tokens, path
        assert sequence_of(session).n_computed == n_computed, path
        row = engine.forward_logits([*tokens, 5])[-1]
        assert same(session.forward_one(5), row), path


def lengths(engine: ox.Engine, folder: Path, edges: Iterable[int]) -> int:
    """Every length, with each of the edges, and of the last few lengths, as its base: how many files were read."""
    tokens, done = tokens_of(engine, engine.context_size - 1), 0
    rows = engine.forward_logits(tokens)
    before: list[Path] = []
    engine.reset()
    for n in (n for n in edges if n < len(tokens)):
        engine.prefill(tokens[engine.position : n])
        for base in [None, *before]:
            path = folder / f"{n}-{'' if base is None else base.name}"
            engine.snapshot(path, base=base)
            with engine.resume(path) as session:
                assert session.tokens == tokens[:n]
                assert sequence_of(session).n_computed == n
                assert same(session.logits, rows[n - 1]), path
                assert same(session.forward_one(tokens[n]), rows[n]), path
            done += 1
            if base is not None:
                path.unlink()
        before.append(folder / f"{n}-")
        if len(before) > LAST and int(before[-LAST - 1].name[:-1]) not in EDGES:
            before.pop(-LAST - 1).unlink()
    return done


class Walk:
    """A session that goes on, back and other ways, saved at random with every option; then all files are read."""

    def __init__(self, engine: ox.Engine, folder: Path, seed: int) -> None:
        self.engine, self.folder, self.rng = engine, folder, random.Random(seed)
        self.files: dict[Path, tuple[list[int], int]] = {}
        self.most = engine.context_size - 2

    def run(self, n_steps: int) -> None:
        self.engine.reset()
        for _ in range(n_steps):
            self.move()
            self.save()
            if self.rng.random() < 0.1 and (self.folder / "blocks").is_dir():
                collect_garbage(self.folder)
        for path, (tokens, n_computed) in self.files.items():
            check(self.engine, path, tokens, n_computed)

    def move(self) -> None:
        engine, rng = self.engine, self.rng
        edge = rng.choice(EDGES) + rng.choice((-1, 0, 0, 1))
        if engine.position and rng.random() < 0.3:
            # Back, where it may have to compute again what a window has given up, or on from there another way.
            engine.truncate(rng.choice((min(edge, engine.position), rng.randrange(engine.position))))
            if rng.random() < 0.3:
                return
        n = min(max(edge - engine.position, rng.choice((1, 5, 16, 40))), self.most - engine.position)
        if n > 0:
            engine.prefill(tokens_of(engine, n, seed=rng.randrange(3)))

    def save(self) -> None:
        engine, rng = self.engine, self.rng
        path = self.folder / f"{rng.randrange(24)}"
        options: dict[str, Any] = rng.choice(({}, {"shared": True}, {"base": True}, {"base": True}, {"base": True}))
        if options.get("base"):
            options = {"base": rng.choice(list(self.files))} if self.files else {}
        if "shared" not in options and COMPRESS and rng.random() < 0.3:
            options["compress"] = True
        if any(path.name in needed for needed in map(self.needed, self.files)):
            # One that others need would be lost to them: it is refused if it can be known, and else not tried.
            if "base" in options and path.name in {options["base"].name, *self.needed(options["base"])}:
                try:
                    engine.snapshot(path, **options)
                except ConfigError:
                    return
                raise AssertionError(f"{path} was replaced, which its own base needs")
            return
        if path == options.get("base"):
            return
        engine.snapshot(path, **options)
        self.files.pop(path, None)
        self.files[path] = session_of(engine).tokens, sequence_of(session_of(engine)).n_computed

    def needed(self, path: Path) -> list[str]:
        """Names of the files that one needs, and those need."""
        found: list[str] = []
        while (base := ox.Engine.snapshot_info(path).base) is not None:
            found.append(base)
            path = self.folder / base
        return found


def requests(engine: ox.Engine, folder: Path, seed: int) -> None:
    """A request for text saved after every few chunks, each time on the one before, on a session, or with others."""
    rng = random.Random(seed)
    prompt = tokens_of(engine, rng.choice((1, 17, 40, 63, 100)) % (engine.context_size // 2) + 1, seed=seed)
    most = min(100, engine.context_size - len(prompt) - 1)
    options: dict[str, Any] = {"max_tokens": most, "seed": seed, "ignore_eos": True}
    whole = told(engine.stream(prompt, **options))
    engine.reset()
    engine.prefill(prompt)
    engine.snapshot(folder / "session")
    stream, first, base = engine.stream(prompt, **options), [], folder / "session"
    saved: list[tuple[Path, int]] = []
    while len(first) < len(whole) - 1:
        first += [next(stream) for _ in range(min(rng.choice((1, 7, 16, 30)), len(whole) - 1 - len(first)))]
        path = folder / f"text{len(first)}"
        with_base = rng.random() < 0.8
        more = {"base": base} if with_base else {"shared": True}
        stream.snapshot(path, **more, **({"compress": True} if with_base and COMPRESS and rng.random() < 0.3 else {}))
        saved.append((path, len(first)))
        base = path
    stream.close()
    for path, n in saved:
        assert told(first[:n]) + told(engine.resume(path)) == whole, path


def main(names: list[str]) -> None:
    for name in names or DECODERS:
        begun, done = time.monotonic(), 0
        for fields in (
            {},
            {"kv_block_size": 64},
            {"kv_block_size": 32, "kv_type": "q8_0"},
            {"prefill_chunk_size": 512},
        ):
            every = range(1, 250) if not fields and name in KINDS else EDGES
            with opened(name, **fields) as engine:
                with tempfile.TemporaryDirectory() as folder:
                    done += lengths(engine, Path(folder), every)
                for seed in range(10):
                    with tempfile.TemporaryDirectory() as folder:
                        Walk(engine, Path(folder), seed).run(60)
                    with tempfile.TemporaryDirectory() as folder:
                        requests(engine, Path(folder), seed)
        print(f"{name:<20}{done:>8} pairs of lengths, {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
