"""Synthetic schemas: demands that keywords lead to, as schemas again.

Their keywords begin with a zero byte, which `sharing.shared` refuses in what was read: `types` (bits), `excluded`
(texts and numbers), `!pattern`, `!format`, `!multipleOf`, `fractional`, `some` (an item at an index or later),
`property` (a required one: schemas of its name and value), `refuse`. They are kept in `Documents.made`, so that equal
demands are the same objects.
"""

from typing import Any

from oxillama.grammar.json_schema.checks import finite
from oxillama.grammar.json_schema.documents import Documents
from oxillama.grammar.json_schema.literals import ALL, ARRAY, NUMBER, OBJECT, Literal, type_of

__all__ = ["absent", "composite", "excluded", "made", "present"]


def made(documents: Documents, literal: Literal, keyword: str, schema: dict[str, Any], tag: object = None) -> Literal:
    """A synthetic schema at the place of a keyword, the same object each time."""
    key = (id(literal.schema), keyword, tag)
    return Literal(documents.made.setdefault(key, schema), True, literal.base, (literal.path, keyword))


def absent(documents: Documents, literal: Literal, name: str, types: int = ALL) -> Literal:
    schema = documents.made.setdefault(("absent", name, types), {"\0types": types, "properties": {name: False}})
    return literal.sub(schema)


def present(documents: Documents, literal: Literal, name: str) -> Literal:
    schema = documents.made.setdefault(("present", name), {"\0types": OBJECT, "required": [name]})
    return literal.sub(schema)


def composite(value: Any) -> dict[str, Any]:
    """A schema with one array or object as its only instance."""
    if isinstance(value, dict):
        return {
            "\0types": OBJECT,
            "properties": {name: {"enum": [item]} for name, item in value.items()},
            "required": list(value),
            "additionalProperties": False,
            "\0any order": True,
        }
    items = [{"enum": [item]} for item in value]
    return {"\0types": ARRAY, "prefixItems": items, "items": False, "minItems": len(items)}


def excluded(literal: Literal, keyword: str, values: list[Any]) -> dict[str, Any]:
    """A schema of all values but these, as far as they are scalars."""
    texts = frozenset(v for v in values if isinstance(v, str))
    numbers = frozenset(finite(literal, keyword, v) for v in values if type_of(v) == NUMBER)
    types = ALL
    for value in values:
        if value is None or isinstance(value, bool):
            types &= ~type_of(value)
    return {"\0types": types, "\0excluded": (texts, numbers)}
