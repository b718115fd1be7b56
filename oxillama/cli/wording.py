"""Words of the command line in place of the library's: commands for methods, flags for keywords with values."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping

__all__ = ["flags_of", "with_commands"]

# Methods of an engine, and the commands that do the same.
COMMANDS = {
    "chat": "chat",
    "diffuse": "diffuse",
    "embed": "embed",
    "generate": "run",
    "rerank": "rerank",
    "stream": "run",
    "tokenize": "tokenize",
}
_METHOD = re.compile(r"(?<![\w.])(?:[Ee]ngine\.)?(" + "|".join(COMMANDS) + r")\(\)")
QUOTE = "'"
_KEYWORD = re.compile(r"(?<![\w.'\"-])([a-z]+(?:_[a-z]+)*)=(\.\.\.|True|False|'\w+'|\d+(?!\w|\.\d)|(?=[\s,;.)]|$))")


def flags_of(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Every long flag of a parser and its commands, with the name of its value, "" for none."""
    found: dict[str, str] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                found |= flags_of(inner)
        for flag in action.option_strings:
            if flag.startswith("--"):
                metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
                found[flag] = "" if action.nargs == 0 else metavar
    return found


def with_commands(message: str, names: Mapping[str, str], flags: Mapping[str, str]) -> str:
    """A message in which `generate()` is `oxillama run`, and `repack=False` is `--no-repack`.

    names: flags of settings whose flags have other names. flags: all that there are, with the names of their values.
    """

    def as_flag(found: re.Match[str]) -> str:
        name, value = found[1], found[2]
        flag = names.get(name, f"--{name.replace('_', '-')}")
        if value == "False":
            flag = f"--no-{name.replace('_', '-')}"
        if flag not in flags:
            return found[0]
        if not flags[flag] or value in ("", "True"):
            return flag
        return f"{flag} {flags[flag] if value == '...' else value.strip(QUOTE)}"

    message = _METHOD.sub(lambda found: f"`oxillama {COMMANDS[found[1]]}`", message)
    return _KEYWORD.sub(as_flag, message)
