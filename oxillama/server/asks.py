"""Asks: what a request of any dialect wants of the engine, made into requests of the core, and their chunks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from oxillama.config import SamplingOptions
from oxillama.core.async_requests import Call, CoroutineBell
from oxillama.core.chat import chat_prompt, owner_of
from oxillama.core.generation_request import GenerationRequest
from oxillama.core.options import TextOptions, read_options
from oxillama.core.prompts import check_length, fim_marks
from oxillama.core.request import ResultQueue
from oxillama.core.results import Chunk
from oxillama.drafts.prompt_lookup import PromptLookup
from oxillama.errors import ConfigError, ContextOverflowError, GrammarError, UnsupportedModelError
from oxillama.sampler_config import MAX_SEED
from oxillama.sampling import SamplerChain
from oxillama.server.errors import ApiError, api_error, bad_value
from oxillama.server.exchange import Exchange
from oxillama.server.fields import SAMPLING, SERVING
from oxillama.server.logprob_bounds import bounded_tokens
from oxillama.server.models import Chosen
from oxillama.server.reading import Reading
from oxillama.server.turns import renamed

__all__ = ["Ask", "Run", "engine_options", "limited", "prepare"]

MAX_CHOICES = 128  # of one request, over all its prompts
ANY_OBJECT = {"type": "object", "additionalProperties": True}
# Fields that say what a text must follow: engine's keyword, for each.
_FORMS = {"json_schema": "json_schema", "regex": "regex", "choices": "choices", "grammar": "grammar"}
_STRUCTURED = {"json": "json_schema", "regex": "regex", "choice": "choices", "grammar": "grammar"}


@dataclass
class Ask:
    """Texts that are to be generated.

    messages: a conversation; None where `prompts` are given, texts or token ids. options: keywords of the engine's
    `chat` or `stream`. n: choices for each prompt. constraint: the field of the request that says what the text must
    follow. names: the fields that the request has for those of chat completions. is_cut: whether a part of the prompt
    had no room. chain: the sampling without options; None: the model's. behind: puts the tokens of the messages behind
    others.
    """

    chosen: Chosen
    options: dict[str, Any]
    messages: list[dict[str, Any]] | None = None
    prompts: list[Any] = field(default_factory=list)
    suffix: str | None = None
    n: int = 1
    whole: bool = True
    echo: bool = False
    parse_special: bool = True
    add_special: bool = True
    constraint: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    is_cut: bool = False
    chain: SamplerChain | None = None
    behind: Callable[[list[int]], list[int]] | None = None


class Run:
    """Requests of one ask, submitted by `begin`; `next` gives their chunks as they come.

    prompts: the token ids of each prompt. room: tokens of one prompt and its output.
    """

    def __init__(self, ask: Ask, prompts: list[list[int]], echoes: list[str], options: TextOptions) -> None:
        """echoes: each prompt as text, where the answer repeats it."""
        engine = ask.chosen.model.ready
        self.ask, self.prompts = ask, prompts
        self.core = engine.engine.context.core
        self.tokenizer = engine.engine.tokenizer
        self.room = engine.engine.context.factory.room
        self._bell = CoroutineBell(self.core.loop)
        self.outbox = ResultQueue(len(prompts) * options.n_each, self._bell, whole=ask.whole)
        self.requests: list[GenerationRequest] = []
        self._call: Call[GenerationRequest] | None = None
        for i, ids in enumerate(prompts):
            name = "messages" if ask.messages is not None else "prompt" if len(prompts) == 1 else f"prompt[{i}]"
            echo = echoes[i] if ask.echo else ""
            self.requests += engine.engine.context.factory.group(
                ids, options, self.outbox, name=name, index=len(self.requests), echo=echo
            )

    def begin(self, owner: str) -> None:
        """Queues the requests, which are this owner's. Raises what the engine raises for those that can't be served."""
        for request in self.requests:
            request.sequence.owner = owner
        self._call = Call(self.core, self.requests, self.outbox, self._bell)

    async def next(self) -> list[tuple[int, Chunk]]:
        """Results of the model's steps since the last call: (index of the choice, chunk) of each; none after the last.

        Raises ApiError when its time is over, and for a request that can't be gone on with.
        """
        assert self._call is not None
        try:
            found = await self._call.next()
        except Exception as error:
            if (told := request_error(error, self.ask)) is None:
                raise
            return renamed(lambda: _raise(told), self.ask.names)
        if found is None:
            return []
        came, waiting = [found], self.outbox.items
        while waiting and self.outbox.error is None:
            came.append(waiting.popleft())
        for _, chunk in came:
            if chunk.finish_reason == "deadline":
                raise ApiError(504, "timeout", "the answer took longer than the server's --request-timeout")
            if chunk.finish_reason == "cancelled":
                raise ApiError(503, "draining", "the server ends", headers={"Retry-After": "5"})
        return came

    def leave(self) -> None:
        """Ends what is not finished, within one step."""
        if self._call is not None:
            self._call.leave()

    @property
    def behind(self) -> int:
        """About how many bytes of events wait to be read."""
        return len(self.outbox.items) * 256


def prepare(ask: Ask) -> Run:
    """The requests of an ask: its prompt rendered and tokenised, its grammar compiled. For a thread of its own.

    Raises ApiError for what can't be served, and errors of the engine that say nothing of the request.
    """
    return renamed(lambda: _made(ask), ask.names)


def _made(ask: Ask) -> Run:
    model = ask.chosen.model
    context = model.ready.engine.context
    assert model.chain is not None
    try:
        if ask.messages is not None:
            ids = chat_prompt(context, ask.messages, ask.options)
            prompts, echoes = [ids if ask.behind is None else ask.behind(ids)], [""]
        else:
            read = [_prompt(ask, f"prompt[{i}]" if len(ask.prompts) > 1 else "prompt", p)
                    for i, p in enumerate(ask.prompts)]  # fmt: skip
            prompts, echoes = [ids for ids, _ in read], [text for _, text in read]
        given = {"n": ask.n, **ask.options, **_bounded(ask, prompts)}
        scored = "logprobs" if ask.messages is None else "top_logprobs"
        if (most := bounded_tokens(prompts, ask.n, given, context.factory.room, scored)) is not None:
            given["max_tokens"] = most
        options = read_options("stream", given, ask.chain or model.chain)
        return Run(ask, prompts, echoes, options)
    except Exception as error:
        found = request_error(error, ask, context.factory.room)
        if found is None or found is error:
            raise
        raise found from None


def request_error(error: Exception, ask: Ask, room: int = 0) -> ApiError | None:
    """Error of a request that an error of the engine means, with its field; None if it says nothing of the request."""
    if isinstance(error, GrammarError):
        return grammar_error(error, ask)
    found = api_error(error, room)
    if found is None or found.status != 400:
        return found
    if ask.constraint and found.param in ask.options and found.param in _FORMS.values():
        found.message = found.message.replace(found.param, ask.constraint)
        found.param = ask.constraint
    if found.param is None:
        found.param = ask.constraint or ("prompt" if ask.messages is None else "messages")
    return found


def _raise(error: ApiError) -> NoReturn:
    raise error


def _bounded(ask: Ask, prompts: list[list[int]]) -> dict[str, Any]:
    """A limit of output where a KV cache smaller than the context bounds it. Raises ContextOverflowError, too."""
    factory = ask.chosen.model.ready.engine.context.factory
    given, longest, room = ask.options.get("max_tokens"), max(map(len, prompts)), factory.room
    if room == factory.context_size:
        return {}
    if longest + (given != 0) > room:
        name = "prompt" if ask.messages is None else "messages"
        text = f"{name} has {longest} tokens and the KV cache has room for {room}, which must also hold the output"
        raise ContextOverflowError(f"{text}: shorten it, or start the server with a larger --kv-budget", longest)
    return {"max_tokens": min(given, room - longest)} if given else {}


def grammar_error(error: GrammarError, ask: Ask) -> ApiError:
    """Makes the error of a grammar that can't be compiled, with the field that it comes from."""
    field_name = ask.constraint or "tools"
    schema = field_name in ("response_format", "json_schema", "structured_outputs.json", "tools", "text.format")
    return bad_value(field_name, f"{field_name}: {error}", "invalid_json_schema" if schema else "invalid_grammar")


def _prompt(ask: Ask, name: str, prompt: Any) -> tuple[list[int], str]:
    """Token ids of a prompt of completions, and its text."""
    engine = ask.chosen.model.ready.engine
    tokenizer, factory = engine.tokenizer, engine.context.factory
    if ask.suffix is not None:
        try:
            fim_marks(tokenizer)
        except UnsupportedModelError as error:
            raise bad_value("suffix", f"suffix: {error}", "unsupported_parameter") from None
        check_length(tokenizer, name, prompt, engine.context_size)
        check_length(tokenizer, "suffix", ask.suffix, engine.context_size, continuation=True)
        return engine.infill_tokens(prompt, ask.suffix), ""
    if not isinstance(prompt, str):
        ids = factory.ids(name, prompt)
        return ids, factory.echo(prompt, ids) if ask.echo else ""
    check_length(tokenizer, name, prompt, engine.context_size, parse_special=ask.parse_special)
    owner = owner_of(ask.options.get("cache_salt")) if ask.options.get("cache_prompt", True) else None
    ids = tokenizer.encode(prompt, ask.add_special, ask.parse_special, owner=owner)
    if not ids:
        raise ConfigError(f"{name} is empty: give text, or at least one token")
    return ids, prompt


def limited(name: str, value: int, most: int, flag: str) -> int:
    """A number within the server's own limit. Raises ApiError."""
    if value > most:
        raise bad_value(name, f"{name} must be at most {most} on this server ({flag}), not {value}")
    return value


def engine_options(values: Mapping[str, Any], exchange: Exchange, chosen: Chosen) -> tuple[dict[str, Any], str]:
    """Keywords of the engine for the fields that dialects share, and the field of a constraint. Raises ApiError."""
    options: dict[str, Any] = {}
    for one in (*SAMPLING, *SERVING):
        if one.to and one.name in values:
            value = _as_engine(one.name, values[one.name])
            if options.get(one.to, value) != value:
                raise bad_value(one.name, f"{one.name} and {one.to} are both given, with different values")
            options[one.to] = value
    constraint, place = _constraint(values)
    options |= constraint
    if "schema_mode" in values and "schema_mode" in SamplingOptions.__annotations__:
        options["schema_mode"] = values["schema_mode"]
    config = exchange.service.config
    options["deadline"] = max(config.request_timeout - exchange.tally.queued, 1e-3)
    _serving(options, values, exchange, chosen)
    return options, place


def _as_engine(name: str, value: Any) -> Any:
    if name == "top_k":
        return max(value, 0)
    if name == "seed":
        return value & MAX_SEED
    if name == "logit_bias":
        return {token: -math.inf if bias <= -100 else bias for token, bias in value.items()}
    return value


def _constraint(values: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Reads the constraint of the text, as a keyword, and the field that says so."""
    given = [(name, {keyword: values[name]}) for name, keyword in _FORMS.items() if name in values]
    structured = values.get("structured_outputs", {})
    given += [(f"structured_outputs.{n}", {k: structured[n]}) for n, k in _STRUCTURED.items() if n in structured]
    form = values.get("response_format", {"type": "text"})
    if "schema" in form and form["type"] != "json_object":
        raise bad_value("response_format.schema", "response_format.schema is for the type json_object")
    if form["type"] == "json_object":
        given.append(("response_format", {"json_schema": form.get("schema", ANY_OBJECT)}))
    elif form["type"] == "json_schema":
        if "json_schema" not in form:
            raise bad_value(
                "response_format.json_schema", "response_format.json_schema is missing", "missing_parameter"
            )
        given.append(("response_format", {"json_schema": form["json_schema"]["schema"]}))
    if len(given) > 1:
        text = f"{given[0][0]} and {given[1][0]} are both given: a text can follow one of them"
        raise bad_value(given[1][0], text)
    return (given[0][1], given[0][0]) if given else ({}, "")


def predicted(content: str | list[dict[str, Any]], chosen: Chosen, reading: Reading) -> list[list[int]]:
    """Tokens of the texts that an answer may repeat; those that it has no room for are left out, and not tokenised."""
    engine = chosen.model.ready.engine
    texts = [content] if isinstance(content, str) else [part["text"] for part in content]
    name, left = "prediction.content", engine.context_size
    ids: list[list[int]] = []
    for text in texts:
        try:
            check_length(engine.tokenizer, name, text, left)
        except ContextOverflowError:
            found = None
        else:
            found = engine.tokenizer.encode(text, add_special=False)
        if found is None or len(found) > left:
            reading.leave_out(name, f"it has more tokens than the context, {engine.context_size}")
            break
        ids.append(found)
        left -= len(found)
    return ids


def _serving(options: dict[str, Any], values: Mapping[str, Any], exchange: Exchange, chosen: Chosen) -> None:
    """Priority, isolation of the prefix cache, adapters and drafts."""
    config = exchange.service.config
    if priority := values.get("priority", 0):
        if not config.allow_priority:
            raise bad_value("priority", "priority must be 0 on this server (--allow-priority), not "
                            f"{priority}", "unsupported_parameter")  # fmt: skip
        options["priority"] = max(-priority, 0)
    options["cache_salt"] = exchange.service.salt_of(exchange.key.name, values.get("cache_salt"))
    adapters = [(one["name"], one.get("scale", 1.0)) for one in values.get("lora", ())]
    if chosen.adapter is not None:
        adapters.append((chosen.adapter, 1.0))
    known = chosen.model.ready.engine.loras
    for i, (name, _) in enumerate(adapters):
        if name not in known:
            there = ", ".join(known) or "there is none"
            place = f"lora[{i}].name"
            raise bad_value(place, f"{place} must be a loaded adapter ({there}), not {name!r:.60}")
    if adapters:
        options["lora"] = adapters
    if "prediction" in values:
        options["draft"] = PromptLookup(texts=predicted(values["prediction"]["content"], chosen, exchange.reading))
    elif "draft" not in values and chosen.model.draft is not None:
        options["draft"] = chosen.model.draft
        if chosen.model.num_speculative is not None:
            options["num_speculative"] = chosen.model.num_speculative
    elif values.get("draft", "off") != "off":
        options["draft"] = values["draft"]
    if "num_speculative" in values:
        options["num_speculative"] = values["num_speculative"]
