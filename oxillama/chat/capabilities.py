"""Capabilities of a chat template: the forms of messages that it prints, found by rendering short conversations.

What a template tests by name says little about what it prints, so nothing is read from its source. A probe is a word
that stands nowhere else; it is printed or it is not, or the template raises, which counts as not printed.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

from oxillama.chat.content_format import ContentFormat, conversation, formats_of
from oxillama.chat.messages import REASONING_FIELDS, as_part, texts_of

__all__ = ["RAW", "Capabilities", "Render", "WrongArguments", "with_reasoning", "with_text_arguments"]

# The key under which an object has arguments that are none, and how a template shows them.
RAW = "_raw"
WrongArguments = Literal["text", "object", "string", ""]

_FIRST, _SECOND, _KEY = "oxprobeone", "oxprobetwo", "oxprobekey"
_UNSEEN = "oxprobeunseen"  # stands where no template looks: if it is printed, a whole part was printed
_NO_ROLE = "developerprobe"  # printed as "developer" is where a template prints any role
_QUESTION = {"role": "user", "content": "question"}
_RESULT = {"role": "tool", "tool_call_id": "callprobe", "name": "probe", "content": "result"}
_TOOL = {
    "type": "function",
    "function": {
        "name": _FIRST,
        "description": "a probe",
        "parameters": {"type": "object", "properties": {_KEY: {"type": "string", "description": "text"}}},
    },
}

Message = dict[str, Any]
T = TypeVar("T")


class Render(Protocol):
    """The output for messages and tools (None: there are none), which opens the assistant's turn or not; "" where the
    template raises."""

    def __call__(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None, ends_open: bool = True, /
    ) -> str: ...


class Capabilities:
    """Abilities of a template: what it prints. Each is found when it is asked for, and kept in `known`.

    render: the template's output. known: answers so far, of the same template.
    """

    def __init__(self, known: dict[str, Any], render: Render) -> None:
        self._known = known
        self._render = render

    def _kept(self, name: str, find: Callable[[], T]) -> T:
        if name not in self._known:
            self._known[name] = find()
        found: T = self._known[name]
        return found

    @property
    def plain(self) -> bool:
        """Whether a question alone is printed. If not, the other answers mean little."""
        return self._kept("plain", lambda: _FIRST in self._output({"role": "user", "content": _FIRST}))

    @property
    def system(self) -> bool:
        """Whether a system message before a question is printed."""
        return self._kept("system", lambda: self.prints("system"))

    @property
    def developer(self) -> bool:
        """Whether a developer's message is printed in another way than one of a role that doesn't exist."""
        return self._kept("developer", self._find_developer)

    def in_midst(self, role: str) -> bool:
        """Whether messages of a role, system or developer, are printed where they stand behind others."""
        return self._kept(f"{role} in the midst", lambda: self._find_in_midst(role))

    @property
    def tools(self) -> bool:
        """Whether descriptions of tools are printed, if only beside a system message."""
        conversations = [_QUESTION], [{"role": "system", "content": "system"}, _QUESTION]
        return self._kept("tools", lambda: any(_FIRST in self._render(said, [_TOOL]) for said in conversations))

    @property
    def calls(self) -> bool:
        """Whether calls in messages of the assistant are printed."""
        return self._kept("calls", lambda: _FIRST in self._output(*_called(name=_FIRST)))

    @property
    def text_arguments(self) -> bool:
        """Whether arguments of calls must be JSON text: objects are refused, or printed as Python prints them."""
        return self._kept("text_arguments", self._find_text_arguments)

    @property
    def wrong_arguments(self) -> WrongArguments:
        """Form of a call whose arguments are no JSON object: by their text as it is ("text"), by an object that
        has it ("object"), by the text as a string of JSON ("string"), or not at all ("")."""
        return self._kept("wrong_arguments", self._find_wrong_arguments)

    @property
    def short_ids(self) -> bool:
        """Whether ids of calls other than nine letters and digits are refused."""
        return self._kept("short_ids", self._find_short_ids)

    @property
    def reasoning(self) -> tuple[str, ...]:
        """Fields of messages in which reasoning is read; ("content",): parts of the content of the type "thinking"."""
        return self._kept("reasoning", self._find_reasoning)

    @property
    def reasoning_beside_content(self) -> bool:
        """Whether a message may have all of reasoning, content and calls."""
        return self._kept("reasoning_beside_content", self._find_reasoning_beside_content)

    @property
    def reasoning_frame(self) -> tuple[str, str] | None:
        """Texts between a question and the reasoning of its answer, and between reasoning and content, as
        the template has it beside calls; None if it has no reasoning there."""
        return self._kept("reasoning_frame", self._find_reasoning_frame)

    def content(self, role: str) -> ContentFormat:
        """Forms of content that are printed for a role; those for users where neither is."""
        found = self._formats(role)
        if not found.strings and not found.parts:
            found = self._formats("user")
        return found if found.strings or found.parts else ContentFormat(strings=True, parts=False)

    def prints(self, role: str) -> bool:
        """Whether messages of a role are printed in some form."""
        found = self._formats(role)
        return found.strings or found.parts

    def _formats(self, role: str) -> ContentFormat:
        return self._kept(f"content of {role}", lambda: formats_of(lambda messages: self._output(*messages), role))

    def _output(self, *messages: Message) -> str:
        if any("tool_calls" in message for message in messages) and self.text_arguments:
            messages = tuple(map(with_text_arguments, messages))
        return self._render(messages, None)

    def _find_developer(self) -> bool:
        said, other = (self._output(*conversation(role, _FIRST)) for role in ("developer", _NO_ROLE))
        if _FIRST not in said:
            content = [{"type": "text", "text": _FIRST}]
            said, other = (self._output(*conversation(role, content)) for role in ("developer", _NO_ROLE))
        return _FIRST in said and said.lower() != other.lower().replace(_NO_ROLE, "developer")

    def _find_in_midst(self, role: str) -> bool:
        def said(role: str, text: str) -> Message:
            return {"role": role, "content": text if self.content(role).strings else as_part(text)}

        begin, question, answer = said("system", "rules"), said("user", _FIRST), said("assistant", _SECOND)
        probe, again = said(role, _KEY), said("user", _UNSEEN)
        for talk in ([question, probe], [question, probe, answer, again], [question, answer, probe, again]):
            for messages in (talk, [begin, *talk]):
                output = self._output(*messages)
                places = [output.find("".join(texts_of(m["content"]))) for m in talk]
                if min(places) < 0 or places != sorted(places):
                    return False
        return True

    def _find_text_arguments(self) -> bool:
        as_object = self._render(_called(arguments={_KEY: _SECOND}), None)
        if _SECOND in as_object and f"{{'{_KEY}'" not in as_object:
            return False
        return _SECOND in self._render(_called(arguments=f'{{"{_KEY}": "{_SECOND}"}}'), None)

    def _find_wrong_arguments(self) -> WrongArguments:
        text = f'{{"{_KEY}": "{_SECOND}", "'
        forms = text, json.dumps(text)[1:-1]
        as_text = self._render(_called(arguments=text), None)
        if text in as_text:
            return "text"
        if any(form in self._output(*_called(arguments={RAW: text})) for form in forms):
            return "object"
        return "string" if forms[1] in as_text else ""

    def _find_short_ids(self) -> bool:
        return not self._output(*_called(id="call_oxprobe")) and bool(self._output(*_called(id="callprobe")))

    def _find_reasoning(self) -> tuple[str, ...]:
        """All names if they don't disturb one another, so that one that is read under a condition gets it too."""
        sets = [REASONING_FIELDS, *((name,) for name in REASONING_FIELDS), ("content",)]
        counts = [self._count_reasoning(names) for names in sets]
        return sets[counts.index(max(counts))] if max(counts) >= 0 else ()

    def _count_reasoning(self, names: Iterable[str]) -> int:
        """Conversations in which reasoning is printed; -1 if one has it twice, or is refused because of it."""
        n = 0
        for before, message, after in _REASONING_PROBES:
            output = self._output(*before, _with_probe(message, names), *after)
            if output.count(_FIRST) > 1 or _UNSEEN in output:
                return -1
            if not output and self._output(*before, message, *after):
                return -1
            n += _FIRST in output
        return n

    def _find_reasoning_beside_content(self) -> bool:
        question, message, result = _called(content="said")
        if not self._output(question, message, result):
            return True
        return bool(self._output(question, with_reasoning(message, _FIRST, self.reasoning), result))

    def _find_reasoning_frame(self) -> tuple[str, str] | None:
        question, message, result = _called(content=_SECOND)
        asked = self._render([question], None, False)
        output = self._output(question, with_reasoning(message, _FIRST, self.reasoning), result)
        start, end = output.find(_FIRST), output.find(_SECOND)
        if not asked or not output.startswith(asked) or start < 0:
            return None
        if end < start or "probe" in output[start + len(_FIRST) : end]:  # calls stand between
            end = len(output) - self._n_behind(output, self._output(question, message, result))
        return output[len(asked) : start], output[start + len(_FIRST) : end]

    def _n_behind(self, output: str, without: str) -> int:
        """Characters behind reasoning and what ends it, of an output with it and one without."""
        opened = self._render([_QUESTION], None)
        if output.startswith(opened) and without.startswith(opened):
            return len(without) - len(opened)
        pairs = zip(reversed(output), reversed(without), strict=False)
        return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(output), len(without)))


def with_reasoning(message: Message, reasoning: str, names: Iterable[str]) -> Message:
    """A message with its reasoning in these fields (see `Capabilities.reasoning`)."""
    fields: Message = dict.fromkeys(names, reasoning)
    if "content" in fields:
        content = message["content"]
        said = [{"type": "text", "text": content}] if isinstance(content, str) and content else content or []
        fields["content"] = [{"type": "thinking", "thinking": reasoning}, *said]
    return message | fields


def _with_probe(message: Message, names: Iterable[str]) -> Message:
    """A message with a probe for its reasoning."""
    made = with_reasoning(message, _FIRST, names)
    if isinstance(made["content"], str):
        return made
    return made | {"content": [part | {"oxillama_probe": _UNSEEN} for part in made["content"]]}


def with_text_arguments(message: Message) -> Message:
    """A message with the arguments of its calls as JSON text."""
    if not message.get("tool_calls"):
        return message

    def text(function: Mapping[str, Any]) -> dict[str, Any]:
        given = function.get("arguments", {})
        return {**function, "arguments": given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)}

    calls = message["tool_calls"]
    made = [{**call, "function": text(call["function"])} if "function" in call else text(call) for call in calls]
    return message | {"tool_calls": made}


def _called(
    content: str = "", *, name: str = "probe", arguments: Any = None, id: str = "callprobe"
) -> tuple[Message, Message, Message]:
    """A question, a message with a call, and what it returned."""
    function = {"name": name, "arguments": {} if arguments is None else arguments}
    call = {"id": id, "type": "function", "function": function}
    return _QUESTION, {"role": "assistant", "content": content, "tool_calls": [call]}, _RESULT | {"tool_call_id": id}


_ANSWER = {"role": "assistant", "content": "answer"}
# (messages before, the message that gets reasoning, messages after): an earlier turn, this turn, and within it.
_REASONING_PROBES: tuple[tuple[list[Message], Message, list[Message]], ...] = (
    ([_QUESTION], _ANSWER, [_QUESTION]),
    ([_QUESTION], _ANSWER, []),
    ([_QUESTION], _called()[1], [_RESULT]),
)
