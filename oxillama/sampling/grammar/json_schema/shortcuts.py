"""What is seen of objects at a glance, before the alternatives of a demand are multiplied: ways that can't hold beside
what holds already, and ways that hold anyhow."""

from collections.abc import Iterable
from typing import Any

from oxillama.sampling.grammar.json_schema.literals import OBJECT, Literal

__all__ = ["Held"]


class Held:
    """What the schemas that hold say of an object's properties. names: all that there may be, None for any."""

    def __init__(self, objects: Iterable[Literal]) -> None:
        self.required: set[str] = set()
        self.names: set[str] | None = None
        self.banned: set[str] = set()
        self.properties: dict[str, list[Literal]] = {}
        self.size = 0  # properties of all of them
        for literal in objects:
            schema = literal.schema
            if isinstance(schema.get("required"), list):
                self.required.update(name for name in schema["required"] if isinstance(name, str))
            properties = schema.get("properties", {})
            if not isinstance(properties, dict):
                continue
            self.size += 1 + len(properties)
            for name, sub in properties.items():
                self.properties.setdefault(name, []).append(literal._replace(schema=sub))
                if sub is False:
                    self.banned.add(name)
            if schema.get("additionalProperties") is False and not schema.get("patternProperties"):
                self.names = set(properties) if self.names is None else self.names & set(properties)

    def forbids(self, name: str) -> bool:
        return name in self.banned or (self.names is not None and name not in self.names)

    def excludes(self, literal: Literal) -> bool:
        """Whether a made-up schema of objects can't hold."""
        schema = literal.schema
        if not literal.positive or not isinstance(schema, dict) or schema.get("\0types") != OBJECT:
            return False
        if "\0property" in schema:
            besides = schema["\0property"][2]
            return self.names is not None and self.names <= besides | self.banned
        if any(self.forbids(name) for name in schema.get("required", ())):
            return True
        return any(self._contradicts(literal, name, sub) for name, sub in schema.get("properties", {}).items())

    def _contradicts(self, literal: Literal, name: str, sub: Any) -> bool:
        """Whether a property is to be absent that is required, or to be what it must not be."""
        if sub is False:
            return name in self.required
        if not isinstance(sub, dict) or sub.keys() != {"not"} or "required" not in literal.schema:
            return False
        return any(
            known.schema is sub["not"] or (known.base == literal.base and _same(known.schema, sub["not"]))
            for known in self.properties.get(name, ())
        )

    def implies(self, literal: Literal) -> bool:
        """Whether a made-up schema holds anyhow: one for a property that isn't there."""
        schema = literal.schema
        if not literal.positive or not isinstance(schema, dict) or schema.keys() != {"\0types", "properties"}:
            return False
        return all(sub is False and self.forbids(name) for name, sub in schema["properties"].items())


def _same(a: Any, b: Any) -> bool:
    """Whether two schemas are the same reference, or ask for the same simple type."""
    keys = ({"$ref"}, {"type"})
    return isinstance(a, dict) and isinstance(b, dict) and a.keys() in keys and a == b
