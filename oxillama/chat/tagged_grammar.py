"""Grammars of arguments between marks, held so that a parser finds the same ends of their values."""

from collections.abc import Callable, Mapping
from typing import Any

from oxillama.chat.grammar_parts import Parts
from oxillama.chat.shapes import CallFormat, Tagged
from oxillama.chat.text_grammar import TextGrammar
from oxillama.chat.value_marks import CDATA, argument_names, cdata_ends, value_marks
from oxillama.chat.values import kind_of, resolved, schema_properties

__all__ = ["TaggedArguments", "section_of"]

_JSON_TYPES = ("number", "integer", "boolean", "array", "object", "null")


class TaggedArguments:
    """The arguments of one tool's call.

    A text holds no mark that would end it for a parser: not its own, nor that of another argument of the tool where a
    line begins. A section of XML holds any.
    """

    def __init__(
        self, parts: Parts, calls: CallFormat, root: Any, json: Callable[[Any, str], int], section: int
    ) -> None:
        """root: the schema of the tool's arguments. json: makes the rule of a schema's values, with what stands before
        errors. section: a text in a section of XML, up to the end of its value."""
        assert isinstance(calls.shape, Tagged)
        self.parts, self.rules, self.shape, self.root = parts, parts.rules, calls.shape, root
        self._json, self._value = json, text_value(parts, calls, root, section)
        marks, names, value_end = value_marks(calls), argument_names(root), calls.shape.value_end
        self._short = TextGrammar(parts, spelled=True)  # for texts that are held to a length
        self._short.forbid(value_end)
        self._short.forbid(CDATA, at_start=True)
        for mark in marks.first:
            self._short.forbid(mark, at_line=not marks.tight)
        self._without = marks.absent(names, [value_end], CDATA)

    def expression(self) -> int:
        """The arguments one behind the other, with spaces between them."""
        parts, rules = self.parts, self.rules
        items = []
        for key, schema, needed in schema_properties(self.root, self.root):
            argument = rules.seq((parts.gap(), self._argument(key, schema)))
            items.append(argument if needed else parts.maybe(argument))
        return rules.seq(items)

    def _argument(self, key: str, schema: Any) -> int:
        """One argument with its marks."""
        parts, rules, shape, root = self.parts, self.rules, self.shape, self.root
        kind = kind_of(schema, root)
        inner = resolved(schema, root)
        listed = (
            inner.get("enum", [inner["const"]] if "const" in inner else None) if isinstance(inner, Mapping) else None
        )
        found = []
        if kind != "json":
            found.append(self._around(key, parts.text(shape.text_type), self._texts(inner, listed)))
        if kind == "json" or (kind == "any" and (shape.text_type or listed is not None)):
            described = _with_definitions(schema, root)
            if kind == "any":
                described = (
                    {"allOf": [described, {"not": {"type": "string"}}]}
                    if listed is None
                    else {"enum": [v for v in listed or () if not isinstance(v, str)]}
                )
            types = _JSON_TYPES if shape.text_type == "string" else ()
            written = rules.alt([parts.text(word) for word in dict.fromkeys((shape.json_type, *types))])
            value = self._json(described, f"the argument {key!r}: ")
            found.append(self._around(key, written, rules.seq((value, parts.gap(), parts.mark(shape.value_end)))))
        return rules.alt(found)

    def _texts(self, schema: Any, listed: list[Any] | None) -> int:
        """A value that is a text, with the mark of its end."""
        parts, rules, shape = self.parts, self.rules, self.shape
        end = rules.seq((parts.text(shape.lead), parts.mark(shape.value_end)))
        if listed is not None:
            return rules.seq((rules.alt([parts.text(v) for v in listed if isinstance(v, str)]), end))
        held = None
        if isinstance(schema, Mapping):
            held = parts.constrained(schema, self.root, self._without, self._short.sized)
        if held is not None:
            return rules.seq((held, end))
        return self._value

    def _around(self, key: str, holes: int, value: int) -> int:
        parts, shape = self.parts, self.shape
        head = (parts.mark(shape.begin), parts.text(key), parts.pattern(shape.key_end[:-1], {"type": holes}))
        last = shape.key_end[-1] if shape.key_end else ""
        tail = parts.mark(last.rstrip("\n")) if isinstance(last, str) else self.rules.seq(())
        return self.rules.seq((*head, tail, parts.text(shape.trail), value))


def text_value(parts: Parts, calls: CallFormat, root: Any, section: int | None = None) -> int:
    """A value that is any text, with the mark of its end. root: the schema of all arguments."""
    assert isinstance(calls.shape, Tagged)
    marks, text = value_marks(calls), TextGrammar(parts, spelled=True)
    text.forbid(calls.shape.value_end)
    text.forbid(CDATA, at_start=True)
    for mark in (*marks.openings(argument_names(root)), *marks.next_call):
        text.forbid(mark, at_line=not marks.tight)
    plain = parts.rules.seq((text.expression(), parts.mark(calls.shape.value_end)))
    return parts.shared(parts.rules.alt((plain, section_of(parts, calls) if section is None else section)))


def section_of(parts: Parts, calls: CallFormat) -> int:
    """A text in a section of XML, up to the end of its value."""
    text, closed = TextGrammar(parts, spelled=True), []
    ends = cdata_ends(calls)
    for space, mark in ends:
        text.forbid(space + mark)
        if mark == ends[0][1]:
            closed.append(parts.rules.seq((parts.text(space), parts.mark(mark))))
    return parts.shared(parts.rules.seq((parts.text(CDATA), text.expression(), parts.rules.alt(closed))))


def _with_definitions(schema: Any, root: Any) -> Any:
    """A part of a schema with the definitions that it may refer to."""
    if not isinstance(schema, Mapping) or not isinstance(root, Mapping):
        return schema
    found = {key: root[key] for key in ("$defs", "definitions") if key in root}
    return {**found, **schema}
