"""python -m tests.memory [--few N] [PART ...]: denies each operation every allocation that it makes, one at a time.

Prints a line for each operation and allocator, and the first thing that went wrong with it. Exit status 1 if anything
did. --few: a sample of so many of the allocations of what an engine does. PART: operations whose line has all of them.
"""

import argparse
import sys
import tempfile
import time
import traceback

from tests.memory.hook import sources
from tests.memory.operations import engines, kernels
from tests.memory.trial import exhaust


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.memory")
    parser.add_argument("--few", type=int, default=0, metavar="N")
    parser.add_argument("parts", nargs="*", help="part of the name of an operation, or kernels, numpy, python")
    options = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        allocators = sources(folder)
    for group in (kernels, engines):
        for name, operation in group().items():
            for source_name, source in allocators.items():
                title = f"{group.__name__}: {name}: {source_name}"
                if options.parts and not all(part in title for part in options.parts):
                    continue
                wrong += not report(title, operation, source, options.few if group is engines else 0)
    return bool(wrong)


def report(title, operation, source, few):
    began = time.perf_counter()
    try:
        asked, failed = exhaust(operation, source, few)
    except Exception:
        print(f"{title}: WRONG", flush=True)
        traceback.print_exc()
        return False
    print(f"{title}: {asked} allocations, {failed} needed, {time.perf_counter() - began:.1f} s", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
