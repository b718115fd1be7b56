"""From a JSON schema to a grammar, for schemas of the kinds that programs send."""

from typing import Any

from oxillama import JsonSchemaCompiler

TEXT = {"type": "string"}
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 100},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": TEXT, "maxItems": 10},
        "address": {
            "type": "object",
            "properties": {"street": TEXT, "city": TEXT, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
            "required": ["street", "city"],
        },
    },
    "required": ["name"],
}
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": ["number", "null"]},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["value"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
TOOLS = {
    "oneOf": [
        {
            "type": "object",
            "properties": {
                "name": {"const": f"tool_{i}"},
                "arguments": {
                    "type": "object",
                    "properties": {
                        "path": TEXT,
                        "limit": {"type": "integer", "minimum": 1},
                        "force": {"type": "boolean"},
                    },
                    "required": ["path"],
                    "additionalProperties": False,
                },
            },
            "required": ["name", "arguments"],
        }
        for i in range(12)
    ]
}
EVENT = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "required": ["id", "time", "kind"],
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "time": {"type": "string", "format": "date-time"},
        "kind": {"enum": ["created", "changed", "removed"]},
        "source": {"type": "string", "format": "uri"},
        "amount": {"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.01},
    },
    "patternProperties": {"^x-": {}},
    "additionalProperties": False,
    "if": {"properties": {"kind": {"const": "changed"}}},
    "then": {"required": ["amount"]},
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "object": {"type": "object"},
    "person": PERSON,
    "closed person": PERSON | {"additionalProperties": False, "required": list(PERSON["properties"])},
    "tree": TREE,
    "tools": TOOLS,
    "event": EVENT,
    "60 optional": {"type": "object", "properties": {f"property_{i}": TEXT for i in range(60)}},
    "enum of 200": {"enum": [f"value {i}" for i in range(200)]},
}


class Compile:
    """A schema that was met before: what doesn't depend on it alone (formats, characters) is kept."""

    params = tuple(SCHEMAS)
    param_names = ("schema",)

    def setup(self, name: str) -> None:
        self.schema = SCHEMAS[name]
        JsonSchemaCompiler.compile(self.schema)

    def time_compile(self, name: str) -> None:
        JsonSchemaCompiler.compile(self.schema)

    def track_states(self, name: str) -> int:
        return int(JsonSchemaCompiler.compile(self.schema).automaton.n_states)
