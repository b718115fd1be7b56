"""LangChain's chat model and embeddings over an engine, called as chains call them."""

import asyncio
import pickle
from typing import Literal

import numpy as np
import pytest

from oxillama.core.loading import shipped_model
from oxillama.errors import ConfigError

pytest.importorskip("langchain_core", reason="langchain-core is missing: pip install '.[langchain]'")
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.vectorstores import InMemoryVectorStore
from pydantic import BaseModel, Field

from oxillama.integrations.langchain import ChatOxillama, OxillamaEmbeddings

ASK = [SystemMessage("You tell stories."), HumanMessage("Tell me one.")]
PLAIN = [{"role": "system", "content": "You tell stories."}, {"role": "user", "content": "Tell me one."}]
ONE = {"parallel_tool_calls": False}
OPTIONS = {"max_tokens": 12, "seed": 1, "temperature": 0.8}


def weather(city: Literal["Rome", "Oslo"]) -> str:
    """Looks the weather up."""
    return f"sun in {city}"


class Person(BaseModel):
    name: str = Field(max_length=8)
    age: int = Field(ge=1, le=99)


@pytest.fixture(scope="module")
def model(engine):
    return ChatOxillama(model=engine, **OPTIONS)


def test_an_answer_is_that_of_the_engine(model, engine):
    expected = engine.chat(PLAIN, **OPTIONS)
    found = model.invoke(ASK)
    assert (found.content, found.tool_calls) == (expected.text, [])
    assert found.response_metadata["finish_reason"] == expected.finish_reason
    usage = found.usage_metadata
    assert (usage["input_tokens"], usage["output_tokens"]) == (expected.prompt_tokens, len(expected.token_ids))
    assert model.invoke(ASK, max_tokens=3).content == engine.chat(PLAIN, **OPTIONS | {"max_tokens": 3}).text
    assert model.invoke(ASK, stop=["a"]).content == engine.chat(PLAIN, **OPTIONS, stop=["a"]).text
    assert model.bind(top_k=1).invoke(ASK).content == engine.chat(PLAIN, **OPTIONS, top_k=1).text


def test_streams_are_the_answer_in_pieces(model):
    expected = model.invoke(ASK)
    pieces = list(model.stream(ASK))
    assert len(pieces) > 3
    whole = pieces[0]
    for piece in pieces[1:]:
        whole += piece
    assert isinstance(whole, AIMessageChunk)
    assert whole.content == expected.content
    assert whole.response_metadata["finish_reason"] == "length"
    assert whole.usage_metadata["output_tokens"] == expected.usage_metadata["output_tokens"]


def test_chains_batches_and_coroutines(model, engine):
    chain = ChatPromptTemplate([("user", "Tell me about a {animal}.")]) | model | StrOutputParser()
    asked = [{"animal": name} for name in ("cat", "fox", "owl")]
    expected = [
        engine.chat([{"role": "user", "content": f"Tell me about a {one['animal']}."}], **OPTIONS).text for one in asked
    ]
    assert chain.batch(asked) == expected
    assert asyncio.run(chain.abatch(asked)) == expected

    async def streamed():
        return "".join([piece async for piece in chain.astream(asked[0])])

    assert asyncio.run(streamed()) == expected[0]


def test_a_stream_that_is_left_ends_its_request(model, engine):
    stream = model.stream(ASK, max_tokens=500, ignore_eos=True)
    next(stream)
    stream.close()
    assert engine.metrics_snapshot().running == 0


def test_calls_of_tools(model, engine):
    bound = model.bind_tools([weather], tool_choice="any", tool_format="hermes", max_tokens=60, **ONE)
    found = bound.invoke([HumanMessage("How is the weather?")])
    (call,) = found.tool_calls
    assert call["name"] == "weather"
    assert call["args"]["city"] in ("Rome", "Oslo")
    whole = None
    for piece in bound.stream([HumanMessage("How is the weather?")]):
        whole = piece if whole is None else whole + piece
    assert [(c["name"], c["args"]) for c in whole.tool_calls] == [(c["name"], c["args"]) for c in found.tool_calls]
    turns = [HumanMessage("How is the weather?"), found, ToolMessage(weather(**call["args"]), tool_call_id=call["id"])]
    assert isinstance(model.invoke(turns), AIMessage)


def test_a_call_that_was_cut_off_is_invalid(model):
    bound = model.bind_tools([weather], tool_choice="weather", tool_format="hermes", max_tokens=20)
    found = bound.invoke([HumanMessage("How is the weather?")])
    assert found.tool_calls == []
    assert [call["type"] for call in found.invalid_tool_calls] == ["invalid_tool_call"]
    assert found.invalid_tool_calls[0]["error"]


@pytest.mark.parametrize(
    "schema", [Person, {"title": "person", "description": "A person.", **Person.model_json_schema()}]
)
def test_structured_output(model, schema):
    found = model.with_structured_output(schema, max_tokens=60).invoke("A person, please.")
    person = found if schema is Person else Person(**found)
    assert isinstance(found, Person if schema is Person else dict)
    assert 1 <= person.age <= 99
    raw = model.with_structured_output(schema, include_raw=True, max_tokens=60).invoke("A person, please.")
    assert (raw["parsed"], raw["parsing_error"]) == (found, None)


def test_structured_output_that_was_cut_off(model):
    with pytest.raises(OutputParserException, match="raise max_tokens"):
        model.with_structured_output(Person, max_tokens=3).invoke("A person, please.")
    raw = model.with_structured_output(Person, include_raw=True, max_tokens=3).invoke("A person, please.")
    assert raw["parsed"] is None
    assert isinstance(raw["parsing_error"], OutputParserException)


def test_embeddings(engine):
    embeddings = OxillamaEmbeddings(engine, prompts="e5", batch_size=2)
    found = embeddings.embed_documents(["a ball", "a dog", "the fox"])
    assert np.array_equal(np.float32(found), engine.embed(["passage: a ball", "passage: a dog", "passage: the fox"]))
    assert np.array_equal(np.float32(embeddings.embed_query("dog")), engine.embed("query: dog"))
    assert {type(value) for value in found[0]} == {float}
    assert embeddings.embed_documents([]) == []
    store = InMemoryVectorStore.from_texts(["a ball", "a dog"], OxillamaEmbeddings(engine))
    assert store.similarity_search("a dog", k=1)[0].page_content == "a dog"


def test_settings_are_checked_and_the_engine_is_opened_late():
    model = ChatOxillama(model="no/such.gguf", engine={"num_threads": 1})
    assert model._llm_type == "oxillama"
    with pytest.raises(TypeError, match="no_such_field"):
        ChatOxillama(engine={"no_such_field": 1})
    with pytest.raises(ConfigError, match="temperature"):
        ChatOxillama(engine={"num_threads": 1}, temperature=-1.0).invoke("Hi")
    with pytest.raises(TypeError, match="no_such_option"):
        ChatOxillama(engine={"num_threads": 1}).invoke("Hi", no_such_option=1)
    path = ChatOxillama(model=str(shipped_model()), engine={"num_threads": 1}, **OPTIONS)
    assert pickle.loads(pickle.dumps(path)).invoke(ASK).content == path.invoke(ASK).content
