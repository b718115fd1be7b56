"""Grammars of values that aren't JSON: literals of Python, and Gemma 4's braces."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from oxillama.chat.grammar_parts import Parts
from oxillama.chat.text_grammar import TextGrammar
from oxillama.chat.value_marks import as_pattern
from oxillama.chat.values import MAX_DEPTH, resolved, schema_properties
from oxillama.sampler_config import SchemaMode

__all__ = ["BracesValues", "PythonValues", "Values", "bound"]

_NUMERIC = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "type")
_TYPES = ("string", "number", "boolean", "null", "array", "object")
MAX_ITEMS = 1000


class Values:
    """Expressions of values by their schemas. Subclasses say how strings, lists and objects are written."""

    words: ClassVar[dict[bool | None, tuple[str, ...]]] = {True: ("true",), False: ("false",), None: ("null",)}

    def __init__(self, parts: Parts, root: Any, mode: SchemaMode) -> None:
        """root: the schema that local references point into."""
        self.parts, self.rules, self.root, self.mode = parts, parts.rules, root, mode
        self._any: dict[int, int] = {}

    def value(self, schema: Any, depth: int = 0) -> int:
        """A value of a schema. Beyond sixteen levels, any value is."""
        schema = resolved(schema, self.root)
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
            return self.any(depth)
        if "const" in schema or isinstance(schema.get("enum"), list):
            values = [schema["const"]] if "const" in schema else schema["enum"]
            return self.rules.alt([self.constant(value) for value in values])
        for keyword in ("anyOf", "oneOf"):
            options = schema.get(keyword)
            if isinstance(options, list) and options and "type" not in schema:
                return self.rules.alt([self.value(option, depth + 1) for option in options])
        kinds = schema.get("type", [])
        kinds = [kinds] if isinstance(kinds, str) else list(kinds)
        if not kinds:
            kinds = ["object"] if "properties" in schema else ["array"] if "items" in schema else []
        return self.rules.alt([self.of_type(kind, schema, depth) for kind in kinds]) if kinds else self.any(depth)

    def of_type(self, kind: str, schema: Mapping[str, Any], depth: int) -> int:
        if kind == "string":
            return self.string(schema)
        if kind in ("number", "integer"):
            from oxillama.grammar.json_schema import JsonSchemaCompiler  # twenty modules, which only schemas need

            numeric = {key: schema[key] for key in _NUMERIC if key in schema} | {"type": kind}
            return self.rules.rule(JsonSchemaCompiler.add_to(self.rules, numeric, mode=self.mode))
        if kind == "boolean":
            return self.rules.alt([self.constant(True), self.constant(False)])
        if kind == "null":
            return self.constant(None)
        if kind == "array":
            return self.array(schema, depth)
        return self.object(schema, depth) if kind == "object" else self.any(depth)

    def any(self, depth: int) -> int:
        """Any value of at most two more levels."""
        level = min(max(depth, 0), 2) if depth <= MAX_DEPTH else 2
        if level not in self._any:
            kinds = [kind for kind in _TYPES if level < 2 or kind not in ("array", "object")]
            rule = self.rules.new_rule("")
            self.rules.define(rule, self.rules.alt([self.of_type(kind, {}, level) for kind in kinds]))
            self._any[level] = rule
        return self.rules.rule(self._any[level])

    def constant(self, value: Any) -> int:
        if isinstance(value, str):
            return self.quoted(value)
        if value is None or isinstance(value, bool):
            return self.rules.alt([self.parts.text(word) for word in self.words[value]])
        if isinstance(value, list):
            return self.row([self.constant(item) for item in value])
        if isinstance(value, Mapping):
            return self.fields([(self.key(k), self.constant(v), True) for k, v in value.items()])
        return self.parts.text(json.dumps(value))

    def array(self, schema: Mapping[str, Any], depth: int) -> int:
        items = self.parts.shared(self.value(schema.get("items", True), depth + 1))
        least, most = bound(schema.get("minItems"), 0), schema.get("maxItems")
        return self.listed(items, least, most if isinstance(most, int) else None)

    def object(self, schema: Mapping[str, Any], depth: int) -> int:
        found = [
            (name, self.key(name), self.parts.shared(self.value(inner, depth + 1)), needed)
            for name, inner, needed in schema_properties(schema, self.root)
        ]
        if not found:
            return self.free_object(schema, depth)
        orders = [found]
        if self.sorts and sorted(found, key=lambda item: item[0]) != found:
            orders.append(sorted(found, key=lambda item: item[0]))
        return self.rules.alt([self.fields([item[1:] for item in order]) for order in orders])

    sorts = False

    def fields(self, fields: list[tuple[int, int, bool]]) -> int:
        """An object with (key, value, whether it must be there), in this order."""
        return self.rules.seq(
            (self.parts.text("{"), self.parts.gap(), self.sequence(fields), self.parts.gap(), self.parts.text("}"))
        )

    def sequence(self, fields: list[tuple[int, int, bool]]) -> int:
        """Fields with commas between: node i is before field i with none so far, node n + i with some."""
        n = len(fields)
        comma = self.rules.seq((self.parts.text(","), self.parts.gap()))
        edges, empty = [], self.rules.seq(())
        for i, (key, value, needed) in enumerate(fields):
            field = self.parts.shared(self.rules.seq((key, value)))
            edges.append((i, field, n + 2 + i))
            edges.append((n + 1 + i, self.rules.seq((comma, field)), n + 2 + i))
            if not needed:
                edges += [(i, empty, i + 1), (n + 1 + i, empty, n + 2 + i)]
        return self.rules.graph(2 * n + 2, edges, [n, 2 * n + 1])

    def listed(self, item: int, least: int, most: int | None) -> int:
        comma = self.rules.seq((self.parts.text(","), self.parts.gap()))
        more = self.rules.repeat(
            self.rules.seq((comma, item)), max(least - 1, 0), None if most is None else max(most - 1, 0)
        )
        some = self.rules.seq((item, more))
        inner = some if least else self.parts.maybe(some)
        return (
            self.rules.seq((self.parts.text("["), self.parts.text("]")))
            if most == 0
            else self.rules.seq((self.parts.text("["), inner, self.parts.text("]")))
        )

    def row(self, items: list[int]) -> int:
        inner: list[int] = []
        for i, item in enumerate(items):
            inner += [self.parts.text(","), self.parts.gap(), item] if i else [item]
        return self.rules.seq((self.parts.text("["), *inner, self.parts.text("]")))

    def free_object(self, schema: Mapping[str, Any], depth: int) -> int:
        inner = schema.get("additionalProperties", True)
        if inner is False:
            return self.rules.seq((self.parts.text("{"), self.parts.text("}")))
        pair = self.parts.shared(self.rules.seq((self.free_key(), self.parts.shared(self.value(inner, depth + 1)))))
        comma = self.rules.seq((self.parts.text(","), self.parts.gap()))
        pairs = self.rules.seq((pair, self.rules.repeat(self.rules.seq((comma, pair)), 0)))
        return self.rules.seq((self.parts.text("{"), self.parts.maybe(pairs), self.parts.text("}")))

    # What formats differ in.

    def string(self, schema: Mapping[str, Any]) -> int:
        raise NotImplementedError

    def quoted(self, text: str) -> int:
        raise NotImplementedError

    def key(self, name: str) -> int:
        raise NotImplementedError

    def free_key(self) -> int:
        raise NotImplementedError


def bound(value: Any, default: int) -> int:
    """A number of items that a schema gives, or the default for what is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_ITEMS else default


def _lengths(schema: Mapping[str, Any]) -> tuple[int, int | None]:
    most = schema.get("maxLength")
    return bound(schema.get("minLength"), 0), most if isinstance(most, int) and most <= MAX_ITEMS else None


class PythonValues(Values):
    """Literals of Python; the words of JSON count too."""

    words: ClassVar[dict[bool | None, tuple[str, ...]]] = {
        True: ("True", "true"),
        False: ("False", "false"),
        None: ("None", "null"),
    }

    def string(self, schema: Mapping[str, Any]) -> int:
        parts, (least, most) = self.parts, _lengths(schema)
        found = []
        for quote in "'\"":
            plain = parts.characters(((0, 0x1F), (ord(quote), ord(quote)), (0x5C, 0x5C)), True)
            escape = self.rules.seq(
                (parts.text("\\"), parts.characters(tuple((ord(c), ord(c)) for c in sorted("\\'\"abfnrtv0"))))
            )
            inner = self.rules.repeat(self.rules.alt((plain, escape)), least, most)
            found.append(self.rules.seq((parts.text(quote), inner, parts.text(quote))))
        return parts.shared(self.rules.alt(found))

    def quoted(self, text: str) -> int:
        forms = dict.fromkeys((repr(text), json.dumps(text, ensure_ascii=False), json.dumps(text)))
        return self.rules.alt([self.parts.text(form) for form in forms])

    def key(self, name: str) -> int:
        return self.rules.seq((self.quoted(name), self.parts.text(":"), self.parts.gap()))

    def free_key(self) -> int:
        return self.rules.seq((self.string({}), self.parts.text(":"), self.parts.gap()))


class BracesValues(Values):
    """Values with texts between quotes of their own and bare keys, which the template sorts."""

    sorts = True

    def __init__(self, parts: Parts, root: Any, mode: SchemaMode, quote: str) -> None:
        super().__init__(parts, root, mode)
        self.quote = quote

    def string(self, schema: Mapping[str, Any]) -> int:
        parts, text = self.parts, TextGrammar(self.parts, spelled=True)
        text.forbid(self.quote)
        held = parts.constrained(schema, self.root, (f"(?![^]*{as_pattern(self.quote)})",), text.sized)
        if held is not None:
            return self.rules.seq((parts.mark(self.quote), held, parts.mark(self.quote)))
        return parts.shared(self.rules.seq((parts.mark(self.quote), parts.until(self.quote))))

    def quoted(self, text: str) -> int:
        return self.rules.seq((self.parts.mark(self.quote), self.parts.text(text), self.parts.mark(self.quote)))

    def key(self, name: str) -> int:
        return self.parts.text(f"{name}:")

    def free_key(self) -> int:
        word = self.parts.characters(((ord(":"), ord(":")), (ord("{"), ord("{")), (ord("}"), ord("}"))), True)
        return self.rules.seq((self.rules.repeat(word, 1, 64), self.parts.text(":")))
