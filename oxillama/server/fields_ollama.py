"""Field tables of Ollama's API."""

from __future__ import annotations

from dataclasses import dataclass

from oxillama.config import MAX_CONTEXT
from oxillama.sampler_config import MAX_TOKEN
from oxillama.server.content import not_shown, other_content, result_content
from oxillama.server.errors import bad_value
from oxillama.server.field_types import (
    Any_,
    Boolean,
    Choice,
    Either,
    Field,
    Integer,
    ListOf,
    Number,
    Only,
    Other,
    Reading,
    Record,
    Schema,
    Tagged,
    Text,
    Whole,
    wrong,
)
from oxillama.server.fields import (
    MAX_MESSAGES,
    MAX_SOURCE,
    MAX_TOOLS,
    ROLES,
    SCHEMA,
    SCHEMA_DEPTH,
    TEXT_PART,
    TOOL,
    accepted,
    wished,
)
from oxillama.server.fields_numbers import MAX_TEXTS
from oxillama.server.fields_sampling import OF_OLLAMA, refused
from oxillama.server.ollama.names import seconds_of

__all__ = ["CHAT", "COPY", "CREATE", "EMBED", "EMBEDDINGS", "GENERATE", "OPTIONS", "REGISTRY", "SHOW"]

LONGEST = 1e15  # seconds


@dataclass(frozen=True)
class Span:
    """A duration, which is read as seconds: a number of them, or Go's form; infinite if it is below zero."""

    def read(self, place: str, value: object, reading: Reading) -> float:
        text_or_number = Either({"number": Number(-LONGEST, LONGEST), "string": Text(0, 64)})
        return seconds_of(place, text_or_number.read(place, value, reading))

    def schema(self) -> Schema:
        return {"anyOf": [{"type": "number"}, {"type": "string"}]}


@dataclass(frozen=True)
class Pictures:
    """A list of pictures, of which there may be none: the answer would miss them."""

    def read(self, place: str, value: object, reading: Reading) -> list[object]:
        if not isinstance(value, list):
            raise wrong(place, "a list", value)
        if value:
            raise bad_value(place, f"{place}: pictures are not read", "unsupported_parameter")
        return value

    def schema(self) -> Schema:
        return {"type": "array", "maxItems": 0}


@dataclass(frozen=True)
class ToolPictures:
    """Pictures of a tool's result, which are left out; what is read is the text that tells the model so."""

    def read(self, place: str, value: object, reading: Reading) -> str:
        if not isinstance(value, list):
            raise wrong(place, "a list", value)
        if not value:
            return ""
        reading.leave_out(place, "pictures are not read")
        return not_shown("pictures")

    def schema(self) -> Schema:
        return {"type": "array"}


@dataclass(frozen=True)
class Lower:
    """One of several words, in upper or lower case."""

    values: tuple[str, ...]

    def read(self, place: str, value: object, reading: Reading) -> str:
        return Choice(self.values).read(place, value.lower() if isinstance(value, str) else value, reading)

    def schema(self) -> Schema:
        return Choice(self.values).schema()


ANY_COUNT = Whole(-(1 << 31), 1 << 31)
OPTIONS = Record((
    Field("num_predict", ANY_COUNT, "tokens to generate at most; 0 and below: as many as there is room for"),
    Field("num_ctx", Whole(0, 1 << 31), "tokens of prompt and answer: more than the server has are left out", "wish"),
    *OF_OLLAMA,
    Field("draft_num_predict", Whole(0, 1 << 31), "draft tokens at a time, of a model with a draft; 0 is none", "wish"),
    wished("num_keep", ANY_COUNT, "an answer ends with the context: nothing is shifted out of it"),
    wished("num_batch", ANY_COUNT, "`--chunk-size` of the server"),
    wished("num_thread", ANY_COUNT, "`--threads` of the server"),
    wished("num_gpu", ANY_COUNT, "there is no GPU"),
    wished("main_gpu", ANY_COUNT, "there is no GPU"),
    wished("low_vram", Only((False,)), "there is no GPU"),
    wished("use_mmap", Boolean(), "as the server was started"),
    wished("use_mlock", Boolean(), "as the server was started"),
    wished("numa", Only((False,)), "as the server was started"),
    wished("penalize_newline", Only((True,)), "newlines are penalised as other tokens are"),
    wished("tfs_z", Only((1, 1.0)), "there is no such cut"),
    wished("f16_kv", Boolean(), "`--kv-type` of the server"),
    wished("vocab_only", Only((False,)), "the model is loaded whole"),
    wished("logits_all", Only((False,)), "`logprobs` tells them"),
    wished("embedding_only", Only((False,)), "the path says what is wanted"),
    wished("rope_frequency_base", Any_(), "`--rope` of the server"),
    wished("rope_frequency_scale", Any_(), "`--rope` of the server"),
    wished("num_gqa", Any_(), "the file says it"),
))  # fmt: skip

MODEL = Field("model", Text(0, 256), "NAME, NAME:TAG or MODEL:ADAPTER of a served model; it is required")
NAME = Field("name", Text(0, 256), "`model`, by its older name")
KEEP_ALIVE = Field("keep_alive", Span(), "how long the model stays in memory then: 5m, 300, 0 or -1", "wish")
STREAM = Field("stream", Boolean(), "objects, one a line; default true")
OPTION = Field("options", OPTIONS, "of sampling and of the model: below")
FORMAT = Field("format", Either({"string": Choice(("json", "")), "object": SCHEMA}),
               "`json`, or a JSON schema, which is always held")  # fmt: skip
THINK = Field("think", Either({"boolean": Boolean(), "string": Choice(("low", "medium", "high", "max"))}),
              "whether, and how much, the model thinks before its answer; absent: as its template has it",
              "wish")  # fmt: skip
LOGPROBS = (
    Field("logprobs", Boolean(), "log-probabilities of the tokens, by the model's own distribution"),
    Field("top_logprobs", Integer(0, 1024), "with so many of the likeliest; at most `--max-logprobs`"),
)
TRUNCATE = Field(
    "truncate", Boolean(), "false: what doesn't fit the context is refused; else its oldest part is left out"
)
SHIFT = wished("shift", Only((False,)), "an answer ends with the context")
DEBUG = refused("_debug_render_only", "`POST /tokenize` tells the prompt", False)
IMAGES = Field("images", Pictures(), "pictures are not read: only an empty list is taken", "refuse")

CALL = Record((
    Field("id", Text(), "of the call"),
    accepted("index", Integer(0, MAX_MESSAGES), "of the call"),
    accepted("type", Choice(("function",)), "its kind"),
    Field("function", Record((
        accepted("index", Integer(0, MAX_MESSAGES), "of the call"),
        accepted("description", Text(), "for the reader"),
        Field("name", Text(), "of the function", required=True),
        Field("arguments", Any_(SCHEMA_DEPTH), "an object, or its JSON text"),
    )), "its name, and what it is called with", required=True),
))  # fmt: skip


def message(other: Other, images: Field) -> Record:
    """A message. other: reads parts of its content that are no text. images: what becomes of its pictures."""
    parts = ListOf(Tagged({"text": TEXT_PART}, other=other), MAX_MESSAGES)
    return Record((
        Field("role", Lower(ROLES), "of the message", required=True),
        Field("content", Either({"string": Text(), "array": parts}), "its text"),
        Field("thinking", Text(), "of an assistant's message"),
        Field("tool_calls", ListOf(CALL, MAX_MESSAGES), "of an assistant's message"),
        Field("tool_name", Text(), "of the tool whose result a tool's message is"),
        Field("tool_call_id", Text(), "of the call whose result it is"),
        Field("name", Text(), "`tool_name`, or the author's"),
        images,
    ))  # fmt: skip


class Message:
    """A message of a conversation; of a tool's, pictures are left out, so that an agent can go on."""

    said = message(other_content, IMAGES)
    given = message(result_content, Field("images", ToolPictures(), "left out of a tool's message"))

    def read(self, place: str, value: object, reading: Reading) -> object:
        """The fields of the message. Raises ApiError for one of another form."""
        role = value.get("role") if isinstance(value, dict) else None
        is_given = isinstance(role, str) and role.lower() == "tool"
        return (self.given if is_given else self.said).read(place, value, reading)

    def schema(self) -> Schema:
        """JSON Schema of the value."""
        return self.said.schema()


CHAT = Record((
    MODEL,
    Field("messages", ListOf(Message(), MAX_MESSAGES), "the conversation; without any, the model is loaded"),
    Field("tools", ListOf(Tagged(TOOL.forms, "function", TOOL.other), MAX_TOOLS, size=MAX_SOURCE),
          "functions that the model may call; others are left out"),
    THINK,
    FORMAT,
    OPTION,
    STREAM,
    KEEP_ALIVE,
    TRUNCATE,
    *LOGPROBS,
    SHIFT,
    DEBUG,
))  # fmt: skip
GENERATE = Record((
    MODEL,
    Field("prompt", Text(), "what the model is asked; without it, the model is loaded"),
    Field("suffix", Text(), "the text after the gap: of models with fill-in-the-middle tokens"),
    Field("system", Text(), "a system message"),
    Field("context", ListOf(Integer(0, MAX_TOKEN), MAX_CONTEXT), "tokens of the conversation so far, of an answer"),
    Field("raw", Boolean(), "the prompt goes to the model as it is, without a template"),
    Field("template", Text(), "a Jinja template of the request's own; needs `--trust-request-templates`"),
    THINK,
    FORMAT,
    OPTION,
    STREAM,
    KEEP_ALIVE,
    TRUNCATE,
    *LOGPROBS,
    SHIFT,
    DEBUG,
    IMAGES,
    *(wished(name, Any_(), "no pictures are drawn") for name in ("width", "height", "steps")),
))  # fmt: skip

EMBED = Record((
    MODEL,
    Field("input", Either({"string": Text(), "array": ListOf(Text(), MAX_TEXTS)}), "a text, or a list of texts"),
    Field("truncate", Boolean(), "false: a text that doesn't fit the context is refused; else its end is left out"),
    Field("dimensions", Integer(0, 1 << 24), "the first so many values, of models trained for it; 0: all"),
    OPTION,
    KEEP_ALIVE,
))  # fmt: skip
EMBEDDINGS = Record((
    MODEL,
    Field("prompt", Text(), "a text; without it, the model is loaded"),
    OPTION,
    KEEP_ALIVE,
))  # fmt: skip

SHOW = Record((
    MODEL,
    NAME,
    Field("verbose", Boolean(), "long lists of the file's metadata, and its tensors, too"),
    *(accepted(name, Any_(), "for the answer of Ollama alone") for name in ("system", "template", "options")),
))  # fmt: skip
REGISTRY = Record((MODEL, NAME, *(accepted(name, Any_(), "nothing is fetched") for name in (
    "stream", "insecure", "username", "password"))))  # fmt: skip
_UNUSED = tuple(accepted(name, Any_(), "the Hub's own settings count") for name in ("insecure", "username", "password"))
PULL = Record((
    Field("model", Text(0, 4096), "hf.co/OWNER/REPO:QUANT of the Hugging Face Hub"),
    Field("name", Text(0, 4096), "`model`, by its older name"),
    STREAM,
    *_UNUSED,
))  # fmt: skip
DELETE = Record((MODEL, NAME))
COPY = Record(tuple(accepted(name, Text(0, 256), "a name") for name in ("source", "destination")))
CREATE = Record((MODEL, NAME, *(accepted(name, Any_(), "nothing is made") for name in (
    "stream", "from", "files", "adapters", "template", "license", "system", "parameters", "messages", "quantize",
    "quantization", "draft_quantize", "draft_files", "renderer", "parser", "requires", "info", "remote_host",
    "modelfile", "path"))))  # fmt: skip
