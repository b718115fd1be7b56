"""How cost grows with depth, sequences, threads and vocabulary: python asv_benchmarks/growth.py FOLDER [--only CURVE]

Writes growth.json, of which `python -m tests.site` draws pictures. Every number is the ratio to the first point of its
line, the points taking turns, the median of --rounds. Speeds are tokens per second of CPU time with one thread, so that
other programs on the machine hardly count; only the curve of threads is by the clock, which needs a quiet machine. The
models are the shipped one and random ones that are made in FOLDER.

A curve of the file has a title, what its axes mean, when and on what it was recorded, and lines: points [x, y] by name.
A curve that is measured elsewhere, such as one of another engine, is another entry, or another line of one.
"""

import argparse
import datetime
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import truediv
from pathlib import Path
from typing import Any

from benchmarks import shapes
from harness import in_turns

import oxillama

SAVED = Path(__file__).with_name("growth.json")
Measure = Callable[[str | None, int], Callable[[], float]]
PROMPT = 64  # tokens, also of a measured part of a prompt
DECODED = 32


def vocabulary_models(folder: Path) -> dict[str, list[tuple[str | None, int]]]:
    """One small model by its number of tokens: weights of a layer stay in the caches, those of the output don't."""
    points: list[tuple[str | None, int]] = []
    for n in (512, 4096, 32768, 131072):
        name = f"llama-260k-{n}"
        shapes.SHAPES[name] = replace(shapes.SHAPES["llama-260k"], vocab=n)
        points.append((str(shapes.make_model(folder, name, "F16")), n))
    return {"260k parameters and the vocabulary's, F16": points}


def both(values: tuple[int, ...], folder: Path) -> dict[str, list[tuple[str | None, int]]]:
    """Lines of the shipped model, and of a larger one."""
    larger = str(shapes.make_model(folder, "llama-160m", "Q4_K_M"))
    return {"the shipped model, 3 MB": [(None, n) for n in values], "160M, Q4_K_M": [(larger, n) for n in values]}


def rate(n_tokens: int, call: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """Tokens per second of a clock, of which one reading is worth at least 20 ms."""
    spent, done, began = 0.0, 0, clock()
    while spent < 0.02:
        call()
        done += n_tokens
        spent = clock() - began
    return done / spent


def at_depth(path: str | None, depth: int) -> Callable[[], float]:
    """A part of a prompt behind so many tokens."""
    engine = oxillama.load(path, num_threads=1, context_size=1024)
    ids = [5 + i % 250 for i in range(depth + PROMPT)]
    engine.prefill(ids[:depth] or ids[:1])

    def call() -> None:
        engine.truncate(depth)
        engine.prefill(ids[depth:])

    return lambda: rate(PROMPT, call)


def together(path: str | None, n: int) -> Callable[[], float]:
    """So many sequences that are decoded together."""
    engine = oxillama.load(path, num_threads=1, context_size=128)
    prompts = [f"Once upon a time {i}" for i in range(n)]

    def call() -> None:
        for _ in engine.batch(prompts, max_tokens=DECODED, ignore_eos=True, temperature=0):
            pass

    return lambda: rate(n * DECODED, call)


def threads(path: str | None, n: int) -> Callable[[], float]:
    """A prompt with so many threads, by the clock."""
    engine = oxillama.load(path, num_threads=n, context_size=1024)
    ids = [5 + i % 250 for i in range(512)]

    def call() -> None:
        engine.reset()
        engine.prefill(ids)

    return lambda: rate(len(ids), call, time.perf_counter)


def decoded(path: str | None, _: int) -> Callable[[], float]:
    """Tokens one by one, drawn by the default sampler."""
    engine = oxillama.load(path, num_threads=1, context_size=128)
    return lambda: rate(DECODED, lambda: engine.generate([1, 5, 6], max_tokens=DECODED, ignore_eos=True, seed=1))


@dataclass(frozen=True)
class Curve:
    """What is measured, over which values, and the words for both."""

    title: str
    x: str
    y: str
    measure: Measure
    lines: Callable[[Path], dict[str, list[tuple[str | None, int]]]]


CURVES = {
    "depth": Curve(
        "A part of a prompt, by what is before it",
        "tokens before",
        "speed",
        at_depth,
        lambda f: both((0, 128, 256, 512, 896), f),
    ),
    "batch": Curve(
        "Sequences decoded together",
        "sequences",
        "tokens per second",
        together,
        lambda f: both((1, 2, 4, 8, 16, 32, 64), f),
    ),
    "threads": Curve(
        "A prompt, by threads",
        "threads",
        "speed",
        threads,
        lambda f: both(tuple(range(1, (os.cpu_count() or 1) + 1)), f),
    ),
    "vocabulary": Curve("Decoding, by the vocabulary", "tokens of the vocabulary", "speed", decoded, vocabulary_models),
}


def measure(curve: Curve, folder: Path, rounds: int) -> dict[str, list[list[float]]]:
    """Points by line; the first is 1."""
    found = {}
    for name, values in curve.lines(folder).items():
        calls = [curve.measure(path, n) for path, n in values]
        for call in calls:
            call()
        speeds = in_turns(dict(enumerate(calls)), rounds)
        ratios = [statistics.median(map(truediv, one, speeds[0])) for one in speeds.values()]
        found[name] = [[n, float(f"{y:.3g}")] for (_, n), y in zip(values, ratios, strict=True)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="how cost grows")
    parser.add_argument("folder", type=Path, help="keeps the models")
    parser.add_argument("--only", choices=CURVES, nargs="+", default=list(CURVES), help="curves that are measured")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--machine", default=f"{os.cpu_count()} cores", help="how the machine is called")
    parser.add_argument("--save", type=Path, default=SAVED, metavar="FILE", help="other curves of it stay")
    a = parser.parse_args()
    saved: dict[str, Any] = json.loads(a.save.read_text()) if a.save.exists() else {"curves": {}}
    for name in a.only:
        curve, today = CURVES[name], datetime.date.today().isoformat()
        words = {"title": curve.title, "x": curve.x, "y": curve.y, "recorded": today, "machine": a.machine}
        saved["curves"][name] = words | {"lines": measure(curve, a.folder, a.rounds)}
        print(f"{name}: {json.dumps(saved['curves'][name]['lines'])}", flush=True)
        a.save.write_text(json.dumps(saved, indent=1) + "\n")


if __name__ == "__main__":
    main()
