"""Grammars of answers: reasoning, and then calls of tools, or text that fits a schema, as a format writes them."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oxillama.chat.free_calls import ANY_OBJECT, free_call
from oxillama.chat.grammar_parts import END as END_TOKEN
from oxillama.chat.grammar_parts import ControlToken, Parts
from oxillama.chat.harmony import BEGIN, END, MESSAGE
from oxillama.chat.inner_grammar import InnerCalls
from oxillama.chat.layout import Layout
from oxillama.chat.nested_grammar import NestedValues
from oxillama.chat.openings import SPACES
from oxillama.chat.patterns import MARK, Pattern
from oxillama.chat.shapes import Braces, CallFormat, JsonCall, Named, PythonCall, ReasoningFormat, Tagged
from oxillama.chat.tagged_grammar import TaggedArguments, section_of
from oxillama.chat.text_grammar import TextGrammar
from oxillama.chat.value_grammar import BracesValues, PythonValues
from oxillama.chat.values import Schema, schema_properties
from oxillama.errors import GrammarError
from oxillama.grammar.automata.budget import UNITS
from oxillama.grammar.automaton import Budget, RuleSet
from oxillama.grammar.matcher import Grammar
from oxillama.sampler_config import SchemaMode

__all__ = ["AnswerGrammar", "answer_grammar", "argument_faults"]


@dataclass(frozen=True, slots=True)
class AnswerGrammar:
    """Grammar that an answer is held to.

    grammar: of the whole answer; of its calls alone, if `lazy`. triggers: the texts with which calls begin. lazy:
    whether any text may come before the first trigger.
    """

    grammar: Grammar
    triggers: tuple[str, ...] = ()
    lazy: bool = False

    def accepts(self, text: str) -> bool:
        """Whether a whole answer fits; of a lazy one, from its first trigger on."""
        if not self.lazy:
            return self.grammar.accepts(text)
        begin = len(text) - len(text.lstrip(SPACES))
        ends: list[tuple[int, int]] = []  # where a trigger is complete, and where it begins
        for trigger in self.triggers:
            line = trigger.removeprefix("\n")
            if line != trigger and text.startswith(line, begin):
                ends.append((begin + len(line), begin))
            elif (at := text.find(trigger)) >= 0:
                ends.append((at + len(trigger), at))
        return not ends or self.grammar.accepts(text[min(ends)[1] :])


def answer_grammar(
    form: Layout,
    tools: Mapping[str, Schema],
    choice: str | Sequence[str],
    *,
    parallel: bool,
    opened: bool,
    marks: ReasoningFormat | None,
    schema: Any,
    constraint: tuple[RuleSet, int] | None,
    token: ControlToken | None,
    mode: SchemaMode,
    lazy: bool,
    free: Collection[str] = (),
) -> AnswerGrammar:
    """See `ChatFormat.grammar`. Raises GrammarError, which names the tool, for a schema that can't be compiled."""
    held = {name: ANY_OBJECT if name in free else schema for name, schema in tools.items()}
    makers = _Answers(form, held, token, mode, None if constraint is None else constraint[0], tools)
    rules = makers.rules
    root = rules.new_rule("root")
    triggers = makers.triggers()
    names = list(tools)
    if schema is not None or constraint is not None:
        body = makers.json(schema) if constraint is None else rules.rule(constraint[1])
        before = makers.reasoning(marks, opened, spaced=bool(form.frame.content_begin))
        rules.define(root, rules.seq((before, makers.framed(body))))
        return AnswerGrammar(Grammar.from_rules(rules, root))
    if choice == "auto" and lazy and triggers:
        rules.define(root, rules.seq((makers.lazy(names, parallel), makers.turn_end())))
        triggers = tuple(dict.fromkeys((*triggers, *makers.inner.triggers(names))))
        return AnswerGrammar(Grammar.from_rules(rules, root), triggers, True)
    if choice == "auto":
        body = makers.text_and_calls(names, parallel, marks)
    else:
        names = names if choice == "required" else [choice] if isinstance(choice, str) else list(choice)
        one = isinstance(choice, str) and choice != "required"
        body = rules.seq((makers.calls(names, parallel and not one), makers.turn_end()))
    spaced = choice != "auto" or not (makers.is_told and triggers)  # else the spaces are the text's
    rules.define(root, rules.seq((makers.reasoning(marks, opened, spaced), body)))
    return AnswerGrammar(Grammar.from_rules(rules, root), triggers)


def argument_faults(form: Layout, tools: Mapping[str, Schema], mode: SchemaMode) -> dict[str, str]:
    """Why no grammar can hold the arguments of tools, by their names.

    All of them together take the work of two grammars at most; what is left then counts as too large. Raises
    GrammarError for arguments that are no object.
    """
    found, left = {}, 2 * UNITS
    for name, schema in tools.items():
        budget = Budget(min(max(left, 1), UNITS))
        makers = _Answers(form, {name: schema}, lambda text: None, mode, RuleSet(budget=budget))
        makers.check(name, schema)
        root = makers.rules.new_rule("root")
        try:
            makers.rules.define(root, makers.arguments(name))
            Grammar.from_rules(makers.rules, root)
        except GrammarError as error:
            found[name] = str(error)
        left -= budget.spent
    return found


class _Answers:
    """Expressions of the parts of an answer."""

    def __init__(
        self,
        form: Layout,
        tools: Mapping[str, Schema],
        token: ControlToken | None,
        mode: SchemaMode,
        rules: RuleSet | None = None,
        known: Mapping[str, Schema] | None = None,
    ) -> None:
        """known: the schemas that a parser of the answer knows, of tools that are held to them or not."""
        self.known = tools if known is None else known
        self.form, self.tools, self.mode = form, tools, mode
        self.parts = Parts(token, rules)
        self.rules = self.parts.rules
        self._calls: dict[str, int] = {}
        self._bodies: dict[str, int] = {}
        self._section = -1
        self.inner = InnerCalls(form, self.known, self.parts, self.body, self._begin, self._row)

    # ---- around calls

    def reasoning(self, marks: ReasoningFormat | None, opened: bool, spaced: bool = True) -> int:
        """Reasoning, or none. spaced: spaces may stand where there is none; before content they would be of it."""
        parts = self.parts
        nothing = parts.gap() if spaced else self.rules.seq(())
        if marks is None:
            return nothing
        end = marks.end.strip()
        rest = self.rules.seq((parts.until(end, special=True), parts.gap()))
        if self.form.harmony:
            rest = self.rules.seq((rest, parts.mark("<|start|>assistant")))
        if opened:
            return rest
        begin = self.rules.seq((parts.gap(), parts.mark(marks.begin.strip()), rest))
        return self.rules.alt((begin, nothing))

    def framed(self, body: int) -> int:
        parts, frame = self.parts, self.form.frame
        if self.form.harmony:
            return self.rules.seq((parts.mark(f"{BEGIN}final{MESSAGE}"), body, parts.maybe(parts.mark("<|return|>"))))
        begin = end = self.rules.seq(())
        if frame.content_begin:
            begin = self.rules.seq((parts.mark(frame.content_begin), parts.gap()))
        if frame.content_end:
            end = parts.maybe(self.rules.seq((parts.gap(), parts.mark(frame.content_end))))
        return self.rules.seq((begin, body, end, self.turn_end()))

    def turn_end(self) -> int:
        parts, _frame = self.parts, self.form.frame
        if self.form.harmony:
            return parts.maybe(self.rules.alt([parts.mark(mark) for mark in ("<|call|>", END)]))
        endings = [self.rules.seq(())]
        for text in self.form.turn_ends:
            mark = MARK.match(text)
            if not mark or parts.token(mark.group()) != END_TOKEN:  # else the text may end here in any case
                endings.append(self.rules.seq((parts.gap(), parts.mark(text))))
        return self.rules.alt(endings)

    def triggers(self) -> tuple[str, ...]:
        calls = self.form.calls
        if self.form.harmony:
            return (f"{BEGIN}commentary to=functions.",)
        if calls is None or calls.later is not None:
            return ()
        opening = calls.opening
        first = opening[0].strip() if opening and isinstance(opening[0], str) else ""
        if first:
            mark, frame = MARK.match(first), self.form.frame
            if mark and not any(text.startswith(mark.group()) for text in (frame.content_end, frame.turn_end)):
                return (mark.group(),)
            return (first.split()[0],)
        shape = calls.shape
        plain = isinstance(shape, JsonCall) and not shape.name_is_key and not shape.wrapper
        return (f'{{"{shape.keys[0][0]}"',) if plain and isinstance(shape, JsonCall) else ()

    @property
    def is_told(self) -> bool:
        """Whether calls are told from the text before them by marks."""
        return bool(self.form.calls and (self.form.calls.opening or self.form.calls.later)) and not self.form.harmony

    def lazy(self, names: list[str], parallel: bool) -> int:
        """Calls from the text that opens them on, which may be a line break before an inner opening."""
        return self.rules.alt((self.calls(names, parallel), *self.inner.lazy(names, parallel)))

    def text_and_calls(self, names: list[str], parallel: bool, marks: ReasoningFormat | None) -> int:
        """Any text, and then perhaps calls. marks: of reasoning, with which a text doesn't begin."""
        rules, parts, triggers = self.rules, self.parts, self.triggers()
        if not self.is_told:
            after = self.calls(names, parallel, without=triggers[0])
            rest = rules.seq((after, self.turn_end()))
            return rules.alt((parts.without(triggers[0]), rules.seq((parts.until(triggers[0]), rest))))
        text = TextGrammar(parts, fresh=bool(triggers))
        self.inner.follow(text, names, parallel, self.turn_end())
        if triggers:
            if marks is not None and marks.begin.strip():
                text.forbid(marks.begin.strip(), at_start=True)
            text.forbid(triggers[0])
            calls = self.calls(names, parallel, without=triggers[0])
            text.then(rules.seq((parts.mark(triggers[0]), calls, self.turn_end())))
            return text.expression()
        self._follow_later(text, names, parallel)
        calls = rules.seq((self.calls(names, parallel), self.turn_end()))
        return rules.alt((calls, rules.seq((parts.mark(self.form.frame.content_begin), text.expression()))))

    def _follow_later(self, text: TextGrammar, names: list[str], parallel: bool) -> None:
        """Has calls follow content that have a mark of their own behind it."""
        calls, rules = self.form.calls, self.rules
        later = calls.later[0].strip() if calls and calls.later and isinstance(calls.later[0], str) else ""
        if later:
            text.forbid(later)
            more = (self.parts.mark(later), self._begin(), self._several(names, parallel), self.turn_end())
            text.then(rules.seq(more))

    # ---- calls

    def calls(self, names: list[str], parallel: bool, without: str = "") -> int:
        """One or more calls. without: the beginning of the opening that has been written already."""
        _parts, rules, calls = self.parts, self.rules, self.form.calls
        unknown = [name for name in names if name not in self.tools]
        if not names or unknown:
            raise GrammarError(f"there is no tool {unknown[0]!r}" if unknown else "there are no tools to call")
        if self.form.harmony:
            return rules.alt([self._harmony(name, without) for name in names])
        if calls is None:
            raise GrammarError(self.form.reason)
        if without and not calls.opening and isinstance(calls.shape, JsonCall):  # an object without a mark
            shape = calls.shape
            first = rules.alt([self._object(name, shape, begun=True) for name in names])
            return rules.seq((first, self._several(names, parallel, begun=True)))
        return rules.seq((self._opening(calls, without), self._several(names, parallel)))

    def _several(self, names: list[str], parallel: bool, begun: bool = False) -> int:
        """Calls behind their opening, up to what ends them all. begun: the first has been written."""
        assert self.form.calls is not None
        return self.rules.seq((self._row(names, parallel, begun), self._end(self.form.calls)))

    def _row(self, names: list[str], parallel: bool, begun: bool = False) -> int:
        """Calls behind their opening."""
        parts, rules, calls = self.parts, self.rules, self.form.calls
        assert calls is not None
        one = parts.shared(rules.alt([self._call(name, calls) for name in names]))
        bodies = [] if begun else [one]
        if parallel and calls.parallel:
            space = parts.gap(len(calls.separator) + 4)
            more = parts.shared(rules.seq((space, self._split(calls.separator), space, self._begin(), one)))
            bodies.append(rules.repeat(more, 0))
        return rules.seq(bodies)

    def _opening(self, calls: CallFormat, without: str) -> int:
        pattern = calls.opening
        if isinstance(calls.shape, JsonCall) and not pattern:
            return self.rules.seq(())
        if pattern and isinstance(pattern[0], str):
            first = pattern[0].lstrip() if without else pattern[0]
            pattern = (first.removeprefix(without), *pattern[1:])
        return self._pattern(pattern)

    def _begin(self) -> int:
        return self._pattern(self.form.calls.call_begin if self.form.calls else ())

    def _pattern(self, pattern: Pattern) -> int:
        return self.parts.pattern(pattern, {"name": self.rules.alt([self.parts.text(name) for name in self.tools])})

    def _split(self, text: str) -> int:
        return self.parts.mark(text.strip()) if text.strip() else self.rules.seq(())

    def _end(self, calls: CallFormat) -> int:
        """Expression of the marks that end all calls. Of several marks the later ones may end the turn: these are
        optional."""
        parts, words = self.parts, self.form.end_words
        if not words:
            return self.rules.seq(())
        space = parts.gap(40 if isinstance(calls.shape, JsonCall) and calls.shape.spaced else 4)
        n_needed = self.form.n_needed_ends
        items: list[int] = []
        for i, word in enumerate(words):
            item = self.rules.seq((space, parts.mark(word)))
            items.append(item if i < n_needed else parts.maybe(item))
        return self.rules.seq(items)

    def _call(self, name: str, calls: CallFormat) -> int:
        """A call of this tool, from its name or its brace to `call_end`."""
        if name not in self._calls:
            end = self._split(calls.call_end)
            self._calls[name] = self.parts.shared(self.rules.seq((self.body(name), self.parts.gap(), end)))
        return self._calls[name]

    def body(self, name: str) -> int:
        """A call of this tool, from its name or its brace to its last argument."""
        if name not in self._bodies:
            assert self.form.calls is not None
            self._bodies[name] = self.parts.shared(self._body(name, self.form.calls))
        return self._bodies[name]

    def _body(self, name: str, calls: CallFormat) -> int:
        shape, parts, rules = calls.shape, self.parts, self.rules
        schema = self.tools[name]
        if isinstance(shape, JsonCall):
            return self._object(name, shape)
        if isinstance(shape, Named):
            return rules.seq((parts.text(name), parts.pattern(shape.middle, {}), self.arguments(name)))
        self.check(name, schema)
        if schema is ANY_OBJECT:
            return free_call(parts, name, calls, self.mode, self.known[name])
        if isinstance(shape, Tagged):
            return self._tagged(name, calls, shape)
        if isinstance(shape, PythonCall):
            values = PythonValues(parts, schema, self.mode)
            fields = [
                (parts.text(f"{key}="), parts.shared(values.value(inner)), needed)
                for key, inner, needed in schema_properties(schema, schema)
            ]
            return rules.seq((parts.text(f"{name}("), values.sequence(fields), parts.text(")")))
        if isinstance(shape, Braces):
            braces = BracesValues(parts, schema, self.mode, shape.quote)
            return rules.seq((parts.text(name), braces.object(_as_object(schema), 0)))
        nested = NestedValues(parts, schema, self.mode, calls)
        return rules.seq((parts.text(name), parts.mark(shape.head_end), nested.object(_as_object(schema), 0)))

    def _object(self, name: str, shape: JsonCall, begun: bool = False) -> int:
        """A call as an object. begun: its brace and its first key have been written."""
        parts, rules = self.parts, self.rules
        space = parts.gap(40) if shape.spaced else parts.maybe(parts.text(" "))
        if shape.name_is_key:
            key = rules.seq((parts.text(json.dumps(name, ensure_ascii=False)), space, parts.text(":"), space))
            return rules.seq((parts.text("{"), space, key, self.arguments(name, shape.spaced), space, parts.text("}")))
        items = [] if begun else [parts.text("{"), space]
        for i, (key_name, kind, text) in enumerate(shape.keys):
            if kind == "name":
                value = parts.text(json.dumps(name, ensure_ascii=False))
            elif kind == "arguments":
                value = self.arguments(name, shape.spaced)
            elif kind == "constant":
                value = parts.text(text)
            else:
                quote = parts.text('"' if kind == "id" or text.startswith('"') else "")
                value = rules.seq((quote, parts.hole(kind), quote))
            before = [] if begun and not i else [parts.text(json.dumps(key_name))]
            comma = [parts.text(","), space] if i else []
            items += [*comma, *before, space, parts.text(":"), space, value, space]
        items.append(parts.text("}"))
        if shape.wrapper:
            typed = parts.text('"type": "function", ')
            id = rules.seq((parts.text('"id": "'), parts.hole("id"), parts.text('", ')))
            others: tuple[tuple[int, ...], ...] = ((), (typed,), (id,), (typed, id), (id, typed))
            beside = rules.alt([rules.seq(these) for these in others])
            head = [parts.text("{"), beside, parts.text(f"{json.dumps(shape.wrapper)}: ")]
            items = [*head, *items, space, parts.text("}")]
        return rules.seq(items)

    def _tagged(self, name: str, calls: CallFormat, shape: Tagged) -> int:
        parts = self.parts
        if self._section < 0:
            self._section = section_of(parts, calls)
        arguments = TaggedArguments(parts, calls, self.tools[name], self.json, self._section)
        return self.rules.seq((parts.text(name), parts.pattern(shape.head_end, {}), arguments.expression()))

    def _harmony(self, name: str, without: str) -> int:
        parts, rules = self.parts, self.rules
        heads = [f"{BEGIN}commentary to=functions.{name} <|constrain|>json{MESSAGE}"]
        if not without:
            heads.append(f" to=functions.{name}{BEGIN}commentary json{MESSAGE}")
        return rules.seq((rules.alt([parts.mark(head.removeprefix(without)) for head in heads]), self.arguments(name)))

    # ---- JSON

    def arguments(self, name: str, spaced: bool = False) -> int:
        """The rule of a tool's arguments, which are an object."""
        schema = self.tools[name]
        self.check(name, schema)
        described = {**_as_object(schema), "type": "object"}
        return self.json(described, f"the parameters of the tool {name!r}: ", spaced)

    def check(self, name: str, schema: Any) -> None:
        kind = _as_object(schema).get("type", "object")
        if "object" not in (kind if isinstance(kind, list) else [kind]):
            raise GrammarError(f"the parameters of the tool {name!r} must be of type object, not {kind!r:.60}")

    def json(self, schema: Any, what: str = "", spaced: bool = False) -> int:
        """The rule of a schema's values. what: stands before errors, whose places are those within this schema."""
        from oxillama.grammar.json_schema import JsonSchemaCompiler  # twenty modules, which only schemas need

        try:
            if spaced:
                rule = JsonSchemaCompiler.add_to(self.rules, _closed(schema), mode="full", whitespace="flexible")
            else:
                rule = JsonSchemaCompiler.add_to(self.rules, schema, mode=self.mode)
        except GrammarError as error:
            if not what:
                raise
            raise GrammarError(f"{what}{error}") from None
        return self.rules.rule(rule)


def _as_object(schema: Any) -> dict[str, Any]:
    return dict(schema) if isinstance(schema, Mapping) else {} if schema else {"not": {}}


def _closed(schema: Any, depth: int = 0) -> Any:
    """A schema whose objects have only the properties that it names, as mode "generate" has it."""
    if isinstance(schema, list) and depth < 64:
        return [_closed(item, depth + 1) for item in schema]
    if not isinstance(schema, Mapping) or depth >= 64:
        return schema
    found = {
        key: value if key in ("enum", "const", "default", "examples") else _closed(value, depth + 1)
        for key, value in schema.items()
    }
    is_object = isinstance(schema.get("properties"), Mapping) and "type" in schema
    if is_object and not any(
        key in schema for key in ("additionalProperties", "patternProperties", "unevaluatedProperties")
    ):
        found["additionalProperties"] = False
    return found
