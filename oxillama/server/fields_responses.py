"""Field table of OpenAI's responses."""

from __future__ import annotations

from oxillama.server.content import other_content, result_content, vendor_tool
from oxillama.server.field_types import (
    LEFT_OUT,
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
    Placed,
    Record,
    Schema,
    Tagged,
    Text,
    Values,
)  # fmt: skip
from oxillama.server.fields import (
    CHAT,
    MAX_MESSAGES,
    MAX_NAME,
    MAX_SOURCE,
    MAX_TOOLS,
    MODEL,
    PATTERN,
    SCHEMA,
    SERVING,
    TOKENS,
    TOOL_NAME,
    accepted,
    wish,
    wished,
)
from oxillama.server.fields_sampling import SAMPLING, refused
from oxillama.server.reading import Reading

__all__ = ["INPUT_TOKENS", "RESPONSES"]


def form(kind: str, *fields: Field) -> Record:
    """An object whose `type` is this."""
    own = Field("type", Choice((kind,)), "its kind", "accept")
    return Record((own, accepted("id", Text(0, 256), "of an earlier answer"), *fields))


def forms(kind: str, *fields: Field) -> dict[str, Record]:
    """A form of `Tagged`: objects of this `type`."""
    return {kind: form(kind, *fields)}


def text_form(kind: str) -> Record:
    return form(
        kind, Field("text", Text(), "of the part", required=True),
        accepted("annotations", Any_(), "of an earlier answer"), accepted("logprobs", Any_(), "of an earlier answer"),
    )  # fmt: skip


STATUS = accepted("status", Text(0, MAX_NAME), "of an earlier answer")
TEXTS = {kind: text_form(kind) for kind in ("input_text", "output_text", "text")}
PART = Tagged(TEXTS, other=other_content)
CONTENT = Either({"string": Text(), "array": ListOf(PART, MAX_MESSAGES)})
GIVEN = Either({"string": Text(), "array": ListOf(Tagged(TEXTS, other=result_content), MAX_MESSAGES)})
ROLES = ("system", "developer", "user", "assistant")
THOUGHT = Tagged({kind: text_form(kind) for kind in ("reasoning_text", "summary_text", "text")}, other=other_content)
REASONING = ListOf(THOUGHT, MAX_MESSAGES)


def other_item(place: str, kind: str, value: Values, reading: Reading) -> object:
    """The text of an item of another kind as a message of the assistant; LEFT_OUT for one without any."""
    found = other_content(place, kind, value, reading)
    return found if found is LEFT_OUT else {"type": "message", "role": "assistant", "content": [found]}


ITEM = Tagged({
    **forms(
        "message", Field("role", Choice(ROLES), "of the message", required=True),
        Field("content", CONTENT, "text, or parts of it", required=True), STATUS,
        accepted("phase", Text(0, MAX_NAME), "of an earlier answer"),
    ),
    **forms(
        "function_call", Field("call_id", Text(), "of the call", required=True),
        Field("name", Text(), "of the function", required=True),
        Field("namespace", Text(0, 256), "that the function is of"),
        Field("arguments", Text(), "as JSON", required=True), STATUS,
    ),
    **forms(
        "function_call_output", Field("call_id", Text(), "of the call", required=True),
        Field("output", GIVEN, "what the function gave", required=True), STATUS,
    ),
    **forms(
        "custom_tool_call", Field("call_id", Text(), "of the call", required=True),
        Field("name", Text(), "of the tool", required=True),
        Field("namespace", Text(0, 256), "that the tool is of"),
        Field("input", Text(), "its text", required=True), STATUS,
    ),
    **forms(
        "custom_tool_call_output", Field("call_id", Text(), "of the call", required=True),
        Field("output", GIVEN, "what the tool gave", required=True), STATUS,
    ),
    **forms(
        "reasoning", Field("content", REASONING, "before an answer"), accepted("summary", REASONING, "of it"),
        Field("encrypted_content", Text(), "the same, where `content` is missing"), STATUS,
    ),
}, "message", other_item)  # fmt: skip
FUNCTIONS = {
    **forms(
        "function", Field("name", TOOL_NAME, "of the function", required=True),
        Field("description", Text(), "for the model"), Field("parameters", SCHEMA, "a JSON schema"),
        Field("strict", Boolean(), "false: arguments that no grammar can hold may be any object"),
    ),
    **forms(
        "custom", Field("name", TOOL_NAME, "of the tool", required=True),
        Field("description", Text(), "for the model"),
        Field("format", Tagged({**forms("text"), **forms("grammar", *PATTERN)}), "of its input"),
    ),
}  # fmt: skip
NAMESPACE = form(
    "namespace", Field("name", TOOL_NAME, "of the namespace", required=True),
    wished("description", Only(("",)), "functions have descriptions of their own"),
    Field("tools", ListOf(Tagged(FUNCTIONS, other=vendor_tool), MAX_TOOLS), "its functions"),
)  # fmt: skip


def other_tool(place: str, kind: str, value: Values, reading: Reading) -> object:
    """The functions of a namespace, each with its name; LEFT_OUT for other tools, and for a namespace of none."""
    if kind != "namespace":
        return vendor_tool(place, kind, value, reading)
    found = NAMESPACE.read(place, value, reading)
    tools = Placed.of(f"{place}.tools", found.get("tools", []))
    if not tools:
        return vendor_tool(place, kind, value, reading)
    return Placed((own, {**tool, "namespace": found["name"]}) for own, tool in zip(tools.places, tools, strict=True))


TOOL = Tagged(FUNCTIONS, other=other_tool)
SPACE = Field("namespace", Text(0, 256), "that the tool is of")
NAMED = {
    kind: form(kind, Field("name", Text(1, 256), "of the tool", required=True), SPACE)
    for kind in ("function", "custom")
}
CHOICE: Kind = Either({
    "string": Choice(("none", "auto", "required")),
    "object": Tagged({
        **NAMED,
        **forms(
            "allowed_tools", Field("mode", Choice(("auto", "required")), "", required=True),
            Field("tools", ListOf(Tagged(NAMED), MAX_TOOLS, 1), "", required=True),
        ),
    }),
})  # fmt: skip
FORMAT = Tagged({
    **forms("text"),
    **forms("json_object"),
    **forms(
        "json_schema", Field("name", Text(0, MAX_NAME), "of the schema"), Field("description", Text(), "of it"),
        Field("schema", SCHEMA, "what the text must follow", required=True),
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
    Field("tools", ListOf(TOOL, MAX_TOOLS, size=MAX_SOURCE),
          "functions, custom tools and namespaces of them; others are left out"),
    Field("tool_choice", CHOICE, "`none`, `auto`, `required`, a tool, or `allowed_tools`"),
    Field("parallel_tool_calls", Boolean(), "false: the first call alone"),
    Field("text", Record((
        Field("format", FORMAT, "`text`, `json_object` or `json_schema`"),
        wished("verbosity", Only(("medium",)), "the model says as much as it likes"),
    )), "the form of the text"),
    Field("reasoning", Record((
        wish(Field("effort", _CHAT["reasoning_effort"].kind, "for templates that know it")),
        wished("summary", Only(("none",)), "reasoning is given whole"),
        wished("generate_summary", Only(("none",)), "reasoning is given whole"),
    )), "how much the model thinks", "wish"),
    _CHAT["chat_template_kwargs"],
    _CHAT["chat_template"],
    _CHAT["thinking"],
    _CHAT["reasoning_budget"],
    wished("truncation", Only(("disabled",)), "nothing is cut from the input"),
    *(refused(name, "nothing is kept: send the whole conversation as input")
      for name in ("previous_response_id", "conversation")),
)  # fmt: skip
INPUT_TOKENS = Record(_INPUT)
LOGPROBS, ENCRYPTED = "message.output_text.logprobs", "reasoning.encrypted_content"


class Included:
    """Parts of the answer by name; those that there are none of are left out."""

    def read(self, place: str, value: object, reading: Reading) -> object:
        if value in (LOGPROBS, ENCRYPTED):
            return value
        name = Text(1, 256).read(place, value, reading)
        reading.leave_out(f"{place}={name:.64}", "there is no such part", "include")
        return LEFT_OUT

    def schema(self) -> Schema:
        return {"type": "string", "enum": [LOGPROBS, ENCRYPTED]}


INCLUDED = ListOf(Included(), 64)
RESPONSES = Record((
    *_INPUT,
    Field("max_output_tokens", TOKENS, "tokens to generate at most"),
    *SAMPLING,
    Field("top_logprobs", Integer(0, 1024), "with `include`: so many of the likeliest"),
    Field("include", INCLUDED, "log-probabilities of the text; reasoning as a text to be sent back"),
    Field("stream", Boolean(), "server-sent events"),
    accepted("stream_options", Record((accepted("include_obfuscation", Boolean(), "none"),)), "there are none"),
    Field("metadata", MapOf(Text(0, 512), 16, lambda place, key: key), "comes back with the answer"),
    *(field for field in SERVING if field.name not in _OWN),
    refused("background", "answers are streamed or waited for", False),
    refused("prompt", "give input and instructions"),
    wished("context_management", Any_(), "nothing is cleared"),
    accepted("max_tool_calls", Integer(0, 1 << 31), "there are no built-in tools"),
    accepted("client_metadata", Json(), "for the caller"),
))  # fmt: skip
