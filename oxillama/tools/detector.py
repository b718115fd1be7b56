"""Detector of tool calls in a text that arrives piece by piece."""

import re
from collections import deque
from collections.abc import Callable

from oxillama.chat.calls import AnyToolCall, BrokenToolCall, ToolCall, call_id
from oxillama.chat.json_scan import JsonError
from oxillama.errors import ToolFormatError
from oxillama.tools.formats import ToolFormat, find_format
from oxillama.tools.reader import CallReader

__all__ = ["ToolCallDetector", "ToolEvent"]

ToolEvent = str | AnyToolCall

# An object at the beginning of an answer that counts as a call, even if it isn't JSON.
_LIKE_A_CALL = re.compile(r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:')
# Limit of the text that is read again after broken calls: a multiple of its length.
REREADS = 4


class ToolCallDetector:
    """Divides a text into plain text and calls, independent of its pieces.

    Delimiters count only outside of JSON strings. Text that may be the start of a delimiter is held back until that is
    decided, and so are spaces next to calls: without other text beside a call, they are dropped. A call is emitted as
    one, when it is complete. A call that can't be parsed extends to its end delimiter (without one in the format: to
    the next call, or to the end of the text) and is emitted as a `BrokenToolCall`.
    """

    def __init__(self, format: str | ToolFormat, *, first_id: int = 0) -> None:
        """format: a name of `FORMATS` or a `ToolFormat`. first_id: number of the first call without an id of its own.

        Raises ToolFormatError for any other format.
        """
        if format is None:
            raise ToolFormatError("format must be the name of a format or a ToolFormat, not None")
        self.format = find_format(format, None)
        self._begin, self._end = self.format.begin.strip(), self.format.end.strip()
        self._n_ids = first_id
        self._reset()

    def _reset(self) -> None:
        self._todo: deque[str] = deque()
        self._n_fed = self._n_reread = self._n_said = 0
        self._events: list[ToolEvent] = []
        self._said: list[str] = []  # text since the last event
        self._match = ""  # perhaps the start of a delimiter
        self._blank: str | None = ""  # spaces with only calls beside them; None once there is other text
        self._after_call = False
        self._head = ""  # the opening of the open call
        self._raw: list[str] = []  # its whole text
        self._reader: CallReader | None = None
        self._error = ""  # why it is broken
        self._state: Callable[[str], None] = self._text

    def push(self, piece: str) -> list[ToolEvent]:
        """Text and calls that this piece completes, in their order."""
        self._todo.extend(piece)
        self._run()
        return self._take()

    def finish(self) -> list[ToolEvent]:
        """Ends the text: returns the text held back, and an open call as a `BrokenToolCall`.

        A call that lacks only its end delimiter counts as complete. The detector can take another text then.
        """
        if self._reader is not None:
            self._end_of_call(self._reader)
        elif self._match or not self._after_call:
            self._say((self._blank or "") + self._match)
        found = self._take()
        self._reset()
        return found

    def _run(self) -> None:
        while self._todo:
            self._n_fed += 1
            self._state(self._todo.popleft())

    def _take(self) -> list[ToolEvent]:
        self._flush()
        found, self._events = self._events, []
        return found

    # ---- text

    def _say(self, text: str) -> None:
        if text:
            self._said.append(text)
            self._n_said += len(text)

    def _flush(self) -> None:
        if self._said:
            self._events.append("".join(self._said))
            self._said = []

    def _text(self, c: str) -> None:
        self._match += c
        while self._match and not self._begin.startswith(self._match):
            first, self._match = self._match[0], self._match[1:]
            if first == "{" and self.format.bare and self._blank is not None:
                self._read_again(first + self._match)
                self._match = ""
                self._open("")
                return
            self._show(first)
        if self._match == self._begin:
            self._match = ""
            self._open(self._begin)

    def _show(self, c: str) -> None:
        """Takes one character of text, or of the separator between calls."""
        if self._blank is not None:
            if c.isspace() or (c == ";" and self.format.bare and self._after_call):
                self._blank += c
                return
            self._say(self._blank)
            self._blank = None
        self._say(c)

    def _read_again(self, text: str) -> None:
        self._n_reread += len(text)
        self._todo.extendleft(reversed(text))

    # ---- calls

    def _open(self, head: str) -> None:
        self._head, self._raw, self._error = head, [head], ""
        self._reader = CallReader(self.format, bare=not head)
        self._state = self._call

    def _call(self, c: str) -> None:
        assert self._reader is not None
        self._raw.append(c)
        try:
            if self._reader.step(c):
                self._close(self._reader)
        except JsonError as error:
            self._break(f"it is no JSON: {error}")

    def _close(self, reader: CallReader) -> None:
        """Ends a complete call."""
        raw, found = "".join(self._raw), reader.calls()
        if reader.bare and any(isinstance(item, str) for item in found):
            self._was_text(raw)
            return
        calls: list[AnyToolCall] = []
        for item in found:
            if isinstance(item, str):
                calls.append(BrokenToolCall(raw, item, True, self._new_id(), self._n_said))
            else:
                calls.append(ToolCall(*item[:2], item[2] or self._new_id(), self._n_said, raw))
        self._put(calls)

    def _break(self, error: str) -> None:
        """Marks the open call as broken. It ends with the first delimiter that could end it."""
        raw = "".join(self._raw)
        self._error = error
        self._state = self._broken
        if not self._head and not _LIKE_A_CALL.match(raw):
            self._was_text(raw[:1])
            self._read_again(raw[1:])
        elif (at := raw.find(self._end or self._begin, len(self._head))) >= 0:
            rest = raw[at + len(self._end) :]
            if self._n_reread + len(rest) <= REREADS * (self._n_fed - self._n_reread):
                self._put_broken(raw[: len(raw) - len(rest)], True)
                self._read_again(rest)

    def _broken(self, c: str) -> None:
        """Takes one more character of a broken call."""
        self._raw.append(c)
        mark = self._end or self._begin
        if c == mark[-1] and "".join(self._raw[-len(mark) :]).endswith(mark):
            raw = "".join(self._raw)
            self._put_broken(raw if self._end else raw[: -len(mark)], True)
            if not self._end:
                self._open(self._begin)

    def _end_of_call(self, reader: CallReader) -> None:
        """Ends the open call at the end of the text."""
        raw = "".join(self._raw)
        if self._error:
            self._put_broken(raw, not self._end)
        elif reader.whole:
            self._close(reader)
        elif reader.bare and not _LIKE_A_CALL.match(raw):
            self._was_text(raw)
        else:
            self._error = "the text ends inside of it"
            self._put_broken(raw, False)

    def _new_id(self) -> str:
        self._n_ids += 1
        return call_id(self._n_ids - 1)

    def _was_text(self, raw: str) -> None:
        self._say((self._blank or "") + raw)
        self._blank, self._reader, self._state = None, None, self._text

    def _put_broken(self, raw: str, complete: bool) -> None:
        self._put([BrokenToolCall(raw, self._error, complete, self._new_id(), self._n_said)])

    def _put(self, calls: list[AnyToolCall]) -> None:
        self._flush()
        self._events += calls
        self._blank, self._after_call = "", True
        self._reader, self._state = None, self._text
