"""Variables of chat templates: the names that one reads, and the values that a caller gives them."""

import datetime
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from oxillama._util.json_values import json_value
from oxillama.errors import TemplateVariableError

__all__ = ["EFFORT_VARIABLES", "check_variables", "effort_variable", "needed_variables", "thinking_switch"]

# Variables that rendering gives by itself.
_GIVEN = ("messages", "tools", "add_generation_prompt", "continue_final_message", "bos_token", "eos_token")
# Names under which templates read how much a model is to think.
EFFORT_VARIABLES = ("reasoning_effort", "thinking_effort", "reasoning_strength")
# Variables by which templates let a model think or not: (name, value if it does, value if it doesn't).
_SWITCHES: tuple[tuple[str, Any, Any], ...] = (
    ("enable_thinking", True, False),
    ("thinking", True, False),
    ("thinking_mode", "enabled", "disabled"),
    ("reasoning", True, False),
    ("reasoning_mode", "/think", "/no_think"),
    ("thinking_budget", None, 0),
    ("reasoning_effort", None, "none"),
)


def check_variables(variables: Mapping[str, Any], read: Iterable[str]) -> None:
    """Raises TemplateVariableError for a name that the template doesn't read, and lists those that it does."""
    names = frozenset(read)
    for name in variables:
        if name not in names:
            raise TemplateVariableError(f"the chat template reads no variable {name!r}; {_listed(names)}")


def _listed(names: Iterable[str]) -> str:
    found = sorted(set(names) - set(_GIVEN))
    return f"it reads {', '.join(found)}" if found else "it reads none"


def needed_variables(read: frozenset[str], given: Mapping[str, Any], now: datetime.datetime) -> dict[str, str]:
    """Values for `functions`, the tools as JSON text, and `datetime`, where a template reads both and has no `tools`.

    Firefunction's card gives them; its template fails without. A template that reads one of them can do without it.
    """
    if not read >= {"functions", "datetime"} or "tools" in read:
        return {}
    tools = given.get("tools")
    text = json.dumps(json_value(tools), ensure_ascii=False, indent=4) if tools else ""
    return {"functions": text, "datetime": now.strftime("%b %d %Y")}


def effort_variable(effort: object, read: Iterable[str]) -> dict[str, str]:
    """The variable that gets `reasoning_effort`. Raises TemplateVariableError if the template reads none for it."""
    if not isinstance(effort, str) or not effort:
        raise TemplateVariableError(f"reasoning_effort must be a string of at least one character, not {effort!r:.60}")
    names = frozenset(read)
    found = next((name for name in EFFORT_VARIABLES if name in names), None)
    if found is None:
        raise TemplateVariableError(f"the chat template reads no variable 'reasoning_effort'; {_listed(names)}")
    return {found: effort}


def thinking_switch(read: Iterable[str], on: bool, render: Callable[[Mapping[str, Any]], str]) -> dict[str, Any]:
    """The variable, with its value, that lets the model think (`on`) or not: the first that makes a difference.

    render: the prompt of a question with variables; "" where the template raises. Raises TemplateVariableError if
    there is none.
    """
    names = frozenset(read)
    for name, yes, no in _SWITCHES:
        if name in names:
            made = [{} if value is None else {name: value} for value in (yes, no)]
            first, second = map(render, made)
            if first and second and first != second:
                return made[0] if on else made[1]
    raise TemplateVariableError(f"the chat template has no variable that lets the model think or not; {_listed(names)}")
