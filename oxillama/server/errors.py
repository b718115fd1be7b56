"""HTTP errors: status, type, code and parameter of everything that a request can be refused with."""

from __future__ import annotations

import re
from collections.abc import Mapping

from oxillama.errors import (
    ChatTemplateError,
    ConfigError,
    ContextOverflowError,
    DeadlineError,
    EngineClosedError,
    GenerateError,
    GrammarError,
    KvCacheFullError,
    LoraError,
    ModelFileError,
    QueueFullError,
    TemplateVariableError,
    ThreadStartError,
    TokenizerError,
    ToolFormatError,
    UnsupportedModelError,
)
from oxillama.sampler_config import fields_of
from oxillama.server.json_pieces import Body

__all__ = [
    "ApiError",
    "ClientGone",
    "api_error",
    "bad_value",
    "headers_too_large",
    "own_field",
    "own_place",
    "too_many_connections",
]

_TYPES = {401: "authentication_error", 403: "permission_error", 409: "conflict_error", 429: "rate_limit_error"}
# Types of errors in Anthropic's form.
_ANTHROPIC = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
NOT_RETRIED = (400, 401, 403, 404, 405, 409, 413, 415, 431)


class ClientGone(Exception):
    """The client closed its connection."""


class ApiError(Exception):
    """An answer that says why a request was refused or failed.

    param: the field that it is about, with its place, such as ``messages[2].content``. headers: further ones.
    too_long: the words in which Anthropic's API says so of a prompt, by which its clients know when to compact it.
    details: what its clients read of an error that they can mend themselves.
    """

    too_long = ""
    details: Mapping[str, str] | None = None

    def __init__(
        self, status: int, code: str, message: str, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param
        self.headers = dict(headers or {})
        if status in NOT_RETRIED:
            self.headers["x-should-retry"] = "false"

    @property
    def type(self) -> str:
        """The class of the error, as OpenAI's clients know them."""
        return _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")

    def openai(self) -> Body:
        """The body in OpenAI's form."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def ollama(self) -> Body:
        """The body in Ollama's form."""
        return {"error": self.message}

    def anthropic(self, request_id: str) -> Body:
        """The body in Anthropic's form."""
        kind = _ANTHROPIC.get(self.status, "api_error" if self.status >= 500 else "invalid_request_error")
        text = f"{self.too_long} ({self.message})" if self.too_long else self.message
        made = {"type": kind, "message": text, **({"details": self.details} if self.details else {})}
        return {"type": "error", "error": made, "request_id": request_id}


def bad_value(param: str, message: str, code: str = "invalid_value") -> ApiError:
    """Status 400 for one field."""
    return ApiError(400, code, message, param)


def too_many_connections(whose: str) -> ApiError:
    """Status 503 for a connection, or a request that a proxy passes on, beyond those that one client may have."""
    text = f"{whose} has as many connections as it may: try again in 1 s"
    return ApiError(503, "too_many_connections", text, headers={"Retry-After": "1"})


def headers_too_large(most: int) -> ApiError:
    """Status 431 for more bytes of headers than a request may have."""
    text = f"headers may have {most} bytes: send less, or start the server with a larger --max-headers"
    return ApiError(431, "headers_too_large", text, headers={"Connection": "close"})


def own_field(place: str, names: Mapping[str, str]) -> tuple[str, str] | None:
    """The field of chat completions that a place lies in, and the request's own; None if it has no other name.

    names: the fields that the request has for those of chat completions; the longest one counts.
    """
    chat = place
    while chat not in names:
        end = max(chat.rfind("["), chat.rfind("."))
        if end < 0:
            return None
        chat = chat[:end]
    return chat, names[chat]


def own_place(place: str, names: Mapping[str, str]) -> str:
    """A place in the fields of chat completions, as one in those of the request."""
    found = own_field(place, names)
    return place if found is None else found[1] + place[len(found[0]) :]


_PLACE = re.compile(r"[a-z][a-z_0-9]*(?:\[[^\]]*\]|\.[a-z_]+)*(?= (?:must|has|is|are|holds|with|and)\b)")


# What the library's caller would do, and what those of a server can.
_REASONING_REMEDY = ("give reasoning=ReasoningFormat(begin, end) too", "start the server with --reasoning-format")
# Keywords of the library whose fields have other names.
_FIELDS = {"include_stop": "include_stop_str_in_output", "template_kwargs": "chat_template_kwargs"}
_KEYWORDS = re.compile(rf"\b(?:{'|'.join(_FIELDS)})\b")
# Fields that leave no token where they contradict each other, or a grammar.
_NO_TOKEN = re.compile(r"no token is left to choose from: (?!all \d+ logits)")  # which a damaged model has
_MASKS = fields_of("masks", "logit_bias")


def api_error(error: BaseException, context_size: int = 0) -> ApiError | None:
    """Translates an error of the engine into one over HTTP; None for one that says nothing about the request."""
    match error:
        case ApiError():
            return error
        case ContextOverflowError() | KvCacheFullError():
            text = f"This model's maximum context length is {context_size} tokens. However, {error}"
            if not context_size:
                text = str(error)
            found = ApiError(400, "context_length_exceeded", text, place_in(str(error)))
            if isinstance(error, ContextOverflowError) and error.n_tokens is not None:
                found.too_long = f"prompt is too long: {error.n_tokens} tokens > {context_size} maximum"
            return found
        case GrammarError():
            return ApiError(400, "invalid_grammar", str(error))
        case ToolFormatError():
            return bad_value("tools", _with_flag(str(error)), "tool_format_unknown")
        case TemplateVariableError():
            effort = "reasoning_effort" in str(error).partition(";")[0]  # before those that the template reads
            return bad_value("reasoning_effort" if effort else "chat_template_kwargs", str(error))
        case ChatTemplateError():
            ends = "for continue_final_message" in str(error)
            return bad_value("continue_final_message" if ends else place_in(str(error)) or "messages", str(error))
        case UnsupportedModelError():
            return bad_value("model", str(error), "unsupported_parameter")
        case LoraError():
            return bad_value("lora", str(error))
        case ConfigError() | TokenizerError():
            text = _KEYWORDS.sub(lambda found: _FIELDS[found[0]], str(error).replace(*_REASONING_REMEDY))
            return ApiError(400, "invalid_value", text, place_in(text))
        case GenerateError() if _NO_TOKEN.match(str(error)):
            mask = next((name for name in _MASKS if name in str(error)), None)
            return ApiError(400, "invalid_value", f"what is asked for leaves nothing to say: {error}", mask)
        case QueueFullError():
            return ApiError(429, "queue_full", str(error), headers={"Retry-After": "1"})
        case DeadlineError():
            return ApiError(504, "timeout", str(error))
        case ThreadStartError():
            return ApiError(503, "no_thread", "the server can start no thread now", headers={"Retry-After": "1"})
        case EngineClosedError() | ModelFileError():
            why = "it was closed" if isinstance(error, EngineClosedError) else "its file was changed or can't be read"
            return ApiError(503, "engine_failed", f"the model can't be used: {why}", headers={"Retry-After": "60"})
    return None


def _with_flag(message: str) -> str:
    """Message on a format of calls, with the flag for the keyword."""
    from oxillama.chat.tool_format import FORMATS  # with the engine, which a server imports once it listens

    what, _, remedy = message.partition(": give tool_format=")
    why = remedy.partition("calls as text")[2]
    return f"{what}: give --tool-format, one of {', '.join((*FORMATS, 'text'))}{why}" if remedy else what


def place_in(message: str) -> str | None:
    """The field that a message of the library begins with; "prompt" for those that speak of one."""
    found = _PLACE.match(message)
    if found:
        return found[0]
    return "messages" if message.startswith("the prompt of messages") else None
