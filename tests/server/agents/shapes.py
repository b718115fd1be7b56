"""Shapes of request bodies: names, types, order and sizes; texts are replaced by words of the same length."""

import json
from pathlib import Path

__all__ = ["DATA", "body", "shape", "turns"]

DATA = Path(__file__).parent / "data"
WORDS = "the fox saw a small red ball and ran to the old tree by the river "
# Fields whose texts are names of the API, of tools and of their arguments.
NAMES = frozenset(
    ("type", "role", "name", "id", "call_id", "tool_use_id", "tool_call_id", "model", "effort", "keep", "summary",
     "syntax", "required", "enum", "const", "format", "status", "ttl", "tool_choice", "include", "propertyNames",
     "$schema", "$ref", "phase", "namespace", "mode", "verbosity")
)  # fmt: skip
TEXT = "$text"


def shape(value, name=""):
    """A value of a body without its texts: {"$text": length} stands for each."""
    if isinstance(value, dict):
        return {key: shape(one, key) for key, one in value.items()}
    if isinstance(value, list):
        return [shape(one, name) for one in value]
    if not isinstance(value, str) or name in NAMES or not value:
        return value
    if name == "arguments":  # of a call, as JSON text
        return {"$arguments": shape(json.loads(value))}
    return {TEXT: len(value)}


def body(value, scale=1):
    """The value of a shape, with texts a `scale`-th as long."""
    if isinstance(value, list):
        return [body(one, scale) for one in value]
    if not isinstance(value, dict):
        return value
    if TEXT in value:
        n = -(-value[TEXT] // scale)
        return (WORDS * (n // len(WORDS) + 1))[:n]
    if "$arguments" in value:
        return json.dumps(body(value["$arguments"], scale))
    return {key: body(one, scale) for key, one in value.items()}


def turns(agent, scale=1):
    """(path, body) of each request of a recorded conversation."""
    recorded = json.loads((DATA / f"{agent}.json").read_text())
    field = recorded["field"]
    for n in recorded["turns"]:
        made = body(recorded["body"], scale)
        yield recorded["path"], made | {field: made[field][:n]}
