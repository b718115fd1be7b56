"""The process that runs inputs: python -m tests.fuzz.worker JSON. `supervise` starts it, and again when it dies.

Options are told as JSON: target, folder, seconds, runs, seed, files (to be run and no others), keep (whether the folder
gets what is new), native (a folder with modules, or nothing), distil (a file for what is needed, or nothing).
It ends with 0, or 1 if anything is wrong with an input.
"""

import faulthandler
import hashlib
import json
import os
import resource
import sys
import time
from pathlib import Path
from random import Random

from tests.fuzz import coverage, native
from tests.fuzz.loop import Current, Fuzzer, run_once, say, shrunk
from tests.fuzz.stored import STORED, by_size, pack, stored
from tests.fuzz.target import load, sees

MEMORY = 4 << 30  # of address space beyond what the process has when it is ready


def limit_memory():
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    if pages:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, hard))


def report(fuzzer, finding, folder: Path, shrink):
    """Puts a fault into the folder, as small as it gets."""
    say(f"\n{fuzzer.target.name}: {finding.key}\n{finding.text}")
    if shrink and finding.key != "Memory":
        finding = shrunk(fuzzer.target, finding, fuzzer.current)
    faults = folder / "faults"
    faults.mkdir(parents=True, exist_ok=True)
    (faults / finding.name).write_bytes(finding.data)
    (faults / f"{finding.name}.txt").write_text(finding.text, errors="backslashreplace")
    say(f"written: {faults / finding.name}, {len(finding.data)} bytes")


def main(options):
    faulthandler.enable()
    os.fsync = lambda descriptor: None  # what is written here is looked at by this process alone
    if options["native"]:
        native.install(Path(options["native"]))
    coverage.install(sees(options["target"]))
    target, folder = load(options["target"]), Path(options["folder"])
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    limit_memory()

    def keep(data):
        if options["keep"]:
            (corpus / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)

    fuzzer = Fuzzer(target, Random(options["seed"]), Current(folder / "current"), keep)
    if options["files"]:
        first = [Path(name).read_bytes() for name in options["files"]]
    else:
        first = [*target.seeds(), *stored(STORED / target.name), *(stored(corpus) if options["keep"] else [])]
    for data in first:
        finding = fuzzer.run(data, always=True)
        if finding is not None:
            report(fuzzer, finding, folder, not options["files"])
    if not options["files"]:
        go_on(fuzzer, options, folder)
    say(str(fuzzer))
    if options["distil"]:
        distil(fuzzer, Path(options["distil"]))
    return int(bool(fuzzer.found))


def go_on(fuzzer, options, folder):
    end, shown = time.monotonic() + options["seconds"], time.monotonic()
    last = fuzzer.n_runs + options["runs"]
    while fuzzer.n_runs < last and time.monotonic() < end:
        finding = fuzzer.run(fuzzer.mutated())
        if finding is not None:
            report(fuzzer, finding, folder, True)
        if time.monotonic() > shown + 20:
            shown = time.monotonic()
            say(str(fuzzer))


def distil(fuzzer, path: Path):
    """Writes inputs, the smallest first, that pass a place that neither seeds nor those before pass."""
    seeds, places, needed = fuzzer.target.seeds(), set(), []
    for data in [*seeds, *sorted(set(fuzzer.corpus.entries) - set(seeds), key=by_size)]:
        fuzzer.current.put(data)
        seen = run_once(fuzzer.target, data)[0]
        new = {feature >> 3 if isinstance(feature, int) else feature for feature in seen} - places
        places |= new
        if new and data not in seeds:
            needed.append(data)
    pack(needed, path)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
