"""Manual of the API as a page, made of its description in OpenAPI."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any, NamedTuple

__all__ = ["manual"]

Schema = Mapping[str, Any]
MAX_DEPTH = 6  # levels of fields of fields that have a table
SAME = "the same"  # summary of a path that does what the one before it does
# Sections by the beginnings of paths; what begins with none of them stands in the first one.
SECTIONS = {
    "Answers": "", "Texts as numbers": r"/v1/(embeddings|rerank|score)|/v2/rerank|/classify",
    "Editors and tokens": r"/infill|/apply-template|/(de)?tokenize|/tokenizer_info",
    "Models": r"/v1/models|/models", "Ollama": "/api/", "Administrators": r"/admin/|/v1/(un)?load_lora",
    "The server": r"/health|/v1/health|/ready|/version|/metrics",
}  # fmt: skip
EXAMPLES = {
    "/v1/chat/completions": '{"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 64}',
    "/v1/completions": '{"prompt": "Once upon a time", "max_tokens": 32, "temperature": 0}',
    "/v1/responses": '{"input": "Tell me a story.", "max_output_tokens": 64}',
    "/v1/messages": '{"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 64}',
    "/v1/embeddings": '{"input": ["a cat", "a dog"]}',
    "/v1/rerank": '{"query": "a pet", "documents": ["a cat", "a table"]}',
    "/tokenize": '{"prompt": "Once upon a time"}',
    "/api/chat": '{"messages": [{"role": "user", "content": "Tell me a story."}], "stream": false}',
}


class Operation(NamedTuple):
    """An operation of the API, with the paths at which it is found."""

    paths: list[str]
    summary: str
    parameters: list[str]
    schema: Schema | None

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.paths[0].lower()).strip("-")


def operations(api: Schema) -> list[Operation]:
    """The operations of an API, those that do the same as the one before it put together with that."""
    found: list[Operation] = []
    for path, methods in api["paths"].items():
        for method, said in methods.items():
            shown = f"{method.upper()} {path}"
            content = said.get("requestBody", {}).get("content", {})
            schema = content.get("application/json", {}).get("schema")
            same = said["summary"] == SAME and bool(found)
            if same and schema in (None, found[-1].schema):
                found[-1].paths.append(shown)
                continue
            parameters = [one["name"] for one in said.get("parameters", [])]
            found.append(Operation([shown], found[-1].summary if same else said["summary"], parameters, schema))
    return found


def section_of(operation: Operation) -> str:
    path = operation.paths[0].partition(" ")[2]
    return next((name for name, form in SECTIONS.items() if form and re.match(form, path)), "Answers")


def manual(api: Schema, folder: str) -> str:
    """The page of an API. folder: where its style sheet is."""
    sections: dict[str, list[Operation]] = {name: [] for name in SECTIONS}
    for one in operations(api):
        sections[section_of(one)].append(one)
    shown = {name: found for name, found in sections.items() if found}
    title, version = escape(api["info"]["title"]), escape(api["info"]["version"])
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{title}: API</title><link rel="icon" href="{folder}/icon.svg">'
        f'<link rel="stylesheet" href="{folder}/docs.css"></head><body><a class="skip" href="#main">To the text</a>'
    )
    described = f'<a href="{folder}/../openapi.json">openapi.json</a> (OpenAPI {escape(api["openapi"])})'
    intro = (
        f"<h1>{title} <small>{version}</small></h1>"
        "<p>A body is one JSON object, sent as <code>application/json</code>. Where the server has keys, send "
        f"<code>Authorization: Bearer KEY</code>. The same for programs: {described}.</p>"
    )
    parts = "".join(f"<h2>{escape(name)}</h2>{''.join(map(shown_operation, found))}" for name, found in shown.items())
    return f'{head}{contents(shown)}<main id="main">{intro}{parts}</main></body></html>\n'


def contents(sections: Mapping[str, list[Operation]]) -> str:
    """The list of all operations."""
    parts = []
    for name, found in sections.items():
        rows = "".join(f'<li><a href="#{one.anchor}">{method_and_path(one.paths[0])}</a></li>' for one in found)
        parts.append(f"<h2>{escape(name)}</h2><ul>{rows}</ul>")
    return f'<nav aria-label="Operations">{"".join(parts)}</nav>'


def method_and_path(shown: str) -> str:
    method, _, path = shown.partition(" ")
    return f'<span class="{method.lower()}">{method}</span> <code>{escape(path)}</code>'


def shown_operation(one: Operation) -> str:
    """The section of an operation: its other paths, an example, and the fields of its body."""
    also = "".join(f" <code>{escape(path)}</code>" for path in one.paths[1:])
    text = escape(one.summary[:1].upper() + one.summary[1:])
    parts = [f'<section id="{one.anchor}"><h3>{method_and_path(one.paths[0])}</h3><p>{text}.</p>']
    if also:
        parts.append(f'<p class="also">The same at{also}</p>')
    if one.parameters:
        parts.append(f"<p>In its path: {', '.join(f'<code>{escape(name)}</code>' for name in one.parameters)}.</p>")
    path = one.paths[0].partition(" ")[2]
    if path in EXAMPLES:
        call = f"curl localhost:8000{path} -H 'Content-Type: application/json' -d '{EXAMPLES[path]}'"
        parts.append(f"<pre><code>{escape(call, quote=False)}</code></pre>")
    if one.schema is not None and one.schema.get("properties"):
        parts.append(fields_table(one.schema, 0))
    return f"{''.join(parts)}</section>"


def fields_table(schema: Schema, depth: int) -> str:
    """The fields of an object, each with its kind; their own fields are folded."""
    required, rows = schema.get("required", ()), []
    for name, kind in schema["properties"].items():
        mark = ' <b title="required">required</b>' if name in required else ""
        text = escape(kind.get("description", ""))
        inner = "".join(fields_table(part, depth + 1) for part in objects_of(kind)) if depth < MAX_DEPTH else ""
        folded = f"<details><summary>its fields</summary>{inner}</details>" if inner else ""
        rows.append(f"<tr><td><code>{escape(name)}</code>{mark}<td>{escape(kind_of(kind))}<td>{code(text)}{folded}")
    head = "<thead><tr><th scope=col>field<th scope=col>kind<th scope=col>what it is</thead>"
    return f'<div class="table"><table>{head}<tbody>{"".join(rows)}</table></div>'


def code(text: str) -> str:
    """Text whose parts between backquotes are code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text)


def objects_of(schema: Schema) -> Iterable[Schema]:
    """The objects with known fields that a value may be, or have as entries."""
    for one in schema.get("anyOf", [schema]):
        if one.get("properties"):
            yield one
        elif one.get("items"):
            yield from objects_of(one["items"])


def kind_of(schema: Schema) -> str:
    """A schema in a few words."""
    return " or ".join(dict.fromkeys(map(plain_kind_of, schema.get("anyOf", [schema])))) or "any"


def plain_kind_of(schema: Schema) -> str:
    """A schema without alternatives in a few words."""
    if "enum" in schema:
        values = [value for value in schema["enum"] if value is not None]
        return " | ".join(str(v).lower() if isinstance(v, bool) else str(v) or '""' for v in values) or "not taken"
    name = str(schema.get("type", "any"))
    if name == "array":
        return f"list of {kind_of(schema['items'])}" if "items" in schema else "list"
    low, high = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum")
    if low is not None and low > -1e6:
        return f"{name} {low:g} to {high:g}" if high is not None and high < 1e6 else f"{name} from {low:g}"
    return name
