"""JSON scanner: the end of a value that arrives one character at a time."""

import re

__all__ = ["JsonError", "JsonScanner"]

_SPACE = frozenset(" \t\r\n")
_HEX = frozenset("0123456789abcdefABCDEF")
_WORD = frozenset("-+.0123456789eEtrufalsn")
_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_CLOSERS = {"{": "}", "[": "]"}


class JsonError(ValueError):
    """The text can't become JSON any more."""


class JsonScanner:
    """Follows one object or array of RFC 8259. Constant work for a character; nesting takes memory, not stack."""

    __slots__ = ("_closers", "_left", "_next", "_state", "_word")

    def __init__(self) -> None:
        self._closers: list[str] = []  # closing brackets of the open objects and arrays
        self._state = self._value
        self._next = self._after  # state after the open string
        self._word: list[str] = []
        self._left = 0

    @property
    def depth(self) -> int:
        """Number of open objects and arrays."""
        return len(self._closers)

    def step(self, c: str) -> bool:
        """Whether this character completes the value. Raises JsonError if it is invalid here."""
        self._state(c)
        return not self._closers

    def _value(self, c: str) -> None:
        if c in _CLOSERS:
            self._closers.append(_CLOSERS[c])
            self._state = self._first_key if c == "{" else self._first_value
        elif c == '"':
            self._state, self._next = self._string, self._after
        elif c in _WORD:
            self._word, self._state = [c], self._in_word
        elif c not in _SPACE:
            raise JsonError(f"{c!r} where a value should be")

    def _first_value(self, c: str) -> None:
        if c == "]":
            self._after(c)
        elif c not in _SPACE:
            self._value(c)

    def _first_key(self, c: str) -> None:
        if c == "}":
            self._after(c)
        else:
            self._key(c)

    def _key(self, c: str) -> None:
        if c == '"':
            self._state, self._next = self._string, self._colon
        elif c not in _SPACE:
            raise JsonError(f"{c!r} where a key should be")

    def _colon(self, c: str) -> None:
        if c == ":":
            self._state = self._value
        elif c not in _SPACE:
            raise JsonError(f"{c!r} where a colon should be")

    def _after(self, c: str) -> None:
        """After a value."""
        self._state = self._after
        if c == self._closers[-1]:
            self._closers.pop()
        elif c == ",":
            self._state = self._key if self._closers[-1] == "}" else self._value
        elif c not in _SPACE:
            raise JsonError(f"{c!r} where a comma or {self._closers[-1]} should be")

    def _in_word(self, c: str) -> None:
        if c in _WORD:
            self._word.append(c)
            return
        word = "".join(self._word)
        if not _SCALAR.fullmatch(word):
            raise JsonError(f"{word[:40]!r} is no value")
        self._after(c)

    def _string(self, c: str) -> None:
        if c == '"':
            self._state = self._next
        elif c == "\\":
            self._state = self._escape
        elif c < " ":
            raise JsonError(f"the control character {c!r} in a string")

    def _escape(self, c: str) -> None:
        if c == "u":
            self._left, self._state = 4, self._hex
        elif c in '"\\/bfnrt':
            self._state = self._string
        else:
            raise JsonError(f"the unknown escape \\{c}")

    def _hex(self, c: str) -> None:
        if c not in _HEX:
            raise JsonError(f"{c!r} where a hexadecimal digit should be")
        self._left -= 1
        if not self._left:
            self._state = self._string
