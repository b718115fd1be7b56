"""Reader of harmony, the channels of gpt-oss: messages with a header that says what each is for.

``<|channel|>analysis<|message|>`` opens reasoning, ``commentary`` and ``final`` content, and a recipient, ``to=``,
makes a message a call. ``<|end|>``, ``<|call|>`` and ``<|return|>`` end one. A mark inside of a text is text: one
ends the text only where another message, or nothing, follows.
"""

import re
from collections.abc import Callable, Generator

from oxillama.chat.json_reader import Reading, past_spaces, read_arguments
from oxillama.chat.message import ChatDelta
from oxillama.chat.patterns import Cursor, skip_spaces
from oxillama.chat.sink import Broken, CallSink

__all__ = ["BEGIN", "END", "ENDS", "MESSAGE", "read_harmony"]

BEGIN, END, MESSAGE = "<|channel|>", "<|end|>", "<|message|>"
ENDS = (END, "<|call|>", "<|return|>")
_STARTS = ("<|start|>", BEGIN)
_END = re.compile("|".join(map(re.escape, ENDS)))
_HEADER = re.compile(
    r"\s*(?:<\|start\|>\s*assistant)?\s*(?:to=(?P<to1>[^\s<]+))?\s*(?:<\|channel\|>\s*(?P<channel>\w+))?"
    r"\s*(?:to=(?P<to2>[^\s<]+))?\s*(?:<\|constrain\|>)?\s*(?:\w+)?\s*<\|message\|>"
)
_LEADS = ("<|start|>", BEGIN, "to=")
MAX_HEADER = 512


def read_harmony(
    cursor: Cursor,
    give: Callable[[ChatDelta], None],
    read_call: Callable[[Callable[[CallSink], Reading], int], Reading],
    enter: Callable[[bool], None],
    read_bare: Callable[[], Generator[None, None, bool]],
    longest_name: int = 0,
) -> Reading:
    """Reads a whole answer. `read_call` takes a reader of a call, and the place where the call begins; `enter` is told
    whether the message that begins is reasoning; `read_bare` reads calls without a mark, if all that follows is such.
    longest_name: characters of the longest name of a tool.
    """
    seen: set[str] = set()
    while True:
        start = cursor.at
        header = yield from _header(cursor, MAX_HEADER + longest_name)
        if header is None:
            c = yield from past_spaces(cursor)
            if not c:
                return
            cursor.at = start
            if not (yield from read_bare()):
                yield from _body(cursor, lambda text: give(ChatDelta(content=text)))
            continue
        enter(header.group("channel") == "analysis")
        recipient = header.group("to1") or header.group("to2")
        if recipient and recipient not in ("user", "assistant"):
            name = recipient.removeprefix("functions.")
            yield from read_call(lambda sink, name=name: _arguments(cursor, name, sink), start)  # type: ignore[misc]
            yield from _past_end(cursor)
            continue
        kind = "reasoning" if header.group("channel") == "analysis" else "content"
        before = "\n" if kind in seen else ""
        seen.add(kind)

        def said(text: str, kind: str = kind) -> None:
            nonlocal before
            give(ChatDelta(reasoning=before + text) if kind == "reasoning" else ChatDelta(content=before + text))
            before = ""

        if kind == "reasoning" or not (yield from read_bare()):
            yield from _body(cursor, said)
        enter(False)


def _arguments(cursor: Cursor, name: str, sink: CallSink) -> Reading:
    sink.open(name, "")
    if (yield from past_spaces(cursor)) not in ("{", ""):
        raise Broken("its arguments are no object")
    yield from read_arguments(cursor, sink)


def _header(cursor: Cursor, most: int) -> Generator[None, None, "re.Match[str] | None"]:
    """The header of the next message, and moves behind it; None where there is none."""
    while True:
        at = skip_spaces(cursor.text, cursor.at)
        rest = cursor.text[at : at + most]
        if any(rest.startswith(lead) for lead in _LEADS):
            end = cursor.text.find(MESSAGE, at, at + most)
            if end >= 0:
                found = _HEADER.fullmatch(cursor.text, cursor.at, end + len(MESSAGE))
                if found:
                    cursor.at = found.end()
                return found
            if len(rest) >= most:
                return None
        elif not any(lead.startswith(rest) for lead in _LEADS):
            return None
        if cursor.ended:
            return None
        yield


def _body(cursor: Cursor, say: Callable[[str], None]) -> Reading:
    """A text up to the mark that ends it, and moves behind that."""
    search = cursor.at
    while True:
        found = _END.search(cursor.text, search)
        if found is None:
            stop = len(cursor.text) if cursor.ended else _held(cursor.text)
            if stop > cursor.at:
                say(cursor.text[cursor.at : stop])
                cursor.at = stop
            if cursor.ended:
                return
            search = max(cursor.at, search)
            yield
            continue
        goes_on, behind = yield from _goes_on(cursor, found.end())
        if goes_on:
            if found.start() > cursor.at:
                say(cursor.text[cursor.at : found.start()])
            cursor.at = behind
            return
        search = behind


def _goes_on(cursor: Cursor, at: int) -> Generator[None, None, tuple[bool, int]]:
    """Whether a message, or nothing, follows, and the place behind marks of an end that come again."""
    while True:
        place = skip_spaces(cursor.text, at)
        rest = cursor.text[place : place + 16]
        if any(rest.startswith(start) for start in _STARTS):
            return True, at
        again = _END.match(cursor.text, place)
        if again is not None:
            at = again.end()
            continue
        if not any(mark.startswith(rest) for mark in (*_STARTS, *ENDS)):
            return False, at
        if cursor.ended:
            return not rest, at
        yield


def _held(text: str) -> int:
    longest = max(map(len, ENDS)) - 1
    for n in range(min(longest, len(text)), 0, -1):
        if any(end.startswith(text[-n:]) for end in ENDS):
            return len(text) - n
    return len(text)


def _past_end(cursor: Cursor) -> Reading:
    while True:
        at = skip_spaces(cursor.text, cursor.at)
        found = _END.match(cursor.text, at)
        if found:  # one that comes several times counts as one
            cursor.at = found.end()
            continue
        if cursor.ended or not any(end.startswith(cursor.text[at : at + 10]) for end in ENDS):
            return
        yield
