"""List of the examples: python -m oxillama.examples"""

import ast
from pathlib import Path


def main() -> None:
    """Prints what each example shows, and how to run it."""
    for path in sorted(Path(__file__).parent.glob("[!_]*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        print(f"python -m oxillama.examples.{path.stem:20} {docstring.partition(chr(10))[0]}")


if __name__ == "__main__":
    main()
