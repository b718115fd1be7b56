"""Field table of Anthropic's messages."""

from __future__ import annotations

from oxillama.server.content import other_content, result_content, vendor_tool
from oxillama.server.errors import ApiError
from oxillama.server.field_types import (
    LEFT_OUT,
    Any_,
    Boolean,
    Choice,
    Either,
    Field,
    Json,
    ListOf,
    Only,
    Record,
    Tagged,
    Text,
    Values,
)  # fmt: skip
from oxillama.server.fields import (
    MAX_MESSAGES,
    MAX_NAME,
    MAX_SOURCE,
    MAX_TOOLS,
    MODEL,
    SCHEMA,
    SCHEMA_DEPTH,
    THINKING,
    TOOL_NAME,
    accepted,
    forms,
    wish,
    wished,
)
from oxillama.server.fields import TOKENS as MOST
from oxillama.server.fields_sampling import MAX_STOP, OF_MESSAGES_API, refused
from oxillama.server.reading import Reading

__all__ = ["COUNT_TOKENS", "MESSAGES"]

CACHE = accepted("cache_control", Json(), "beginnings are found by themselves")


def block(kind: str, *fields: Field) -> Record:
    """An object whose `type` is this."""
    return Record((accepted("type", Choice((kind,)), "its kind"), CACHE, *fields))


TEXT = block(
    "text", Field("text", Text(), "of the block", required=True), accepted("citations", Any_(), "of an earlier answer")
)
TEXTS = ListOf(Tagged({"text": TEXT}, other=other_content), MAX_MESSAGES)
GIVEN = ListOf(Tagged({"text": TEXT}, other=result_content), MAX_MESSAGES)
BLOCK = Tagged({
    "text": TEXT,
    "tool_use": block(
        "tool_use", Field("id", Text(), "of the call", required=True),
        Field("name", Text(), "of the tool", required=True),
        Field("input", Json(SCHEMA_DEPTH), "arguments", required=True),
        accepted("caller", Any_(), "of an earlier answer"),
    ),
    "tool_result": block(
        "tool_result", Field("tool_use_id", Text(), "of the call", required=True),
        Field("content", Either({"string": Text(), "array": GIVEN}), "what the tool gave"),
        Field("is_error", Boolean(), "whether that is an error"),
    ),
    "thinking": block(
        "thinking", Field("thinking", Text(), "of an earlier answer", required=True),
        accepted("signature", Text(), "of an earlier answer"),
    ),
}, other=other_content)  # fmt: skip
CONTENT = Either({"string": Text(), "array": ListOf(BLOCK, MAX_MESSAGES)})
MESSAGE = Record((
    Field("role", Choice(("user", "assistant", "system")), "of the message", required=True),
    Field("content", CONTENT, "text, or blocks", required=True),
))  # fmt: skip
CUSTOM = block(
    "custom", Field("name", TOOL_NAME, "of the tool", required=True),
    Field("description", Text(), "for the model"),
    Field("input_schema", SCHEMA, "a JSON schema of its input", required=True),
    Field("strict", Boolean(), "false: input that no grammar can hold may be any object"),
    accepted("input_examples", Any_(), "for the reader"),
    accepted("eager_input_streaming", Boolean(), "input comes as it is written"),
    wished("defer_loading", Only((False,)), "every tool is shown"),
    wished("allowed_callers", Only((["direct"],)), "only the model calls"),
)  # fmt: skip
TOOL = Tagged({"custom": CUSTOM}, "custom", vendor_tool)
PARALLEL = Field("disable_parallel_tool_use", Boolean(), "the first call alone")


CHOICE = Tagged({
    **forms("auto", PARALLEL),
    **forms("any", PARALLEL),
    **forms("tool", Field("name", TOOL_NAME, "of the tool", required=True), PARALLEL),
    **forms("none"),
})  # fmt: skip
FORMAT = Tagged(forms("json_schema", Field("schema", SCHEMA, "what the text must follow", required=True)))


def edit(place: str, kind: str, value: Values, reading: Reading) -> object:
    """LEFT_OUT: nothing is cleared of an earlier conversation."""
    if value.get("keep") != "all":
        reading.leave_out(f"{place}.type={kind:.64}", "nothing is cleared", "context_management.edits.type")
    return LEFT_OUT


def thread(place: str, kind: str, value: Values, reading: Reading) -> object:
    """LEFT_OUT: no conversation is kept. Raises ApiError for a later part of one: clients then send it whole."""
    if kind == "continue":
        lost = ApiError(404, "thread_not_found", f"{place}: nothing is kept: send the whole conversation", place)
        lost.details = {"error_code": "thread_not_found"}
        raise lost
    return LEFT_OUT


THREAD = Tagged(forms("create"), other=thread)
EDITS = Record((Field("edits", ListOf(Tagged({}, other=edit), MAX_MESSAGES), "of the conversation"),))
_INPUT = (
    MODEL,
    Field("messages", ListOf(MESSAGE, MAX_MESSAGES, 1), "the conversation", required=True),
    Field("system", Either({"string": Text(), "array": TEXTS}), "a system message"),
    Field(
        "tools",
        ListOf(TOOL, MAX_TOOLS, size=MAX_SOURCE),
        "tools that the model may call; those of other types are left out",
    ),
    Field("tool_choice", CHOICE, "`auto`, `any`, `tool` or `none`"),
    Field("thinking", THINKING, "`enabled`, `adaptive` or `disabled`; absent: as the model's template has it", "wish"),
    Field(
        "output_config",
        Record(
            (
                wish(Field("effort", Text(1, MAX_NAME), "how much the model thinks, for templates that know it")),
                Field("format", FORMAT, "a JSON schema that the text follows"),
            )
        ),
        "effort and form of the answer",
    ),
    Field("output_format", FORMAT, "`output_config.format`, by its older name"),
    CACHE,
)
COUNT_TOKENS = Record(_INPUT)
MESSAGES = Record((
    *_INPUT,
    Field("max_tokens", MOST, "tokens to generate at most", required=True),
    Field("stop_sequences", ListOf(Text(1, MAX_STOP), 16), "strings that end the text"),
    Field("stream", Boolean(), "server-sent events"),
    *OF_MESSAGES_API,
    accepted("metadata", Json(), "for the caller"),
    wished("service_tier", Only(("auto", "standard_only")), "there is one"),
    wished("container", Any_(), "nothing is run"),
    wished("thread", THREAD, "nothing is kept: one that continues is a 404"),
    refused("compaction", "nothing is kept: ask for a summary in a message"),
    wished("mcp_servers", Only(([],)), "nothing is ever fetched"),
    Field("context_management", EDITS, "nothing is cleared", "wish"),
    accepted("inference_geo", Text(0, MAX_NAME), "the model runs here"),
    accepted("user_profile_id", Text(0, 512), "for the caller"),
    accepted("workspace_id", Text(0, 512), "for the caller"),
    wished("speed", Only(("standard",)), "there is one"),
    wished("diagnostics", Any_(), "there are none"),
))  # fmt: skip
