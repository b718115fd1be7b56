"""Sharing of equal sub-schemas: schemas written out in many places become one object.

The compiler knows schemas by identity: demands with the same schemas have one rule, and are expanded once. Documents
that other programs write repeat themselves a lot, and so would all combinations of their alternatives.
"""

from typing import Any

from oxillama.grammar.json_schema.shared_parts import Sharing, refuse_reserved

__all__ = ["shared"]

# Texts that say nothing about instances, in a schema; in a map of schemas these are names.
_NOTES = frozenset(("title", "description", "$comment", "markdownDescription"))
_MAPS = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"))
_VALUES = frozenset(("const", "enum", "default", "examples"))


def shared(schema: Any) -> Any:
    """The schema with equal parts as the same object. Parts count as equal if they differ in titles and descriptions
    alone; the first of them remains. Numbers are equal if they are written alike, and objects if their keys have the
    same order. A schema that is too deep, or no tree, is returned as it is.

    Raises GrammarError for keys that begin with a zero byte: they are those of synthetic schemas.
    """
    try:
        return Sharing(_NOTES, _MAPS, _VALUES).of(schema, False, False)
    except RecursionError:
        refuse_reserved(schema)
        return schema
