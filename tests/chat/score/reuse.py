"""Table of the tokens that a next turn computes again, since the template writes an answer otherwise than it was given.

Of a prompt, the tokens that it has in common with what was computed before are reused: keys and values are a function
of all tokens before them. The rest is what the template writes of old messages from the first difference on, and what
is new. Tokens are those of the shipped model, with the template's special tokens.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from oxillama.chat import sandbox
from oxillama.errors import OxiLlamaError
from oxillama.scheduling.sequence import n_common
from tests.chat.score.engine_prompts import engine_of
from tests.chat.score.recorded import NOW, templates

__all__ = ["table"]

ASK = {"role": "user", "content": "How is the weather in Rome, and what should I wear there this evening?"}
NEXT, OTHER = ({"role": "user", "content": text} for text in ("And in Oslo?", "Which is warmer?"))
THOUGHT = "The user asks for Rome. I know that it is warm there at this time of the year. " * 4
ANSWER = {"role": "assistant", "content": "It is sunny in Rome, and warm. A shirt will do." * 2, "reasoning": THOUGHT}
FUNCTION = {"name": "get_weather", "arguments": {"city": "Rome"}}
CALL = {"id": "call00001", "type": "function", "function": FUNCTION}
CALLS = {"role": "assistant", "content": "", "reasoning": THOUGHT, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": "sunny, 24 degrees"}
TOOL = {
    "name": "get_weather",
    "description": "The weather now.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Its name."}}},
}
TOOLS = {"tools": [{"type": "function", "function": TOOL}], "tool_format": "text"}  # as the template shows them
TURNS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "answer": ([ASK, ANSWER], {}),
    "call, answer": ([ASK, CALLS, RESULT, ANSWER], TOOLS),
}

Ids = Callable[..., list[int]]


def table(folder: Path) -> Iterator[str]:
    """Lines of the table."""
    yield "Tokens of a next turn: reused, computed again, new"
    yield f"{'':48}" + "".join(f"{name:>24}" for name in TURNS)
    for template in templates(folder):
        with mock.patch.object(sandbox, "datetime", mock.Mock(**{"datetime.now.return_value": NOW})):
            ids = engine_of(template).chat_tokens
            yield f"{template.name:48}" + "".join(f"{_shares(ids, *turn):>24}" for turn in TURNS.values())


def _shares(ids: Ids, turn: list[dict[str, Any]], options: dict[str, Any]) -> str:
    """What is new begins where two prompts that go on otherwise differ."""
    try:
        said = ids(turn, continue_final_message="content", **options)
        asked, other = (ids([*turn, message], **options) for message in (NEXT, OTHER))
    except OxiLlamaError as error:
        return type(error).__name__
    old = n_common(asked, other)
    reused = min(old, n_common(said, asked))
    return f"{reused}, {old - reused}, {len(asked) - old}"
