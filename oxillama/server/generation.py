"""Generation: what a request of any dialect wants of the engine, and its run: requests of the core and their chunks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NoReturn

from oxillama.core.answer_options import AnswerOptions, ToolUse
from oxillama.core.async_requests import Call, CoroutineBell
from oxillama.core.chat import chat_prompt, owner_of
from oxillama.core.generation_request import GenerationRequest
from oxillama.core.options import PromptOptions, TextOptions, check_limit, read_options
from oxillama.core.prompts import check_length
from oxillama.core.request import ResultQueue
from oxillama.core.results import Chunk
from oxillama.errors import ConfigError, ContextOverflowError, GrammarError, UnsupportedModelError
from oxillama.sampling import SamplerChain
from oxillama.server.errors import ApiError, api_error, bad_value
from oxillama.server.field_types import Message
from oxillama.server.logprob_bounds import bounded_tokens
from oxillama.server.models import Chosen
from oxillama.server.translate import renamed

__all__ = [
    "NO_CONSTRAINT",
    "Constraint",
    "Conversation",
    "GenerationRun",
    "GenerationSpec",
    "Keywords",
    "Texts",
    "prepare",
    "spec_of",
]

Keywords = dict[str, Any]  # of `Engine.stream`, while they are gathered
Subject = Literal["messages", "prompt"]  # the field that a request's text comes from
# Fields of constraints that are JSON schemas.
_SCHEMAS = ("response_format", "json_schema", "structured_outputs.json", "tools", "text.format")


@dataclass(frozen=True)
class Constraint:
    """Constraint of a text: a keyword of the engine and its value. field: of the request, that says so; "" if none
    does."""

    field: str = ""
    keyword: str = ""
    value: Any = None

    @property
    def keywords(self) -> Keywords:
        return {self.keyword: self.value} if self.field else {}


NO_CONSTRAINT = Constraint()


@dataclass(frozen=True)
class Conversation:
    """Messages to answer. prompt, answer: how a template shows them, and how the text is divided. behind: puts the
    prompt's tokens behind others."""

    messages: list[Message]
    prompt: PromptOptions
    answer: AnswerOptions
    behind: Callable[[list[int]], list[int]] | None = None


@dataclass(frozen=True)
class Texts:
    """Prompts to go on from, texts or token ids. suffix: the text behind a gap that is to be filled. echo: the answer
    repeats the prompt."""

    prompts: tuple[Any, ...]
    suffix: str | None = None
    echo: bool = False
    parse_special: bool = True
    add_special: bool = True


@dataclass(frozen=True)
class GenerationSpec:
    """Texts that a request asks for: made once, by the reader of its dialect, and never changed.

    text: the options of each text, n among them. whole: no stream is wanted. names: the fields that the request has for
    those of chat completions. is_cut: whether a part of the prompt had no room.
    """

    chosen: Chosen
    source: Conversation | Texts
    text: TextOptions
    constraint: Constraint = NO_CONSTRAINT
    whole: bool = True
    names: Mapping[str, str] = field(default_factory=dict)
    is_cut: bool = False

    @property
    def subject(self) -> Subject:
        """The field that the prompt comes from, by its name in chat completions or completions."""
        return _subject(self.source)

    @property
    def echo(self) -> bool:
        """Whether the answer repeats the prompt."""
        return isinstance(self.source, Texts) and self.source.echo


def _subject(source: Conversation | Texts) -> Subject:
    return "messages" if isinstance(source, Conversation) else "prompt"


def spec_of(
    chosen: Chosen,
    source: Conversation | Texts,
    options: Mapping[str, Any],
    constraint: Constraint = NO_CONSTRAINT,
    *,
    n: int = 1,
    chain: SamplerChain | None = None,
    whole: bool = True,
    names: Mapping[str, str] | None = None,
    is_cut: bool = False,
) -> GenerationSpec:
    """Checks keywords of `Engine.stream` together, and makes the specification of them.

    n: choices for each prompt. chain: the sampling without options; None: the model's. Raises ApiError, which names the
    field.
    """
    defaults = chain or chosen.model.chain
    assert defaults is not None
    try:
        text = read_options("stream", {"n": n, **options, **constraint.keywords}, defaults)
    except Exception as error:
        found = request_error(error, constraint, _subject(source))
        if found is None:
            raise
        raise found from None
    return GenerationSpec(chosen, source, text, constraint, whole, names or {}, is_cut)


class GenerationRun:
    """Requests of one specification, submitted by `begin`; `next` gives their chunks as they come.

    prompts: the token ids of each prompt. room: tokens of one prompt and its output.
    """

    def __init__(self, spec: GenerationSpec, prompts: list[list[int]], echoes: list[str], options: TextOptions) -> None:
        """echoes: each prompt as text, where the answer repeats it. options: the specification's, with those that the
        prompts decide."""
        engine = spec.chosen.model.ready
        self.spec, self.prompts = spec, prompts
        self.core = engine.engine.context.core
        self.tokenizer = engine.engine.tokenizer
        self.room = engine.engine.context.factory.room
        self._bell = CoroutineBell(self.core.loop)
        self.outbox = ResultQueue(len(prompts) * options.n_each, self._bell, whole=spec.whole)
        self.requests: list[GenerationRequest] = []
        self._call: Call[GenerationRequest] | None = None
        for i, ids in enumerate(prompts):
            name = spec.subject if len(prompts) == 1 else f"{spec.subject}[{i}]"
            echo = echoes[i] if spec.echo else ""
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
            if (told := request_error(error, self.spec.constraint, self.spec.subject)) is None:
                raise
            return renamed(lambda: _raise(told), self.spec.names)
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


def prepare(spec: GenerationSpec) -> GenerationRun:
    """Makes the requests of a specification: prompt rendered and tokenised, grammar compiled. For a thread of its own.

    Raises ApiError for what can't be served, and errors of the engine that say nothing of the request.
    """
    return renamed(lambda: _prepared(spec), spec.names)


def _prepared(spec: GenerationSpec) -> GenerationRun:
    room = spec.chosen.model.ready.engine.context.factory.room
    try:
        if isinstance(spec.source, Conversation):
            ids, use = _answered(spec.source, spec)
            prompts, echoes = [ids], [""]
        else:
            read, use = _prompts(spec.source, spec), None
            prompts, echoes = [ids for ids, _ in read], [text for _, text in read]
        return GenerationRun(spec, prompts, echoes, _fitting(spec, prompts, use))
    except Exception as error:
        found = request_error(error, spec.constraint, spec.subject, room)
        if found is None or found is error:
            raise
        raise found from None


def _fitting(spec: GenerationSpec, prompts: list[list[int]], use: ToolUse | None) -> TextOptions:
    """The options of texts behind these prompts: with what finds calls, and no more tokens than there is room for.

    Raises ContextOverflowError, ConfigError and ApiError.
    """
    room = spec.chosen.model.ready.engine.context.factory.room
    most = _most_tokens(spec, prompts)
    bounded = bounded_tokens(prompts, spec.text, most, room)
    most = most if bounded is None else bounded
    if use is None and most == spec.text.max_tokens:
        return spec.text
    found = replace(spec.text, max_tokens=most, tool_use=use)
    check_limit(found)
    return found


def _most_tokens(spec: GenerationSpec, prompts: list[list[int]]) -> int | None:
    """The limit of output, where a KV cache smaller than the context bounds it too. Raises ContextOverflowError."""
    factory = spec.chosen.model.ready.engine.context.factory
    given, longest, room = spec.text.max_tokens, max(map(len, prompts)), factory.room
    if room == factory.context_size:
        return given
    if longest + (given != 0) > room:
        text = f"{spec.subject} has {longest} tokens and the KV cache has room for {room}, which must also hold the"
        raise ContextOverflowError(f"{text} output: shorten it, or start the server with a larger --kv-budget", longest)
    return min(given, room - longest) if given else given


def request_error(error: Exception, constraint: Constraint, subject: Subject, room: int = 0) -> ApiError | None:
    """Error of a request that an error of the engine means, with its field; None if it says nothing of the request."""
    if isinstance(error, GrammarError):
        return grammar_error(error, constraint)
    found = api_error(error, room)
    if found is None or found.status != 400:
        return found
    if constraint.field and found.param == constraint.keyword:
        found.message = found.message.replace(constraint.keyword, constraint.field)
        found.param = constraint.field
    if found.param is None:
        found.param = constraint.field or subject
    return found


def _raise(error: ApiError) -> NoReturn:
    raise error


def grammar_error(error: GrammarError, constraint: Constraint) -> ApiError:
    """Makes the error of a grammar that can't be compiled, with the field that it comes from."""
    name = constraint.field or "tools"
    return bad_value(name, f"{name}: {error}", "invalid_json_schema" if name in _SCHEMAS else "invalid_grammar")


def _answered(source: Conversation, spec: GenerationSpec) -> tuple[list[int], ToolUse | None]:
    """Token ids of a conversation, and how its answer is divided."""
    context = spec.chosen.model.ready.engine.context
    context.core.check_generates()
    ids, use = chat_prompt(context, source.messages, source.prompt, source.answer, _owner(spec))
    return (ids if source.behind is None else source.behind(ids)), use


def _owner(spec: GenerationSpec) -> Hashable:
    serving = spec.text.serving
    return owner_of(serving.cache_salt) if serving.cache_prompt else None


def _prompts(source: Texts, spec: GenerationSpec) -> list[tuple[list[int], str]]:
    """Token ids of each prompt, and its text."""
    n = len(source.prompts)
    return [_prompt(source, spec, f"prompt[{i}]" if n > 1 else "prompt", p) for i, p in enumerate(source.prompts)]


def _prompt(source: Texts, spec: GenerationSpec, name: str, prompt: Any) -> tuple[list[int], str]:
    engine = spec.chosen.model.ready.engine
    tokenizer, factory = engine.tokenizer, engine.context.factory
    if source.suffix is not None:
        check_length(tokenizer, name, prompt, engine.context_size)
        check_length(tokenizer, "suffix", source.suffix, engine.context_size, continuation=True)
        try:
            return engine.infill_tokens(prompt, source.suffix), ""
        except UnsupportedModelError as error:
            raise bad_value("suffix", f"suffix: {error}", "unsupported_parameter") from None
    if not isinstance(prompt, str):
        ids = factory.ids(name, prompt)
        return ids, factory.echo(prompt, ids) if source.echo else ""
    check_length(tokenizer, name, prompt, engine.context_size, parse_special=source.parse_special)
    ids = tokenizer.encode(prompt, source.add_special, source.parse_special, owner=_owner(spec))
    if not ids:
        raise ConfigError(f"{name} is empty: give text, or at least one token")
    return ids, prompt
