"""Chat completions as dicts: messages by a template or a formatter, answered by a completion."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from oxillama._util.checks import check_bool, check_type
from oxillama.chat.calls import BrokenToolCall
from oxillama.chat.message import ToolCallDelta
from oxillama.compat import completion
from oxillama.compat.keywords import REQUIRED, Keyword, check_defaults
from oxillama.compat.llama_grammar import LlamaGrammar
from oxillama.compat.model import LlamaLike
from oxillama.compat.sampling import CUTS, FOR_TEXTS, MIROSTAT, OCCURRENCES, REPEAT, SEED, TEMPERATURE, TOP_K
from oxillama.core.answer_options import AnswerOptions, ToolUse
from oxillama.core.chat import reading_of
from oxillama.core.options import PromptOptions
from oxillama.core.results import Completion, TokenLogprob
from oxillama.errors import ConfigError

__all__ = [
    "CHAT",
    "OF_FILE",
    "answered",
    "from_template",
    "functions_of",
    "has_template",
    "held_to",
    "named_tool",
    "with_tools",
]

OF_FILE = "chat_template.default"
_TEMPLATE = "chat_template."
Answer = dict[str, Any] | Iterator[dict[str, Any]]
Handler = Callable[..., Answer]

# In the order of the replaced package.
CHAT: tuple[Keyword, ...] = (
    Keyword("messages", REQUIRED, "honoured", "text alone"),
    Keyword("functions", None, "honoured", "as `tools`"),
    Keyword("function_call", None, "honoured", "as `tool_choice`"),
    Keyword("tools", None, "honoured", "calls are found in the answer, and held to their schemas"),
    Keyword("tool_choice", None, "honoured", "a tool, auto, none, or required"),
    TEMPERATURE._replace(default=0.2),
    CUTS[0],
    TOP_K,
    *CUTS[1:],
    Keyword("stream", False, "honoured", "also with `tools`"),
    Keyword("stop", [], "honoured", "a string or a list"),
    SEED,
    Keyword("response_format", None, "honoured", "text, json_object (with `schema`) or json_schema"),
    Keyword("max_tokens", None, "honoured", "None, 0 or less: up to the context's end"),
    *OCCURRENCES[::-1],
    REPEAT,
    *MIROSTAT,
    Keyword("model", None, "honoured", "the name in the answer"),
    *FOR_TEXTS,
    Keyword("logprobs", None, "honoured", "True; needs `logits_all=True`, as there"),
    Keyword("top_logprobs", None, "honoured", "with `logprobs`"),
)
_DEFAULTS = {k.name: k.default for k in CHAT if k.default is not REQUIRED}


def has_template(llama: LlamaLike) -> bool:
    """Whether the model's chat format is a template of its file."""
    name: str = llama.chat_format or ""
    return name.startswith(_TEMPLATE) and name.removeprefix(_TEMPLATE) in llama.vocabulary.chat_templates


def with_tools(options: Mapping[str, Any]) -> dict[str, Any]:
    """All keywords of a call; those of functions as those of tools. Raises TypeError for unknown ones."""
    unknown = [name for name in options if name not in _DEFAULTS]
    if unknown:
        raise TypeError(f"create_chat_completion() got an unexpected keyword argument {unknown[0]!r}")
    found = {**_DEFAULTS, **options}
    check_defaults([k for k in CHAT if k.name in found], found)
    functions, call = found.pop("functions"), found.pop("function_call")
    if functions is not None:
        found["tools"] = [{"type": "function", "function": function} for function in functions]
    if isinstance(call, str):
        found["tool_choice"] = call
    elif call is not None:
        found["tool_choice"] = {"type": "function", "function": {"name": call["name"]}}
    return found


def from_template(*, llama: LlamaLike, messages: Any, **options: Any) -> Answer:
    """The handler of a template of the model's file."""
    found = with_tools(options)
    tools = found["tools"] or None
    name = llama.chat_format.removeprefix(_TEMPLATE)
    source = llama.vocabulary.chat_templates[name]
    named = named_tool(found)
    prompt: PromptOptions = {
        "tools": None if found["tool_choice"] == "none" else tools,
        "chat_template": None if name == "default" else source,
        "tool_format": None if named is None else "text",  # its arguments alone are the answer
    }
    ids = llama.engine.chat_tokens(messages, **prompt)
    use = None
    if named is None and tools is not None:  # reasoning stays in the content, as there
        answer = AnswerOptions(tools, found["tool_choice"], reasoning="none")
        use = reading_of(llama.vocabulary, messages, prompt, answer)
    return answered(llama, ids, found, named=named, use=use, legacy=options.get("functions") is not None)


def functions_of(tools: Any) -> list[Mapping[str, Any]]:
    """The functions of tools. Raises ConfigError for anything else than a list of functions with names."""
    if tools is not None and (isinstance(tools, str | bytes) or not isinstance(tools, Sequence)):
        raise ConfigError(f"tools must be a list of dicts, not {type(tools).__name__} {tools!r:.60}")
    found: list[Mapping[str, Any]] = []
    for i, tool in enumerate(tools or ()):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
            text = f"tools[{i}] must be {{'type': 'function', 'function': {{'name': ...}}}}, not {tool!r:.60}"
            raise ConfigError(text)
        found.append(function)
    return found


def named_tool(options: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The function that tool_choice names, if it does. Raises ConfigError if there is no such."""
    choice, tools = options["tool_choice"], options["tools"]
    if not isinstance(choice, Mapping) or tools is None:
        if choice is not None and not tools:
            raise ConfigError("tool_choice is given without tools: give tools=[...] too")
        return None
    name = choice.get("function", {}).get("name")
    for function in functions_of(tools):
        if function["name"] == name:
            return function
    raise ConfigError(f"Tool choice '{name}' not found in tools.")


def answered(
    llama: LlamaLike, prompt: Sequence[int], options: Mapping[str, Any], *, named: Mapping[str, Any] | None = None,
    use: ToolUse | None = None, legacy: bool = False, stop: Sequence[str] = (), criteria: Any = None,
) -> Answer:  # fmt: skip
    """The answer to a prompt: a dict or an iterator of them.

    named: a function whose arguments are the answer. use: calls are looked for. legacy: the first of them is in
    `function_call`, too. stop, criteria: of the format.
    """
    given = options["stop"]
    found = {name: options[name] for name in (k.name for k in completion.COMPLETION) if name in options}
    found |= {
        "prompt": list(prompt),
        "suffix": None,
        "echo": False,
        "stopping_criteria": criteria,
        "stop": [*([given] if isinstance(given, str) else given or []), *stop],
        "logprobs": _n_logprobs(options),
        "grammar": held_to(options, named),
    }
    ask = completion.read_ask(llama, found, use)
    return _streamed(ask, named, legacy) if ask.stream else _whole(ask, named, legacy)


def _n_logprobs(options: Mapping[str, Any]) -> int | None:
    wanted, top = options["logprobs"], options["top_logprobs"]
    if wanted is None or not check_bool("logprobs", wanted):
        if top:
            raise ConfigError("top_logprobs is given without logprobs=True")
        return None
    return top or 0


def held_to(options: Mapping[str, Any], named: Mapping[str, Any] | None) -> Any:
    """Constraint of the answer: a grammar, a format, or the parameters of a function; one of them."""
    given = options["grammar"]
    schema = _schema(options["response_format"])
    if schema is not None:
        if given is not None:
            raise ConfigError("grammar and response_format are both given: an answer can follow one of them")
        given = LlamaGrammar.from_json_schema(json.dumps(schema))
    if named is None:
        return given
    if given is not None:
        raise ConfigError("tool_choice names a tool, whose parameters the answer follows: give no grammar or format")
    return LlamaGrammar.from_json_schema(json.dumps(named.get("parameters", {"type": "object"})))


def _schema(form: Any) -> Any:
    if form is None:
        return None
    kind = check_type("response_format", form, dict).get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"} if form.get("schema") is None else form["schema"]
    if kind == "json_schema":
        found = form.get(kind)
        if not isinstance(found, Mapping) or "schema" not in found:
            raise ConfigError('response_format["json_schema"] must be a dict with a "schema"')
        return found["schema"]
    raise ConfigError(f"response_format['type'] must be text, json_object or json_schema, not {kind!r}")


# ---- the form of answers


def _whole(ask: completion.Ask, named: Mapping[str, Any] | None, legacy: bool) -> dict[str, Any]:
    (done,) = completion.computed(ask)
    written = completion.as_dict(ask, [done])
    message, finish_reason = _message(ask, done, named, legacy)
    return {
        "id": "chat" + written["id"],
        "object": "chat.completion",
        "created": written["created"],
        "model": written["model"],
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": _logprobs(done.logprobs),
                "finish_reason": finish_reason,
            }
        ],
        "usage": written["usage"],
    }


def _message(
    ask: completion.Ask, done: Completion, named: Mapping[str, Any] | None, legacy: bool
) -> tuple[dict[str, Any], str]:
    """The message, and why it ended: a call that max_tokens cut off ends with "length", if the model chose it."""
    if named is not None:
        message = {"role": "assistant", "content": None, **_named_call(ask, named["name"], done.text)}
        return message, "tool_calls"
    choice = done.to_openai()["choices"][0]
    message = choice["message"]
    if legacy and "tool_calls" in message:
        message["function_call"] = message["tool_calls"][0]["function"]
    return message, choice["finish_reason"]


def _named_call(ask: completion.Ask, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    call = {"id": f"call__0_{name}_{ask.id}", "type": "function", "function": dict(function)}
    return {"function_call": function, "tool_calls": [call]}


def _logprobs(entries: list[TokenLogprob] | None) -> dict[str, Any] | None:
    if entries is None:
        return None

    def one(entry: TokenLogprob) -> dict[str, Any]:
        return {"token": completion.shown(entry), "logprob": entry.logprob, "bytes": None}

    content = []
    for entry in entries:
        top = entry.top if any(t.token_id == entry.token_id for t in entry.top) else (*entry.top, entry)
        content.append({**one(entry), "top_logprobs": [one(other) for other in top]})
    return {"content": content, "refusal": None}


def _streamed(ask: completion.Ask, named: Mapping[str, Any] | None, legacy: bool) -> Iterator[dict[str, Any]]:
    pieces = completion.stream_of(ask)
    return _of_named(ask, pieces, named) if named is not None else _of_text(ask, pieces, legacy)


def _chunk(ask: completion.Ask, delta: dict[str, Any], logprobs: Any, finish_reason: str | None) -> dict[str, Any]:
    return {
        "id": "chat" + ask.id,
        "model": ask.model,
        "created": ask.created,
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}],
    }


def _of_text(ask: completion.Ask, pieces: Iterator[completion.Piece], legacy: bool) -> Iterator[dict[str, Any]]:
    called = False
    yield _chunk(ask, {"role": "assistant"}, None, None)
    for text, logprobs, chunk in pieces:
        unread = [call for call in chunk.tool_calls if isinstance(call, BrokenToolCall)]
        called |= len(unread) < len(chunk.tool_calls)
        text += "".join(call.raw for call in unread if not call.begun)  # it stays what the model wrote
        if text or logprobs:
            yield _chunk(ask, {"content": text}, _logprobs(logprobs or None), None)
        for piece in chunk.tool_call_deltas:
            yield _chunk(ask, _call_delta(piece, legacy), None, None)
        if chunk.finish_reason is not None:
            ended = "tool_calls" if called and chunk.finish_reason == "stop" else chunk.finish_reason
            yield _chunk(ask, {}, None, ended)


def _call_delta(piece: ToolCallDelta, legacy: bool) -> dict[str, Any]:
    written = piece.to_dict()
    found: dict[str, Any] = {"tool_calls": [written]}
    return {**found, "function_call": written["function"]} if legacy and piece.index == 0 else found


def _of_named(
    ask: completion.Ask, pieces: Iterator[completion.Piece], named: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    nothing = {"content": None, "function_call": None, "tool_calls": None}
    yield _chunk(ask, {"role": "assistant", **nothing}, None, None)
    for text, logprobs, chunk in pieces:
        if text or logprobs:
            delta = {"role": None, "content": None, **_named_call(ask, named["name"], text)}
            delta["tool_calls"][0] = {"index": 0, **delta["tool_calls"][0]}
            yield _chunk(ask, delta, _logprobs(logprobs or None), None)
        if chunk.finish_reason is not None:
            yield _chunk(ask, {"role": None, **nothing}, None, "tool_calls")
