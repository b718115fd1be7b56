"""Literals: schemas with their place and sign (`Literal`), types as bits, errors with their place."""

from decimal import Decimal
from fractions import Fraction
from typing import Any

from oxillama.errors import GrammarError
from oxillama.grammar.json_schema.literal import Literal

__all__ = [
    "ALL",
    "ARRAY",
    "FALSE",
    "NULL",
    "NUMBER",
    "OBJECT",
    "STRING",
    "TRUE",
    "TYPES",
    "Key",
    "Literal",
    "Path",
    "Schema",
    "Ways",
    "fraction",
    "pointer",
    "refusal",
    "type_of",
]

Schema = Any  # dict | bool, as json.loads returns it
Key = tuple[int, bool, str]  # of a literal
Ways = list[list[Literal]]  # alternatives, each a conjunction
Path = Any  # (path of the parent, key), or None for the root: written out when an error needs it

NULL, TRUE, FALSE, NUMBER, STRING, ARRAY, OBJECT = (1 << i for i in range(7))
ALL = (1 << 7) - 1
TYPES = {
    "null": NULL, "boolean": TRUE | FALSE, "number": NUMBER, "integer": NUMBER, "string": STRING, "array": ARRAY,
    "object": OBJECT,
}  # fmt: skip


def pointer(path: Path) -> str:
    """A path as a JSON pointer in a URI fragment."""
    keys = []
    while path is not None:
        path, key = path
        keys.append(str(key).replace("~", "~0").replace("/", "~1"))
        if len(keys) > 100:
            keys.append("...")
            break
    return "#" + "".join("/" + key for key in reversed(keys))


def refusal(path: Path, keyword: str, reason: str) -> GrammarError:
    """The error for a keyword that can't be honoured, with its place."""
    return GrammarError(f"{keyword} at {pointer(path)}: {reason}")


def placed(path: Path, error: GrammarError) -> GrammarError:
    """The error with the place of a schema added, if it names none."""
    return error if " at #" in str(error) else refusal(path, "schema", str(error))


def type_of(value: object) -> int:
    """The bit of a JSON value."""
    if isinstance(value, bool):
        return TRUE if value else FALSE
    if value is None:
        return NULL
    if isinstance(value, int | float | Decimal):
        return NUMBER
    for kind, bit in ((str, STRING), (list, ARRAY), (dict, OBJECT)):
        if isinstance(value, kind):
            return bit
    raise GrammarError(f"a {type(value).__name__} is no value of JSON")


def fraction(value: int | float | Decimal) -> Fraction:
    """A number exactly as written: for a float, the shortest decimal that reads as it."""
    return Fraction(value) if isinstance(value, int) else Fraction(repr(value) if isinstance(value, float) else value)
