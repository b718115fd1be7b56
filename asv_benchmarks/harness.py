"""Processes that take turns: each is started once and asked by lines, and what they answer is summed up.

Scripts that measure several engines start a `Process` for each, which loads once and then runs `serve`: it measures
once for each line of its input, and answers by a line of JSON. `in_turns` asks them by turns, since what else a machine
does changes from minute to minute, and `medians` sums their answers up. Nothing but the standard library is imported:
peers run this in environments of their own.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["EndedError", "Process", "in_turns", "medians", "serve"]

Name = TypeVar("Name", bound=Hashable)
Found = TypeVar("Found")
ANSWER = '{"answer": '  # how its line begins; what libraries print does not


class EndedError(SystemExit):
    """A process ended without an answer. Its own error is on the screen; uncaught, this ends the script with a line."""


class Process:
    """A program that answers each line of its input with a line of JSON; lines of other kinds are passed over.

    Raises OSError if it can't be started, EndedError when it ends before it has answered.
    """

    def __init__(
        self, command: Iterable[object], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self.command = [str(part) for part in command]
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=cwd, env=env
        )

    def read(self) -> Any:
        """The next answer, or what the program says before it is asked."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(ANSWER):
                return json.loads(line)["answer"]
        raise EndedError(f"{' '.join(self.command)} ended")

    def ask(self, question: object = "") -> Any:
        """The answer to a line: of a text as it is, of other values as JSON."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write((question if isinstance(question, str) else json.dumps(question)) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise EndedError(f"{' '.join(self.command)} ended") from None
        return self.read()

    def close(self) -> None:
        """Ends its input, which ends it, and waits."""
        self.process.communicate()


def serve(measure: Callable[[str], object], hello: object = None) -> None:
    """The process's side: says `hello`, if there is one, and answers each line of its input by what was measured."""
    if hello is not None:
        print(json.dumps({"answer": hello}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"answer": measure(line.strip())}), flush=True)


def in_turns(
    measures: Mapping[Name, Callable[[], Found]], rounds: int, *, swap: bool = False
) -> dict[Name, list[Found]]:
    """Measurements of each round, by name. swap: every other round runs backwards: none is always the first."""
    found: dict[Name, list[Found]] = {name: [] for name in measures}
    for i in range(rounds):
        order = list(measures.items())
        for name, measure in reversed(order) if swap and i % 2 else order:
            found[name].append(measure())
    return found


def medians(rounds: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The median of each value over rounds that have the same names; none of no rounds."""
    found = list(rounds)
    return {name: statistics.median(one[name] for one in found) for name in found[0]} if found else {}
