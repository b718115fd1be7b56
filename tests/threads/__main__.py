"""python -m tests.threads [--seconds N] [--threads N] [--numbers N]: everything at once in many threads.

It takes so many seconds for each of three engines, and what one thread needs for each call alone.

Exit status 1 if a result was another one than in a single thread.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.threads.stress import alone, engines, together


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.threads")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=6)
    parser.add_argument("--numbers", type=int, default=4, help="variants of each call")
    parser.add_argument("--switch", type=float, default=1e-6, help="seconds until the interpreter switches threads")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for name, engine, calls in engines(Path(folder)):
            expected = alone(calls, options.numbers)
            print(f"{name}: {len(expected)} different calls in one thread", flush=True)
            n, wrong = together(
                calls,
                expected,
                n_threads=options.threads,
                seconds=options.seconds,
                seed=options.seed,
                switch=options.switch,
            )
            print(f"{name}: {n} calls in {options.threads} threads: {wrong or 'all right'}", flush=True)
            failed = failed or bool(wrong)
            engine.close()
    return failed


if __name__ == "__main__":
    sys.exit(main())
