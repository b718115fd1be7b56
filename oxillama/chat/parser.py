"""Parser of a model's text into reasoning, content and calls of tools, piece by piece."""

import re
from collections.abc import Callable, Generator, Mapping
from typing import Any

from oxillama._util.pickling import stays_here
from oxillama.chat.bare_calls import read_bare
from oxillama.chat.braces_reader import read_braces
from oxillama.chat.calls import AnyToolCall, BrokenToolCall, ToolCall, call_id, read_argument_object
from oxillama.chat.harmony import read_harmony
from oxillama.chat.inner_marks import InnerMarks
from oxillama.chat.json_reader import (
    MAX_NAME,
    Reading,
    matched,
    past_spaces,
    read_arguments,
    read_name,
    read_object,
)
from oxillama.chat.layout import Layout
from oxillama.chat.message import ChatDelta, ChatMessage, ToolCallDelta
from oxillama.chat.nested_reader import read_nested
from oxillama.chat.openings import InnerOpening, parts_of
from oxillama.chat.patterns import MARK, NAME, Cursor, More, Pattern, match, skip_spaces
from oxillama.chat.python_reader import read_python
from oxillama.chat.shapes import (
    Braces,
    CallFormat,
    Frame,
    JsonCall,
    Named,
    NestedTags,
    PythonCall,
    ReasoningFormat,
)
from oxillama.chat.sink import Broken, CallSink, NotACall
from oxillama.chat.tagged_reader import read_tagged
from oxillama.chat.value_ends import ToolEnds, find_any, spaces_from
from oxillama.errors import ToolFormatError

__all__ = ["ChatParser"]

_WORD = re.compile(rf"{MARK.pattern}|\w+|[^\w\s]")
NOTHING = ChatDelta()
MAX_ENDS = 8


class ChatParser:
    """Divides one answer, independent of the pieces in which its text comes.

    A text that may be the beginning of a mark waits until that is decided, and so do spaces beside calls and
    reasoning, which are dropped there. A mark that no call follows is text. A call that can't be parsed extends to its
    end mark (without one in the format: to the end of the text), and is a `BrokenToolCall` with its text.
    """

    __reduce_ex__ = stays_here("push the same text to another parser")

    def __init__(
        self,
        form: Layout,
        schemas: Mapping[str, Any],
        *,
        reasoning: ReasoningFormat | None,
        opened: bool = False,
        begun: bool = False,
        kept: bool = False,
        first_id: int = 0,
        must_call: bool = False,
        bare: bool = True,
    ) -> None:
        """`ChatFormat.parser` makes one.

        reasoning: marks of the reasoning; None for no reasoning. opened: the prompt has opened it. kept: reasoning
        stays in the content, with its marks. first_id: number of the first call without an id of its own. must_call:
        the text is held to calls, so that the beginning of a mark at its end is no content. bare: an answer that is
        nothing but calls of tools in `schemas`, without a mark, has them found.
        """
        self._form = form
        self._frame: Frame = form.frame
        self._calls: CallFormat | None = form.calls
        self._schemas, self._begun = dict(schemas), opened and begun
        self._reasoning, self._opened, self._kept = reasoning, opened, kept
        self._cursor = Cursor()
        self._n_ids, self._must_call = first_id, must_call
        self._n_calls = 0
        self._deltas: list[ChatDelta] = []
        self._content: list[str] = []
        self._thoughts: list[str] = []
        self._found: list[AnyToolCall] = []
        self._n_said = 0
        self._fresh = True  # nothing but spaces has come since the reasoning or the beginning
        self._bare = bare and bool(schemas) and not must_call and (form.harmony or form.calls is not None)
        self._inner = InnerMarks(self._cursor, form, self._schemas)
        if form.calls is not None:
            self._tools = ToolEnds(form.calls, form.closers, self._schemas)
        self.in_reasoning = False
        self._reader = (
            read_harmony(
                self._cursor,
                self._give,
                self._harmony_call,
                self._enter,
                self._bare_answer,
                max(map(len, self._schemas), default=0),
            )
            if form.harmony
            else self._answer()
        )
        self._done = False

    def _enter(self, reasoning: bool) -> None:
        self.in_reasoning = reasoning

    def push(self, text: str) -> list[ChatDelta]:
        """Reads a further piece of the text, and returns what it adds. Raises ToolFormatError after the end, and for no
        str."""
        if not isinstance(text, str):
            raise ToolFormatError(f"text must be a str, not {type(text).__name__}")
        if self._cursor.ended and text:
            raise ToolFormatError("the text has ended: ChatFormat.parser() makes a parser of another one")
        self._cursor.add(text)
        self._run()
        return self._take()

    def end(self) -> list[ChatDelta]:
        """Ends the text, and gives what was held back."""
        self._cursor.ended = True
        self._run()
        return self._take()

    def finish(self) -> ChatMessage:
        """Ends the text. The message, of which `push` may not have given the last parts yet: they are its `deltas`."""
        rest = self.end()
        return ChatMessage("".join(self._thoughts).strip(), "".join(self._content), list(self._found), rest)

    def _run(self) -> None:
        if not self._done:
            self._done = next(self._reader, self) is self

    def _take(self) -> list[ChatDelta]:
        found, self._deltas = self._deltas, []
        return found

    # ---- what was found

    def _give(self, delta: ChatDelta) -> None:
        if delta == NOTHING:
            return
        if delta.content:
            self._bare = self._bare and (self.in_reasoning or delta.content.isspace())
            self._content.append(delta.content)
            self._n_said += len(delta.content)
        if delta.reasoning:
            if self._kept:
                self._give(ChatDelta(content=delta.reasoning))
                return
            self._thoughts.append(delta.reasoning)
        self._deltas.append(delta)

    def _say(self, text: str) -> None:
        if text:
            self._fresh = self._fresh and text.isspace()
            self._give(ChatDelta(content=text))

    def _new_id(self) -> str:
        self._n_ids += 1
        return call_id(self._n_ids - 1)

    # ---- the answer

    def _answer(self) -> Reading:
        if self._reasoning is not None:
            yield from self._think(self._reasoning)
        yield from self._past_spaces_of_begin()
        self._inner.begin()
        while not (self._cursor.ended and self._cursor.at >= len(self._cursor.text)):
            if not (yield from self._bare_answer()):
                yield from self._next_part()

    def _bare_answer(self) -> Generator[None, None, bool]:
        """Reads calls without a mark, if all of the answer is such; whether it is."""
        if not self._bare or self._found:
            return False
        start = self._cursor.at
        calls = yield from read_bare(self._cursor, self._schemas, self._form, self._fresh)
        raw = self._cursor.text[start : self._cursor.at].strip()
        for call in calls or ():
            id = call.id or self._new_id()
            self._give(ChatDelta(tool_call=ToolCallDelta(self._n_calls, id, call.name)))
            self._give(ChatDelta(tool_call=ToolCallDelta(self._n_calls, arguments=call.text)))
            self._put(ToolCall(call.name, call.arguments, id, self._n_said, raw))
        return calls is not None

    def _think(self, marks: ReasoningFormat) -> Reading:
        """The reasoning, if there is some."""
        cursor = self._cursor
        self.in_reasoning = self._opened
        if marks.begin.strip():
            start = 0
            while (start := skip_spaces(cursor.text, start)) == len(cursor.text) and not cursor.ended:
                yield
            found = yield from matched(cursor, (marks.begin.strip(),), start)
            if found is not None:
                self._opened = self.in_reasoning = True
                if self._kept:
                    self._say(cursor.text[: found[0]])
                cursor.at = found[0]
        if not self._opened:
            return
        self.in_reasoning = True
        if not self._kept and not self._begun:
            yield from past_spaces(cursor)
        yield from self._thought(marks.end.strip())
        self.in_reasoning = False

    def _thought(self, end: str) -> Reading:
        cursor = self._cursor
        mark = end.split()[0]
        while True:
            stop = cursor.text.find(mark, cursor.at)
            if stop >= 0:
                found = match((end,), cursor.text, stop, cursor.ended)
                if found is None:
                    self._give(ChatDelta(reasoning=cursor.text[cursor.at : stop + 1]))
                    cursor.at = stop + 1
                    continue
                if not isinstance(found, More):
                    text = cursor.text[cursor.at : stop]
                    self._give(ChatDelta(reasoning=text if self._kept else text.rstrip()))
                    if self._kept:
                        self._say(cursor.text[stop : found[0]])
                    cursor.at = found[0]
                    return
            else:
                stop = len(cursor.text) if cursor.ended else _held(cursor.text, [mark])
            text = cursor.text[cursor.at : max(stop, cursor.at)]
            if not cursor.ended and not self._kept:
                text = text.rstrip()
            if text:
                self._give(ChatDelta(reasoning=text))
                cursor.at += len(text)
            if cursor.ended:
                cursor.at = len(cursor.text)
                return
            yield

    def _past_spaces_of_begin(self) -> Reading:
        """Drops the spaces between reasoning and content."""
        if self._opened and not self._kept:
            yield from past_spaces(self._cursor)

    def _next_part(self) -> Reading:
        """Text up to the next mark, and what the mark opens."""
        cursor = self._cursor
        at = cursor.at
        while True:
            found = self._mark_from(at)
            if not isinstance(found, int):
                start, what, end = found
                before = cursor.text[cursor.at : start]
                if what == "call" or isinstance(what, InnerOpening):
                    inner = what if isinstance(what, InnerOpening) else None
                    is_call = inner is None or (yield from self._inner.is_call(start, inner))
                    if is_call and (yield from self._try_calls(start, end, before, inner)):
                        return
                    at = self._inner.behind(start)
                    continue
                self._say(before if what == "content" else before.rstrip())
                cursor.at = end
                if what == "content":
                    yield from past_spaces(cursor)
                return
            if cursor.ended:
                rest = cursor.text[cursor.at :]
                is_said = rest.strip() or not self._found
                self._say(rest if is_said and not (self._must_call and self._is_cut_opening()) else "")
                cursor.at = len(cursor.text)
                return
            text = cursor.text[cursor.at : found].rstrip()
            self._say(text)
            cursor.at += len(text)
            at = max(cursor.at, found)
            yield

    def _is_cut_opening(self) -> bool:
        """Whether the text ends inside of what opens a call, or before it."""
        text = self._cursor.text
        at = skip_spaces(text, self._cursor.at)
        openings = (pattern for pattern, what, _ in self._form.marks if what == "call")
        return at == len(text) or any(isinstance(match(pattern, text, at, False), More) for pattern in openings)

    def _mark_from(self, at: int) -> tuple[int, str | InnerOpening, int] | int:
        """(place, what, end) of the first mark from a place on; or the place up to which there is none."""
        text = self._cursor.text
        lead = skip_spaces(text, self._cursor.at)
        if self._fresh:
            at = max(at, lead)
        while at < len(text):
            fresh = self._fresh and at <= lead
            if not fresh and at != self._inner.first:
                found = self._inner.characters.search(text, at)
                if found is None:
                    return len(text)
                at = found.start()
            if not text[at].isspace():
                answer = self._mark_at(at, fresh)
                if answer is not None:
                    return answer
            at += 1
        return at

    def _mark_at(self, at: int, fresh: bool) -> tuple[int, str | InnerOpening, int] | int | None:
        """(place, what, end) of a mark at a place, the place where that isn't decided, or None."""
        text, ended = self._cursor.text, self._cursor.ended
        for pattern, what, only_fresh in self._form.marks:
            if only_fresh and not fresh:
                continue
            found = match(pattern, text, at, ended)
            if isinstance(found, More):
                return at
            if found is None:
                continue
            ends = what != "end" or self._ends(found[0])
            if ends is None:
                return at
            if ends:
                return at, what, found[0]
        return self._inner.find(at)

    def _ends(self, at: int, depth: int = 0) -> bool | None:
        """Whether only marks and calls follow, or nothing; None if that isn't decided. Eight marks are looked at."""
        text, ended = self._cursor.text, self._cursor.ended
        at = skip_spaces(text, at)
        if at == len(text):
            return True if ended else None
        undecided = False
        for pattern, what, _ in self._form.marks:
            found = match(pattern, text, at, ended) if pattern else None
            if isinstance(found, More):
                undecided = True
            elif found is not None:
                answer = self._ends(found[0], depth + 1) if what == "end" and depth < MAX_ENDS else True
                if answer:
                    return True
                undecided = undecided or answer is None
        inner = self._inner.find(at)
        if isinstance(inner, tuple):
            return True
        return None if undecided or inner is not None else False

    # ---- calls

    def _try_calls(
        self, start: int, end: int, before: str, inner: InnerOpening | None = None
    ) -> Generator[None, None, bool]:
        """Reads calls whose opening is at `start`; whether they were calls. `before`: text that isn't said yet.

        inner: the opening, if its outer mark is missing; `end` is where the name begins then.
        """
        calls, cursor = self._calls, self._cursor
        assert calls is not None
        kept = cursor.at
        in_a_row = inner is not None and start <= self._inner.first

        def said() -> None:
            nonlocal before
            self._say(before if (self._n_said and not in_a_row) or before.strip() else "")
            before = ""

        bare = isinstance(calls.shape, JsonCall) and not calls.opening and calls.later is None
        cursor.at = start if bare else end
        prefix = _id_prefix(calls.opening)
        if not (yield from self._one_call(start, prefix, said, inner)):
            cursor.at = kept
            return False
        behind = cursor.at
        yield from self._inner.past_closers(self._inner.between)
        while (yield from self._another(calls)):
            yield from past_spaces(cursor)
            opened = cursor.at
            found = yield from matched(cursor, calls.call_begin, skip_spaces(cursor.text, cursor.at))
            if found is None:
                break
            cursor.at = found[0]
            if not (yield from self._one_call(opened, prefix, lambda: None)):
                cursor.at = behind
                break
            behind = cursor.at
            yield from self._inner.past_closers(self._inner.between)
        yield from self._past(calls.end)
        yield from self._inner.past_closers(self._inner.closers)
        self._inner.begin(behind_call=True)
        self._fresh = False
        return True

    def _another(self, calls: CallFormat) -> Generator[None, None, bool]:
        """Whether another call follows; moves to its beginning."""
        cursor = self._cursor
        start = cursor.at
        separator = calls.separator.strip()
        place = yield from spaces_from(cursor, cursor.at)
        if separator:
            found = yield from matched(cursor, (separator,), place)
            if found is None:
                return False
            place = found[0]
        begin: Pattern = calls.call_begin or (_first_of(calls.shape),)
        if begin == ("",):
            cursor.at = place
            named = isinstance(calls.shape, PythonCall) and cursor.text[place : place + 1].isidentifier()
            return bool(separator) or named
        while True:
            at = skip_spaces(cursor.text, place)
            answer = match(begin, cursor.text, at, cursor.ended)
            if not isinstance(answer, More):
                cursor.at = at if answer is not None else start
                if answer is None and isinstance(begin[0], str):
                    self._past_cut(at, begin[0].strip())
                return answer is not None
            yield

    def _past_cut(self, at: int, mark: str) -> None:
        """Moves to the end of a text that ends inside of a mark: the beginning of one is no content behind a call."""
        cursor = self._cursor
        if cursor.ended and mark.startswith(cursor.text[at:]):
            cursor.at = len(cursor.text)

    def _past(self, mark: str) -> Reading:
        """Moves past a mark, or as much of it as is there."""
        cursor = self._cursor
        for word in _WORD.findall(mark):
            place = yield from spaces_from(cursor, cursor.at)
            found = yield from matched(cursor, (word,), place)
            if found is not None:
                cursor.at = found[0]
            else:
                self._past_cut(place, word)

    def _one_call(
        self, start: int, prefix: str, said: Callable[[], None], inner: InnerOpening | None = None
    ) -> Generator[None, None, bool]:
        """One call, whose opening has been read; whether it was one. `said` is called once that is known."""
        calls, cursor = self._calls, self._cursor
        assert calls is not None
        behind = cursor.at
        sink = CallSink(self._n_calls, lambda piece: (said(), self._give(ChatDelta(tool_call=piece)))[1], self._new_id)  # type: ignore[func-returns-value]
        bare = isinstance(calls.shape, JsonCall) and not any(
            isinstance(part, str) and part.strip(" \n[{,") for part in calls.opening
        )
        try:
            yield from self._read(calls, sink, bare, prefix, calls.call_end if inner is None else inner.call_end)
        except NotACall:
            if (bare and not self._must_call) or not self._is_cut_head(behind):
                return False
            said()
            yield from self._break(start, behind, Broken("the text ends inside of it", cut=True), sink)
            return True
        except Broken as error:
            said()
            yield from self._break(start, behind, error, sink, inner)
            return True
        said()
        yield from self._past(calls.call_end)
        self._close(sink, start)
        return True

    def _is_cut_head(self, behind: int) -> bool:
        """Whether the text ends inside of a call's head, whose opening mark is whole: in its name or the mark then."""
        cursor = self._cursor
        if not cursor.ended:
            return False
        if self._must_call:  # nothing else can stand there
            return True
        at = skip_spaces(cursor.text, behind)
        name = NAME.match(cursor.text, at, at + MAX_NAME)
        rest = cursor.text[name.end() if name else at :]
        return not rest or (name is not None and any(mark.startswith(rest) for mark in self._form.texts))

    def _read(self, calls: CallFormat, sink: CallSink, bare: bool, prefix: str, call_end: str) -> Reading:
        cursor, shape = self._cursor, calls.shape
        last = calls.opening[-1] if calls.opening else ""
        if isinstance(last, str) and last[-1:].isspace():  # which aren't part of a mark's match
            yield from past_spaces(cursor)
        if isinstance(shape, JsonCall):
            yield from read_object(cursor, shape, sink, bare)
        elif isinstance(shape, Named):
            yield from _read_named(cursor, shape, prefix, sink)
        elif isinstance(shape, PythonCall):
            yield from read_python(cursor, sink)
        elif isinstance(shape, Braces):
            yield from read_braces(cursor, shape.quote, sink)
        elif isinstance(shape, NestedTags):
            yield from read_nested(cursor, calls, self._tools, sink)
        else:
            yield from read_tagged(cursor, calls, call_end, self._tools, sink)

    def _harmony_call(self, read: Callable[[CallSink], Reading], start: int) -> Reading:
        sink = CallSink(self._n_calls, lambda piece: self._give(ChatDelta(tool_call=piece)), self._new_id)
        try:
            yield from read(sink)
        except Broken as error:
            yield from self._break(start, start, error, sink)
        else:
            self._close(sink, start)

    def _close(self, sink: CallSink, start: int) -> None:
        """Ends a complete call."""
        raw = self._cursor.text[start : self._cursor.at]
        written = "".join(sink.pieces)
        try:
            arguments = read_argument_object(written)
        except ValueError as error:
            reason = f"its arguments are wrong: {error}"
            self._put(BrokenToolCall(raw, reason, True, sink.id, self._n_said, True, sink.name, written))
            return
        self._put(ToolCall(sink.name, arguments, sink.id, self._n_said, raw))

    def _break(
        self, start: int, behind: int, error: Broken, sink: CallSink, inner: InnerOpening | None = None
    ) -> Reading:
        """Ends a call that can't be parsed, with the first mark behind its opening that could end it."""
        cursor = self._cursor
        marks = [*self._form.end_marks, *parts_of(inner.call_end if inner else "")]
        found = yield from find_any(cursor, marks, behind)
        cursor.at = len(cursor.text) if found is None else found
        complete = found is not None or not error.cut
        raw, id = cursor.text[start : cursor.at], sink.id or self._new_id()
        written = "".join(sink.pieces)
        self._put(BrokenToolCall(raw, error.reason, complete, id, self._n_said, sink.opened, sink.name, written))

    def _put(self, call: AnyToolCall) -> None:
        self._n_calls += 1
        self._found.append(call)
        self._give(ChatDelta(call=call))


def _read_named(cursor: Cursor, shape: Named, prefix: str, sink: CallSink) -> Reading:
    start = cursor.at
    name = yield from read_name(cursor)
    end_of_name = cursor.at
    found = yield from matched(cursor, shape.middle, cursor.at)
    if found is None:
        raise NotACall
    cursor.at = found[0]
    if (yield from past_spaces(cursor)) not in ("{", '"', ""):
        raise NotACall
    own = found[1].get("id", "")
    if not own and "number" in found[1] and prefix:
        own = f"{prefix}{cursor.text[start:end_of_name]}:{found[1]['number']}"
    sink.open(name, own)
    yield from read_arguments(cursor, sink)


def _id_prefix(opening: Pattern) -> str:
    """Text right before the name that belongs to the id, such as "functions."."""
    last = opening[-1] if opening and isinstance(opening[-1], str) else ""
    return last[max(last.rfind(">"), last.rfind("]")) + 1 :].strip()


def _first_of(shape: object) -> str:
    return "{" if isinstance(shape, JsonCall) else ""


def _held(text: str, marks: list[str]) -> int:
    """Start of the part of a text that may be the beginning of a mark."""
    longest = max(map(len, marks)) - 1
    for n in range(min(longest, len(text)), 0, -1):
        if any(mark.startswith(text[-n:]) for mark in marks):
            return len(text) - n
    return len(text)
