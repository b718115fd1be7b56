"""Typical programs, as llama-cpp-python's users write them: with no other change than the import."""

import itertools
import json

import numpy as np
import pytest

import oxillama.compat as llama_cpp
from oxillama.compat import Llama, LlamaGrammar, LlamaRAMCache, LogitsProcessorList, StoppingCriteriaList
from oxillama.compat.llama_speculative import LlamaPromptLookupDecoding
from oxillama.compat.llama_types import ChatCompletionRequestUserMessage
from oxillama.core.loading import shipped_model
from tests.compat.shapes import SHAPES, shape

PATH = shipped_model()


def question():
    llm = Llama(model_path=PATH)
    output = llm("Q: Name the planets in the solar system? A: ", max_tokens=32, stop=["Q:", "\n"], echo=True)
    assert output["choices"][0]["text"].startswith("Q: Name the planets")
    return shape(output) == SHAPES["completion"]


def chat():
    llm = Llama(model_path=PATH, n_gpu_layers=-1, seed=1337, n_ctx=256, verbose=False)
    output = llm.create_chat_completion(
        messages=[
            {"role": "system", "content": "You are an assistant that tells stories."},
            {"role": "user", "content": "Tell me about a cat."},
        ],
        max_tokens=12,
    )
    return shape(output) == SHAPES["chat"]


def chat_in_a_format():
    llm = Llama(model_path=PATH, chat_format="chatml")
    message = ChatCompletionRequestUserMessage(role="user", content="What's the weather like?")
    return shape(llm.create_chat_completion(messages=[message], max_tokens=4)) == SHAPES["chat"]


def streamed_chat():
    llm = Llama(model_path=PATH)
    pieces = []
    for chunk in llm.create_chat_completion(messages=[{"role": "user", "content": "Hi"}], stream=True, max_tokens=5):
        delta = chunk["choices"][0]["delta"]
        if "role" in delta:
            assert delta["role"] == "assistant"
        elif "content" in delta:
            pieces.append(delta["content"])
    return bool("".join(pieces))


def json_mode():
    llm = Llama(model_path=PATH, n_ctx=512)
    schema = {
        "type": "object",
        "properties": {"team_name": {"type": "string", "maxLength": 9}},
        "required": ["team_name"],
    }
    output = llm.create_chat_completion(
        messages=[{"role": "user", "content": "Who won?"}],
        response_format={"type": "json_object", "schema": schema},
        temperature=0.7,
    )
    return isinstance(json.loads(output["choices"][0]["message"]["content"])["team_name"], str)


def function_call():
    llm = Llama(model_path=PATH, n_ctx=512)
    parameters = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    output = llm.create_chat_completion(
        messages=[{"role": "user", "content": "Extract: Jason is 25."}],
        tools=[{"type": "function", "function": {"name": "UserDetail", "parameters": parameters}}],
        tool_choice={"type": "function", "function": {"name": "UserDetail"}},
    )
    assert shape(output) == SHAPES["chat_tool"]
    arguments = output["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
    return isinstance(json.loads(arguments)["age"], int)


def speculation():
    llm = Llama(model_path=PATH, draft_model=LlamaPromptLookupDecoding(num_pred_tokens=10))
    plain = Llama(model_path=PATH)
    texts = [m("a b c a b c a b", max_tokens=12, temperature=0)["choices"][0]["text"] for m in (llm, plain)]
    return texts[0] == texts[1]


def embeddings():
    llm = Llama(model_path=PATH, embedding=True, pooling_type=llama_cpp.LLAMA_POOLING_TYPE_MEAN)
    one = llm.create_embedding("Hello, world!")
    two = llm.create_embedding(["Hello, world!", "Goodbye, world!"])
    assert one["data"][0]["embedding"] == two["data"][0]["embedding"]
    return shape(one) == SHAPES["embedding_mean"]


def low_level_loop():
    llm = Llama(model_path=PATH)
    tokens = llm.tokenize(b"The quick brown fox jumps")
    found = []
    for token in llm.generate(tokens, top_k=40, top_p=0.95, temp=1.0, repeat_penalty=1.0):
        found.append(token)
        if token == llm.token_eos() or len(found) == 5:
            break
    return isinstance(llm.detokenize(found), bytes)


def grammar():
    llm = Llama(model_path=PATH)
    gbnf = LlamaGrammar.from_string(
        'root ::= "[" ws number ("," ws number)* "]"\nnumber ::= [0-9]\nws ::= " "?', verbose=False
    )
    text = llm("A list:", grammar=gbnf, max_tokens=40, temperature=0.2)["choices"][0]["text"]
    return text.startswith("[")


def processors_and_criteria():
    llm = Llama(model_path=PATH)

    def no_comma(input_ids, scores):
        scores[llm.tokenize(b",", add_bos=False)[0]] = -np.inf
        return scores

    output = llm(
        "Once upon a time",
        logits_processor=LogitsProcessorList([no_comma]),
        stopping_criteria=StoppingCriteriaList([lambda input_ids, logits: len(input_ids) > 10]),
    )
    return "," not in output["choices"][0]["text"] and output["usage"]["completion_tokens"] <= 6


def cached_prompts():
    llm = Llama(model_path=PATH, n_ctx=256)
    llm.set_cache(LlamaRAMCache(capacity_bytes=2 << 30))
    system = "A story of a little fox that lived in a red barn with a cow and a hen. " * 2
    texts = [llm(system + end, max_tokens=4, temperature=0)["choices"][0]["text"] for end in ("The", "The", "A")]
    state = llm.save_state()
    llm.load_state(state)
    return texts[0] == texts[1]


def streamed_logprobs():
    llm = Llama(model_path=PATH, logits_all=True)
    chunks = itertools.islice(llm("Once upon", max_tokens=4, logprobs=3, stream=True, temperature=0), 2)
    found = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    return all(len(top) >= 3 for one in found for top in one["top_logprobs"])


PROGRAMS = [
    question, chat, chat_in_a_format, streamed_chat, json_mode, function_call, speculation, embeddings, low_level_loop,
    grammar, processors_and_criteria, cached_prompts, streamed_logprobs,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs(program, capfd):
    assert program()
    assert capfd.readouterr() == ("", "")
