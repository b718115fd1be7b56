"""Declarations of functions as TypeScript, as Functionary's models were trained on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["declared"]


def declared(functions: Sequence[Mapping[str, Any]], *, indent: str = "", end: str = "") -> str:
    """A namespace with a type for each function. indent: of its lines. end: what stands behind it."""
    text = "// Supported function definitions that should be called when necessary.\nnamespace functions {\n\n"
    shared: dict[str, Any] = {}
    for function in functions:
        shared.update(function.get("parameters", {}).get("$defs", {}))
    text += "".join(f"  type {name} = {_shared(schema)};\n" for name, schema in shared.items())
    for function in functions:
        parameters = function.get("parameters", {})
        required = parameters.get("required", [])
        text += f"{indent}// {function.get('description', '')}\n{indent}type {function['name']} = (_: {{\n"
        for name, schema in parameters.get("properties", {}).items():
            text += f"{2 * indent}// {schema.get('description', '')}\n"
            text += f"{2 * indent}{name}{'' if name in required else '?'}: {_type(schema, 2)},\n"
        text += f"{indent}}}) => any;\n\n"
    return f"{text}}} // namespace functions{end}"


def _shared(schema: Mapping[str, Any]) -> str:
    return _type(schema, 1) if schema.get("type") == "object" or "enum" in schema else ""


def _type(schema: Mapping[str, Any], level: int) -> str:
    """The type of a schema; level: how deep its lines are."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    kind = schema.get("type")
    if kind == "array":
        return f"Array<{_type(schema.get('items', {}), level + 1)}>"
    if kind == "object":
        lines = [f"  {name}: {_type(inner, level + 1)},\n" for name, inner in schema.get("properties", {}).items()]
        indent = "  " * level
        return "{\n" + "".join(indent + line for line in lines) + indent + "}"
    if "enum" in schema:
        return " | ".join(f'"{value}"' for value in schema["enum"])
    return str(kind or "any")
