"""Unevaluated properties and items: `unevaluatedProperties` and `unevaluatedItems`.

A branch of the tableau has the schemas that hold, and links tell which of them are parts of which: so the evaluated
properties are known, and the keyword becomes `additionalProperties` (or `items`) with the names (or indices) of all of
them. Where several ways of an `anyOf` may hold together, each combination is a way of its own while links are kept.
"""

from collections.abc import Iterable
from typing import Any

from oxillama.grammar.json_schema.branch import Branch
from oxillama.grammar.json_schema.checks import listed, mapped
from oxillama.grammar.json_schema.documents import Documents
from oxillama.grammar.json_schema.literals import ARRAY, OBJECT, Literal, refusal

__all__ = ["KEYWORDS", "Links", "combinations", "resolve"]

KEYWORDS = frozenset(("unevaluatedProperties", "unevaluatedItems"))
MAX_WAYS = 5
Key = tuple[int, bool, str]


class Links:
    """The literals that each literal demands, and the others of the same way."""

    def __init__(self) -> None:
        self.parents: dict[Key, list[tuple[Key, frozenset[Key]]]] = {}

    def add(self, parent: Literal, way: Iterable[Literal]) -> None:
        """Adds the children in one way of a fork: they count where all of them hold."""
        together = frozenset(literal.key for literal in way)
        for key in together:
            if key[1]:
                self.parents.setdefault(key, []).append((parent.key, together))

    def below(self, top: Literal, seen: set[Key]) -> set[Key]:
        """All literals that hold and are parts of a literal, itself included."""
        children: dict[Key, list[Key]] = {}
        for child, parents in self.parents.items():
            for parent, together in parents:
                if together <= seen:
                    children.setdefault(parent, []).append(child)
        found = {top.key}
        todo = [top.key]
        while todo:
            for child in children.get(todo.pop(), ()):
                if child not in found:
                    found.add(child)
                    todo.append(child)
        return found


def combinations(literal: Literal, each: list[Literal]) -> list[list[Literal]]:
    """All ways for some of the alternatives to hold."""
    if len(each) > MAX_WAYS:
        raise refusal(
            literal.path, "anyOf", f"more than {MAX_WAYS} alternatives beside unevaluated properties or items"
        )
    return [[way for i, way in enumerate(each) if chosen >> i & 1] for chosen in range(1, 1 << len(each))]


def resolve(documents: Documents, branch: Branch, links: Links) -> None:
    """Replaces the unevaluated keywords of a branch by plain schemas."""
    for top in branch.unevaluated:
        held = links.below(top, branch.seen)
        # A synthetic schema (of `enum` and `const`) is no subschema: it evaluates nothing.
        if "unevaluatedProperties" in top.schema and branch.types & OBJECT:
            literals = [
                literal for literal in branch.objects if literal.key in held and "\0types" not in literal.schema
            ]
            schema = _of_objects(top, literals)
            if schema is not None:
                branch.objects += (_kept(documents, top, "unevaluatedProperties", schema),)
        if "unevaluatedItems" in top.schema and branch.types & ARRAY:
            literals = [literal for literal in branch.arrays if literal.key in held and "\0types" not in literal.schema]
            schema = _of_arrays(top, literals)
            if schema is not None:
                branch.arrays += (_kept(documents, top, "unevaluatedItems", schema),)


def _kept(documents: Documents, top: Literal, keyword: str, schema: dict[str, Any]) -> Literal:
    """The synthetic schema, the same object each time for the same names or indices."""
    key = (
        id(top.schema),
        keyword,
        *(tuple(map(_name, v)) if isinstance(v, dict | list) else None for v in schema.values()),
    )
    return Literal(documents.made.setdefault(key, schema), True, top.base, (top.path, keyword))


def _name(part: object) -> object:
    return part if isinstance(part, str | bool) else id(part)


def _of_objects(top: Literal, literals: list[Literal]) -> dict[str, Any] | None:
    names: dict[str, bool] = {}
    patterns: dict[str, bool] = {}
    for literal in literals:
        schema = literal.schema
        if "additionalProperties" in schema or ("unevaluatedProperties" in schema and literal.key != top.key):
            return None
        for keyword, known in (("properties", names), ("patternProperties", patterns)):
            if keyword in schema:
                known.update(dict.fromkeys(mapped(literal, keyword), True))
    rest = top.schema["unevaluatedProperties"]
    return {"properties": names, "patternProperties": patterns, "additionalProperties": rest}


def _of_arrays(top: Literal, literals: list[Literal]) -> dict[str, Any] | None:
    n = 0
    contained = []
    for literal in literals:
        schema = literal.schema
        if "items" in schema or ("unevaluatedItems" in schema and literal.key != top.key):
            return None
        if "prefixItems" in schema:
            n = max(n, len(listed(literal, "prefixItems")))
        if "contains" in schema:
            if literal.base != top.base:
                raise refusal(top.path, "unevaluatedItems", "a `contains` of another resource counts")
            contained.append(schema["contains"])
    rest = top.schema["unevaluatedItems"]
    if contained:
        return {"prefixItems": [True] * n, "items": {"anyOf": [rest, *contained]}, "\0contained": contained}
    return {"prefixItems": [True] * n, "items": rest}
