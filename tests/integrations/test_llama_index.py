"""LlamaIndex's model and embeddings over an engine, called as its programs and indexes call them."""

import asyncio
from typing import Literal

import numpy as np
import pytest

from oxillama.errors import MessageError, ToolCallError

pytest.importorskip("llama_index.core", reason="llama-index-core is missing: pip install '.[llama-index]'")
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, MessageRole, ThinkingBlock
from llama_index.core.tools import FunctionTool

from oxillama.integrations.llama_index import OxillamaEmbedding, OxillamaLLM, openai_messages

ASK = [ChatMessage(role="system", content="You tell stories."), ChatMessage(role="user", content="Tell me one.")]
PLAIN = [{"role": "system", "content": "You tell stories."}, {"role": "user", "content": "Tell me one."}]
OPTIONS = {"max_tokens": 12, "seed": 1, "temperature": 0.8}


def weather(city: Literal["Rome", "Oslo"]) -> str:
    """Looks the weather up."""
    return f"sun in {city}"


@pytest.fixture(scope="module")
def llm(engine):
    return OxillamaLLM(engine, max_tokens=12, temperature=0.8, options={"seed": 1})


def test_texts_and_messages(llm, engine):
    assert llm.complete("Once upon a time").text == engine.generate("Once upon a time", **OPTIONS).text
    found = llm.chat(ASK)
    expected = engine.chat(PLAIN, **OPTIONS)
    assert (found.message.role, found.message.content) == (MessageRole.ASSISTANT, expected.text)
    assert found.additional_kwargs["completion_tokens"] == len(expected.token_ids)
    assert llm.chat(ASK, max_tokens=3).message.content == engine.chat(PLAIN, **OPTIONS | {"max_tokens": 3}).text
    about = llm.metadata
    assert (about.context_window, about.num_output, about.is_chat_model) == (engine.context_size, 12, True)


def test_streams_are_the_answer_in_pieces(llm):
    for pieces, whole in (
        ([(p.text, p.delta) for p in llm.stream_complete("Once upon a time")], llm.complete("Once upon a time").text),
        ([(p.message.content or "", p.delta) for p in llm.stream_chat(ASK)], llm.chat(ASK).message.content),
    ):
        assert len(pieces) > 3
        assert pieces[-1][0] == "".join(delta for _, delta in pieces) == whole


def test_coroutines(llm):
    async def all_of_them():
        texts = [(await llm.acomplete("Once")).text, (await llm.achat(ASK)).message.content]
        texts.append("".join([piece.delta async for piece in await llm.astream_complete("Once")]))
        texts.append("".join([piece.delta async for piece in await llm.astream_chat(ASK)]))
        return texts

    expected = [llm.complete("Once").text, llm.chat(ASK).message.content]
    assert asyncio.run(all_of_them()) == expected * 2


def test_a_stream_that_is_left_ends_its_request(llm, engine):
    stream = llm.stream_chat(ASK, max_tokens=500, ignore_eos=True)
    next(stream)
    stream.close()
    assert engine.metrics_snapshot().running == 0

    async def left():
        stream = await llm.astream_complete("Once", max_tokens=500, ignore_eos=True)
        await anext(stream)
        await stream.aclose()

    asyncio.run(left())
    assert engine.metrics_snapshot().running == 0


def test_calls_of_tools(llm):
    tool = FunctionTool.from_defaults(weather)
    options = {"tool_choice": "weather", "tool_format": "hermes", "max_tokens": 60}
    response = llm.chat_with_tools([tool], "How is the weather?", **options)
    (call,) = llm.get_tool_calls_from_response(response)
    assert call.tool_name == "weather"
    assert call.tool_kwargs["city"] in ("Rome", "Oslo")
    *_, last = llm.stream_chat_with_tools([tool], "How is the weather?", **options)
    assert [c.tool_kwargs for c in llm.get_tool_calls_from_response(last)] == [call.tool_kwargs]
    found = llm.predict_and_call([tool], "How is the weather?", tool_required=True, **options)
    assert str(found) == weather(**call.tool_kwargs)
    answer = ChatMessage(role="tool", content="sun", additional_kwargs={"tool_call_id": call.tool_id})
    turns = [ChatMessage(role="user", content="How is the weather?"), response.message, answer]
    assert openai_messages(turns)[1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": call.tool_kwargs}
    assert openai_messages(turns)[2] == {"role": "tool", "content": "sun", "tool_call_id": call.tool_id}
    assert llm.chat(turns).message.content


def test_an_answer_without_calls(llm):
    tool = FunctionTool.from_defaults(weather)
    response = llm.chat_with_tools([tool], "Hi", tool_format="hermes")
    assert llm.get_tool_calls_from_response(response, error_on_no_tool_call=False) == []
    with pytest.raises(ToolCallError, match="calls no tool"):
        llm.get_tool_calls_from_response(response)
    cut = llm.chat_with_tools([tool], "Hi", tool_choice="weather", tool_format="hermes", max_tokens=20)
    assert "<tool_call>" in cut.message.content


def test_blocks_of_messages():
    thought = ChatMessage(role="assistant", blocks=[ThinkingBlock(content="Hm."), *ChatMessage(content="Yes.").blocks])
    assert openai_messages([thought]) == [{"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}]
    with pytest.raises(MessageError, match=r"messages\[0\] has a ImageBlock"):
        openai_messages([ChatMessage(blocks=[ImageBlock(image=b"abc")])])


def test_embeddings(engine):
    model = OxillamaEmbedding(engine, prompts="e5", embed_batch_size=2)
    texts = ["a ball", "a dog", "the fox"]
    expected = engine.embed([f"passage: {text}" for text in texts])
    assert np.array_equal(np.float32(model.get_text_embedding_batch(texts)), expected)
    assert np.array_equal(np.float32(model.get_text_embedding(texts[1])), expected[1])
    assert np.array_equal(np.float32(asyncio.run(model.aget_text_embedding_batch(texts))), expected)
    assert np.array_equal(np.float32(model.get_query_embedding("dog")), engine.embed("query: dog"))
    assert np.array_equal(np.float32(asyncio.run(model.aget_query_embedding("dog"))), engine.embed("query: dog"))


def test_an_index_answers(engine, llm):
    index = VectorStoreIndex.from_documents(
        [Document(text="The red ball is in the box."), Document(text="The dog is at the sea.")],
        embed_model=OxillamaEmbedding(engine),
    )
    (node,) = index.as_retriever(similarity_top_k=1).retrieve("The dog is at the sea.")
    assert node.text == "The dog is at the sea."
    assert str(index.as_query_engine(llm=llm, similarity_top_k=1).query("Where is the dog?"))


def test_settings_are_checked():
    assert OxillamaLLM.class_name() == "OxillamaLLM"
    for make in (OxillamaLLM, OxillamaEmbedding):
        with pytest.raises(TypeError, match="no_such_field"):
            make(engine={"no_such_field": 1})
