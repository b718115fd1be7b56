"""The loop: an input is changed, run, and kept if it does what none did before."""

import hashlib
import os
import sys
import time
import traceback
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.fuzz import coverage, mutate, native
from tests.fuzz.target import Target

__all__ = ["Corpus", "Current", "Finding", "Fuzzer", "run_once", "shrunk"]

HERE = str(Path(__file__).parents[2])
MAX_TOLD = 500  # features that are texts: beyond these they are taken to hold parts of the input
OWN = str(Path(__file__).parent)


@dataclass(frozen=True)
class Finding:
    """What is wrong with an input. key: equal for what is likely the same fault. text: for the reader."""

    key: str
    data: bytes
    text: str

    @property
    def name(self):
        return f"{self.key.split(' ')[0].lower()}-{hashlib.sha256(self.key.encode()).hexdigest()[:8]}"


class Current:
    """The input that is being run, in a file: who watches the process knows what killed it, or keeps it so long."""

    def __init__(self, path: Path):
        self._fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)

    def put(self, data):
        os.pwrite(self._fd, len(data).to_bytes(8, "little") + data, 0)

    @staticmethod
    def read(path: Path):
        raw = path.read_bytes() if path.exists() else b""
        return raw[8 : 8 + int.from_bytes(raw[:8], "little")]


def place_of(error):
    """The innermost lines of ours, outside of the fuzzer, that an exception came through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith((HERE, "oxillama"))]
    frames = [f for f in frames if not f.filename.startswith(OWN) or "targets" in f.filename] or frames
    return " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames[-2:]))


def found(error, data):
    text = "".join(traceback.format_exception(error))
    return Finding(f"{type(error).__name__} {place_of(error)}", data, text)


def run_once(target: Target, data, *, compare=False):
    """(features, finding or None) of one input."""
    native.begin()
    coverage.begin(target.work[0] + target.work[1] * len(data), compare=compare)
    told, finding = (), None
    try:
        told = target.run(data) or ()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        finding = found(error, data)
    seen = coverage.features()
    seen.update(native.features())
    seen.update(told)
    return seen, finding


def memory_of(target: Target, data):
    """A finding, if more was allocated than an input of that size may need."""
    most = target.memory[0] + target.memory[1] * len(data)
    tracemalloc.start()
    try:
        run_once(target, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if peak <= most:
        return None
    return Finding("Memory", data, f"{peak} bytes were allocated for an input of {len(data)}, at most {most} may be")


def shrunk(target: Target, finding: Finding, current, tries=600):
    """The same fault from a smaller input: pieces are left out as long as it stays."""
    best, step = finding, max(1, len(finding.data) // 2)
    while step and tries > 0:
        at = 0
        while at < len(best.data) and tries > 0:
            tries -= 1
            data = best.data[:at] + best.data[at + step :]
            current.put(data)
            again = run_once(target, data)[1]
            if again is not None and again.key == finding.key:
                best = again
            else:
                at += step
        step //= 2
    return best


class Corpus:
    """Inputs that each did something first. The smallest that does a thing stands for it."""

    def __init__(self):
        self.entries = []
        self.best = {}  # feature -> (size, number of the entry)
        self.hits = {}  # feature -> how often it was seen
        self.n_told = 0  # features that are texts
        self.pairs = {}  # number of the entry -> what it had compared

    def new(self, seen):
        """What none did before. Counts what is seen."""
        for feature in seen:
            self.hits[feature] = self.hits.get(feature, 0) + 1
        return {f for f in seen if f not in self.best and (isinstance(f, int) or self.n_told < MAX_TOLD)}

    def add(self, data, seen, new):
        """Keeps an input."""
        self.entries.append(data)
        self.n_told += sum(isinstance(f, str) for f in new)
        for feature in seen:
            if feature not in self.best or self.best[feature][0] > len(data):
                self.best[feature] = len(data), len(self.entries) - 1

    def choose(self, draw: Random):
        """The number of an entry: of those that came last, or of one that does what few do."""
        n = len(self.entries)
        if draw.random() < 0.3:
            return draw.randrange(max(0, n - max(8, n // 8)), n)
        rare = min((draw.choice(self.ordered) for _ in range(4)), key=lambda feature: self.hits.get(feature, 0))
        return self.best[rare][1]

    @property
    def ordered(self):
        """Features in the order in which they were first seen, which is the same in every run."""
        if len(getattr(self, "_ordered", ())) != len(self.best):
            self._ordered = list(self.best)
        return self._ordered


class Fuzzer:
    """One run. found: findings by their key. kept: called with each input that is new."""

    def __init__(self, target: Target, draw: Random, current: Current, kept=lambda data: None):
        self.target, self.draw, self.current, self.kept = target, draw, current, kept
        self.corpus, self.found, self.n_runs, self.started = Corpus(), {}, 0, time.monotonic()
        mutate.known[:] = sorted(coverage.numbers)
        words = sorted({*target.words, *(w.encode("utf-8", "surrogatepass") for w in coverage.words)})
        self.mutators = [*target.mutators, *([mutate.with_word(words)] if words else [])]

    def run(self, data, always=False):
        """Runs an input, and keeps it if it is new, or `always`. Returns what is wrong, unless that was seen before."""
        self.current.put(data)
        self.n_runs += 1
        seen, finding = run_once(self.target, data)
        new = self.corpus.new(seen)
        if finding is None and new:
            if not always:
                data, seen = self.trimmed(data, seen, new)
            self.kept(data)
            finding = memory_of(self.target, data)
        if new or always:
            self.corpus.add(data, seen, new)
        if finding is None or finding.key in self.found:
            return None
        self.found[finding.key] = finding
        return finding

    def trimmed(self, data, seen, new, tries=24):
        """An input without pieces that what is new of it doesn't need, and what it does."""
        step = len(data) // 2
        while step and tries > 0:
            at = 0
            while at < len(data) and tries > 0:
                tries -= 1
                shorter = data[:at] + data[at + step :]
                self.current.put(shorter)
                does, finding = run_once(self.target, shorter)
                if finding is None and new <= does:
                    data, seen = shorter, does
                else:
                    at += step
            step //= 2
        return data, seen

    def mutated(self):
        """A new input."""
        draw, corpus = self.draw, self.corpus
        i = corpus.choose(draw)
        data, other = corpus.entries[i], corpus.entries[draw.randrange(len(corpus.entries))]
        kind = draw.random()
        if kind < 0.12:
            return self.repaired(data, self.pairs_of(i))
        for _ in range(draw.choice((1, 1, 1, 2, 2, 3, 4, 8))):
            data = draw.choice(self.mutators)(draw, data, other)
        data = data[: self.target.max_bytes]
        return self.repaired(data, self.compared(data)) if kind < 0.25 else data

    def repaired(self, data, pairs):
        """An input with values that it was compared with, in the place of its own: lengths that are right again."""
        for _ in range(self.draw.choice((1, 1, 2, 4)) if pairs else 0):
            data = mutate.replaced_pair(self.draw, data, self.draw.choice(pairs))
        return data[: self.target.max_bytes]

    def pairs_of(self, i):
        pairs = self.corpus.pairs
        if i not in pairs:
            pairs[i] = self.compared(self.corpus.entries[i])
        return pairs[i]

    def compared(self, data):
        """What an input had compared."""
        self.current.put(data)
        run_once(self.target, data, compare=True)
        return coverage.compared()

    def __str__(self):
        seconds = time.monotonic() - self.started
        return (
            f"{self.target.name}: {self.n_runs} runs in {seconds:.0f} s, {len(self.corpus.entries)} inputs with "
            f"{len(self.corpus.best)} features of {coverage.n_places()} places, {len(self.found)} faults"
        )


def say(text):
    print(text, file=sys.stderr, flush=True)
