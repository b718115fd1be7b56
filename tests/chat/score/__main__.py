"""Command line of the scores."""

import argparse
import importlib
from pathlib import Path

TABLES = ("prompts", "engine_prompts", "reuse")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chat.score", description=__doc__)
    parser.add_argument("folder", type=Path, help="of recorded templates")
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)}; all of them by default")
    args = parser.parse_args()
    for name in args.tables or TABLES:
        if name not in TABLES:
            parser.error(f"there is no table {name!r}: they are {', '.join(TABLES)}")
        for line in importlib.import_module(f"tests.chat.score.{name}").table(args.folder):
            print(line, flush=True)
        print()


if __name__ == "__main__":
    main()
