"""Grammars of tool calls: the text that a model may write once it starts a call, or must write."""

import json
from collections.abc import Callable, Mapping

from oxillama.chat.arguments import Schema
from oxillama.errors import GrammarError
from oxillama.grammar.automaton import RuleSet
from oxillama.grammar.json_schema import JsonSchemaCompiler
from oxillama.grammar.matcher import Grammar
from oxillama.sampler_config import SchemaMode
from oxillama.tools.formats import ToolFormat

__all__ = ["tool_grammar"]

ControlToken = Callable[[str], int | None]


def tool_grammar(
    format: ToolFormat,
    tools: Mapping[str, Schema],
    choice: str,
    token: ControlToken,
    mode: SchemaMode = "generate",
) -> tuple[Grammar, tuple[str, ...]]:
    """The grammar of tool calls, and the texts that trigger it (none: it holds from the beginning).

    choice: "required" is only calls, a tool's name is one call of it, "auto" is any text up to the first call, and then
    only calls. token: returns the id of the control token with a text, or None. mode: that of
    `JsonSchemaCompiler.compile` for the arguments.

    Raises GrammarError, which names the tool, for a schema that can't be compiled.
    """
    makers = _Calls(format, tools, token, mode)
    rules = makers.rules
    root = rules.new_rule("root")
    triggers: tuple[str, ...] = ()
    if choice == "auto":
        if not format.bare and makers.begin_token is None:
            triggers = (format.begin.strip(),)
            rules.define(root, makers.several())
        else:
            rules.define(root, makers.after_text())
    elif choice == "required":
        rules.define(root, makers.several())
    else:
        rules.define(root, makers.one([choice]))
    return Grammar.from_rules(rules, root), triggers


class _Calls:
    """Expressions of calls."""

    def __init__(self, format: ToolFormat, tools: Mapping[str, Schema], token: ControlToken, mode: SchemaMode) -> None:
        if not tools:
            raise GrammarError("there are no tools to call")
        self.format = format
        self.rules = RuleSet()
        self.token = token
        self.mode = mode
        self.begin_token = token(format.begin.strip())
        self.arguments = {name: self.compiled(name, schema) for name, schema in tools.items()}

    def compiled(self, name: str, schema: Schema) -> int:
        """The rule of a tool's arguments, which are objects."""
        described = dict(schema) if isinstance(schema, Mapping) else {} if schema else {"not": {}}
        kind = described.get("type", "object")
        if "object" not in (kind if isinstance(kind, list) else [kind]):
            raise GrammarError(f"the parameters of the tool {name!r} must be of type object, not {kind!r:.60}")
        try:
            return JsonSchemaCompiler.add_to(self.rules, {**described, "type": "object"}, mode=self.mode)
        except GrammarError as error:
            raise GrammarError(f"the parameters of the tool {name!r}: {error}") from None

    def rule(self, expr: int) -> int:
        rule = self.rules.new_rule("")
        self.rules.define(rule, expr)
        return rule

    def delimiter(self, text: str) -> int:
        """A delimiter as text, or as the control token of this name with the spaces around it."""
        core = text.strip()
        token = self.token(core) if core else None
        if token is None:
            return self.rules.literal(text.encode())
        before, _, after = text.partition(core)
        return self.rules.seq([self.literal(before), self.rules.token(token), self.literal(after)])

    def literal(self, text: str) -> int:
        return self.rules.literal(text.encode())

    def call(self, name: str) -> int:
        """A call of this tool, without delimiters."""
        arguments = self.rules.rule(self.arguments[name])
        if self.format.shape == "named":
            return self.rules.seq([self.literal(name), self.delimiter(self.format.between), arguments])
        head = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "{self.format.arguments}": '
        return self.rules.seq([self.literal(head), arguments, self.literal("}")])

    def any(self, names: list[str] | None = None) -> int:
        return self.rules.alt([self.call(name) for name in names or self.arguments])

    def around(self, body: int) -> int:
        """A body with its delimiters, which some formats don't have."""
        f = self.format
        if f.shape == "list":
            body = self.rules.seq([self.literal("["), body, self.literal("]")])
        return body if f.bare else self.rules.seq([self.delimiter(f.begin), body, self.delimiter(f.end)])

    def one(self, names: list[str] | None = None) -> int:
        return self.around(self.any(names))

    def several(self) -> int:
        """One or more calls."""
        rule = self.rule(self.any() if self.format.shape == "list" else self.one())
        separator = self.literal(", " if self.format.shape == "list" else self.format.separator)
        more = self.rules.repeat(self.rules.seq([separator, self.rules.rule(rule)]), 0)
        found = self.rules.seq([self.rules.rule(rule), more])
        return self.around(found) if self.format.shape == "list" else found

    def after_text(self) -> int:
        """Any text, and then calls; or only calls, if they need no opening delimiter."""
        rules, begin = self.rules, self.begin_token
        byte = rules.range(0, 255)
        other = byte if begin is None else rules.token(begin, True)  # any other token, whatever its text
        if not self.format.bare:
            return rules.seq([rules.repeat(other, 0), rules.repeat(self.several(), 0, 1)])
        opened = self.literal("")
        if begin is not None:
            opened = rules.repeat(rules.seq([rules.token(begin), self.rules.rule(self.rule(self.several()))]), 0, 1)
        rest = rules.repeat(byte if begin is None else rules.alt([byte, other]), 0)
        # A text that differs from the start of a call at some byte, or ends inside of it.
        head = b'{"name": "'
        texts = [rules.literal(head[:i]) for i in range(1, len(head))]
        for i, c in enumerate(head):
            parts = [rules.range(low, high) for low, high in ((0, c - 1), (c + 1, 255)) if low <= high]
            texts.append(rules.seq([rules.literal(head[:i]), rules.alt(parts), rest, opened]))
        return rules.alt([self.several(), opened, *texts])
