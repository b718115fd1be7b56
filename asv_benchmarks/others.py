"""oxillama beside the runtimes that people install: python asv_benchmarks/others.py FOLDER --pythons PATH...

llama.cpp (llama-cpp-python), ik_llama.cpp (ik-llama-cpp-python), OpenVINO GenAI, CTranslate2, onnxruntime-genai and
transformers on torch with random weights of the shape of Llama 3.2 1B, which are made in FOLDER. Each runtime is
measured in a process of its own, by the first of the interpreters --pythons that has it, and left out with a line where
none has, or where it fails. The runtimes of equal numbers of bits take turns, --rounds times, and medians are compared:
tokens a second of a prompt of 512 tokens, and of 1, 8 and 64 sequences that are decoded; seconds that loading takes;
and seconds from the start of a fresh process to its first token, with all files in the page cache, and oxillama's
modules compiled to bytecode as pip leaves them. All are given token ids, and those that generate choose greedily.

A table of Markdown is printed at the end: in brackets stands how many times as fast oxillama is with the weights that
the row is compared with. `oxillama, packed` maps packed weights, of which the first load makes a file.
"""

import argparse
import compileall
import json
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.shapes import make_model
from compare import start
from harness import EndedError, Process
from sides import Work

import oxillama

SHAPE = "llama3.2-1b"
SIDES = Path(__file__).with_name("other_sides.py")
CHECKPOINTS = Path(__file__).with_name("checkpoints.py")
OURS = "oxillama"

PACKAGES = {
    "llama.cpp": "llama-cpp-python",
    "ik_llama.cpp": "ik-llama-cpp-python",
    "OpenVINO": "openvino-genai",
    "CTranslate2": "ctranslate2",
    "onnxruntime-genai": "onnxruntime-genai",
    "torch": "torch",
}
WORKS = {
    "1": Work(decode=16),
    "8": Work(sequences=8, decode=8),
    "64": Work(sequences=64, decode=6),
}
PROMPTS = (512, 8)  # of which a fresh process computes the first token
COLUMNS = ("prefill", "decode 1", "decode 8", "decode 64", "load", "cold 512", "cold 8")


@dataclass(frozen=True)
class Entry:
    """A runtime with weights of one kind, and the kind of oxillama's that it is compared with."""

    runtime: str
    weights: str
    against: str

    @property
    def name(self) -> str:
        return f"{self.runtime} {self.weights}"

    @property
    def is_ours(self) -> bool:
        return self.runtime.startswith(OURS)


def same_file(weights: str, *others: str) -> list[Entry]:
    """The runtimes that read one GGUF file."""
    return [Entry(runtime, weights, weights) for runtime in (OURS, f"{OURS}, packed", "llama.cpp", *others)]


GROUPS = {
    "4": [
        *same_file("Q4_0", "ik_llama.cpp"),
        *same_file("Q4_K_M"),
        Entry("OpenVINO", "openvino-int4", "Q4_0"),
        Entry("onnxruntime-genai", "onnxruntime-genai-int4", "Q4_0"),
    ],
    "6": same_file("Q6_K"),
    "8": [
        *same_file("Q8_0", "ik_llama.cpp"),
        Entry("OpenVINO", "openvino-int8", "Q8_0"),
        Entry("CTranslate2", "ctranslate2-int8", "Q8_0"),
    ],
    "16": [
        *same_file("F16"),
        *same_file("BF16"),
        Entry("torch", "transformers", "BF16"),
    ],
}


def find_pythons(pythons: list[str]) -> dict[str, str]:
    """The interpreter of each runtime that one of them has."""
    code = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
    found = {OURS: sys.executable, f"{OURS}, packed": sys.executable}
    for runtime, package in PACKAGES.items():
        for python in pythons:
            probe = subprocess.run([python, "-c", code, package], capture_output=True, text=True, check=False)
            if probe.returncode == 0:
                found[runtime] = python
                print(f"{runtime}: {package} {probe.stdout.strip()}", flush=True)
                break
        else:
            print(f"{runtime}: skipped, no interpreter has {package}", flush=True)
    return found


def weights_of(entry: Entry, folder: Path, python: str) -> str | None:
    """Path of an entry's weights, made if they are not there; None where that fails."""
    if entry.weights == entry.against:
        return str(make_model(folder, SHAPE, entry.weights))
    path = folder / entry.weights
    if not path.exists():
        made = subprocess.run([python, str(CHECKPOINTS), str(folder), entry.weights], check=False)
        if made.returncode:
            print(f"{entry.name}: skipped, its weights can't be made", flush=True)
            return None
    return str(path)


@dataclass(frozen=True)
class Side:
    """An entry that is measured: what starts its processes, and seconds or tokens a second by column."""

    entry: Entry
    python: str
    path: str
    found: dict[str, list[float]]

    def note(self, column: str, value: float) -> None:
        self.found.setdefault(column, []).append(value)

    def cold(self, prompt: int, work: Work) -> float | None:
        """Seconds from the start of a process to its first token; None where it makes none."""
        command = [self.python, str(SIDES), self.entry.runtime, self.path, json.dumps(asdict(work))]
        began = time.perf_counter()
        with subprocess.Popen([*command, "--first", str(prompt)], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            if not any(line.startswith("{") for line in process.stdout):
                print(f"{self.entry.name} made no token", flush=True)
                return None
            return time.perf_counter() - began


def start_all(sides: list[Side], work: Work) -> list[tuple[Side, Process]]:
    """Processes that have loaded the weights. That they are packed changes loading alone, so that these end here."""
    started = []
    for side in sides:
        try:
            process, seconds = start(side.entry.runtime, side.python, side.path, work, SIDES)
        except EndedError as error:  # of that runtime, as with a limit of its sequences: the others go on
            print(f"{side.entry.name}: {error}", flush=True)
            continue
        side.note("load", seconds)
        if side.entry.runtime == f"{OURS}, packed":
            process.close()
        else:
            started.append((side, process))
    return started


def measure_speeds(sides: list[Side], work: Work, rounds: int) -> None:
    """All load the weights and then take turns."""
    started = start_all(sides, work)
    for _ in range(rounds):
        for side, process in list(started):
            try:
                speeds = process.ask()
            except (EndedError, OSError) as error:  # of that runtime
                print(f"{side.entry.name}: {error}", flush=True)
                started.remove((side, process))
                continue
            side.note(f"decode {work.sequences}", speeds["decode"])
            if "prefill" in speeds:
                side.note("prefill", speeds["prefill"])
    for _, process in started:
        process.close()


def measure_cold(sides: list[Side], work: Work, rounds: int) -> None:
    """Fresh processes by turns. What was measured before left their files in the page cache."""
    for _ in range(rounds):
        for side in sides:
            for prompt in PROMPTS:
                seconds = side.cold(prompt, work)
                if seconds is not None:
                    side.note(f"cold {prompt}", seconds)


def measure(entries: list[Entry], pythons: dict[str, str], a: argparse.Namespace) -> list[Side]:
    sides = []
    for entry in entries:
        python = pythons.get(entry.runtime)
        path = weights_of(entry, a.folder, python) if python else None
        if python and path:
            sides.append(Side(entry, python, path, {}))
    for name in a.sequences:
        measure_speeds(sides, replace(WORKS[name], threads=a.threads), a.rounds)
    measure_cold(sides, Work(threads=a.threads), a.cold_rounds)
    for side in sides:
        print(f"{side.entry.name}: {json.dumps(side.found)}", flush=True)
    return sides


def row(side: Side, ours: dict[str, dict[str, float]]) -> str:
    """A line of the table."""
    cells = [side.entry.runtime, side.entry.weights]
    for column in COLUMNS:
        values = side.found.get(column)
        base = ours[side.entry.against].get(column)
        if not values or not base:
            cells.append("")
            continue
        value = statistics.median(values)
        is_time = column.startswith(("load", "cold"))
        ratio = value / base if is_time else base / value
        text = f"{value:.2f} s" if is_time else f"{value:.1f}"
        cells.append(text if side.entry.is_ours else f"{text} ({ratio:.2f}×)")
    return "| " + " | ".join(cells) + " |"


def print_table(sides: list[Side]) -> None:
    ours = {
        side.entry.weights: {name: statistics.median(values) for name, values in side.found.items()}
        for side in sides
        if side.entry.runtime == OURS
    }
    titles = ["runtime", "weights", *COLUMNS]
    print("| " + " | ".join(titles) + " |\n" + "|---" * len(titles) + "|")
    for side in sides:
        print(row(side, ours))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="oxillama beside the runtimes that people install")
    parser.add_argument("folder", type=Path, help="keeps the models")
    parser.add_argument("--pythons", nargs="+", default=[], help="interpreters that have the other runtimes")
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS), help="bits of a weight")
    parser.add_argument("--sequences", nargs="*", choices=WORKS, default=list(WORKS), help="that are decoded together")
    for name, value in (("threads", 2), ("rounds", 5), ("cold-rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


def main() -> None:
    a = arguments()
    compileall.compile_dir(Path(oxillama.__file__).parent, quiet=1)
    pythons = find_pythons(a.pythons)
    print_table([side for group in a.groups for side in measure(GROUPS[group], pythons, a)])


if __name__ == "__main__":
    main()
