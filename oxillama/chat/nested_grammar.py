"""Grammars of values in nested tags, held so that a parser finds the same ends of them."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from oxillama.chat.grammar_parts import Parts
from oxillama.chat.shapes import CallFormat, NestedTags
from oxillama.chat.text_grammar import TextGrammar
from oxillama.chat.value_grammar import Values, bound
from oxillama.chat.value_marks import argument_names, value_marks
from oxillama.chat.values import resolved, schema_properties
from oxillama.sampler_config import SchemaMode

__all__ = ["NestedValues"]


class NestedValues(Values):
    """The inside of tags that are named after keys, up to their ends.

    A text holds no tag that may stand beside it, or beside what it stands in, since that would end it for a parser.
    """

    def __init__(self, parts: Parts, root: Any, mode: SchemaMode, calls: CallFormat) -> None:
        super().__init__(parts, root, mode)
        assert isinstance(calls.shape, NestedTags)
        self.mark, self.item = calls.shape.mark, calls.shape.item
        self._marks = value_marks(calls)
        self._known: tuple[str, ...] = ()  # the tags that no text may hold
        self._texts: dict[tuple[str, ...], int] = {}

    def tag(self, name: str, schema: Any, depth: int = 0) -> int:
        """A tag with its value."""
        parts, end = self.parts, f"{self.mark}</{name}>"
        schema = resolved(schema, self.root)
        kinds = schema.get("type") if isinstance(schema, Mapping) else None
        opening = parts.mark(f"{self.mark}<{name}>")
        free = isinstance(schema, Mapping) and kinds == "string" and "enum" not in schema and "const" not in schema
        held = self._held(schema) if free else None
        if held is not None:
            return self.rules.seq((opening, held, parts.mark(end)))
        if free or not isinstance(schema, Mapping) or not schema:
            return self.rules.seq((opening, self._text(any_kind=not free), parts.mark(end)))
        return self.rules.seq((opening, self.value(schema, depth), parts.mark(end)))

    def _held(self, schema: Mapping[str, Any]) -> int | None:
        """A text that meets its schema's pattern or lengths; None if it has none of these."""
        if not any(key in schema for key in ("pattern", "minLength", "maxLength")):
            return None
        without = self._marks.absent(list(self._known), [f"{self.mark}</{name}>" for name in self._known])
        return self.parts.constrained(schema, self.root, without, self._plain(short=True).sized)

    def _text(self, any_kind: bool) -> int:
        """A text; any_kind: which would be read as tags if it began with one."""
        key = ("",) if any_kind else self._known
        if key not in self._texts:
            self._texts[key] = self.parts.shared(self._plain(short=any_kind).expression())
        return self._texts[key]

    def _plain(self, short: bool) -> TextGrammar:
        """Texts without the tags that end them; short: without any tag."""
        text = TextGrammar(self.parts, spelled=True)
        ends = [f"{self.mark}</{name}>" for name in self._known]
        tags = [*self._marks.openings(list(self._known)), *ends, *self._marks.next_call]
        for mark in [f"{self.mark}<"] if short else tags:
            text.forbid(mark)
        return text

    def string(self, schema: Mapping[str, Any]) -> int:
        first = self.mark[0] if self.mark else "<"
        return self.rules.repeat(self.parts.characters(((ord(first), ord(first)),), True), 0)

    def quoted(self, text: str) -> int:
        return self.parts.text(text)

    def array(self, schema: Mapping[str, Any], depth: int) -> int:
        with self._beside((self.item,)):
            item = self.parts.shared(self.tag(self.item, schema.get("items", True), depth + 1))
        most = schema.get("maxItems")
        return self.rules.repeat(item, bound(schema.get("minItems"), 0), most if isinstance(most, int) else None)

    def object(self, schema: Mapping[str, Any], depth: int) -> int:
        tags = []
        with self._beside(argument_names(resolved(schema, self.root))):
            for name, inner, needed in schema_properties(schema, self.root):
                tag = self.parts.shared(self.tag(name, inner, depth + 1))
                tags.append(tag if needed else self.parts.maybe(tag))
        return self.rules.seq(tags)

    def free_object(self, schema: Mapping[str, Any], depth: int) -> int:
        return self.rules.seq(())

    @contextmanager
    def _beside(self, names: Iterable[str]) -> Iterator[None]:
        """Within: these tags may stand beside a value."""
        before = self._known
        self._known = tuple(dict.fromkeys((*before, *names)))
        yield
        self._known = before
