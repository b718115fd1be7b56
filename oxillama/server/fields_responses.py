"""Field table of OpenAI's responses."""

from __future__ import annotations

from oxillama.server.fields import (
    CHAT,
    MAX_MESSAGES,
    MAX_NAME,
    MAX_TOOLS,
    MODEL,
    PATTERN,
    SAMPLING,
    SCHEMA_DEPTH,
    SERVING,
    TOKENS,
    accepted,
    refused,
)  # fmt: skip
from oxillama.server.kinds import (
    Any_,
    Boolean,
    Choice,
    Either,
    Field,
    Integer,
    Json,
    Kind,
    ListOf,
    MapOf,
    Only,
    Record,
    Tagged,
    Text,
)  # fmt: skip

__all__ = ["INPUT_TOKENS", "RESPONSES"]


def form(kind: str, *fields: Field) -> Record:
    """An object whose `type` is this."""
    own = Field("type", Choice((kind,)), "its kind", "accept")
    return Record((own, accepted("id", Text(0, 256), "of an earlier answer"), *fields))


def text_form(kind: str) -> Record:
    return form(
        kind, Field("text", Text(), "of the part", required=True),
        accepted("annotations", Any_(), "of an earlier answer"), accepted("logprobs", Any_(), "of an earlier answer"),
    )  # fmt: skip


STATUS = accepted("status", Text(0, MAX_NAME), "of an earlier answer")
PART = Tagged({kind: text_form(kind) for kind in ("input_text", "output_text", "text")})
CONTENT = Either({"string": Text(), "array": ListOf(PART, MAX_MESSAGES)})
ROLES = ("system", "developer", "user", "assistant")
REASONING = ListOf(Tagged({kind: text_form(kind) for kind in ("reasoning_text", "summary_text")}), MAX_MESSAGES)
ITEM = Tagged({
    "message": form(
        "message", Field("role", Choice(ROLES), "of the message", required=True),
        Field("content", CONTENT, "text, or parts of it", required=True), STATUS,
        accepted("phase", Text(0, MAX_NAME), "of an earlier answer"),
    ),
    "function_call": form(
        "function_call", Field("call_id", Text(), "of the call", required=True),
        Field("name", Text(), "of the function", required=True),
        Field("arguments", Text(), "as JSON", required=True), STATUS,
    ),
    "function_call_output": form(
        "function_call_output", Field("call_id", Text(), "of the call", required=True),
        Field("output", CONTENT, "what the function gave", required=True), STATUS,
    ),
    "custom_tool_call": form(
        "custom_tool_call", Field("call_id", Text(), "of the call", required=True),
        Field("name", Text(), "of the tool", required=True),
        Field("input", Text(), "its text", required=True), STATUS,
    ),
    "custom_tool_call_output": form(
        "custom_tool_call_output", Field("call_id", Text(), "of the call", required=True),
        Field("output", CONTENT, "what the tool gave", required=True), STATUS,
    ),
    "reasoning": form(
        "reasoning", Field("content", REASONING, "before an answer"), accepted("summary", REASONING, "of it"),
        accepted("encrypted_content", Text(), "of an earlier answer"), STATUS,
    ),
}, "message")  # fmt: skip
TOOL = Tagged({
    "function": form(
        "function", Field("name", Text(1, MAX_NAME), "of the function", required=True),
        Field("description", Text(), "for the model"), Field("parameters", Json(SCHEMA_DEPTH), "a JSON schema"),
        Field("strict", Boolean(), "false: arguments that no grammar can hold may be any object"),
    ),
    "custom": form(
        "custom", Field("name", Text(1, MAX_NAME), "of the tool", required=True),
        Field("description", Text(), "for the model"),
        Field("format", Tagged({"text": form("text"), "grammar": form("grammar", *PATTERN)}), "of its input"),
    ),
})  # fmt: skip
NAMED = {
    kind: form(kind, Field("name", Text(1, MAX_NAME), "of the tool", required=True)) for kind in ("function", "custom")
}
CHOICE: Kind = Either({
    "string": Choice(("none", "auto", "required")),
    "object": Tagged({
        **NAMED,
        "allowed_tools": form(
            "allowed_tools", Field("mode", Choice(("auto", "required")), "", required=True),
            Field("tools", ListOf(Tagged(NAMED), MAX_TOOLS, 1), "", required=True),
        ),
    }),
})  # fmt: skip
FORMAT = Tagged({
    "text": form("text"),
    "json_object": form("json_object"),
    "json_schema": form(
        "json_schema", Field("name", Text(0, MAX_NAME), "of the schema"), Field("description", Text(), "of it"),
        Field("schema", Json(SCHEMA_DEPTH), "what the text must follow", required=True),
        accepted("strict", Boolean(), "the schema is held either way"),
    ),
})  # fmt: skip
_CHAT = {field.name: field for field in CHAT.fields}
_OWN = ("metadata", "return_token_ids", "return_timings")  # fields that chat has in another form, or alone
INPUT = Either({"string": Text(), "array": ListOf(ITEM, MAX_MESSAGES, 1)})
_INPUT = (
    MODEL,
    Field("input", INPUT, "a text, or items", required=True),
    Field("instructions", Text(), "a system message before it"),
    Field("tools", ListOf(TOOL, MAX_TOOLS), "functions and custom tools; there are no built-in ones"),
    Field("tool_choice", CHOICE, "`none`, `auto`, `required`, a tool, or `allowed_tools`"),
    Field("parallel_tool_calls", Boolean(), "false: the first call alone"),
    Field("text", Record((
        Field("format", FORMAT, "`text`, `json_object` or `json_schema`"),
        accepted("verbosity", Choice(("low", "medium", "high")), "as the model likes"),
    )), "the form of the text"),
    Field("reasoning", Record((
        Field("effort", _CHAT["reasoning_effort"].kind, "for templates that know it"),
        accepted("summary", Text(0, MAX_NAME), "there is none"),
    )), "how much the model thinks"),
    _CHAT["chat_template_kwargs"],
    _CHAT["chat_template"],
    _CHAT["thinking"],
    _CHAT["reasoning_budget"],
    Field("truncation", Only(("disabled",), "shorten the input"), "nothing is cut from the input", "accept"),
    *(refused(name, "nothing is kept: send the whole conversation as input")
      for name in ("previous_response_id", "conversation")),
)  # fmt: skip
INPUT_TOKENS = Record(_INPUT)
INCLUDED = ListOf(Choice(("message.output_text.logprobs",)), 8)
RESPONSES = Record((
    *_INPUT,
    Field("max_output_tokens", TOKENS, "tokens to generate at most"),
    *SAMPLING,
    Field("top_logprobs", Integer(0, 1024), "with `include`: so many of the likeliest"),
    Field("include", INCLUDED, "`message.output_text.logprobs`"),
    Field("stream", Boolean(), "server-sent events"),
    accepted("stream_options", Record((accepted("include_obfuscation", Boolean(), "none"),)), "there are none"),
    Field("metadata", MapOf(Text(0, 512), 16, lambda place, key: key), "comes back with the answer"),
    *(field for field in SERVING if field.name not in _OWN),
    refused("background", "answers are streamed or waited for", False),
    refused("prompt", "give input and instructions"),
    refused("context_management"),
    refused("max_tool_calls", "there are no built-in tools"),
))  # fmt: skip
