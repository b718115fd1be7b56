"""Speed and memory over the depth of a context: python asv_benchmarks/depths.py FOLDER [--peer-python PATH]

Tokens a second for a prompt of 512 after 0, 4096, 16384 and 32768 tokens, and for tokens one by one, on a random model
of two layers that is made in FOLDER; medians of --rounds. The engines take turns at each depth, each in a process of
its own (`sides.py`), whose highest resident memory stands beside. A peer that takes too long can be left out of what
lies deeper than --peer-depth. On a busy machine, --threads 1 --cpu-time counts seconds of CPU.
"""

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from benchmarks.shapes import make_model
from compare import start
from harness import in_turns, medians
from sides import Work

SHAPE = "llama3.2-1b-2layer"


@dataclass(frozen=True)
class Point:
    """What an engine reached at one depth: tokens a second and bytes."""

    engine: str
    kv_type: str
    depth: int
    prefill: float
    decode: float
    peak_bytes: float


def curve(path: str, kv_type: str, a: argparse.Namespace) -> list[Point]:
    """Every engine at every depth, taking turns."""
    engines = {"oxillama": (sys.executable, max(a.depths))}
    if a.peer_python:
        engines["llama.cpp"] = (a.peer_python, min(max(a.depths), a.peer_depth))
    processes = {}
    for name, (python, deepest) in engines.items():
        processes[name], _ = start(name, python, path, Work(512, a.decode, deepest, 1, kv_type, a.threads, a.cpu_time))
    points = []
    for depth in sorted(a.depths):
        asked = {name: partial(one.ask, depth) for name, one in processes.items() if depth <= engines[name][1]}
        for name, found in in_turns(asked, a.rounds).items():
            points.append(Point(name, kv_type, depth, **medians(found)))
            print(json.dumps(asdict(points[-1])), flush=True)
    for process in processes.values():
        process.close()
    return points


def row(points: list[Point], kv_type: str, depth: int) -> str:
    """A line of the table: speeds as shares of the same engine's at depth 0, their ratio, and memory."""
    at = {(p.engine, p.depth): p for p in points if p.kv_type == kv_type}
    cells = [kv_type, str(depth)]
    for kind in ("prefill", "decode"):
        for engine in ("oxillama", "llama.cpp"):
            point = at.get((engine, depth))
            cells.append(f"{getattr(point, kind) / getattr(at[engine, 0], kind):.2f}" if point else "")
        pair = [at.get((engine, depth)) for engine in ("oxillama", "llama.cpp")]
        cells.append(f"{getattr(pair[0], kind) / getattr(pair[1], kind):.1f}×" if all(pair) else "")
    cells += [f"{p.peak_bytes / 2**20:.0f}" if (p := at.get((e, depth))) else "" for e in ("oxillama", "llama.cpp")]
    return "| " + " | ".join(cells) + " |"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="speed and memory over the depth of a context")
    parser.add_argument("folder", type=Path, help="keeps the model")
    parser.add_argument("--peer-python", help="interpreter that has llama_cpp")
    parser.add_argument("--peer-depth", type=int, default=1 << 30, help="the peer is not measured deeper than that")
    parser.add_argument("--depths", type=int, nargs="+", default=[0, 4096, 16384, 32768])
    parser.add_argument(
        "--kv-types", nargs="+", choices=("f32", "f16", "q8_0", "q4_0"), default=["f16", "q8_0", "q4_0"]
    )
    parser.add_argument("--cpu-time", action="store_true", help="per second of CPU: for one thread of a busy machine")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the points, as JSON")
    for name, value in (("threads", 2), ("decode", 32), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    a = parser.parse_args()
    if 0 not in a.depths:
        parser.error("--depths must have 0, which the others are compared with")
    return a


def main() -> None:
    a = arguments()
    path = str(make_model(a.folder, SHAPE, "Q4_K_M"))
    points = [point for kv_type in a.kv_types for point in curve(path, kv_type, a)]
    print("| KV | depth | prompt | llama.cpp's | ratio | decoding | llama.cpp's | ratio | MiB | llama.cpp's |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for kv_type in a.kv_types:
        for depth in sorted(a.depths):
            print(row(points, kv_type, depth))
    if a.save:
        a.save.write_text(json.dumps([asdict(point) for point in points], indent=1))


if __name__ == "__main__":
    main()
