"""Chat formats: how a model writes reasoning, content and calls of tools, recognised from its chat template."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

from oxillama._util.checks import check_choice
from oxillama.chat.call_grammar import AnswerGrammar, answer_grammar, argument_faults
from oxillama.chat.dispatch import read_tools
from oxillama.chat.grammar_parts import ControlToken
from oxillama.chat.harmony import BEGIN, END, MESSAGE
from oxillama.chat.implied_marks import cut_reasoning, told_calls
from oxillama.chat.layout import Layout
from oxillama.chat.parser import ChatParser
from oxillama.chat.patterns import Hole
from oxillama.chat.probe import CONTENT, Probes, probes_of
from oxillama.chat.recognise import recognise
from oxillama.chat.shapes import (
    Braces,
    CallFormat,
    Frame,
    JsonCall,
    Named,
    NestedTags,
    PythonCall,
    ReasoningFormat,
    Tagged,
)
from oxillama.chat.template import ChatTemplate
from oxillama.errors import ConfigError, ToolFormatError
from oxillama.grammar.automaton import RuleSet
from oxillama.sampler_config import SchemaMode

__all__ = ["ChatFormat"]

MAX_WORK = 1_000_000  # units of one rendering
DEFAULT_REASONING = ReasoningFormat("<think>", "</think>")
# Marks of reasoning that templates of these models name without showing where they stand.
_NAMED = (("[THINK]", "[/THINK]"), ("<|inner_prefix|>", "<|inner_suffix|>"), ("<think>", "</think>"))
HERMES = CallFormat(JsonCall(), (), ("<tool_call>\n",), "</tool_call>", "\n")
# Formats of models whose templates show no calls: words of the template, and the format of its model's card.
_CARDS: tuple[tuple[tuple[str, ...], CallFormat], ...] = (
    (
        ("<|tool_list_start|>",),
        CallFormat(PythonCall(), ("<|tool_call_start|>[",), (), "", ", ", "]<|tool_call_end|>"),
    ),
    (
        ("List of tools: [", "keep_past_thinking"),
        CallFormat(PythonCall(), ("<|tool_call_start|>[",), (), "", ", ", "]<|tool_call_end|>"),
    ),
    (("<|tool_call|>",), CallFormat(JsonCall(), ("<|tool_call|>[",), (), "", ", ", "]")),
    (
        ("<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"),
        CallFormat(
            Named((":", Hole("number", "0"), "<|tool_call_argument_begin|>")),
            ("<|tool_calls_section_begin|>",),
            ("<|tool_call_begin|>functions.",),
            "<|tool_call_end|>",
            "",
            "<|tool_calls_section_end|>",
        ),
    ),
    (("/no_think", "reasoning_mode"), HERMES),
    (("<tool_call>", "</tool_call>"), HERMES),
)


_WORDS = {
    JsonCall: "JSON objects",
    Named: "a name, and arguments in JSON",
    Tagged: "arguments between tags",
    PythonCall: "calls of Python",
    Braces: "arguments in braces",
    NestedTags: "nested tags",
}


class ChatFormat:
    """Format of a model's answers.

    layout: what stands around reasoning, content and calls, and how calls are written.
    """

    def __init__(self, layout: Layout, source: tuple[Any, ...]) -> None:
        """source: a template with its BOS and EOS, or what else the format was made of."""
        self.layout, self.source = layout, source

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChatFormat) and self.source == other.source

    def __hash__(self) -> int:
        return hash(self.source)

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_of, self.source

    def __copy__(self) -> "ChatFormat":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "ChatFormat":
        return self

    @property
    def calls(self) -> CallFormat | None:
        """Format of calls of tools; None for a model that calls none, or for gpt-oss's channels."""
        return self.layout.calls

    @property
    def frame(self) -> Frame:
        """Marks around reasoning, content and calls."""
        return self.layout.frame

    @property
    def harmony(self) -> bool:
        """Whether answers are in gpt-oss's channels."""
        return self.layout.harmony

    @property
    def reason(self) -> str:
        """Why there are no calls of tools; "" if there are."""
        return self.layout.reason

    @property
    def description(self) -> str:
        """Reasoning and calls in words, for a person."""
        marks = self.reasoning
        thinks = (
            f"reasoning from {marks.begin.strip()!r} to {marks.end.strip()!r}" if marks else "no marks of reasoning"
        )
        if self.harmony:
            return f"{thinks}; calls in channels"
        calls = f"calls as {_WORDS[type(self.calls.shape)]}" if self.calls else f"no calls: {self.reason}"
        return f"{thinks}; {calls}"

    @classmethod
    def of_template(cls, source: "str | ChatTemplate", *, bos_token: str = "", eos_token: str = "") -> "ChatFormat":
        """The format of the models that a chat template is for, found by rendering probe conversations with it.

        A template that fails, or shows no calls, gives a format without calls; `reason` says why.

        Raises ChatTemplateError for a template that doesn't compile.
        """
        if isinstance(source, ChatTemplate):
            return _of_template(source.source, source.bos_token, source.eos_token)
        return _of_template(source, bos_token, eos_token)

    @property
    def without_calls(self) -> "ChatFormat":
        """Copy of the format in which calls of tools are text. The channels of gpt-oss stay."""
        if self.layout.calls is None:
            return self
        layout = Layout(self.frame, None, reason="calls of tools are text")
        return ChatFormat(layout, (*self.source, "text"))

    @property
    def with_generic_calls(self) -> "ChatFormat":
        """The format with calls of tools as JSON objects between tags, for models that are told to write such."""
        layout = Layout(Frame(self.reasoning) if self.harmony else self.frame, HERMES)
        return ChatFormat(layout, (*self.source, "generic"))

    @property
    def reasoning(self) -> ReasoningFormat | None:
        """The marks of reasoning; None if the model shows none."""
        return self.frame.reasoning

    def parser(
        self,
        tools: Sequence[Mapping[str, Any] | Callable[..., Any]] | None = None,
        generation_prompt: str = "",
        parallel_tool_calls: bool | None = None,
        *,
        reasoning: "str | ReasoningFormat | None" = "auto",
        first_id: int = 0,
        must_call: bool = False,
        bare: bool = True,
    ) -> ChatParser:
        """A parser of one answer.

        tools: descriptions of functions, whose schemas tell text from numbers where calls have no quotes.
        generation_prompt: the end of the prompt, which may have opened the reasoning. parallel_tool_calls: what was
            asked for; a model that calls several functions all the same has called them, and none is dropped.
        reasoning: "auto", "none" (it stays in the content), other marks than the format's, or None for none.
        first_id: number of the first call without an id of its own.
        must_call: the answer is held to calls: what is cut off before the first one's name is no content.
        bare: an answer that is nothing but calls of these tools, as JSON without the format's marks, has them found.

        Raises ToolFormatError for wrong options, ConfigError for wrong tools.
        """
        if not isinstance(generation_prompt, str):
            raise ToolFormatError(f"generation_prompt must be a str, not {generation_prompt!r:.60}")
        if parallel_tool_calls not in (None, True, False):
            raise ToolFormatError(f"parallel_tool_calls must be a bool or None, not {parallel_tool_calls!r:.60}")
        schemas = read_tools(tools) if tools else {}
        marks = self.marks_of(reasoning)
        return ChatParser(
            self.layout,
            schemas,
            reasoning=marks,
            opened=is_open(marks, generation_prompt),
            begun=marks is not None and bool(generation_prompt.rpartition(marks.begin.strip() or "\0")[2].strip()),
            kept=reasoning == "none",
            first_id=first_id,
            must_call=must_call,
            bare=bare,
        )

    def grammar(
        self,
        tools: Sequence[Mapping[str, Any] | Callable[..., Any]] | None = None,
        choice: str | Mapping[str, Any] = "auto",
        *,
        parallel_tool_calls: bool = False,
        generation_prompt: str = "",
        json_schema: Any = None,
        constraint: tuple[RuleSet, int] | None = None,
        reasoning: "str | ReasoningFormat | None" = "auto",
        token: ControlToken | None = None,
        mode: SchemaMode = "generate",
        lazy: bool = True,
        free: Collection[str] = (),
    ) -> AnswerGrammar:
        """Grammar that an answer is held to.

        tools: descriptions of functions; calls fit their schemas. choice: "auto" for any text and then perhaps calls;
        "required" for calls alone; a tool's name for one call of it; or OpenAI's objects, which name a function or
        allowed ones. Reasoning may precede all of these. parallel_tool_calls: whether there may be several calls.
        generation_prompt: the end of the prompt, which may have opened the reasoning. json_schema: content that fits
        it, instead of calls; constraint: the same of rules and their root. token: returns the id of the control token
        with a text, or None. mode: as `JsonSchemaCompiler.compile` has it. lazy: with "auto", the grammar of calls
        alone and what triggers it, where the format has a trigger. free: tools whose arguments may be any object.

        Raises GrammarError for tools that can't be called or schemas that can't be compiled, ConfigError for others.
        """
        schemas = read_tools(tools) if tools else {}
        names, wanted = chosen_tools(choice, list(schemas))
        marks = self.marks_of(reasoning)
        if is_over(marks, generation_prompt):
            marks = None
        return answer_grammar(
            self.layout,
            {name: schemas[name] for name in names},
            wanted,
            parallel=parallel_tool_calls,
            opened=is_open(marks, generation_prompt),
            marks=marks,
            schema=json_schema,
            constraint=constraint,
            token=token,
            mode=mode,
            lazy=lazy,
            free=free,
        )

    def faults(
        self, tools: Sequence[Mapping[str, Any] | Callable[..., Any]], mode: SchemaMode = "generate"
    ) -> dict[str, str]:
        """Why no grammar can hold the arguments of tools, by their names; those that one can hold are left out."""
        return argument_faults(self.layout, read_tools(tools), mode)

    @property
    def writes_json(self) -> bool:
        """Whether arguments are written as JSON: all of their schema is held then, or compiling is an error."""
        return self.harmony or self.calls is None or isinstance(self.calls.shape, JsonCall | Named)

    def marks_of(self, reasoning: "str | ReasoningFormat | None") -> ReasoningFormat | None:
        """The marks of an option `reasoning`; None for none."""
        if reasoning is None or isinstance(reasoning, ReasoningFormat):
            return reasoning
        if reasoning not in ("auto", "none"):
            raise ToolFormatError(f"reasoning must be 'auto', 'none' or a ReasoningFormat, not {reasoning!r:.60}")
        return self.frame.reasoning or DEFAULT_REASONING

    def __repr__(self) -> str:
        shape = "harmony" if self.harmony else type(self.calls.shape).__name__ if self.calls else "no calls"
        return f"<ChatFormat {shape}, reasoning {self.reasoning}>"


def chosen_tools(choice: Any, names: list[str], others: tuple[str, ...] = ()) -> tuple[list[str], str]:
    """(the tools that may be called, "auto", "required" or a name) of a choice in OpenAI's form.

    others: choices beside these. Raises ConfigError for any other.
    """
    if isinstance(choice, Mapping):
        kind = choice.get("type")
        inner = choice.get(kind) if isinstance(kind, str) else None
        inner = choice if not isinstance(inner, Mapping) else inner
        if kind == "function" and isinstance(inner.get("name"), str):
            choice = inner["name"]
        elif kind == "allowed_tools" and isinstance(inner.get("tools"), list):
            allowed = [chosen_tools(tool, names)[1] for tool in inner["tools"]]
            mode = inner.get("mode", "auto")
            check_choice("tool_choice.mode", mode, ("auto", "required"))
            if not allowed:
                raise ConfigError("tool_choice.tools must name at least one tool")
            return allowed, mode
        else:
            raise ConfigError(
                "tool_choice must be {'type': 'function', 'function': {'name': ...}} or {'type': 'allowed_tools', "
                f"'allowed_tools': {{'mode': ..., 'tools': [...]}}}}, not {choice!r:.200}"
            )
    check_choice("tool_choice", choice, ("auto", "required", *others, *names))
    return names, choice


def _made_of(source: Any, *tokens: str) -> ChatFormat:
    """The inverse of `ChatFormat.__reduce__`."""
    if tokens[-1:] == ("text",):
        return _made_of(source, *tokens[:-1]).without_calls
    if tokens[-1:] == ("generic",):
        return _made_of(source, *tokens[:-1]).with_generic_calls
    if not tokens:
        made: ChatFormat = source.chat_format
        return made
    return _of_template(source, *tokens)


def is_open(marks: ReasoningFormat | None, prompt: str) -> bool:
    """Whether the end of a prompt has opened the reasoning and not ended it."""
    if marks is None or not marks.begin.strip():
        return False
    begin, end = prompt.rfind(marks.begin.strip()), prompt.rfind(marks.end.strip())
    return begin > end


def is_over(marks: ReasoningFormat | None, prompt: str) -> bool:
    """Whether the end of a prompt has ended the reasoning, as templates do that let the model not think."""
    if marks is None or not marks.begin.strip():
        return False
    return prompt.rfind(marks.end.strip()) > prompt.rfind(marks.begin.strip())


@lru_cache(maxsize=32)
def _of_template(source: str, bos_token: str, eos_token: str) -> ChatFormat:
    template = ChatTemplate(source, bos_token=bos_token, eos_token=eos_token, max_work=MAX_WORK)
    probes = probes_of(template)
    if _is_harmony(probes):
        layout = Layout(Frame(ReasoningFormat(f"{BEGIN}analysis{MESSAGE}", END)), harmony=True)
        return ChatFormat(layout, (source, bos_token, eos_token))
    reason = ""
    try:
        frame, calls = recognise(probes)
    except (ValueError, IndexError, RecursionError):  # marks that stand in one rendering are missing in another
        frame, calls, reason = Frame(), None, "the template's renderings of probe conversations contradict each other"
    if frame.reasoning is None:
        named = next((ReasoningFormat(*pair) for pair in _NAMED if pair[1] in source), None) or cut_reasoning(template)
        if named:
            frame = Frame(named, frame.content_begin, frame.content_end, frame.turn_end, frame.breaks)
    if calls is None and not reason:
        calls = next((form for words, form in _CARDS if all(word in source for word in words)), None)
        calls = calls or told_calls(template)
    if calls is None and not reason:
        reason = "the template shows no calls of tools"
        if probes.errors and probes.call is None:
            reason = f"the template can't render calls of tools: {probes.errors[-1]}"
    return ChatFormat(Layout(frame, calls, reason=reason), (source, bos_token, eos_token))


def _is_harmony(probes: Probes) -> bool:
    return probes.content is not None and f"{BEGIN}final{MESSAGE}{CONTENT}" in probes.content
