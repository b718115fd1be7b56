"""Classes of LangChain: a chat model and embeddings over an engine in the same process.

>>> from oxillama.integrations.langchain import ChatOxillama, OxillamaEmbeddings
>>> print(ChatOxillama(model="model.gguf", max_tokens=64).invoke("Tell me a story.").content)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.embeddings import Embeddings
from langchain_core.exceptions import OutputParserException
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, convert_to_openai_messages
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import invalid_tool_call, tool_call, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableLambda, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from pydantic import BaseModel, Field, PrivateAttr

from oxillama._util.checks import given_of
from oxillama.chat.calls import AnyToolCall, ToolCall
from oxillama.core.results import Chunk, Usage
from oxillama.data.engines import EngineSource
from oxillama.engine import Engine
from oxillama.integrations.sentence_transformers import SentenceTransformer

__all__ = ["ChatOxillama", "OxillamaEmbeddings"]


class ChatOxillama(BaseChatModel):
    """A chat model of LangChain over an engine: messages, streams, tools and structured output.

    Any keyword of `engine.chat` may be given to a call or to `bind`; `options` are those of every call. Calls of tools
    and structured output are held to their schemas while they are written. Threads and coroutines share the engine's
    steps.
    """

    model: Any = None
    """A path, None for the model that ships with the package, or an `Engine`."""
    engine: dict[str, Any] | None = None
    """Fields of `EngineConfig`."""
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: list[str] | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    """Further keywords of `engine.chat`."""
    _source: EngineSource = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Checks the settings; the engine is opened when it is first needed. Raises ConfigError, TypeError."""
        self._source = EngineSource(self.model, self.engine)

    @property
    def loaded(self) -> Engine:
        """The engine, opened if it isn't."""
        return self._source.engine

    @property
    def _llm_type(self) -> str:
        return "oxillama"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model": str(self.model), **self._settings({})}

    def _settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        names = ("max_tokens", "temperature", "top_p", "seed", "stop")
        own = given_of({name: getattr(self, name) for name in names})
        return {**own, **self.options, **given_of(given)}

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None, **options: Any,
    ) -> ChatResult:  # fmt: skip
        given = self._settings({**options, "stop": stop})
        answer = self.loaded.chat(convert_to_openai_messages(messages), **given)
        calls, broken = calls_of(answer.tool_calls)
        about = {"finish_reason": answer.finish_reason, "model_name": self.loaded.model_config.name}
        message = AIMessage(
            content=answer.text, tool_calls=calls, invalid_tool_calls=broken, response_metadata=about,
            usage_metadata=usage_of(answer.usage), additional_kwargs=reasoning_of(answer.reasoning),
        )  # fmt: skip
        return ChatResult(generations=[ChatGeneration(message=message, generation_info=about)])

    def _stream(
        self, messages: list[BaseMessage], stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None, **options: Any,
    ) -> Iterator[ChatGenerationChunk]:  # fmt: skip
        given = self._settings({**options, "stop": stop})
        chunks = self.loaded.chat(convert_to_openai_messages(messages), stream=True, **given)
        try:
            for chunk in chunks:
                piece = ChatGenerationChunk(message=message_chunk(chunk))
                if run_manager is not None:
                    run_manager.on_llm_new_token(chunk.text, chunk=piece)
                yield piece
        finally:
            chunks.close()

    def bind_tools(
        self, tools: Sequence[dict[str, Any] | type | Callable[..., Any] | Any], *,
        tool_choice: str | bool | dict[str, Any] | None = None, **options: Any,
    ) -> Runnable[Any, AIMessage]:  # fmt: skip
        """The model with tools. tool_choice: "auto", "none", a tool's name, or "any" ("required", True)."""
        choice = "required" if tool_choice in ("any", True) else tool_choice or None
        described = [convert_to_openai_tool(tool) for tool in tools]
        return self.bind(tools=described, **given_of({"tool_choice": choice}), **options)

    def with_structured_output(
        self, schema: dict[str, Any] | type, *, include_raw: bool = False, **options: Any
    ) -> Runnable[Any, Any]:
        """The model with answers of a schema, to which they are held: a pydantic class, a TypedDict or a JSON schema.

        include_raw: a dict of "raw", "parsed" and "parsing_error" instead, where an answer that `max_tokens` cut off
        is no exception.
        """
        options.pop("method", None)  # there is one
        options.pop("strict", None)
        kind: Any = schema if isinstance(schema, type) and issubclass(schema, BaseModel) else None
        parser = RunnableLambda(partial(instance_of, kind))
        held = convert_to_json_schema(schema) if kind is None else kind.model_json_schema()
        model = self.bind(json_schema=held, **options)
        if not include_raw:
            return model | parser
        parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
        failed = RunnablePassthrough.assign(parsed=lambda _: None)
        return RunnableMap(raw=model) | parsed.with_fallbacks([failed], exception_key="parsing_error")


class OxillamaEmbeddings(Embeddings):
    """Embeddings of LangChain over an engine: documents and queries, each with its prompt.

    Arguments are those of `SentenceTransformer`: `prompts="e5"` for models that were trained with prompts.
    """

    def __init__(self, model: Any = None, *, batch_size: int = 32, **options: Any) -> None:
        self.encoder = SentenceTransformer(model, **options)
        self.batch_size = batch_size

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [row.tolist() for row in self.encoder.encode_document(texts, batch_size=self.batch_size)]

    def embed_query(self, text: str) -> list[float]:
        vector = self.encoder.encode_query(text)
        return [float(value) for value in vector]


def instance_of(kind: Any, message: AIMessage) -> Any:
    """The instance of a schema that an answer is, of a pydantic class if there is one.

    Raises OutputParserException for one that was cut off, or that the class refuses.
    """
    text = str(message.content)
    try:
        return json.loads(text) if kind is None else kind.model_validate_json(text)
    except ValueError as error:
        cut = message.response_metadata.get("finish_reason") == "length"
        why = "it was cut off: raise max_tokens, or bound the schema's texts" if cut else str(error)
        raise OutputParserException(f"the answer is no instance of the schema: {why}", llm_output=text) from error


def calls_of(calls: Sequence[AnyToolCall]) -> tuple[list[Any], list[Any]]:
    """Calls of tools in LangChain's form: those that can be read, and the others."""
    found = [tool_call(name=c.name, args=c.arguments, id=c.id) for c in calls if isinstance(c, ToolCall)]
    broken = [
        invalid_tool_call(name=c.name or None, args=c.arguments or c.raw, id=c.id, error=c.error)
        for c in calls
        if not isinstance(c, ToolCall)
    ]
    return found, broken


def usage_of(usage: Usage) -> UsageMetadata:
    return UsageMetadata(
        input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens, total_tokens=usage.total_tokens,
        input_token_details={"cache_read": usage.cached_tokens},
        output_token_details={"reasoning": usage.reasoning_tokens},
    )  # fmt: skip


def reasoning_of(text: str) -> dict[str, Any]:
    return {"reasoning_content": text} if text else {}


def message_chunk(chunk: Chunk) -> AIMessageChunk:
    """A piece of an answer in LangChain's form."""
    calls = list[Any]()
    for delta in chunk.tool_call_deltas:
        if calls and calls[-1]["index"] == delta.index:  # which LangChain joins between messages alone
            calls[-1]["args"] += delta.arguments
        else:
            calls.append(tool_call_chunk(name=delta.name, args=delta.arguments, id=delta.id, index=delta.index))
    last = {} if chunk.finish_reason is None else {"finish_reason": chunk.finish_reason}
    return AIMessageChunk(
        content=chunk.text, tool_call_chunks=calls, additional_kwargs=reasoning_of(chunk.reasoning),
        usage_metadata=None if chunk.usage is None else usage_of(chunk.usage), response_metadata=last,
    )  # fmt: skip
