"""Whether a commit made a benchmark slower: python asv_benchmarks/check.py BASE [HEAD] [--bench REGEX]

BASE and HEAD are commits, or folders of a checkout that is built; HEAD is the working tree if it is left out. A commit
is built in a worktree below asv_benchmarks/.asv/check, which is kept for the next time. Both sides run the benchmarks
of this tree, those of asv whose names begin with `time_`, in processes that take turns, and CPU time counts: another
program on the same cores stretches it a little, and both sides alike.

A benchmark is slower where the median of the ratios of neighbours exceeds 1 + threshold, and so does the lower end of
the interval that holds their median with 95 % certainty (order statistics of a binomial distribution: no shape is
assumed), so that noise alone is no failure. Exit status: 0, 1 where one is slower, 2 where nothing could be measured.
"""

import argparse
import importlib
import inspect
import itertools
import math
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import harness

HERE = Path(__file__).parent
ROOT = HERE.parent
KEPT = HERE / ".asv/check"
LEAST_SECONDS = 0.05  # of CPU time for a sample
MODULES = ("attention", "chosen", "delta", "forward", "grammar", "recurrent", "sampling", "text")


def cases(pattern: str) -> Iterator[tuple[str, type, str, tuple[Any, ...]]]:
    """Name, class, method and arguments of each benchmark whose name has the pattern."""
    sys.path.insert(0, str(HERE))
    for file in MODULES:
        module = importlib.import_module(f"benchmarks.{file}")
        for _, kind in sorted(inspect.getmembers(module, inspect.isclass)):
            if kind.__module__ != module.__name__:
                continue
            for method in sorted(m for m in dir(kind) if m.startswith("time_")):
                for arguments in itertools.product(*_columns(getattr(kind, "params", ()))):
                    name = f"{file}.{kind.__name__}.{method}({', '.join(map(repr, arguments))})"
                    if re.search(pattern, name):
                        yield name, kind, method, arguments


def _columns(params: Any) -> list[Any]:
    """Parameters as asv takes them: values of one, or lists of values."""
    if params and all(isinstance(column, (list, tuple)) for column in params):
        return list(params)
    return [params] if params else []


def cpu_seconds(call: Callable[[], object]) -> float:
    """CPU time of one call: so many together that they take LEAST_SECONDS."""
    n = 1
    while True:
        start = time.process_time()
        for _ in range(n):
            call()
        spent = time.process_time() - start
        if spent >= LEAST_SECONDS:
            return spent / n
        n = max(2 * n, math.ceil(1.2 * n * LEAST_SECONDS / max(spent, 1e-4)))


def serve(pattern: str) -> None:
    """One side: says what it found, then measures the benchmark whose number each line of input gives."""
    found = list(cases(pattern))

    def measure(line: str) -> float | str:
        _, kind, method, arguments = found[int(line)]
        instance = kind()
        try:
            getattr(instance, "setup", lambda *_: None)(*arguments)
            answer = cpu_seconds(lambda: getattr(instance, method)(*arguments))
            getattr(instance, "teardown", lambda *_: None)(*arguments)
        except (NotImplementedError, AttributeError, TypeError, ImportError) as e:  # asv skips the first, too
            return f"{type(e).__name__}: {e}"
        return answer

    harness.serve(measure, [name for name, *_ in found])


class Side:
    """A process with the package of one tree, and one thread."""

    def __init__(self, tree: Path, pattern: str) -> None:
        environment = os.environ | {"PYTHONPATH": str(tree), "OXILLAMA_BENCH_THREADS": "1"}
        command = [sys.executable, __file__, "--serve", "--bench", pattern]
        self.process = harness.Process(command, cwd=tree, env=environment)
        self.names: list[str] = self.process.read()

    def measure(self, i: int) -> float | str:
        """Seconds of CPU time, or why there are none."""
        found: float | str = self.process.ask(i)
        return found

    def close(self) -> None:
        self.process.close()


def tree_of(revision: str) -> Path:
    """A built checkout of a commit, or the folder itself."""
    if Path(revision, "oxillama").is_dir():
        return Path(revision).resolve()
    command = ["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"]
    commit = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    if not commit:
        print(f"{revision} is neither a commit nor a checkout", file=sys.stderr)
        sys.exit(2)
    tree = KEPT / commit[:12]
    if not tree.exists():
        subprocess.run(["git", "-C", str(ROOT), "worktree", "add", "--detach", str(tree), commit], check=True)
    return built(tree)


def built(tree: Path) -> Path:
    """The tree, built in its place. Raises CalledProcessError."""
    subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=tree, check=True)
    return tree


def least_median(ratios: list[float]) -> float:
    """The lower end of the 95 % interval of the median."""
    n, chance, rank = len(ratios), 0.0, 0
    while chance + math.comb(n, rank) / 2**n <= 0.025:
        chance += math.comb(n, rank) / 2**n
        rank += 1
    return sorted(ratios)[max(0, rank - 1)] if rank else 0.0  # of five or fewer nothing is certain


def verdict(ratios: list[float], threshold: float) -> str:
    """What the ratios of a benchmark's times say: "slower", "faster" or nothing."""
    if least_median(ratios) > 1 + threshold:
        return "slower"
    return "faster" if least_median([1 / r for r in ratios]) > 1 + threshold else ""


class NotMeasuredError(Exception):
    """A benchmark that one side can't run; the text is its reason."""


def seconds(side: Side, name: str) -> float:
    """CPU time of a benchmark. Raises NotMeasuredError."""
    found = side.measure(side.names.index(name))
    if isinstance(found, str):
        raise NotMeasuredError(found)
    return found


def compare(base: Side, head: Side, rounds: int, threshold: float) -> dict[str, str]:
    """Measures and shows all benchmarks that both have; the verdict of each that both could run."""
    verdicts = {}
    for name in [name for name in head.names if name in base.names]:
        measures = {side: partial(seconds, side, name) for side in (base, head)}
        try:
            found = harness.in_turns(measures, rounds, swap=True)
        except NotMeasuredError as reason:
            print(f"    -  {name}: {reason}", flush=True)
            continue
        ratios = [after / before for before, after in zip(found[base], found[head], strict=True)]
        verdicts[name] = verdict(ratios, threshold)
        print(f"{statistics.median(ratios):5.2f}  {name} {verdicts[name]}".rstrip(), flush=True)
    return verdicts


def status(revisions: list[str], pattern: str, rounds: int, threshold: float) -> int:
    """Measures two revisions; the exit status. Raises CalledProcessError for one that can't be built; OSError."""
    base, head = (Side(tree_of(revision), pattern) for revision in revisions)
    shared = set(base.names) & set(head.names)
    if not shared:
        print(f"no benchmark has {pattern!r} in its name")
        return 2
    verdicts = compare(base, head, rounds, threshold)
    base.close()
    head.close()
    slower = sum(found == "slower" for found in verdicts.values())
    print(f"{slower} slower of {len(verdicts)}; {len(shared) - len(verdicts)} could not be measured")
    return 2 if not verdicts else 1 if slower else 0


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="whether a commit made a benchmark slower")
    parser.add_argument("base", nargs="?", help="a commit, or a folder of a checkout that is built")
    parser.add_argument("head", nargs="?", default=str(ROOT), help="the same; this tree if left out")
    parser.add_argument("--bench", default=r"^forward\.", help="regular expression of names (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="times that both sides are measured (default: 15)")
    parser.add_argument("--threshold", type=float, default=0.05, help="of a slow-down (default: 0.05)")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args(arguments)
    if a.serve:
        return serve(a.bench)
    if a.base is None or a.rounds < 6:
        parser.error("name a commit to compare with, and six rounds at least: of fewer no noise can be told")
    try:
        sys.exit(status([a.base, a.head], a.bench, a.rounds, a.threshold))
    except (subprocess.CalledProcessError, OSError, harness.EndedError) as error:  # no build, no git, a lost side
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
