"""Prints what extras of the package need, one requirement a line, for `pip install -r`: python .ci/needs.py EXTRA...

Without the package itself, which pip would build. Extras that an extra names are followed; "." is the package's own
dependencies.
"""

import re
import sys
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
OWN = re.compile(r"oxillama-cpu\[(.*)\]")


def needs(extra: str) -> list[str]:
    """Requirements of an extra. Raises KeyError for one that there isn't."""
    found = []
    for need in PROJECT["dependencies"] if extra == "." else PROJECT["optional-dependencies"][extra]:
        own = OWN.fullmatch(need)
        found += [one for name in own[1].split(",") for one in needs(name)] if own else [need]
    return found


if __name__ == "__main__":
    print(*dict.fromkeys(need for extra in sys.argv[1:] for need in needs(extra)), sep="\n")
