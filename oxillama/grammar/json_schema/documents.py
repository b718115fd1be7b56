"""Resolution of references inside one schema document: `Documents`. Nothing is ever fetched."""

import re
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from oxillama._util.lazy import lazy
from oxillama.errors import GrammarError
from oxillama.grammar.json_schema.literals import Literal, Schema, refusal

__all__ = ["Documents"]

# Keywords whose values are schemas, or lists of them; and schemas by name.
_SCHEMAS = (
    "items", "prefixItems", "additionalItems", "contains", "unevaluatedItems", "additionalProperties", "propertyNames",
    "unevaluatedProperties", "allOf", "anyOf", "oneOf", "not", "if", "then", "else",
)  # fmt: skip
_IN_PLACE = frozenset((
    "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies", "$ref", "$dynamicRef",
))  # fmt: skip
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")


_PLAIN = re.compile(r"https?://[a-z0-9.-]+(/[\w.-]+)*").fullmatch  # a base that `urljoin` leaves as it is


class Documents:
    """The resources of one schema document: URI -> schema, with anchors.

    draft: 4, 7, 2020, or None if unknown. Before 2019 keywords beside a `$ref` are ignored. id_key: the keyword that
    names a resource.
    """

    def __init__(self, root: Schema, draft: int | None) -> None:
        self.root = root
        self.draft = draft
        self.early = draft in (4, 7)
        self.id_key = "id" if draft == 4 else "$id"
        self._places: dict[str, tuple[Schema, str]] | None = None
        self._dynamic: dict[str, list[str]] = {}
        self.made: dict[Any, Any] = {}  # synthetic schemas, so that equal ones are the same object
        self._straight: set[int] = set()  # schemas without a circle of references in place
        self._checked: set[tuple[str, str]] = set()  # references, with their bases, that don't lead back to themselves
        self._found: dict[tuple[str, str], tuple[Schema, str]] = {}

    @lazy
    def root_base(self) -> str:
        return self.base_of(self.root, "") if isinstance(self.root, dict) else ""

    def base_of(self, schema: dict[str, Any], base: str) -> str:
        """The base URI of references in a schema."""
        name = schema.get(self.id_key)
        if not isinstance(name, str) or name.startswith("#") or (self.early and "$ref" in schema):
            return base
        if self.draft is None and "$ref" in schema and schema is not self.root:
            raise GrammarError(f"$id {name!r} at #: beside $ref it counts in some drafts alone: name one in $schema")
        return _joined(base, name)[0]

    def resolve(self, literal: Literal, keyword: str) -> Literal:
        """The schema that a reference in a literal names, as a literal of the same sign."""
        reference = literal.schema[keyword]
        if not isinstance(reference, str):
            raise refusal(literal.path, keyword, f"a reference must be a str, not {type(reference).__name__}")
        known = self._found.get((reference, literal.base))
        if known is None:
            known = self._found[reference, literal.base] = self._resolve(literal, keyword, reference)
        if (reference, literal.base) not in self._checked:
            self._check_circles(literal, *known)
            self._checked.add((reference, literal.base))
        return Literal(known[0], literal.positive, known[1], (literal.path, keyword))

    def _resolve(self, literal: Literal, keyword: str, reference: str) -> tuple[Schema, str]:
        url, fragment = _joined(literal.base, reference)
        fragment = unquote(fragment)
        # Most references are pointers from the root, for which no other place needs to be known.
        is_root = url in ("", self.root_base) and fragment[:1] in ("", "/")
        places = {url: (self.root, self.root_base)} if is_root else self.places()
        if url not in places:
            raise refusal(literal.path, keyword, f"{reference!r} is outside this document: references aren't fetched")
        if fragment and not fragment.startswith("/"):
            place = places.get(f"{url}#{fragment}")
            if place is None:
                raise refusal(literal.path, keyword, f"there is no anchor {fragment!r} in this document")
            return place
        schema, base = places[url]
        for key in fragment.split("/")[1:]:
            schema, base = self._child(schema, base, key.replace("~1", "/").replace("~0", "~"))
            if schema is None:
                raise refusal(literal.path, keyword, f"{reference!r} leads nowhere")
        if not isinstance(schema, dict | bool):
            raise refusal(literal.path, keyword, f"{reference!r} leads to something that is no schema")
        return schema, base

    def _check_circles(self, literal: Literal, schema: Schema, base: str) -> None:
        """Raises GrammarError for references that lead back to themselves without an object or an array in between."""
        if id(schema) in self._straight or (isinstance(schema, dict) and _IN_PLACE.isdisjoint(schema)):  # as most are
            return
        path: set[int] = set()
        todo: list[tuple[Schema, str, bool]] = [(schema, base, False)]
        while todo:
            schema, base, leave = todo.pop()
            if leave:
                path.discard(id(schema))
                self._straight.add(id(schema))
                continue
            if id(schema) in path:
                raise refusal(literal.path, "$ref", "it leads back to itself, with nothing in between")
            if isinstance(schema, dict) and id(schema) not in self._straight:
                if _IN_PLACE.isdisjoint(schema):  # as most are
                    self._straight.add(id(schema))
                    continue
                path.add(id(schema))
                todo.append((schema, base, True))
                todo += [(*place, False) for place in self._in_place(schema, base)]

    def _in_place(self, schema: dict[str, Any], base: str) -> list[tuple[Schema, str]]:
        """Subschemas for the same value."""
        base = self.base_of(schema, base) if self.id_key in schema else base
        found: list[tuple[Schema, str]] = []
        for keyword in ("allOf", "anyOf", "oneOf"):
            if isinstance(schema.get(keyword), list):
                found += [(part, base) for part in schema[keyword]]
        for keyword in ("not", "if", "then", "else"):
            if keyword in schema:
                found.append((schema[keyword], base))
        for keyword in ("dependentSchemas", "dependencies"):
            if isinstance(schema.get(keyword), dict):
                found += [(part, base) for part in schema[keyword].values()]
        for keyword in ("$ref", "$dynamicRef"):
            reference = schema.get(keyword)
            if isinstance(reference, str):
                known = self._found.get((reference, base))
                if known is None:
                    known = self._resolve(Literal(schema, True, base, None), keyword, reference)
                    self._found[reference, base] = known
                found.append(known)
        return found

    def _child(self, schema: Any, base: str, key: str) -> tuple[Any, str]:
        child = None
        if isinstance(schema, dict):
            child = schema.get(key)
        elif isinstance(schema, list) and key.isdecimal() and int(key) < len(schema):
            child = schema[int(key)]
        return child, self.base_of(child, base) if isinstance(child, dict) else base

    def places(self) -> dict[str, tuple[Schema, str]]:
        """Every `$id` and anchor; computed when a reference is first met."""
        if self._places is None:
            self._places = {}
            base = self.root_base
            self._places[""] = self._places[base] = (self.root, base)
            self._scan(base)
        return self._places

    def dynamic_anchors(self, name: str) -> list[str]:
        """Bases of the resources with a `$dynamicAnchor` of this name."""
        self.places()
        return self._dynamic.get(name, [])

    def _scan(self, base: str) -> None:
        todo: list[tuple[Any, str]] = [(self.root, "")]
        while todo:
            schema, base = todo.pop()
            if isinstance(schema, list):
                todo += [(item, base) for item in schema]
            elif isinstance(schema, dict):
                base = self._note(schema, base)
                todo += [(schema[k], base) for k in _SCHEMAS if isinstance(schema.get(k), dict | list)]
                for keyword in _MAPS:
                    if isinstance(schema.get(keyword), dict):
                        todo += [(child, base) for child in schema[keyword].values()]

    def _note(self, schema: dict[str, Any], base: str) -> str:
        assert self._places is not None
        base = self.base_of(schema, base)
        places = self._places
        if base not in places:
            places[base] = (schema, base)
        name = schema.get(self.id_key)
        if isinstance(name, str) and name.startswith("#"):
            places.setdefault(base + name, (schema, base))
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(keyword), str):
                places.setdefault(f"{base}#{schema[keyword]}", (schema, base))
        if isinstance(schema.get("$dynamicAnchor"), str):
            self._dynamic.setdefault(schema["$dynamicAnchor"], []).append(base)
        return base


def _joined(base: str, reference: str) -> tuple[str, str]:
    """A reference made absolute, and its fragment. A text that is no URI stays as it is."""
    if reference.startswith("#") and (not base or _PLAIN(base)):  # most are like this, and `urljoin` takes long
        return base, reference[1:]
    try:
        url, fragment = urldefrag(urljoin(base, reference))
    except ValueError:
        url, _, fragment = reference.partition("#")
    return url, fragment
