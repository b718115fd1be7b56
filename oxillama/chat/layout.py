"""Layout of answers: the marks that stand in a model's text, and what each opens or ends."""

import re

from oxillama.chat.harmony import ENDS
from oxillama.chat.openings import inner_openings, parts_of
from oxillama.chat.patterns import MARK, Pattern, first_mark
from oxillama.chat.shapes import CallFormat, Frame, JsonCall, Tagged

__all__ = ["Layout", "Marks", "needed_end"]

Marks = list[tuple[Pattern, str, bool]]


class Layout:
    """Layout of a model's answers.

    calls: the format of calls of tools; None for none. reason: why there is none, "" otherwise. frame: what stands
    around reasoning, content and calls. harmony: the answer is in gpt-oss's channels.

    What follows from these: marks, (pattern, what it is, whether it is only at the beginning) of those that content may
    hold; end_marks, with which a call that can't be parsed ends; closing_marks, all that may stand behind calls;
    turn_ends, what ends a turn; end_words, the marks behind all calls, of which `n_needed_ends` belong to the calls;
    inner, what opens a call without its outer mark; closers, marks that may be left over behind a call.
    """

    def __init__(
        self, frame: Frame, calls: CallFormat | None = None, *, harmony: bool = False, reason: str = ""
    ) -> None:
        self.frame, self.calls, self.harmony, self.reason = frame, calls, harmony, reason
        self.marks = _marks(frame, calls)
        firsts = {pattern[0].lstrip()[0] for pattern, _, _ in self.marks if pattern and isinstance(pattern[0], str)}
        characters = re.escape("".join(sorted(firsts)))
        self.first_characters = re.compile(f"[{characters}]" if firsts else r"(?!)")
        self.end_marks = _end_marks(calls) if not harmony else list(ENDS)
        self.closing_marks = _closing_marks(self.marks, calls) if not harmony else list(ENDS)
        self.turn_ends = _prefixes(frame.turn_end)
        self.end_words, self.n_needed_ends = _end_words(calls)
        self.inner = () if calls is None else inner_openings(calls)
        self.closers = () if calls is None else _closers(frame, calls)

    @property
    def texts(self) -> list[str]:
        """Every literal text of the format."""
        frame, calls = self.frame, self.calls
        found = [frame.content_begin, frame.content_end, frame.turn_end, *frame.breaks]
        if calls is None:
            return found
        shape = calls.shape
        patterns = [calls.begin, calls.call_begin, calls.later or ()]
        for name in ("middle", "head_end", "key_end", "begin", "value_end", "quote", "mark"):
            value = getattr(shape, name, ())
            patterns.append((value,) if isinstance(value, str) else value)
        found += [calls.call_end, calls.separator, calls.end]
        return found + [part for pattern in patterns for part in pattern if isinstance(part, str)]


def _marks(frame: Frame, calls: CallFormat | None) -> Marks:
    """(pattern, what it is, whether it is only at the beginning) of the marks that content may hold."""
    found: Marks = []
    if frame.content_begin:
        found.append(((frame.content_begin,), "content", True))
    if calls is not None:
        opening = _stripped(calls.opening)
        if isinstance(calls.shape, JsonCall) and not any(isinstance(p, str) and p.strip() for p in opening):
            opening = opening or ("{",)
            found.append((opening, "call", False))
        else:
            found.append((opening, "call", calls.later is not None or not opening))
        if calls.later is not None:
            found.append((_stripped((*calls.later, *calls.call_begin)), "call", False))
    for text in (frame.content_end, *frame.breaks, *_prefixes(frame.turn_end)):
        if text:
            found.append(((text,), "end", False))
    return found


def _closing_marks(marks: Marks, calls: CallFormat | None) -> list[str]:
    """Marks that may stand behind calls: those of their own, and those that end the content or the turn."""
    own = [] if calls is None else [mark for text in (calls.call_end, calls.end) for mark in MARK.findall(text)]
    ends = [pattern[0] for pattern, what, _ in marks if what == "end"]
    return list(dict.fromkeys([*own, *(mark for mark in ends if isinstance(mark, str))]))


def _prefixes(text: str) -> list[str]:
    """End of a turn, and its beginnings that end with a mark: models may leave out the rest."""
    ends = [found.end() for found in re.finditer(r"<[^<>]*>", text)]
    return [part for n in reversed(ends or [len(text)]) if (part := text[:n])]


def _end_words(calls: CallFormat | None) -> tuple[list[str], int]:
    """The marks behind all calls, and how many of them belong to the calls: those up to the counterpart of the mark
    that opens them, or without one none but brackets."""
    if calls is None:
        return [], 0
    words = _WORD.findall(calls.end)
    opens = _names(first_mark(calls.begin))
    needed = 0
    for i, word in enumerate(words, 1):
        if not word.startswith("<") or opens & _names(word):
            needed = i
    return words, needed


def needed_end(calls: CallFormat) -> str:
    """The mark that ends all calls, without brackets of JSON; "" if there is none."""
    words, n_needed = _end_words(calls)
    text = "".join(words[:n_needed])
    return text.removeprefix("]").lstrip() if text.startswith("]") and not text.startswith("]<]") else text


def _closers(frame: Frame, calls: CallFormat) -> tuple[str, ...]:
    """The marks that end arguments, a call, or all calls, but for those with which the turn ends, too."""
    parts = parts_of(calls.call_end)
    found = [*parts, *(re.sub(r"^[^<\[\]]+", "", part) for part in parts), needed_end(calls)]
    if isinstance(calls.shape, Tagged):
        found.append(calls.shape.value_end)
    ends = (frame.content_end, frame.turn_end, *frame.breaks)
    return tuple(
        dict.fromkeys(mark for mark in found if "<" in mark and not any(end.startswith(mark) for end in ends if end))
    )


def _names(mark: str) -> set[str]:
    """The words that a mark and its counterpart share."""
    for words in (_LONG.findall(mark.split(":")[0]), _LONG.findall(mark), re.findall(r"[A-Za-z]+", mark)):
        found = {word.lower() for word in words} - _GENERIC
        if found:
            return found
    return set()


def _stripped(pattern: Pattern) -> Pattern:
    if pattern and isinstance(pattern[0], str):
        first = pattern[0].lstrip()
        pattern = (first, *pattern[1:]) if first else pattern[1:]
    return pattern


_WORD = re.compile(r"<[^<>]*>|[^<]+")
_LONG = re.compile(r"[A-Za-z]{3,}")
_GENERIC = {"begin", "start", "open", "prefix", "end", "stop", "close", "suffix"}
_TOKEN = re.compile(r"<[^<>\s]*>|\[/?[A-Z][A-Z_]*\]|`+")


def _end_marks(calls: CallFormat | None) -> list[str]:
    """Marks with which a call that can't be parsed ends."""
    if calls is None:
        return []
    for text in (calls.end, calls.call_end):
        found = _TOKEN.findall(text)
        if found:
            return [found[-1]]
    return [mark] if (mark := calls.separator.strip()) and not isinstance(calls.shape, JsonCall) else []
