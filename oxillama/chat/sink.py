"""Sink of one call: its name and the pieces of its arguments as a reader finds them."""

import json
from collections.abc import Callable

from oxillama.chat.message import ToolCallDelta

__all__ = ["Broken", "CallSink", "NotACall"]


class NotACall(Exception):
    """The text that looked like a call is none."""


class Broken(Exception):
    """A call can't be parsed. cut: because the text ends."""

    def __init__(self, reason: str, cut: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.cut = reason, cut


class CallSink:
    """Takes a call while it is read, and passes it on piece by piece.

    opened: whether the name is known. begun: whether more than the first brace of the arguments is. pieces: the JSON
    text of the arguments so far.
    """

    __slots__ = ("_give", "_new_id", "begun", "id", "index", "name", "opened", "pieces")

    def __init__(self, index: int, give: Callable[[ToolCallDelta], None], new_id: Callable[[], str]) -> None:
        self.index = index
        self.name = self.id = ""
        self.opened = self.begun = False
        self.pieces: list[str] = []
        self._give, self._new_id = give, new_id

    def open(self, name: str, id: str = "") -> None:
        """Begins the call, and its arguments, which are an object. id: the model's own, or "" for a new one."""
        self.name, self.id, self.opened = name, id or self._new_id(), True
        self._give(ToolCallDelta(self.index, self.id, name))
        self._add("{")

    def arguments(self, text: str) -> None:
        """More of the JSON text of the arguments, whose first brace `open` has given."""
        if text and not self.begun:
            self.begun, text = True, text.lstrip().removeprefix("{")
        self._add(text)

    def value(self, text: str) -> None:
        """More of the JSON text of an argument's value."""
        self._add(text)

    def key(self, key: str) -> None:
        """The beginning of an argument, whose value follows."""
        before = ", " if self.begun else ""
        self.begun = True
        self._add(f"{before}{json.dumps(key, ensure_ascii=False)}: ")

    def end_of_arguments(self) -> None:
        self.begun = True
        self._add("}")

    def _add(self, text: str) -> None:
        if text:
            self.pieces.append(text)
            self._give(ToolCallDelta(self.index, arguments=text))
