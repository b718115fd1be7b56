"""Classes of LlamaIndex: a model that calls functions, and embeddings, over an engine in the same process.

>>> from oxillama.integrations.llama_index import OxillamaEmbedding, OxillamaLLM
>>> print(OxillamaLLM("model.gguf", max_tokens=64).complete("Once upon a time").text)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    LLMMetadata,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from pydantic import Field, PrivateAttr

from oxillama._util.checks import given_of
from oxillama.chat.calls import AnyToolCall, ToolCall
from oxillama.core.results import Completion
from oxillama.data.engines import EngineSource
from oxillama.engine import Engine
from oxillama.errors import MessageError, ToolCallError
from oxillama.integrations.sentence_transformers import SentenceTransformer

__all__ = ["OxillamaEmbedding", "OxillamaLLM"]

DEFAULT_TOKENS = 256


class OxillamaLLM(FunctionCallingLLM):
    """A model of LlamaIndex over an engine: texts, messages, streams, and calls of tools, held to their schemas.

    model: a path, None for the model that ships with the package, or an `Engine`. engine: fields of `EngineConfig`.
    max_tokens, temperature: of every call. options: further keywords of `engine.generate` and `engine.chat`, which a
    call may give, too. Coroutines compute in threads, which share the engine's steps.
    """

    model: Any = None
    engine: dict[str, Any] | None = None
    max_tokens: int = DEFAULT_TOKENS
    temperature: float | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    _source: EngineSource = PrivateAttr()

    def __init__(self, model: Any = None, **fields: Any) -> None:
        """Checks the settings; the engine is opened when it is first needed. Raises ConfigError, TypeError."""
        super().__init__(model=model, **fields)
        self._source = EngineSource(self.model, self.engine)

    @classmethod
    def class_name(cls) -> str:
        return "OxillamaLLM"

    @property
    def loaded(self) -> Engine:
        """The engine, opened if it isn't."""
        return self._source.engine

    @property
    def metadata(self) -> LLMMetadata:
        chats = self.loaded.tokenizer.chat_template is not None
        return LLMMetadata(
            context_window=self.loaded.context_size, num_output=self.max_tokens, is_chat_model=chats,
            is_function_calling_model=chats, model_name=self.loaded.model_config.name,
        )  # fmt: skip

    def _settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        own = given_of({"max_tokens": self.max_tokens, "temperature": self.temperature})
        return {**own, **self.options, **given_of(given)}

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **options: Any) -> CompletionResponse:
        answer = self.loaded.generate(prompt, **self._settings(options))
        return CompletionResponse(text=answer.text, raw=answer.to_dict())

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **options: Any) -> Iterator[CompletionResponse]:
        chunks = self.loaded.stream(prompt, **self._settings(options))

        def pieces() -> Iterator[CompletionResponse]:
            text = ""
            for chunk in chunks:
                text += chunk.text
                yield CompletionResponse(text=text, delta=chunk.text)

        return pieces()

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **options: Any) -> ChatResponse:
        answer = self.loaded.chat(openai_messages(messages), **self._settings(options))
        message = answer_message(answer.reasoning, answer.text, answer.tool_calls)
        return ChatResponse(message=message, raw=answer.to_dict(), additional_kwargs=usage_of(answer))

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **options: Any) -> Iterator[ChatResponse]:
        chunks = self.loaded.chat(openai_messages(messages), stream=True, **self._settings(options))

        def pieces() -> Iterator[ChatResponse]:
            reasoning, text, calls = "", "", list[AnyToolCall]()
            for chunk in chunks:
                reasoning, text, calls = reasoning + chunk.reasoning, text + chunk.text, calls + chunk.tool_calls
                yield ChatResponse(message=answer_message(reasoning, text, calls), delta=chunk.text)

        return pieces()

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **options: Any) -> CompletionResponse:
        return await asyncio.to_thread(self.complete, prompt, formatted, **options)

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **options: Any) -> ChatResponse:
        return await asyncio.to_thread(self.chat, messages, **options)

    @llm_completion_callback()
    async def astream_complete(
        self, prompt: str, formatted: bool = False, **options: Any
    ) -> AsyncIterator[CompletionResponse]:
        return in_thread(lambda: self.stream_complete(prompt, formatted, **options))

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **options: Any) -> AsyncIterator[ChatResponse]:
        return in_thread(lambda: self.stream_chat(messages, **options))

    def _prepare_chat_with_tools(
        self, tools: Sequence[Any], user_msg: Any = None, chat_history: list[ChatMessage] | None = None,
        verbose: bool = False, allow_parallel_tool_calls: bool = False, tool_required: bool = False, **options: Any,
    ) -> dict[str, Any]:  # fmt: skip
        asked = ChatMessage(role=MessageRole.USER, content=user_msg) if isinstance(user_msg, str) else user_msg
        found = {"messages": [*(chat_history or []), *([asked] if asked else [])], **options}
        if tools:
            found["tools"] = [tool.metadata.to_openai_tool(skip_length_check=True) for tool in tools]
            found["parallel_tool_calls"] = allow_parallel_tool_calls
            found.setdefault("tool_choice", "required" if tool_required else "auto")
        return found

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **options: Any
    ) -> list[ToolSelection]:
        """Calls of an answer. Raises ToolCallError if there are none, unless that is no error."""
        blocks = [block for block in response.message.blocks if isinstance(block, ToolCallBlock)]
        if not blocks and error_on_no_tool_call:
            raise ToolCallError(f"the answer calls no tool: {response.message.content or ''!r:.200}")
        return [ToolSelection(tool_id=b.tool_call_id, tool_name=b.tool_name, tool_kwargs=b.tool_kwargs) for b in blocks]


class OxillamaEmbedding(BaseEmbedding):
    """Embeddings of LlamaIndex over an engine: texts and queries, each with its prompt.

    Arguments beside LlamaIndex's own are those of `SentenceTransformer`: `prompts="e5"`.
    """

    _encoder: SentenceTransformer = PrivateAttr()

    def __init__(self, model: Any = None, *, embed_batch_size: int = 32, **options: Any) -> None:
        own = {name: options.pop(name) for name in list(options) if name in type(self).model_fields}
        super().__init__(embed_batch_size=embed_batch_size, **{"model_name": str(model), **own})
        self._encoder = SentenceTransformer(model, **options)

    @classmethod
    def class_name(cls) -> str:
        return "OxillamaEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        return [float(value) for value in self._encoder.encode_query(query)]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return [row.tolist() for row in self._encoder.encode_document(texts, batch_size=self.embed_batch_size)]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)


def openai_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Messages of LlamaIndex in OpenAI's form. Raises MessageError for blocks that are neither text nor calls."""
    return [openai_message(i, message) for i, message in enumerate(messages)]


def openai_message(place: int, message: ChatMessage) -> dict[str, Any]:
    texts, thoughts, calls = [], [], []
    for block in message.blocks:
        if isinstance(block, TextBlock):
            texts.append(block.text)
        elif isinstance(block, ThinkingBlock):
            thoughts.append(block.content or "")
        elif isinstance(block, ToolCallBlock):
            function = {"name": block.tool_name, "arguments": block.tool_kwargs}
            calls.append({"id": block.tool_call_id, "type": "function", "function": function})
        else:
            raise MessageError(f"messages[{place}] has a {type(block).__name__}: the model reads text")
    found: dict[str, Any] = {"role": message.role.value, "content": "\n".join(texts)}
    if thoughts:
        found["reasoning_content"] = "".join(thoughts)
    if calls:
        found["tool_calls"] = calls
    if (of := message.additional_kwargs.get("tool_call_id")) is not None:
        found["tool_call_id"] = of
    return found


def answer_message(reasoning: str, text: str, calls: Sequence[AnyToolCall]) -> ChatMessage:
    """An answer as a message of LlamaIndex. A call that can't be read stays text."""
    broken = "".join(call.raw for call in calls if not isinstance(call, ToolCall))
    blocks: list[Any] = [ThinkingBlock(content=reasoning)] if reasoning else []
    blocks.append(TextBlock(text=text + broken))
    blocks += [
        ToolCallBlock(tool_call_id=call.id, tool_name=call.name, tool_kwargs=call.arguments)
        for call in calls
        if isinstance(call, ToolCall)
    ]
    return ChatMessage(role=MessageRole.ASSISTANT, blocks=blocks)


def usage_of(answer: Completion) -> dict[str, int]:
    usage = answer.usage
    return {name: getattr(usage, name) for name in ("prompt_tokens", "completion_tokens", "total_tokens")}


async def in_thread(start: Callable[[], Iterator[Any]]) -> AsyncIterator[Any]:
    """Items of an iterator that computes, each in a thread; leaving early closes it."""
    end = object()
    items = await asyncio.to_thread(start)
    try:
        while (item := await asyncio.to_thread(next, items, end)) is not end:
            yield item
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            await asyncio.to_thread(close)
