"""The command: python -m tests.fuzz gguf --seconds 3600."""

import argparse
import sys
from pathlib import Path

from tests.fuzz.native import build
from tests.fuzz.supervise import STUCK, fuzz
from tests.fuzz.target import NAMES


def arguments():
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description="Looks for inputs that end in anything else than the right result or a typed error.",
        epilog="Inputs that reach new branches stay in FOLDER/TARGET/corpus, and are where the next run begins; what "
        "goes wrong is in FOLDER/TARGET/faults, with a text that says how. Put such an input into "
        "tests/data/fuzz/TARGET once it is mended: the tests run those.",
    )
    parser.add_argument("targets", nargs="+", choices=(*NAMES, "all"), metavar="TARGET", help=", ".join(NAMES))
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target (default 60)")
    parser.add_argument("--runs", type=int, default=1 << 60, help="inputs for each target, instead of seconds")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers (default 0)")
    parser.add_argument("--folder", type=Path, default=Path(".fuzz"), help="default .fuzz")
    parser.add_argument("--stuck", type=float, default=STUCK, help="seconds until an input is said to hang")
    parser.add_argument("--files", type=Path, nargs="+", default=(), help="run these inputs alone")
    parser.add_argument("--distil", type=Path, metavar="FILE", help="pack the inputs that reach all that was reached")
    parser.add_argument("--native", action="store_true", help="see branches of Cython modules, which it compiles")
    return parser.parse_args()


def main():
    given = arguments()
    seconds = given.seconds if given.runs == 1 << 60 else 1e9
    native = build(given.folder.absolute() / "native") if given.native else None
    good = True
    for name in NAMES if "all" in given.targets else given.targets:
        good &= fuzz(
            name, given.folder.absolute() / name, seconds=seconds, runs=given.runs, seed=given.seed, stuck=given.stuck,
            files=[path.absolute() for path in given.files], distil=given.distil and given.distil.absolute(),
            native=native,
        )  # fmt: skip
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
