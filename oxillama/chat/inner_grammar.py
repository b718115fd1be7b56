"""Grammars of calls whose outer mark is missing, as openings of the same spelling tell them from text."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from oxillama.chat.grammar_parts import Parts
from oxillama.chat.layout import Layout, needed_end
from oxillama.chat.openings import InnerOpening, needs_arguments, parts_of
from oxillama.chat.shapes import CallFormat, JsonCall, Tagged
from oxillama.chat.text_grammar import TextGrammar
from oxillama.chat.values import Schema

__all__ = ["InnerCalls"]


@dataclass(frozen=True, slots=True)
class InnerCalls:
    """Calls of these tools without their outer mark.

    body: makes a call of a tool without what stands around it. begin: makes what stands before each call. row: makes
    calls behind their opening.
    """

    form: Layout
    tools: Mapping[str, Schema]
    parts: Parts
    body: Callable[[str], int]
    begin: Callable[[], int]
    row: Callable[[list[str], bool], int]

    @property
    def openings(self) -> list[InnerOpening]:
        """The openings that tell a call from text. JSON is told by the mark behind it, which comes too late to hold it:
        what begins as JSON does may be an example."""
        return [opening for opening in self.form.inner if not opening.closed]

    def triggers(self, names: list[str]) -> Iterator[str]:
        """The texts with which such calls begin as templates write them; a line break begins those of a line."""
        for opening in self.openings:
            for name in names:
                for text in opening.spellings(name, empty=not needs_arguments(self.tools[name])):
                    yield f"\n{text}" if opening.at_line else text

    def follow(self, text: TextGrammar, names: list[str], parallel: bool, end: int) -> None:
        """Has such calls follow a text, which can't hold what opens one. end: what stands behind them."""
        for opening in self.openings:
            for name in names:
                for pattern in opening.patterns(name, empty=not needs_arguments(self.tools[name])):
                    text.forbid(pattern, at_line=opening.at_line)
        for opening, calls in self.expressions(names, parallel):
            text.then(self.parts.rules.seq((calls, end)), at_line=opening.at_line)

    def lazy(self, names: list[str], parallel: bool) -> Iterator[int]:
        """Expressions of such calls from what opens them on, perhaps with the line break before it."""
        for opening, calls in self.expressions(names, parallel):
            line = self.parts.maybe(self.parts.text("\n"))
            yield self.parts.rules.seq((line, calls)) if opening.at_line else calls

    def expressions(self, names: list[str], parallel: bool) -> Iterator[tuple[InnerOpening, int]]:
        """The calls behind each opening."""
        rules, calls = self.parts.rules, self.form.calls
        if calls is None:
            return
        for opening in self.openings:
            before = self.parts.pattern(opening.lead, {})
            if isinstance(calls.shape, JsonCall):
                yield opening, rules.seq((before, self.row(names, parallel), self._end(calls)))
                continue
            one = self.parts.shared(rules.alt([self._call(name, opening, calls) for name in names]))
            more = [self._more(opening, calls, one)] if parallel and calls.parallel else []
            yield opening, rules.seq((before, one, *more, self._end(calls)))

    def _call(self, name: str, opening: InnerOpening, calls: CallFormat) -> int:
        """A call with the marks of its end. Of arguments between marks nothing else shows the end."""
        parts, rules = self.parts, self.parts.rules
        marks = parts_of(calls.call_end)
        needed = parts_of(opening.call_end) or (marks if isinstance(calls.shape, Tagged) else [])
        found = rules.seq(())
        for i, mark in reversed(list(enumerate(marks))):
            found = rules.seq((parts.gap(), parts.mark(mark), found))
            found = found if i < len(needed) else parts.maybe(found)
        return rules.seq((self.body(name), found))

    def _more(self, opening: InnerOpening, calls: CallFormat, one: int) -> int:
        """More calls, with their mark or without it."""
        parts, rules = self.parts, self.parts.rules
        space, text = parts.gap(len(calls.separator) + 4), calls.separator.strip()
        between = rules.seq((space, parts.mark(text), space)) if text else space
        whole = rules.seq((between, self.begin(), one))
        inner = rules.seq((space, parts.pattern(opening.lead, {}), one))
        ways = [whole] if text else [whole, inner]
        return rules.repeat(parts.shared(rules.alt(ways)), 0)

    def _end(self, calls: CallFormat) -> int:
        """The marks that may end all calls; a bracket must."""
        parts, rules = self.parts, self.parts.rules
        bracket = calls.end.strip().startswith("]") and not calls.end.strip().startswith("]<]")
        last = needed_end(calls)
        end = parts.maybe(rules.seq((parts.gap(), parts.mark(last)))) if "<" in last else rules.seq(())
        return rules.seq((parts.gap(), parts.text("]"), end)) if bracket else end
