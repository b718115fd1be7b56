"""Plugin of the command `llm`: models and embeddings over an engine in the same process.

llm -m oxillama "Tell me a story"
llm oxillama add qwen ~/models/qwen.gguf && llm -m oxillama:qwen "Hello"
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import llm
from pydantic import Field

from oxillama._util.checks import given_of
from oxillama.chat.calls import ToolCall
from oxillama.data.engines import EngineSource
from oxillama.errors import MessageError, OxiLlamaError

try:
    from llm.parts import Message, ReasoningPart, StreamEvent, TextPart, ToolCallPart, ToolResultPart
except ImportError:  # before llm 0.36, which would not start if a plugin failed
    Message = None

if TYPE_CHECKING:
    from oxillama.core.results import Chunk

__all__ = ["OxillamaEmbeddingModel", "OxillamaModel"]

SHIPPED = "oxillama"  # the name of the model that ships with the package; others follow it and a colon


class OxillamaModel(llm.Model):
    """A model of `llm` over an engine: streams, conversations, schemas and tools, to which answers are held."""

    can_stream = True
    supports_schema = True
    supports_tools = True

    class Options(llm.Options):
        """Options of a prompt, of the names and meanings that `engine.chat` has."""

        max_tokens: int | None = Field(default=None, description="tokens of the answer at most")
        temperature: float | None = Field(default=None, description="0 for the likeliest token each time")
        top_k: int | None = Field(default=None, description="draw among so many tokens; 0 for all")
        top_p: float | None = Field(default=None, description="draw among the likeliest tokens of this sum")
        min_p: float | None = Field(default=None, description="draw among tokens of this part of the best one's")
        repetition_penalty: float | None = Field(default=None, description="above 1: against tokens that were there")
        seed: int | None = Field(default=None, description="for the same answer each time")
        reasoning_effort: str | None = Field(default=None, description="such as low or high, if the model has it")
        tool_format: str | None = Field(default=None, description="how it writes calls, if its file doesn't tell")
        tool_choice: str | None = Field(default=None, description="auto, required, none or a tool's name")

    def __init__(self, name: str, model: Any = None, engine: Mapping[str, Any] | None = None) -> None:
        """name: after which `-m` asks for it. model: a path, None for the shipped one, or an `Engine`."""
        self.model_id = name
        self._source = EngineSource(model, engine)

    def execute(self, prompt: Any, stream: bool, response: Any, conversation: Any) -> Iterator[StreamEvent]:
        """Events of the answer to a prompt, piece by piece; the usage is known at its end. Raises ModelError."""
        options = given_of(dict(prompt.options)) | given_of({"json_schema": prompt.schema})
        if prompt.tools:
            options["tools"] = [described(tool) for tool in prompt.tools]
        try:
            chunks = self._source.engine.chat(openai_messages(prompt.messages), stream=True, **options)
            try:
                for chunk in chunks:
                    yield from events_of(chunk)
                    finish(chunk, response)
            finally:
                chunks.close()
        except OxiLlamaError as error:
            raise llm.ModelError(str(error)) from error


class OxillamaEmbeddingModel(llm.EmbeddingModel):
    """An embedding model of `llm` over an engine. Texts beyond the context are cut at the end."""

    batch_size = 64

    def __init__(self, name: str, model: Any = None, engine: Mapping[str, Any] | None = None) -> None:
        self.model_id = name
        self._source = EngineSource(model, engine)

    def embed_batch(self, items: Iterable[Any], **options: Any) -> Iterator[list[float]]:
        """Vectors of texts, in their order. Raises ModelError."""
        try:
            vectors = self._source.engine.embed(list(items), truncate="end")
        except OxiLlamaError as error:
            raise llm.ModelError(str(error)) from error
        return iter([[float(value) for value in row] for row in vectors])


def described(tool: Any) -> dict[str, Any]:
    """A tool of `llm` in OpenAI's form."""
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
    return {"type": "function", "function": function}


def openai_messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Messages of `llm` in OpenAI's form. Raises MessageError for attachments."""
    found: list[dict[str, Any]] = []
    for message in messages:
        results = [part for part in message.parts if isinstance(part, ToolResultPart)]
        found += [{"role": "tool", "content": part.output, "tool_call_id": part.tool_call_id} for part in results]
        if len(results) < len(message.parts):
            found.append(openai_message(message))
    return found


def openai_message(message: Message) -> dict[str, Any]:
    texts, thoughts, calls = list[str](), list[str](), list[dict[str, Any]]()
    for part in message.parts:
        if isinstance(part, TextPart):
            texts.append(part.text)
        elif isinstance(part, ReasoningPart):
            thoughts.append(part.text)
        elif isinstance(part, ToolCallPart):
            function = {"name": part.name, "arguments": part.arguments}
            calls.append({"id": part.tool_call_id, "type": "function", "function": function})
        elif not isinstance(part, ToolResultPart):
            raise MessageError(f"a message has a {type(part).__name__}: the model reads text")
    found: dict[str, Any] = {"role": message.role, "content": "".join(texts)}
    return found | ({"tool_calls": calls} if calls else {}) | given_of({"reasoning_content": "".join(thoughts) or None})


def events_of(chunk: Chunk) -> Iterator[StreamEvent]:
    """A piece of an answer as events of `llm`, without its calls, which are whole at their end."""
    if chunk.reasoning:
        yield StreamEvent(type="reasoning", chunk=chunk.reasoning)
    if chunk.text:
        yield StreamEvent(type="text", chunk=chunk.text)
    for call in chunk.tool_calls:
        if isinstance(call, ToolCall):
            yield StreamEvent(type="tool_call_name", chunk=call.name, tool_call_id=call.id)
            yield StreamEvent(type="tool_call_args", chunk=json.dumps(call.arguments), tool_call_id=call.id)
        else:
            yield StreamEvent(type="text", chunk=call.raw)


def finish(chunk: Chunk, response: Any) -> None:
    """Tells `llm` the calls of a piece, and at the end the usage."""
    for call in chunk.tool_calls:
        if isinstance(call, ToolCall):
            response.add_tool_call(llm.ToolCall(name=call.name, arguments=call.arguments, tool_call_id=call.id))
    if chunk.usage is not None:
        response.set_usage(input=chunk.usage.prompt_tokens, output=chunk.usage.completion_tokens)


def listed() -> dict[str, dict[str, Any]]:
    """Models that were added: name -> {"model": path, "engine": fields}. Raises ClickException for a damaged list."""
    place = llm.user_dir() / "oxillama.json"
    try:
        found = json.loads(place.read_text("utf-8")) if place.exists() else {}
        return {str(name): {"model": str(one["model"]), "engine": dict(one["engine"])} for name, one in found.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise click.ClickException(f"{place} is no list of models: repair or remove it") from error


def keep(models: Mapping[str, Any]) -> None:
    place = llm.user_dir() / "oxillama.json"
    beside = place.with_suffix(".partial")
    beside.write_text(json.dumps(models, indent=2), "utf-8")
    beside.replace(place)


def known() -> Iterator[tuple[str, dict[str, Any]]]:
    """Names of models with their arguments; none for an `llm` that is too old."""
    if Message is None:
        return
    yield SHIPPED, {}
    yield from ((f"{SHIPPED}:{name}", fields) for name, fields in listed().items())


@llm.hookimpl
def register_models(register: Any) -> None:
    for name, fields in known():
        register(OxillamaModel(name, **fields))


@llm.hookimpl
def register_embedding_models(register: Any) -> None:
    for name, fields in known():
        register(OxillamaEmbeddingModel(name, **fields))


@llm.hookimpl
def register_commands(cli: Any) -> None:
    @cli.group(name="oxillama")
    def group() -> None:
        """Models in GGUF files on this machine, by names of your own"""

    @group.command()
    @click.argument("name")
    @click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
    @click.option("-t", "--threads", type=click.IntRange(1), help="Threads that compute")
    @click.option("-c", "--context-size", type=click.IntRange(1), help="Tokens of prompt and answer together")
    def add(name: str, file: Path, threads: int | None, context_size: int | None) -> None:
        """Add FILE as the model oxillama:NAME"""
        fields = given_of({"num_threads": threads, "context_size": context_size})
        keep(listed() | {name: {"model": str(file.resolve()), "engine": fields}})
        click.echo(f"{SHIPPED}:{name}")

    @group.command(name="list")
    def show() -> None:
        """List the models that were added"""
        for name, fields in listed().items():
            click.echo(f"{SHIPPED}:{name}: {fields['model']}")

    @group.command()
    @click.argument("name")
    def remove(name: str) -> None:
        """Forget the model oxillama:NAME; its file stays"""
        models = listed()
        if models.pop(name.removeprefix(f"{SHIPPED}:"), None) is None:
            raise click.ClickException(f"there is no model {name!r}: llm oxillama list")
        keep(models)
