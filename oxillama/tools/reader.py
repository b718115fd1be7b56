"""Reader of one tool call, from its opening to its end delimiter, one character at a time."""

import re
from typing import Any

from oxillama.chat.calls import read_calls
from oxillama.chat.json_scan import JsonError, JsonScanner
from oxillama.tools.formats import ToolFormat

__all__ = ["CallReader"]

# A name, and perhaps an id, before the arguments.
_HEADER = re.compile(r"([\w.-]+)\s*(?:\[CALL_ID\]\s*(\w+)\s*)?")
MAX_HEADER = 512


class CallReader:
    """Reads the text after the opening of a call: a name in some formats, JSON, and the end delimiter.

    whole: whether the JSON is complete, so that only the end delimiter may be missing.
    """

    __slots__ = ("_end", "_header", "_json", "_named", "_scanner", "_tail", "bare", "whole")

    def __init__(self, format: ToolFormat, bare: bool) -> None:
        """`bare`: the call has no opening; it ends with its JSON then, and must have a name and arguments."""
        self.bare = bare
        self.whole = False
        self._end = "" if bare else format.end.strip()
        self._named = format.shape != "object" and not bare
        self._scanner: JsonScanner | None = None
        self._header: list[str] = []
        self._json: list[str] = []
        self._tail = ""

    def step(self, c: str) -> bool:
        """Whether this character completes the call. Raises JsonError if it can't be one."""
        if self.whole:
            return self._close(c)
        if self._scanner is None:
            if not self._opens_json(c):
                return False
            self._scanner = JsonScanner()
        self._json.append(c)
        self.whole = self._scanner.step(c)
        return self.whole and not self._end

    def _opens_json(self, c: str) -> bool:
        blank = not "".join(self._header).strip()
        if c == "{" or (c == "[" and blank):
            if not blank:
                self._read_header()
            return True
        self._header.append(c)
        if (not self._named and not c.isspace()) or len(self._header) > MAX_HEADER:
            raise JsonError(f"{c!r} where a call should be")
        return False

    def _close(self, c: str) -> bool:
        self._tail = (self._tail + c).lstrip()
        if not self._end.startswith(self._tail):
            raise JsonError(f"{self._tail[-1]!r} after its JSON, where {self._end} should be")
        return self._tail == self._end

    def _read_header(self) -> tuple[str | None, str | None]:
        """The name and the id before the arguments."""
        header = "".join(self._header).strip()
        if not header:
            return None, None
        found = _HEADER.match(header)
        if not found or header[found.end() :].strip() not in ("", "[ARGS]"):
            raise JsonError(f"{header[:60]!r} where the name of a function should be")
        return found.group(1), found.group(2)

    def calls(self) -> list[tuple[str, dict[str, Any], str | None] | str]:
        """(name, arguments, id) of each call of the complete JSON, or the reason why it is none."""
        name, own_id = self._read_header()
        found = list(read_calls("".join(self._json), name, strict=self.bare))
        return [item if isinstance(item, str) else (*item[:2], item[2] or own_id) for item in found]
