"""oxillama and llama.cpp side by side: python asv_benchmarks/compare.py MODEL.gguf... [--peer-python PATH]

Absolute speeds of a shared or throttled machine say little; ratios of two engines that take turns say more. Each engine
runs in a process of its own, loaded once, and they are measured alternately, --rounds times; medians are compared. The
peer is llama-cpp-python, from the interpreter that --peer-python names, or a file of numbers that an earlier run wrote
with --save; without either, oxillama is measured alone.

    compare.py --table FOLDER           every row of ROWS, with random models that are made in FOLDER if missing

A row says what it is expected to reach. First stands the rate of a plain read of memory by the same number of threads:
one token of one sequence reads the whole file, so that decoding can be held against it.
"""

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from benchmarks.kinds import KINDS, make_kind
from benchmarks.recurrent import SHAPES as MAMBA2_SHAPES
from benchmarks.recurrent import make_mamba2
from benchmarks.shapes import make_model
from harness import Process, in_turns, medians
from sides import Work

SIDES = Path(__file__).with_name("sides.py")


@dataclass(frozen=True)
class Row:
    """A model's type, what is done with it, and the ratios to llama.cpp that are expected."""

    type: str
    work: Work = field(default_factory=Work)
    expected: dict[str, float] = field(default_factory=dict)
    shape: str = "llama3.2-1b"


def _deep(kv_type: str) -> Work:
    return Work(depth=4096, decode=32, kv_type=kv_type)


ROWS = [
    Row("Q4_0", expected={"prefill": 1.8, "decode": 1.1}),
    Row("Q4_K_M", expected={"prefill": 1.7, "decode": 1.1}),
    Row("Q8_0", expected={"prefill": 2.3, "decode": 1.1}),
    Row("Q5_K_M", expected={"prefill": 1.2, "decode": 1.1}),
    Row("Q6_K", expected={"prefill": 1.3, "decode": 1.1}),
    Row("IQ4_XS", expected={"prefill": 1.2, "decode": 1.1}),
    Row("BF16", Work(decode=16), {"prefill": 1.8}),
    Row("F16", Work(decode=16), {"prefill": 1.1}),
    Row("Q4_K_M", Work(sequences=8), {"decode": 3.5}),
    Row("Q8_0", Work(sequences=8), {"decode": 3.0}),
    Row("Q4_K_M", _deep("f16"), {"prefill": 1.8, "decode": 1.4}),
    Row("Q4_K_M", _deep("q8_0"), {"prefill": 4.0, "decode": 2.0}),
    Row("Q4_K_M", _deep("q4_0"), {"prefill": 4.0, "decode": 2.0}),
    Row("Q4_K_M", expected={"prefill": 3.0, "decode": 1.1}, shape="qwen3moe-1.7b"),
    Row("Q8_0", expected={"prefill": 5.0, "decode": 1.3}, shape="qwen3moe-1.7b"),
    Row("Q4_K_M", Work(prompt=128, decode=32), {"prefill": 1.3, "decode": 1.1}, "mamba2-1.3b"),
    Row("Q8_0", Work(prompt=128, decode=32), {"prefill": 2.5, "decode": 1.2}, "mamba2-1.3b"),
    Row("F32", Work(prompt=128, decode=256), {"decode": 1.0}, "llama-260k"),
    *(Row("Q4_K_M", Work(prompt=256, decode=32), {"prefill": 2.0, "decode": 1.2}, kind) for kind in KINDS),
]
MAKE = dict.fromkeys(MAMBA2_SHAPES, make_mamba2) | dict.fromkeys(KINDS, make_kind)


def start(kind: str, python: str, path: str, work: Work, sides: Path = SIDES) -> tuple[Process, float]:
    """An engine in its process, and the seconds that loading took."""
    process = Process([python, sides, kind, path, json.dumps(asdict(work))])
    return process, process.read()["load_seconds"]


def measure(path: str, work: Work, a: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Medians of each engine, by its name."""
    pythons = {"oxillama": sys.executable} | ({"llama.cpp": a.peer_python} if a.peer_python else {})
    started = {name: start(name, python, path, work) for name, python in pythons.items()}
    found = in_turns({name: process.ask for name, (process, _) in started.items()}, a.rounds)
    for process, _ in started.values():
        process.close()
    return {name: medians(found[name]) | {"load_seconds": seconds} for name, (_, seconds) in started.items()}


def label(path: str, work: Work) -> str:
    """How a measurement is called, also in the file of the peer's numbers."""
    return (
        f"{Path(path).name} depth={work.depth} kv={work.kv_type} sequences={work.sequences} prompt={work.prompt} "
        f"decode={work.decode} threads={work.threads}"
    )


def show(path: str, work: Work, sides: dict[str, dict[str, float]], expected: dict[str, float]) -> None:
    """One line for each thing measured."""
    print(label(path, work))
    for name in ("prefill", "decode"):
        if name not in sides["oxillama"]:
            continue
        text = ", ".join(f"{who} {numbers[name]:.1f}" for who, numbers in sides.items()) + " tokens/s"
        if "llama.cpp" in sides:
            ratio = sides["oxillama"][name] / sides["llama.cpp"][name]
            text += f": {ratio:.2f}x"
            if name in expected:
                text += f" (expected {expected[name]}x{'' if ratio >= expected[name] else ': SHORT'})"
        print(f"  {name}: {text}")
    ours = sides["oxillama"]
    print(f"  load {ours['load_seconds']:.2f} s, peak {ours['peak_bytes'] / 2**20:.0f} MiB", end="")
    print(f" = {ours['peak_bytes'] / Path(path).stat().st_size:.2f} of the file", flush=True)


def compare(path: str, work: Work, expected: dict[str, float], a: argparse.Namespace) -> None:
    """Measure, show, and keep the peer's numbers where that was asked for."""
    sides = measure(path, work, a)
    peer_numbers = a.peer_numbers.get(label(path, work))
    if peer_numbers and "llama.cpp" not in sides:
        sides["llama.cpp"] = peer_numbers
    show(path, work, sides, expected)
    a.measured[label(path, work)] = sides.get("llama.cpp", {})


class PlainRead:
    """Memory that no cache holds, read by threads from one end to the other, each its part."""

    def __init__(self, threads: int, n_bytes: int = 1 << 30) -> None:
        self.n_bytes = n_bytes
        self.parts = [np.ones(n_bytes // threads // 8, np.uint64) for _ in range(threads)]
        self.pool = ThreadPoolExecutor(threads)

    def speed(self) -> float:
        """Bytes a second."""
        start = perf_counter()
        list(self.pool.map(np.bitwise_or.reduce, self.parts))
        return self.n_bytes / (perf_counter() - start)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="oxillama and llama.cpp side by side")
    parser.add_argument("models", nargs="*", metavar="MODEL.gguf")
    parser.add_argument("--table", metavar="FOLDER", help="measure every row of the table with models of this folder")
    parser.add_argument("--only", default="", help="rows of the table whose type or shape is this")
    parser.add_argument("--peer-python", help="interpreter that has llama_cpp")
    parser.add_argument("--peer-numbers", type=_read, default={}, metavar="FILE", help="numbers that --save wrote")
    parser.add_argument("--save", metavar="FILE", help="write the peer's numbers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kv-type", choices=("f32", "f16", "q8_0", "q4_0"), default="f16")
    for name, value in (("threads", 2), ("prompt", 512), ("decode", 64), ("depth", 0), ("sequences", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    a = parser.parse_args()
    if not a.models and not a.table:
        parser.error("name models, or a folder with --table")
    a.measured = {}
    return a


def _read(path: str) -> dict[str, Any]:
    numbers: dict[str, Any] = json.loads(Path(path).read_text())
    return numbers


def main() -> None:
    a = arguments()
    plain = PlainRead(a.threads)
    print(f"plain read, {a.threads} threads: {max(plain.speed() for _ in range(5)) / 1e9:.1f} GB/s")
    del plain  # and its memory
    work = Work(a.prompt, a.decode, a.depth, a.sequences, a.kv_type, a.threads)
    for path in a.models:
        compare(path, work, {}, a)
    for row in ROWS if a.table else ():
        if a.only in ("", row.type, row.shape):
            path = MAKE.get(row.shape, make_model)(Path(a.table), row.shape, row.type)
            compare(str(path), Work(**asdict(row.work) | {"threads": a.threads}), row.expected, a)
    if a.save:
        Path(a.save).write_text(json.dumps(a.measured, indent=1))


if __name__ == "__main__":
    main()
