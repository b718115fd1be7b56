"""Literals: texts of control tokens that stand in messages, and are to stay text in the prompt.

A prompt is one text, in which `<|im_end|>` of the template ends a turn and `<|im_end|>` of a user must not. So a mark,
a character that stands nowhere else, is put between the characters of each such text before the messages are rendered,
and taken away when the prompt has been cut at its control tokens.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

__all__ = ["Marking", "marking_of"]

# Roles whose texts templates cut at markers of their own, such as "</think>".
_CUT_ROLES = ("assistant", "system", "developer")
# Markers that are looked for in texts of those roles.
_MAX_CUTS = 8


class Marking:
    """Marks in texts, and their removal.

    mark: the character. literals: texts of control tokens that get it, but for those in `cuts` in texts of roles that
    templates cut.
    """

    def __init__(self, mark: str, literals: Collection[str], cuts: Collection[str] = ()) -> None:
        self.mark = mark
        self.literals = literals
        self._all = _pattern(literals)
        self._others = _pattern([text for text in literals if text not in cuts])
        self._escaped = json.dumps(mark)[1:-1]

    def around_cuts(self, messages: Sequence[Mapping[str, Any]], changes: Callable[["Marking"], bool]) -> "Marking":
        """A marking that leaves the literals at which the template cuts texts of some roles.

        changes: whether the prompt is another one with a marking, but for the marks.
        """
        texts = list(_texts([message for message in messages if message["role"] in _CUT_ROLES]))
        found = [literal for literal in self.literals if any(literal in text for text in texts)]
        cuts = [literal for literal in found[:_MAX_CUTS] if changes(Marking(self.mark, [literal]))]
        return Marking(self.mark, self.literals, cuts)

    def message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message with marks in its texts."""
        pattern = self._others if message["role"] in _CUT_ROLES else self._all
        return {name: value if name == "role" else self._in(value, pattern) for name, value in message.items()}

    def value(self, value: Any) -> Any:
        """A value of tools or variables with marks in its texts."""
        return self._in(value, self._all)

    def prompt(self, text: str) -> str:
        """A prompt whose marks are as they were given, where JSON has escaped them."""
        return text.replace(self._escaped, self.mark)

    def _in(self, value: Any, pattern: "re.Pattern[str] | None") -> Any:
        if pattern is None:
            return value
        if isinstance(value, str):
            return pattern.sub(lambda found: self.mark.join(found.group()), value)
        if isinstance(value, Mapping):
            return {self._in(name, pattern): self._in(item, pattern) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._in(item, pattern) for item in value]
        return value


def marking_of(values: Sequence[Any], literals: Iterable[str], prompt: str) -> Marking | None:
    """The marking for values that hold texts of control tokens; None if they hold none.

    values: messages, tools and variables. literals: texts of control tokens. prompt: made of the values.
    """
    try:
        texts = list(_texts(values))
    except RecursionError:  # rendering refuses them
        return None
    joined = "\n".join(texts)
    # Some vocabularies have hundreds of literals, and most texts not even the characters that they begin with.
    near = [literal for literal in literals if literal[:1] in joined and literal in joined]
    found = [literal for literal in near if any(literal in text for text in texts)]
    if not found:
        return None
    marks = map(chr, range(0xE000, 0xF900))  # of private use
    mark = next((mark for mark in marks if mark not in prompt and not any(mark in text for text in texts)), None)
    return None if mark is None else Marking(mark, found)


def _pattern(literals: Collection[str]) -> "re.Pattern[str] | None":
    longest_first = sorted(literals, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def _texts(value: Any) -> Iterator[str]:
    """The texts in a value, keys among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _texts(name)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
