"""Field tables: what each request may have, how it is checked, and what becomes of it."""

from __future__ import annotations

from dataclasses import replace

from oxillama.chat.messages import REASONING_FIELDS
from oxillama.config import MAX_CONTEXT
from oxillama.sampler_config import CONSTRAINTS as _FORMS
from oxillama.sampler_config import MAX_TOKEN
from oxillama.server.content import other_content, result_content, vendor_tool
from oxillama.server.field_types import (
    Any_,
    Boolean,
    Choice,
    Either,
    Field,
    Integer,
    Json,
    Kind,
    Limit,
    ListOf,
    MapOf,
    Number,
    Only,
    Other,
    Record,
    Schema,
    Tagged,
    Text,
)
from oxillama.server.fields_sampling import IDS, KNOWN, SAMPLING, engine, of_setting, refused
from oxillama.server.reading import Reading

__all__ = ["CHAT", "COMPLETIONS", "CONSTRAINTS", "FORMS", "MODEL", "STREAM", "accepted", "wished"]

SCHEMA_DEPTH = 256
MAX_NAME = 64
MAX_TOOLS = 1024
MAX_MESSAGES = 1 << 14
MAX_CHOICES = 1 << 14
# Characters of a schema, a grammar, a pattern, a list of choices, and of all tools together. Agents' tools have a small
# part of them; of more, single steps of reading and freeing them would keep other requests waiting.
MAX_SOURCE = 1 << 20
SCHEMA = Json(SCHEMA_DEPTH, MAX_SOURCE)
SOURCE = Text(0, MAX_SOURCE)


def accepted(name: str, kind: Kind, text: str) -> Field:
    """A field that has no effect here, by its nature."""
    return Field(name, kind, text, "accept")


def wished(name: str, kind: Kind, text: str) -> Field:
    """A field that asks for what can't be had and is no part of the answer: it is left out, which is said.

    With the kind `Only`, the values that ask for nothing are taken in silence.
    """
    return Field(name, kind, text, "leave")


def wish(field: Field) -> Field:
    """A field as a wish: what a model can't follow of it is left out, which is said."""
    return replace(field, rule="wish") if field.rule == "honour" else field


MODEL = Field("model", Text(0, 256), "id of a model or adapter; absent or empty: the first")

CHOICES = ListOf(Text(), MAX_CHOICES, 1, MAX_SOURCE)
_KINDS: dict[str, Kind] = {"json_schema": SCHEMA, "choices": CHOICES}
# What a text can follow, by the engine's name; GBNF is the last in these APIs.
FORMS = {name: Field(name, _KINDS.get(name, SOURCE), KNOWN[name].brief) for name in (*_FORMS[1:], _FORMS[0])}
STRUCTURED = Record(
    (
        Field("json", Either({"object": SCHEMA, "string": SOURCE, "boolean": Boolean()}), "a JSON schema"),
        FORMS["regex"],
        replace(FORMS["choices"], name="choice"),
        FORMS["grammar"],
        refused("json_object", "give response_format {'type': 'json_object'}", False),
        refused("disable_fallback", "", False),
        accepted("disable_any_whitespace", Boolean(), "JSON has at most one space between tokens in any case"),
        refused("disable_additional_properties", "schemas are closed unless they say otherwise", False),
        refused("whitespace_pattern"),
        refused("structural_tag"),
    )
)
JSON_SCHEMA = Record(
    (
        Field("name", Text(0, MAX_NAME), "of the schema"),
        Field("description", Text(), "for the reader"),
        Field("schema", SCHEMA, "what the text, as JSON, must follow", required=True),
        accepted("strict", Boolean(), "the schema is held either way"),
    )
)
RESPONSE_FORMAT = Record(
    (
        Field("type", Choice(("text", "json_object", "json_schema")), "what the text is", required=True),
        Field("json_schema", JSON_SCHEMA, "for `json_schema`"),
        Field("schema", SCHEMA, "for `json_object`: a schema that it follows"),
    )
)
GUIDED = "give structured_outputs"
CONSTRAINTS = (
    Field("response_format", RESPONSE_FORMAT, "`text`, `json_object`, or `json_schema`, which is always held"),
    Field("structured_outputs", STRUCTURED, "`json`, `regex`, `choice` or `grammar`"),
    *FORMS.values(),
    of_setting(KNOWN["schema_mode"]),
    *(refused(name, GUIDED) for name in ("guided_json", "guided_regex", "guided_choice", "guided_grammar")),
    refused("guided_decoding_backend", GUIDED),
)
STREAM_OPTIONS = Record(
    (
        Field("include_usage", Boolean(), "a last chunk with the usage"),
        Field("continuous_usage_stats", Boolean(), "the usage so far in every chunk"),
        accepted("include_obfuscation", Boolean(), "there is none"),
    )
)
STREAM = (
    Field("stream", Boolean(), "server-sent events, one for each step of the model"),
    Field("stream_options", STREAM_OPTIONS, "with `stream` alone"),
)
LORA = Record((
    Field("name", Text(1, 256), "of a loaded adapter", required=True),
    Field("scale", Number(-1000, 1000), "default 1"),
))  # fmt: skip
PREDICTED = Either({"string": Text(), "array": ListOf(Record((
    Field("type", Choice(("text",)), "", required=True), Field("text", Text(), "", required=True),
)), 64)})  # fmt: skip
SERVING = (
    Field("priority", Integer(-100, 100), "lower goes first; other than 0 needs `--allow-priority`"),
    Field("cache_prompt", Boolean(), "begin with KV of earlier requests, and leave it for others", to="cache_prompt"),
    Field("cache_salt", Text(1, 256), "only requests with the same one share beginnings"),
    accepted("prompt_cache_key", Text(0, 1024), "for routers; beginnings are found by themselves"),
    accepted("prompt_cache_retention", Text(0, MAX_NAME), "KV is kept while there is room"),
    Field("lora", ListOf(LORA, 16), "adapters with their scales"),
    Field("draft", Choice(("lookup", "grammar", "off")), "where draft tokens come from; it changes no text"),
    engine("num_speculative", Integer(0, 32), "draft tokens at a time"),
    Field("prediction", Record((
        Field("type", Choice(("content",)), "", required=True), Field("content", PREDICTED, "", required=True),
    )), "a text that the answer may repeat: drafts are looked up in it"),
    Field("return_token_ids", Boolean(),
          "`token_ids` and `prompt_token_ids` beside the text, and the `id` of each log-probability's token"),
    Field("return_timings", Boolean(), "seconds, under `oxillama`"),
    accepted("user", Text(0, 512), "for the access log, with `--log-content`"),
    accepted("metadata", MapOf(Text(0, 512), 16, lambda place, key: key), "for the caller"),
    accepted("safety_identifier", Text(0, 512), "for the caller"),
    wished("service_tier", Only(("auto", "default")), "there is one"),
    wished("store", Only((False,)), "nothing is kept"),
    refused("truncate_prompt_tokens", "shorten the prompt"),
    refused("use_beam_search", "the library has beam_search()", False),
    refused("length_penalty", "it is for beam search", 1.0, 1),
    refused("early_stopping", "it is for beam search", False),
    wished("moderation", Any_(), "there is none"),
)  # fmt: skip


def tagged(kind: str, *fields: Field) -> Record:
    """An object whose `type` is this."""
    return Record((accepted("type", Choice((kind,)), "its kind"), *fields))


def forms(kind: str, *fields: Field) -> dict[str, Record]:
    """A form of `Tagged`: objects of this `type`."""
    return {kind: tagged(kind, *fields)}


TEXT_PART = tagged(
    "text", Field("text", Text(), "of the part", required=True),
    accepted("cache_control", Json(), "beginnings are found by themselves"),
)  # fmt: skip
# A model wrote the calls of earlier answers: their names, ids, number and arguments have no bounds but the body's.
ARGUMENTS = Any_(SCHEMA_DEPTH)
CALLED = Record((Field("name", Text(), "", required=True), Field("arguments", ARGUMENTS, "JSON text, or an object")))
INPUT = Record((Field("name", Text(), "", required=True), Field("input", Text(), "its text", required=True)))


def call(kind: str, part: Record) -> Record:
    return tagged(
        kind, Field("id", Text(), "of the call"), Field("index", Integer(0, MAX_MESSAGES), "of the call"),
        Field(kind, part, "its name, and what it is called with", required=True),
    )  # fmt: skip


CALL = Tagged({"function": call("function", CALLED), "custom": call("custom", INPUT)}, "function")
ROLES = ("system", "developer", "user", "assistant", "tool")


def message(other: Other) -> Record:
    """A message. other: reads parts of its content that are no text."""
    parts = ListOf(Tagged({"text": TEXT_PART}, other=other), MAX_MESSAGES)
    return Record((
        Field("role", Choice(ROLES), "of the message", required=True),
        Field("content", Either({"string": Text(), "array": parts}), "text, or text parts"),
        Field("name", Text(0, 256), "of the author"),
        Field("tool_calls", ListOf(CALL, MAX_MESSAGES), "of an assistant's message"),
        Field("tool_call_id", Text(), "of a tool's message"),
        *(Field(name, Text(), "of an assistant's message") for name in REASONING_FIELDS[:2]),
        accepted("annotations", ListOf(Any_(), MAX_MESSAGES), "of an answer that is sent back"),
        accepted("refusal", Text(), "of an answer that is sent back"),
        accepted("parsed", Any_(), "of an answer that is sent back"),
        accepted("provider_specific_fields", Json(), "of an answer that is sent back"),
        accepted("token_ids", Any_(), "of an answer that is sent back"),
        refused("audio"),
        refused("function_call", "give tool_calls"),
    ))  # fmt: skip


class Message:
    """A message of a conversation; of a tool's, what is no text is left out."""

    said, given = message(other_content), message(result_content)

    def read(self, place: str, value: object, reading: Reading) -> object:
        """The fields of the message. Raises ApiError for one of another form."""
        is_given = isinstance(value, dict) and value.get("role") == "tool"
        return (self.given if is_given else self.said).read(place, value, reading)

    def schema(self) -> Schema:
        """JSON Schema of the message."""
        return self.said.schema()


MESSAGE = Message()
TOOL_NAME = Text(1, 128)
FUNCTION = Record((
    Field("name", TOOL_NAME, "of the function", required=True),
    Field("description", Text(), "for the model"),
    Field("parameters", SCHEMA, "a JSON schema of the arguments"),
    Field("strict", Boolean(), "false: arguments that no grammar can hold may be any object"),
))  # fmt: skip
PATTERN = (
    Field(
        "syntax", Choice(("regex", "lark")), "`regex`; with `lark` the input is any text, which is said", required=True
    ),
    Field("definition", Text(1, MAX_SOURCE), "a pattern that all of the input matches", required=True),
)
FREE_TEXT = Tagged({
    **forms("text"),
    **forms("grammar", Field("grammar", Record(PATTERN), "what the input matches", required=True)),
})  # fmt: skip
CUSTOM = Record((
    Field("name", TOOL_NAME, "of the tool", required=True),
    Field("description", Text(), "for the model"),
    Field("format", FREE_TEXT, "of its input; default any text"),
))  # fmt: skip
TOOL = Tagged({
    **forms("function", Field("function", FUNCTION, "its name and schema", required=True)),
    **forms("custom", Field("custom", CUSTOM, "a tool whose input is a text", required=True)),
}, other=vendor_tool)  # fmt: skip
NAMED = Record((Field("name", TOOL_NAME, "of the tool", required=True),))
ONE_TOOL = {kind: tagged(kind, Field(kind, NAMED, "its name", required=True)) for kind in ("function", "custom")}
ALLOWED = Record((
    Field("mode", Choice(("auto", "required")), "", required=True),
    Field("tools", ListOf(Tagged(ONE_TOOL), MAX_TOOLS, 1), "", required=True),
))  # fmt: skip
TOOL_CHOICE = Either({
    "string": Choice(("none", "auto", "required")),
    "object": Tagged({
        **ONE_TOOL,
        **forms("allowed_tools", Field("allowed_tools", ALLOWED, "that may be called", required=True)),
    }),
})  # fmt: skip
TOKENS = Limit(1, 1 << 31)
MAX_BUDGET = 1 << 30


def thinking(kind: str, *fields: Field) -> Record:
    return Record((accepted("type", Choice((kind,)), "whether the model thinks"), *fields))


DISPLAY = Field("display", Choice(("summarized", "omitted")), "`omitted` leaves its text out, of messages")
THINKING = Tagged({
    "enabled": thinking("enabled", Field("budget_tokens", Integer(1, MAX_BUDGET), "at most"), DISPLAY),
    "adaptive": thinking("adaptive", DISPLAY),
    "disabled": thinking("disabled"),
})  # fmt: skip

CHAT = Record((
    MODEL,
    Field("messages", ListOf(MESSAGE, MAX_MESSAGES, 1), "the conversation", required=True),
    Field(
        "max_completion_tokens", TOKENS,
        "tokens to generate at most; more than there is room for is cut to it, and -1 is no limit",
    ),
    Field("max_tokens", TOKENS, "the same"),
    *SAMPLING,
    Field("n", Integer(1, 128), "choices; at most `--max-n`"),
    Field("logprobs", Boolean(), "log-probabilities of the tokens, by the model's own distribution"),
    Field("top_logprobs", Integer(0, 1024), "with so many of the likeliest; at most `--max-logprobs`"),
    Field("prompt_logprobs", Integer(0, 1024), "of the prompt's tokens", to="prompt_logprobs"),
    *CONSTRAINTS,
    Field("tools", ListOf(TOOL, MAX_TOOLS, size=MAX_SOURCE),
          "functions and custom tools that the model may call; others are left out"),
    Field("tool_choice", TOOL_CHOICE, "`none`, `auto`, `required`, a tool, or `allowed_tools`"),
    Field("parallel_tool_calls", Boolean(), "false: the first call alone"),
    *STREAM,
    wish(engine("reasoning_effort", Text(1, MAX_NAME), "for templates that know it")),
    engine("chat_template_kwargs", Json(size=MAX_SOURCE), "variables of the chat template", "template_kwargs"),
    Field("chat_template", Text(), "a template of the request's own; needs `--trust-request-templates`"),
    engine("add_generation_prompt", Boolean(), "end the prompt with what opens the answer"),
    engine("continue_final_message", Boolean(), "go on with the last message"),
    Field("include_reasoning", Boolean(), "false leaves reasoning out of the answer"),
    wish(Field("thinking", THINKING, "`enabled`, `adaptive` or `disabled`: whether the model thinks first")),
    wish(engine("reasoning_budget", Integer(0, MAX_BUDGET), "tokens of reasoning at most; then it is ended")),
    *SERVING,
    wished("verbosity", Only(("medium",)), "the model says as much as it likes"),
    Field("modalities", Only((["text"],)), "text alone", "accept"),
    refused("audio"),
    wished("web_search_options", Any_(), "nothing is ever fetched"),
    wished("models", Any_(), "the one that `model` names answers"),
    wished("reasoning_format", Only(("auto", "deepseek")), "reasoning has a field of its own"),
    wished("parse_tool_calls", Only((True,)), "calls of tools are always read"),
    refused("functions", "give tools"),
    refused("function_call", "give tool_choice"),
    refused("documents", "give chat_template_kwargs"),
))  # fmt: skip

PROMPT = Either({"string": Text(), "array": ListOf(
    Either({"string": Text(), "number": Integer(0, MAX_TOKEN), "array": IDS}), MAX_CONTEXT, 1,
)})  # fmt: skip
COMPLETIONS = Record((
    MODEL,
    Field("prompt", PROMPT, "a text, token ids, or a list of these", required=True),
    Field("max_tokens", Limit(0, 1 << 31), "tokens to generate at most; default 16; 0 scores the prompt; -1: no limit"),
    *SAMPLING,
    Field("n", Integer(1, 128), "choices for each prompt; at most `--max-n`, and 128 together"),
    Field("best_of", Integer(1, 128), "the n best of so many, by the mean log-probability; not with `stream`"),
    Field("logprobs", Integer(0, 1024), "with so many of the likeliest tokens; at most `--max-logprobs`"),
    Field("echo", Boolean(), "the prompt before the text, and with `logprobs` its log-probabilities"),
    Field("prompt_logprobs", Integer(0, 1024), "of the prompt's tokens", to="prompt_logprobs"),
    Field("suffix", Text(), "the text after the gap: of models with fill-in-the-middle tokens"),
    Field("parse_special", Boolean(), "false: control tokens in the prompt are text"),
    Field("add_special_tokens", Boolean(), "false: no token of the beginning before the prompt"),
    *CONSTRAINTS,
    *STREAM,
    *SERVING,
))  # fmt: skip
