"""Patterns of marks in a model's text: literal text with places for ids, numbers and types, matched while text arrives.

Spaces count little in them: models write more or fewer than their templates. A run of spaces in a pattern matches any
run, also none; spaces at the ends of a pattern belong to its neighbours.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["MARK", "MORE", "Cursor", "Hole", "More", "Pattern", "first_mark", "match", "skip_spaces"]

HoleKind = Literal["id", "number", "type", "name"]


@dataclass(frozen=True, slots=True)
class Hole:
    """A place in a pattern for a text that varies; `shown` is what stands there in the template's own output."""

    kind: HoleKind
    shown: str = ""


class More:
    """The answer of `match` where the text ends before it is decided."""


MORE: Final = More()
Pattern = tuple[str | Hole, ...]
SPACE = re.compile(r"\s*")
_HOLES = {"id": re.compile(r"[\w.:-]+"), "number": re.compile(r"\d+"), "type": re.compile(r"\w+")}
NAME = re.compile(r"[\w.$/-]+")
_HOLES["name"] = NAME
MAX_HOLE = 256
MARK = re.compile(r"<[^<>\s]*>|\[/?[A-Z][A-Z_]*\]")


class Cursor:
    """Text as it arrives, and the place up to which it is read.

    ended: no more text comes.
    """

    __slots__ = ("at", "ended", "text")

    def __init__(self) -> None:
        self.text, self.at, self.ended = "", 0, False

    def add(self, text: str) -> None:
        """More of the text. A string that one variable holds alone grows in its place, which takes linear time."""
        whole, self.text = self.text, ""
        whole += text
        self.text = whole

    def rest(self) -> str:
        return self.text[self.at :]


def skip_spaces(text: str, at: int) -> int:
    found = SPACE.match(text, at)
    return found.end() if found else at


def match(pattern: Pattern, text: str, at: int, ended: bool) -> "tuple[int, dict[str, str]] | More | None":
    """The end of a pattern that begins at a place and the texts of its holes by kind; None where it doesn't match.

    The spaces at the end of the pattern are not part of it. MORE where the text ends too early and isn't `ended`.
    """
    holes: dict[str, str] = {}
    for number, part in enumerate(pattern):
        if isinstance(part, Hole):
            found = _HOLES[part.kind].match(text, at, at + MAX_HOLE)
            end = found.end() if found else at
            if end == len(text) and not ended:
                return MORE
            if not found:
                return None
            holes[part.kind] = found.group()
            at = end
            continue
        end_ = _match_text(part, text, at, ended, last=number == len(pattern) - 1)
        if not isinstance(end_, int):
            return end_
        at = end_
    return at, holes


def _match_text(part: str, text: str, at: int, ended: bool, last: bool) -> "int | More | None":
    words = part.split()
    if part[:1].isspace():
        at = skip_spaces(text, at)
    for i, word in enumerate(words):
        if i:
            at = skip_spaces(text, at)
        if not text.startswith(word, at):
            return MORE if not ended and word.startswith(text[at:]) else None
        at += len(word)
    if not last and words and part[-1:].isspace():
        at = skip_spaces(text, at)
    return at


def first_mark(pattern: Pattern) -> str:
    """The word that a pattern begins with; "" if it begins with a hole."""
    for part in pattern:
        if isinstance(part, Hole):
            return ""
        if part.split():
            return part.split()[0]
    return ""
