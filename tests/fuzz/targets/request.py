"""A request's body: it is refused by name, or becomes requests of the engine, as every dialect's handler makes them.

An input is JSON, [path, body]; of anything else its bytes are a body. What is refused has the status and the form of
an error, and its `param` is a place in the body or the body's own fault.
"""

import json
from functools import cache
from importlib import import_module
from types import SimpleNamespace

import oxillama as ox
from oxillama.server import ServerConfig, create_app
from oxillama.server.auth import ANYONE
from oxillama.server.bodies import parse_body
from oxillama.server.embedding_run import engine_errors
from oxillama.server.errors import ApiError
from oxillama.server.exchange import UsageRecord
from oxillama.server.generation import prepare
from oxillama.server.headers import MOST_OF_A_VALUE
from oxillama.server.ollama.conversations import prepared_chat
from oxillama.server.ollama.names import served_name
from oxillama.server.ollama.prompts import prepared_generate
from oxillama.server.reading import Reading
from oxillama.server.routes import ROUTES
from tests.fuzz.mutate import TEXT, with_word
from tests.fuzz.target import Target, told
from tests.fuzz.targets.json_values import on_value, put, remove, replace, transplant

# The package has handlers under the names of modules.
chat, completions, infill, messages, responses, tokens, ollama, ollama_embed = (
    import_module(f"oxillama.server.routes.{name}")
    for name in ("chat", "completions", "infill", "messages", "responses", "tokens", "ollama", "ollama_embed")
)
RECORDS = {e.path: e.record for e in ROUTES if e.record is not None}
HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}}
SEEDS = [
    ["/v1/chat/completions", {"messages": HI, "tools": [TOOL], "tool_choice": "required", "n": 2, "logprobs": True}],
    ["/v1/chat/completions", {"messages": HI, "response_format": {"type": "json_schema", "json_schema": {
        "name": "x", "schema": {"type": "array", "items": {"enum": [1, "a"]}}}}, "stream": True,
        "stream_options": {"include_usage": True}}],
    ["/v1/chat/completions", {"messages": [*HI, {"role": "assistant", "content": None, "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "x"}]}]}],
    ["/v1/completions", {"prompt": ["a", "b"], "echo": True, "logprobs": 1, "max_tokens": 0, "best_of": 2}],
    ["/v1/completions", {"prompt": [5, 6], "logit_bias": {"5": -100}, "stop": ["x"], "regex": "[a-z]+", "seed": -1}],
    ["/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "x"}], "text": {"format": {"type": "json_object"}},
        "include": ["message.output_text.logprobs"], "tools": [{"type": "function", "name": "f"}]}],
    ["/v1/messages", {"max_tokens": 5, "system": [{"type": "text", "text": "a"}], "messages": [*HI, {
        "role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}, {"role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "a", "content": "x", "is_error": True}]}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": {"type": "tool", "name": "f"}}],
    ["/v1/messages", {"max_tokens": 5, "messages": HI, "thinking": {"type": "adaptive", "display": "omitted"},
        "output_config": {"format": {"type": "json_schema", "schema": {"enum": ["a"]}}}}],
    ["/v1/responses", {"input": "hi", "thinking": {"type": "enabled", "budget_tokens": 9},
        "reasoning": {"effort": "none"}}],
    ["/v1/responses", {"input": [{"role": "user", "content": "hi"}, {"type": "reasoning", "encrypted_content": "x"}],
        "tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}, {"type": "mcp"}],
        "include": ["reasoning.encrypted_content"], "reasoning": {"effort": "low", "summary": "auto"}}],
    ["/v1/messages", {"max_tokens": 5, "messages": [*HI, {"role": "system", "content": [{"type": "text", "text": "a"}]},
        {"role": "user", "content": [{"type": "document", "source": {"type": "text", "data": "a"}}]}],
        "tools": [{"type": "bash_20250124", "name": "bash"}], "context_management": {"edits": [{"type": "x"}]}}],
    ["/tokenize", {"messages": HI, "tools": [TOOL]}],
    ["/infill", {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "c", "filename": "d"}],
        "samplers": ["top_k", "infill"], "n_predict": 3, "n_indent": 2, "response_fields": ["timings/prompt_n"]}],
    ["/apply-template", {"messages": HI, "tools": [TOOL]}],
    ["/v1/embeddings", {"input": ["a", [1]], "encoding_format": "base64"}],
    ["/v1/rerank", {"query": "a", "documents": ["b", {"text": "c"}]}],
    ["/api/chat", {"model": "tiny", "messages": [*HI, {"role": "assistant", "thinking": "x", "tool_calls": [
        {"function": {"name": "f", "arguments": {"a": 1}}}]}, {"role": "tool", "tool_name": "f", "content": "x"}, *HI],
        "tools": [TOOL], "think": True, "options": {"num_ctx": 4096, "seed": -1, "num_gpu": 1}, "keep_alive": "5m"}],
    ["/api/chat", {"model": "TINY:latest", "messages": HI * 9, "format": {"enum": ["a"]}, "think": "low",
        "logprobs": True, "options": {"temperature": 0, "stop": ["x"], "repeat_last_n": -1}, "stream": False}],
    ["/api/generate", {"model": "tiny", "prompt": "hi", "system": "a", "context": [5, 6], "format": "json"}],
    ["/api/generate", {"model": "tiny", "prompt": "a", "raw": True, "options": {"mirostat": 1, "top_k": 3.0}}],
    ["/api/generate", {"model": "tiny", "prompt": "a", "suffix": "b", "template": "{{ messages }}"}],
    ["/api/embed", {"model": "tiny", "input": ["a", ""], "dimensions": 8, "truncate": False}],
    ["/api/show", {"model": "tiny", "verbose": True}],
]  # fmt: skip


@cache
def service():
    return create_app({"tiny": ox.load(num_threads=1, context_size=64)}, ServerConfig(tool_format="hermes")).service


def run(data):
    path, body = "/v1/completions", data
    try:
        path, value = json.loads(data)
        record = RECORDS[path]
        body = json.dumps(value).encode()
    except (ValueError, TypeError, KeyError, RecursionError):
        path, record = "/v1/completions", RECORDS["/v1/completions"]
    try:
        reading = Reading(strict=len(data) % 5 == 1, lenient=len(data) % 5 == 0)
        values = record.read("", parse_body(body, "application/json", reading), reading)
        return [path, made(path, values, reading)]
    except ApiError as error:
        return [path, refused(error)]


def refused(error):
    """What an error says; checks that it is one that a client can read."""
    assert error.status in (400, 404), error
    said = error.openai()["error"]
    assert set(said) == {"message", "type", "param", "code"}
    assert said["message"]
    json.dumps(said).encode("ascii")
    assert said["param"] is not None or said["code"] == "invalid_json", said
    return f"{error.code} {told(error)}"


def made(path, values, reading):
    """What the handler of a path makes of its fields; what it left out can stand in a header."""
    exchange = SimpleNamespace(
        service=service(), key=ANYONE, usage=UsageRecord(), warnings=[], reading=reading, is_admin=False
    )
    if path.startswith("/api/"):
        return of_ollama(path, values, exchange)
    chosen = exchange.service.models.find(values.get("model"))
    match path:
        case "/v1/chat/completions":
            prepare(chat.read_chat(values, exchange, chosen))
        case "/v1/completions":
            prepare(completions.read_completion(values, exchange, chosen))
        case "/infill":
            prepare(infill.read_infill(values, exchange, chosen))
        case "/v1/responses":
            prepare(responses.read_response(values, exchange, chosen))
        case "/v1/messages":
            prepare(messages.read_message(values, exchange, chosen))
        case "/tokenize" if "prompt" in values or "messages" in values:
            engine_errors(lambda: tokens.read_ids(values, exchange, chosen), chosen)
        case _:
            return "read"
    assert len(reading.header) <= MOST_OF_A_VALUE
    assert reading.header.isascii()
    return "made"


def of_ollama(path, values, exchange):
    """What a handler of Ollama's API makes of its fields."""
    if path not in ("/api/chat", "/api/generate", "/api/embed"):
        return "read"
    models = exchange.service.models
    chosen = models.find(served_name(models, values.get("model", "")))
    ollama.read_stay(exchange, chosen.model, values)
    if path == "/api/embed":
        engine, given = chosen.model.ready.engine, values.get("input", "")
        for text in [given] if isinstance(given, str) else given:
            truncate = values.get("truncate", True)
            engine_errors(
                lambda text=text, truncate=truncate: ollama_embed.fitting_ids(
                    engine, "input", text, 64, truncate, exchange.reading.leave_out
                ),
                chosen,
            )
    elif path == "/api/chat" and values.get("messages"):
        prepared_chat(values, exchange, chosen)
    elif path == "/api/generate" and (values.get("prompt") or values.get("suffix")):
        prepared_generate(values, exchange, chosen)
    assert len(exchange.reading.header) <= MOST_OF_A_VALUE
    assert exchange.reading.header.isascii()
    return "made"


def seeds():
    return [json.dumps(seed).encode() for seed in SEEDS]


def add_field(draw, value, other):
    """A field of the path's table, with a value of any kind."""
    path, body = value
    name = draw.choice(RECORDS[path].fields).name
    return [path, {**body, name: draw.choice([5, 0.5, "a", True, [], {}, ["a"], [5], {"type": "text"}, {"type": "a"}])}]


def deep(draw, value, other):
    """Something nested deeply."""
    depth = draw.choice([20, 70, 300, 400])
    return put(draw, value, json.loads("[" * depth + "]" * depth))


CHANGES = [on_value(f) for f in (replace, replace, transplant, add_field, add_field, add_field, remove, deep)]
WORDS = sorted({f'"{field.name}":'.encode() for record in RECORDS.values() for field in record.fields})

TARGET = Target(
    "request",
    run,
    seeds,
    (*CHANGES, *CHANGES, *TEXT, with_word(WORDS)),
    max_bytes=4000,
    work=(8_000_000, 4000),
    memory=(256 << 20, 100_000),
)
