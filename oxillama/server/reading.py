"""Reading of one request: how strictly, and what of it is left out and said."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from oxillama.server.errors import bad_value, own_place
from oxillama.server.headers import listed

__all__ = ["Reading"]

MOST_NAMED = 64  # of one request, in the header
_INDEX = re.compile(r"\[\d+\]")
_UNSAID = re.compile(r"[^\x21-\x2b\x2d-\x7e]")  # what stands for something else in a header, or between its names


@dataclass
class Reading:
    """Rules by which one request is read, and what was left out.

    strict: wishes that can't be followed and unknown fields are refused. lenient: unknown fields are left out though
    their names are nearly those of known ones. names: the fields that the request has for those of chat completions.
    left_out: what was left out, and the label that counts it, in order. n_left_out: how many there were. n_unknown:
    fields whose names aren't known.
    """

    strict: bool = False
    lenient: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    n_left_out: int = 0
    n_unknown: int = 0

    def leave_out(self, name: str, why: str = "", label: str | None = None) -> None:
        """Notes that a part of the request, named by its place, is left out; `why` tells a strict client the reason.

        label: under which it is counted; by default its name without places in lists and without its type.
        Raises ApiError, code unsupported_parameter, with `strict`.
        """
        if self.strict:
            text = f"{name} is not supported" + (f": {why}" if why else "")
            raise bad_value(name.partition("=")[0], text, "unsupported_parameter")
        self.say(name, label)

    def say(self, name: str, label: str | None = None) -> None:
        """Notes a part that no client could have had: it is said, and refused to none."""
        place = own_place(name, self.names)
        if place in self.left_out:
            return
        self.n_left_out += 1
        if len(self.left_out) < MOST_NAMED:
            self.left_out[place] = label or _INDEX.sub("", place).partition("=")[0]

    @property
    def header(self) -> str:
        """The names, each once; the number of those that have no room ends it."""
        return listed((_UNSAID.sub("?", name) for name in self.left_out), self.n_left_out, ", ")
