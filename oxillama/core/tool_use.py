"""Reading of answers: how a request's text is divided into reasoning, content and calls of tools, and held to these."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, cast

from oxillama._util.checks import check_bool, check_choice, check_int
from oxillama._util.json_fields import Fields
from oxillama.chat.call_grammar import AnswerGrammar
from oxillama.chat.dispatch import read_tools
from oxillama.chat.format import ChatFormat, chosen_tools, is_open
from oxillama.chat.functions import described_tools
from oxillama.chat.grammar_parts import END
from oxillama.chat.harmony import BEGIN, MESSAGE
from oxillama.chat.harmony import END as MESSAGE_END
from oxillama.chat.parser import ChatParser
from oxillama.chat.patterns import MARK
from oxillama.chat.shapes import ReasoningFormat
from oxillama.chat.tool_format import FORMATS, ToolFormat, find_format
from oxillama.errors import ConfigError, GrammarError, OxiLlamaError, SnapshotDamagedError, ToolFormatError
from oxillama.grammar import Grammar
from oxillama.grammar.automaton import RuleSet
from oxillama.sampler_config import SchemaMode
from oxillama.tokenizer import Tokenizer

__all__ = [
    "AnswerOptions",
    "HeldText",
    "ToolUse",
    "check_tool_use",
    "read_tool_use",
    "tool_use_of",
    "tools_state",
    "warnings_of",
]

MAX_CALLS = 1 << 30
MAX_BUDGET = 1 << 30
_HARMONY = (BEGIN, MESSAGE, MESSAGE_END, "<|start|>", "<|constrain|>", "<|call|>", "<|return|>")


class HeldText(NamedTuple):
    """Grammar that a text is held to.

    grammar: of the text, or of its calls of tools. triggers: texts that put it in force; none: it always is. free: the
    tools whose arguments may be any object, each with the reason why no grammar can hold them.
    """

    grammar: Grammar
    triggers: tuple[str, ...] = ()
    free: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Reasoning and calls of tools are to be found in a text. `Engine.chat` makes one of its own options.

    format: how the model writes them, a `ChatFormat`, a `ToolFormat` or the name of one. first_id: number of the first
    call.
    tools: functions, or descriptions of them; calls are held to their names and schemas. None holds to nothing.
    choice: "auto" leaves it to the model whether it says something or calls, and all calls come last; "required" are
        calls alone; the name of a tool is one call of it.
    parallel: whether several calls may come in a row.
    prompt: the end of the prompt, which may have opened the reasoning.
    reasoning: "auto" for the format's own marks, "none" to leave reasoning in the text, or a `ReasoningFormat`.
    reasoning_budget: so many tokens of reasoning at most; then its end is written in the model's place. None for all.
    note: what a caller should know of how the tools are shown to the model; "" for nothing.

    Raises ConfigError for other values.
    """

    format: ChatFormat | ToolFormat | str
    first_id: int = 0
    tools: Sequence[Mapping[str, Any] | Callable[..., Any]] | None = None
    choice: str = "auto"
    parallel: bool = True
    prompt: str = ""
    reasoning: str | ReasoningFormat = "auto"
    reasoning_budget: int | None = None
    note: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.format is None:
            raise ConfigError("tool_use.format must be a ChatFormat, a ToolFormat or the name of one, not None")
        object.__setattr__(self, "format", find_format(self.format))
        check_int("tool_use.first_id", self.first_id, 0, MAX_CALLS)
        described: Sequence[Mapping[str, Any]] | None = described_tools(self.tools)
        names = () if described is None else tuple(read_tools(described))
        check_choice("tool_use.choice", self.choice, ("auto", "required", *names) if names else ("auto",))
        check_bool("tool_use.parallel", self.parallel)
        if not isinstance(self.prompt, str):
            raise ConfigError(f"tool_use.prompt must be a str, not {self.prompt!r:.60}")
        self._form.marks_of(self.reasoning)
        if self.reasoning_budget is not None:
            check_int("reasoning_budget", self.reasoning_budget, 0, MAX_BUDGET)
            if self._marks is None:
                raise ConfigError(
                    "reasoning_budget is given, and it isn't known how the model writes reasoning: give "
                    "reasoning=ReasoningFormat(begin, end) too"
                )
        if described is not None:  # frozen, so that they can't be changed
            object.__setattr__(self, "tools", _frozen(described))

    @property
    def _form(self) -> ChatFormat:
        return cast(ChatFormat, self.format)

    @property
    def _marks(self) -> ReasoningFormat | None:
        """The marks of reasoning, if they are the format's own or the caller's."""
        if isinstance(self.reasoning, ReasoningFormat):
            return self.reasoning
        return self._form.reasoning

    @property
    def _described(self) -> list[Any] | None:
        return None if self.tools is None else [json.loads(tool) for tool in cast(tuple[str, ...], self.tools)]

    @property
    def divides(self) -> bool:
        """Whether a text may have anything but content."""
        form = self._form
        return self._marks is not None or form.harmony or form.calls is not None or bool(form.frame.content_begin)

    def grammar(self, tokenizer: Tokenizer, mode: SchemaMode = "generate") -> HeldText:
        """Grammar of calls. mode: as `JsonSchemaCompiler.compile` has it, for the arguments.

        A tool whose arguments no grammar can hold is free, and the others are held. Raises GrammarError if such a tool
        is asked for: by a choice that isn't "auto", or as `strict`.
        """
        faults: dict[str, str] | None = None if self._form.writes_json else self._faults(mode)
        free = faults or {}
        while True:
            try:
                found = self._grammar(tokenizer, mode, free)
            except GrammarError as error:
                faults = self._faults(mode) if faults is None else faults
                free = self._freer(free, faults, error)
            else:
                return HeldText(found.grammar, found.triggers if found.lazy else (), tuple(free.items()))

    def _grammar(self, tokenizer: Tokenizer, mode: SchemaMode, free: Mapping[str, str]) -> AnswerGrammar:
        token = _control_token(tokenizer)
        form = self._form
        triggers = form.layout.calls.marks if form.layout.calls else ()
        lazy = self._marks is None and not any(token(mark) is not None for text in triggers for mark in _marks(text))
        # Inner openings are spelled in more ways than a trigger; of JSON none is held.
        lazy = lazy and all(opening.closed for opening in form.layout.inner)
        return form.grammar(
            self._described,
            self.choice,
            parallel_tool_calls=self.parallel,
            generation_prompt=self.prompt,
            reasoning=self._given_marks,
            token=token,
            mode=mode,
            lazy=lazy,
            free=free,
        )

    def _faults(self, mode: SchemaMode) -> dict[str, str]:
        """Why no grammar can hold the arguments of tools, by their names. Raises GrammarError for one asked for."""
        found = self._form.faults(self._described or [], mode)
        for name in self._asked.intersection(found):
            raise GrammarError(found[name])
        return found

    def _freer(self, free: dict[str, str], faults: dict[str, str], error: GrammarError) -> dict[str, str]:
        """More tools that are free, after an error with these: those with faults of their own, or else all of them.

        Raises the error if that can't help, or if one of them is asked for.
        """
        if len(free) < len(faults):
            return faults
        rest = [name for name in read_tools(self._described or []) if name not in free]
        if not rest or self._asked.intersection(rest):
            raise error
        return {**free, **dict.fromkeys(rest, str(error))}

    @property
    def _asked(self) -> set[str]:
        """The tools whose arguments must be held to their schemas."""
        tools = {_name(tool): tool for tool in self._described or ()}
        if self.choice != "auto":
            return set(tools) if self.choice == "required" else {self.choice}
        return {name for name, tool in tools.items() if tool.get("function", tool).get("strict") is True}

    def constrained(
        self, tokenizer: Tokenizer, schema: Any, rules: tuple[RuleSet, int] | None, mode: SchemaMode
    ) -> Grammar:
        """Grammar of an answer whose content fits a schema, or these rules, behind its reasoning."""
        return self._form.grammar(
            json_schema=schema,
            constraint=rules,
            generation_prompt=self.prompt,
            reasoning=self._given_marks,
            token=_control_token(tokenizer),
            mode=mode,
        ).grammar

    @property
    def frames(self) -> bool:
        """Whether constraints are of what follows reasoning, or stands in a frame; with reasoning that stays in the
        text, they are of all of it, unless the prompt began it."""
        in_text = self.reasoning == "none" and not is_open(self._marks, self.prompt)
        return (self._marks is not None and not in_text) or self._form.harmony or bool(self._form.frame.content_begin)

    @property
    def _given_marks(self) -> "str | ReasoningFormat | None":
        return self._marks

    @property
    def parser(self) -> ChatParser:
        """A new one, for one text."""
        return self.parser_of(constrained=False)

    def parser_of(self, *, constrained: bool) -> ChatParser:
        """A parser of one text. constrained: a grammar, schema, pattern or choices say what its content is, so that
        JSON in it is no call."""
        return self._form.parser(
            self._described,
            self.prompt,
            reasoning=self.reasoning if self.reasoning == "none" and self._marks else self._marks,
            first_id=self.first_id,
            must_call=self.choice != "auto",
            bare=not constrained,
        )

    def delimiters(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Tokens of the format, also control tokens: they must be seen to be found."""
        layout, marks = self._form.layout, self._marks
        texts = [*layout.texts, *(_HARMONY if layout.harmony else ())]
        texts += [] if marks is None else [marks.begin, marks.end]
        words = {word for text in texts for word in (*_marks(text), text.strip()) if word}
        found = (tokenizer.token_to_id(word) for word in words)
        return frozenset(token for token in found if token is not None)

    def end_of_reasoning(self, tokenizer: Tokenizer) -> list[int]:
        """The tokens that end reasoning."""
        marks = self._marks
        return [] if marks is None else tokenizer.encode(marks.end, add_special=False, parse_special=True)


def warnings_of(use: ToolUse, held: HeldText | None) -> list[str]:
    """Warnings of a completion about its tools: how they are shown, and those whose arguments may be any object."""
    found = [use.note] if use.note else []
    for name, reason in () if held is None else held.free:
        reason = reason.removeprefix(f"the parameters of the tool {name!r}: ")
        found.append(f"the arguments of the tool {name!r:.80} are held to no schema: {reason:.400}")
    return found


def _marks(text: str) -> list[str]:
    return MARK.findall(text)


def _control_token(tokenizer: Tokenizer) -> Callable[[str], int | None]:
    def control_token(text: str) -> int | None:
        token = tokenizer.token_to_id(text)
        if token is None or not tokenizer.is_special(token):
            return None
        return END if token in tokenizer.eog_ids else token

    return control_token


def check_tool_use(name: str, value: Any) -> ToolUse:
    """Raises ConfigError for anything else."""
    if not isinstance(value, ToolUse):
        raise ConfigError(f"{name} must be a ToolUse or None, not {value!r:.60}")
    return value


def _frozen(tools: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    try:
        return tuple(json.dumps(tool, allow_nan=False) for tool in tools)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"tools must be JSON: {error}") from None


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """The options of `Engine.chat` that say how an answer is read: see `chat_prompt`."""

    tools: Any = None
    tool_choice: Any = None
    tool_format: Any = None
    constrain_tools: Any = None
    parallel_tool_calls: Any = None
    reasoning: Any = None
    reasoning_budget: Any = None


def tool_use_of(
    make: Callable[[], ChatFormat],
    begun: Callable[[], str],
    messages: Sequence[Mapping[str, Any]],
    given: AnswerOptions,
    *,
    thinks: bool = True,
    note: str = "",
) -> ToolUse | None:
    """Reading of tools that these options of `Engine.chat` ask for: None if there is nothing to find. make: gives the
    template's format. begun: gives the end of the prompt, which the answer goes on from. thinks: False if that is
    behind the reasoning, whether or not the prompt has it. note: of the `ToolUse`.

    Raises ConfigError for wrong options and descriptions, ToolFormatError if the template doesn't tell the format.
    """
    choice, allowed = _choice(given)
    by_template = given.tool_format is None or given.tool_format in ("text", "none", "generic")
    form = None if by_template else find_format(given.tool_format)
    wanted = bool(given.tools) and choice != "none" and given.tool_format != "text"
    if form is None:
        form = make()
    if wanted and form.calls is None and not form.harmony:
        raise ToolFormatError(
            "the chat template doesn't tell in which format the model calls tools: give tool_format= one of "
            f"{', '.join(map(repr, FORMATS))}, a ToolFormat, or 'text' to get calls as text ({form.reason})"
        )
    if not wanted:
        form = form.without_calls
    held = wanted and given.constrain_tools is not False
    tools = [tool for tool in given.tools if not allowed or _name(tool) in allowed] if held else None
    n_calls = sum(len(calls) for m in messages if isinstance(calls := m.get("tool_calls"), list | tuple))
    use = partial(
        ToolUse,
        form,
        n_calls,
        tools,
        choice if wanted and choice is not None else "auto",
        given.parallel_tool_calls is not False,
        reasoning="auto" if given.reasoning is None else given.reasoning,
        reasoning_budget=given.reasoning_budget,
        note=note if wanted else "",
    )
    plain = use()
    if not plain.divides:
        return None
    if thinks:
        return use(prompt=begun())
    marks = plain._marks  # nothing else of the prompt matters, so that all such answers share a grammar
    return use(prompt="" if marks is None else marks.begin + marks.end)


def _name(tool: Mapping[str, Any]) -> str:
    return next(iter(read_tools([tool])))


def _choice(given: AnswerOptions) -> tuple[str | None, list[str]]:
    """(the choice, the tools that it allows, none for all), checked."""
    choice, held = given.tool_choice, given.constrain_tools
    if given.parallel_tool_calls is not None:
        check_bool("parallel_tool_calls", given.parallel_tool_calls)
    if not given.tools:
        for name in ("tool_choice", "tool_format", "constrain_tools", "parallel_tool_calls"):
            if getattr(given, name) is not None:
                raise ConfigError(f"{name} is given without tools: give tools=[...] too")
        return None, []
    names = list(read_tools(given.tools))
    allowed: list[str] = []
    if choice != "none" and choice is not None:
        found, chosen = chosen_tools(choice, names, ("none",))
        allowed = found if len(found) < len(names) else []
        choice = chosen
    check_bool("constrain_tools", True if held is None else held)
    if (choice not in (None, "auto", "none") or allowed) and (held is False or given.tool_format == "text"):
        raise ConfigError(f"tool_choice={given.tool_choice!r} needs calls that are found and held to their schemas")
    return choice, allowed


# ---- to JSON for snapshots, and from it


def tools_state(use: ToolUse) -> dict[str, Any]:
    """A format is saved as the template that it was made of, or as its fields."""
    source = cast(ChatFormat, use.format).source
    form: dict[str, Any] = asdict(source[0]) if isinstance(source[0], ToolFormat) else {"template": list(source)}
    if isinstance(source[0], ToolFormat) and len(source) > 1:
        form["text"] = True
    reasoning = use.reasoning if isinstance(use.reasoning, str) else asdict(use.reasoning)
    return {
        "format": form,
        "first_id": use.first_id,
        "tools": None if use.tools is None else list(use.tools),
        "choice": use.choice,
        "parallel": use.parallel,
        "prompt": use.prompt,
        "reasoning": reasoning,
        "budget": use.reasoning_budget,
        **({"note": use.note} if use.note else {}),
    }


def _read_format(given: Fields) -> ChatFormat | ToolFormat:
    if "template" in given:
        source = given.texts("template")
        found = ChatFormat.of_template(source[0], bos_token=source[1], eos_token=source[2])
        for word in source[3:]:
            found = {"generic": found.with_generic_calls, "text": found.without_calls}.get(word, found)
        return found
    fields = dict(given)
    plain = fields.pop("text", False)
    form = ToolFormat(**fields)
    return form.chat_format.without_calls if plain else form


def read_tool_use(given: Fields | None, label: str) -> ToolUse | None:
    """Raises SnapshotDamagedError for invalid values."""
    if given is None:
        return None
    try:
        form = _read_format(given.sub("format"))
        tools = None if given.get("tools") is None else [json.loads(tool) for tool in given.texts("tools")]
        old = ToolUse(form, given.integer("first_id"), tools, given.text("choice"))
        if "prompt" not in given:  # a file of an earlier version
            return old
        marks = given.get("reasoning")
        reasoning = ReasoningFormat(**marks) if isinstance(marks, dict) else given.text("reasoning")
        budget, parallel = given.get("budget"), given.get("parallel")
        return replace(
            old,
            tools=tools,
            parallel=check_bool("parallel", parallel),
            prompt=given.text("prompt"),
            reasoning=reasoning,
            reasoning_budget=budget,
            note=given.maybe_text("note") or "",
        )
    except (OxiLlamaError, TypeError, ValueError, IndexError, RecursionError) as error:
        raise SnapshotDamagedError(f"{label}: calls of tools: {error}") from None
