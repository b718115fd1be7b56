"""Bodies of agents' requests: milliseconds to parse and check one of 25 tools and about 25,000 tokens."""

import json
from importlib import import_module
from typing import Any

N_TOOLS, N_TURNS = 25, 40
TEXT = "Give the path of the file, from the root of the project, and say what you want to do with it. "
ARGUMENTS = {
    "type": "object",
    "properties": {name: {"type": "string", "description": TEXT} for name in ("path", "old", "new")},
    "required": ["path"],
}


def described(i: int, schema: str) -> dict[str, Any]:
    """A tool with a description of about 700 tokens."""
    return {"name": f"tool_{i}", "description": TEXT * 32, schema: ARGUMENTS}


def messages() -> dict[str, Any]:
    """A request as Claude Code sends it."""
    call = {"type": "tool_use", "name": "tool_1", "input": {"path": "a/b", "old": TEXT, "new": TEXT}}
    given: list[dict[str, Any]] = [{"role": "user", "content": TEXT}, {"role": "system", "content": TEXT}]
    for i in range(N_TURNS):
        result = {"type": "tool_result", "tool_use_id": f"call{i}", "content": TEXT, "is_error": False}
        given += [{"role": "assistant", "content": [{**call, "id": f"call{i}"}]}, {"role": "user", "content": [result]}]
    return {
        "model": "any", "max_tokens": 32_000, "stream": True, "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"}, "system": [{"type": "text", "text": TEXT * 60}], "messages": given,
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "tools": [described(i, "input_schema") for i in range(N_TOOLS)],
    }  # fmt: skip


def responses() -> dict[str, Any]:
    """A request as Codex sends it."""
    given: list[dict[str, Any]] = [{"type": "message", "role": "developer", "content": TEXT * 60}]
    for i in range(N_TURNS):
        arguments = json.dumps({"path": "a/b", "old": TEXT, "new": TEXT})
        given.append({"type": "function_call", "call_id": f"c{i}", "name": "tool_1", "arguments": arguments})
        given.append({"type": "function_call_output", "call_id": f"c{i}", "output": TEXT})
    functions = [{"type": "function", "strict": False, **described(i, "parameters")} for i in range(N_TOOLS)]
    return {
        "model": "any", "stream": True, "store": False, "include": ["reasoning.encrypted_content"], "input": given,
        "reasoning": {"summary": "auto"}, "client_metadata": {"a": "b"},
        "tools": [*functions[5:], {"type": "namespace", "name": "n", "tools": functions[:5]}, {"type": "web_search"}],
    }  # fmt: skip


class Bodies:
    """From the bytes of a body to the fields of a request of chat completions, on one thread."""

    params = ("messages", "responses")
    param_names = ("dialect",)

    def setup(self, dialect: str) -> None:
        self.body = json.dumps({"messages": messages, "responses": responses}[dialect]()).encode()
        try:
            self.parse = import_module("oxillama.server.bodies").parse_body
        except ImportError:  # the extra `server` is not installed
            raise NotImplementedError from None
        self.reading = import_module("oxillama.server.reading").Reading
        fields = import_module(f"oxillama.server.fields_{dialect}")
        self.record = fields.MESSAGES if dialect == "messages" else fields.RESPONSES
        self.as_chat = import_module(f"oxillama.server.routes.{dialect}").as_chat
        self.time_read(dialect)

    def time_read(self, dialect: str) -> None:
        reading = self.reading()
        values = self.record.read("", self.parse(self.body, "application/json"), reading)
        self.as_chat(values, reading)
