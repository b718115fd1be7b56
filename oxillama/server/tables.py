"""Tables of the manual, and the description of the API in OpenAPI: both of the tables that requests are read by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeGuard

from oxillama._util.settings import settings_of
from oxillama._util.version import __version__
from oxillama.server.config import ServerConfig, shown_default
from oxillama.server.field_types import Field, Kind, Record
from oxillama.server.routes import ROUTES, Endpoint

__all__ = ["endpoints", "field_table", "openapi", "pages", "settings"]

_RULES = {
    "honour": "", "wish": "a wish: ", "leave": "left out, and said: ", "accept": "no effect: ", "refuse": "refused: ",
}  # fmt: skip
LARGE = 12  # fields, from which on those of a part have a table


def endpoints() -> str:
    """One row for each route, in Markdown."""
    rows = [f"| `{e.method} {shown_path(e)}` | {e.text} |" for e in ROUTES]
    return "\n".join(["| | |", "|---|---|", *rows])


def shown_path(endpoint: Endpoint) -> str:
    """The path without the kind of its part."""
    return endpoint.path.replace(":path", "")


def kind_of(field: Field) -> str:
    """The type of a field, for a cell of a table."""
    schema = field.kind.schema()
    found = [described(one) for one in schema.get("anyOf", [schema])]
    return " or ".join(dict.fromkeys(found)) or "any"


def described(schema: dict[str, Any]) -> str:
    """A schema in a few words."""
    if "enum" in schema:
        values = [value for value in schema["enum"] if value is not None]
        return ", ".join(f"`{literal(value)}`" for value in values)
    name = str(schema.get("type", "any"))
    low, high = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum")
    if low is not None and high is not None and low > -1e6:
        return f"{name} {low:g} … {high:g}" if high < 1e6 else f"{name} from {low:g}"
    if name == "array":
        return f"list of {described(schema['items']) if 'anyOf' not in schema['items'] else 'these'}"
    return name


def literal(value: Any) -> str:
    """A value of JSON as it is written."""
    return '""' if value == "" else str(value).lower() if isinstance(value, bool) else str(value)


def field_table(record: Record) -> str:
    """One row for each field of a record, in Markdown."""
    rows = []
    for field in record.fields:
        kind = "" if field.rule == "refuse" else kind_of(field)
        needed = " (required)" if field.required else ""
        rows.append(f"| `{field.name}`{needed} | {kind} | {_RULES[field.rule]}{field.text} |")
    return "\n".join(["| field | | |", "|---|---|---|", *rows])


def settings() -> str:
    """One row for each setting, in Markdown."""
    rows = []
    for one in settings_of(ServerConfig).values():
        name = one.name.replace("_", "-")
        flag = f"--no-{name}" if one.default is True else f"--{name}"
        text = f"without {one.text}" if one.default is True else one.text
        shown = "" if isinstance(one.default, bool) or one.default in (None, ()) else f"`{shown_default(one.default)}`"
        rows.append(f"| `{flag}` | {text} | {shown} |")
    return "\n".join(["| flag | | default |", "|---|---|---|", *rows])


def pages() -> Iterable[str]:
    """Everything that the manual has of here."""
    yield endpoints()
    read: dict[int, list[Endpoint]] = {}
    for endpoint in ROUTES:
        if endpoint.record is not None and endpoint.record.fields:
            read.setdefault(id(endpoint.record), []).append(endpoint)
    parts: dict[int, Record] = {}
    for same in read.values():
        record = same[0].record
        assert record is not None
        yield f"### {', '.join(f'`{e.method} {shown_path(e)}`' for e in same)}\n\n{field_table(record)}"
        for field in record.fields:
            if is_large_part(field.kind) and id(field.kind) not in parts:
                parts[id(field.kind)] = field.kind
                yield f"#### `{field.name}`\n\n{field_table(field.kind)}"
    yield settings()


def is_large_part(kind: Kind) -> TypeGuard[Record]:
    """Whether the fields of a field have a table of their own."""
    return isinstance(kind, Record) and len(kind.fields) >= LARGE


def openapi() -> dict[str, Any]:
    """The API in OpenAPI 3.1."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ROUTES:
        said: dict[str, Any] = {"summary": endpoint.text, "responses": {"200": {"description": "the answer"}}}
        if endpoint.record is not None:
            content = {"application/json": {"schema": endpoint.record.schema()}}
            said["requestBody"] = {"required": True, "content": content}
            said["responses"]["400"] = {"description": "a field is refused, by name", "content": _ERROR}
        if "{" in endpoint.path:
            name = endpoint.path.partition("{")[2].partition(":")[0].rstrip("}")
            said["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}]
        paths.setdefault(shown_path(endpoint), {})[endpoint.method.lower()] = said
    return {
        "openapi": "3.1.0",
        "info": {"title": "oxillama", "version": __version__},
        "paths": paths,
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{"key": []}],
    }


_ERROR = {
    "application/json": {
        "schema": {
            "type": "object",
            "properties": {
                "error": {
                    "type": "object",
                    "properties": {
                        "message": {"type": "string"},
                        "type": {"type": "string"},
                        "param": {"type": ["string", "null"]},
                        "code": {"type": "string"},
                    },
                    "required": ["message", "type", "param", "code"],
                }
            },
        }
    }
}
