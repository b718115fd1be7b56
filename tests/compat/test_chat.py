"""Chat completions: dicts as recorded of the replaced package; tools, formats and handlers."""

import json
import sys
import types
from pathlib import Path

import pytest

import oxillama
import oxillama.compat as llama_cpp
from oxillama.compat import llama_chat_format
from oxillama.compat.chat_styles import STYLES, written
from oxillama.core.loading import shipped_model
from oxillama.errors import ConfigError, MessageError
from tests.compat.shapes import SHAPES, shape

FORMATS = json.loads((Path(__file__).parents[1] / "data/compat/chat_formats.json").read_text())
MESSAGES = [{"role": "user", "content": "Tell me a story about a cat."}]
# Whose formats there lose messages or the system message.
MENDED = ("open-orca", "intel")
SCHEMA = {"type": "object", "properties": {"n": {"type": "boolean"}}, "required": ["n"]}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}]
CHOICE = {"type": "function", "function": {"name": "f"}}
# Writes messages and tools in a form of calls that is known.
HERMES = (
    "{% for t in tools or [] %}<tool_call>{{ t | tojson }}</tool_call> with arguments{% endfor %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"
)


def content(answer):
    return answer["choices"][0]["message"]["content"]


def delta(chunk):
    return chunk["choices"][0]["delta"]


def test_shapes(model):
    assert shape(model.create_chat_completion(MESSAGES, max_tokens=8)) == SHAPES["chat"]
    chunks = list(model.create_chat_completion(MESSAGES, max_tokens=4, temperature=0, stream=True))
    assert [shape(chunks[i]) for i in (0, 1, -1)] == SHAPES["chat_chunks"]
    answer = model.create_chat_completion(MESSAGES, max_tokens=4, logprobs=True, top_logprobs=2)
    wanted = json.loads(json.dumps(SHAPES["chat_logprobs"]).replace("float32", "float"))
    assert shape(answer["choices"][0]["logprobs"]) == wanted


def test_texts_are_the_engines(model):
    with oxillama.load(context_size=256) as engine:
        expected = engine.chat(MESSAGES, max_tokens=30, temperature=0).text
    assert content(model.create_chat_completion(MESSAGES, max_tokens=30, temperature=0)) == expected
    chunks = model.create_chat_completion(MESSAGES, max_tokens=30, temperature=0, stream=True)
    assert "".join(delta(chunk).get("content", "") for chunk in chunks) == expected


def test_named_tools(model):
    answer = model.create_chat_completion(MESSAGES, max_tokens=30, temperature=0, tools=TOOLS, tool_choice=CHOICE)
    assert shape(answer) == SHAPES["chat_tool"]
    message = answer["choices"][0]["message"]
    assert json.loads(message["function_call"]["arguments"])["n"] in (True, False)
    assert message["tool_calls"][0]["function"] == message["function_call"]
    keywords = {"max_tokens": 30, "temperature": 0, "stream": True}
    chunks = list(model.create_chat_completion(MESSAGES, tools=TOOLS, tool_choice=CHOICE, **keywords))
    first, second, third, *_, last = chunks
    assert [shape(chunk) for chunk in (first, second, third, last)] == [
        {**wanted, "choices": [{**wanted["choices"][0]}]} for wanted in SHAPES["tool_chunks"]
    ]
    pieces = [delta(chunk)["tool_calls"][0]["function"]["arguments"] for chunk in chunks[1:-1]]
    assert "".join(pieces) == message["function_call"]["arguments"]
    legacy = model.create_chat_completion(
        MESSAGES, max_tokens=30, temperature=0, functions=[TOOLS[0]["function"]], function_call={"name": "f"}
    )
    assert legacy["choices"][0]["message"]["function_call"] == message["function_call"]


@pytest.fixture(scope="module")
def caller():
    """The shipped model with a template that tells how calls are written."""
    overrides = {"tokenizer.chat_template": HERMES}
    with llama_cpp.Llama(shipped_model(), n_ctx=512, kv_overrides=overrides) as loaded:
        yield loaded


@pytest.mark.parametrize("stream", [False, True])
def test_required_tools(caller, stream):
    keywords = {"max_tokens": 120, "temperature": 0, "tools": TOOLS, "tool_choice": "required"}
    answer = caller.create_chat_completion(MESSAGES, stream=stream, **keywords)
    if not stream:
        assert answer["choices"][0]["finish_reason"] == "tool_calls"
        (call, *_) = answer["choices"][0]["message"]["tool_calls"]
        assert list(call) == ["id", "type", "function"]
        assert call["function"]["name"] == "f"
        assert json.loads(call["function"]["arguments"])["n"] in (True, False)
    else:
        _, first, *pieces, last = answer
        (begun,) = delta(first)["tool_calls"]
        assert list(begun) == ["index", "id", "type", "function"]
        assert begun["function"] == {"name": "f", "arguments": ""}
        assert len(pieces) > 2  # while it is written
        arguments = "".join(delta(piece)["tool_calls"][0]["function"]["arguments"] for piece in pieces)
        assert json.loads(arguments)["n"] in (True, False)
        assert last["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_calls_by_functions_are_in_function_call(caller, stream):
    keywords = {"max_tokens": 120, "temperature": 0, "functions": [TOOLS[0]["function"]], "function_call": "required"}
    answer = caller.create_chat_completion(MESSAGES, stream=stream, **keywords)
    if not stream:
        call = answer["choices"][0]["message"]["function_call"]
    else:
        pieces = [delta(chunk)["function_call"] for chunk in answer if "function_call" in delta(chunk)]
        call = {"name": pieces[0]["name"], "arguments": "".join(piece["arguments"] for piece in pieces)}
    assert call["name"] == "f"
    assert json.loads(call["arguments"])["n"] in (True, False)


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_max_tokens_cut_off_ends_with_length(caller, stream):
    keywords = {"max_tokens": 6, "temperature": 0, "tools": TOOLS, "tool_choice": "required"}
    answer = caller.create_chat_completion(MESSAGES, stream=stream, **keywords)
    last = list(answer)[-1] if stream else answer
    assert last["choices"][0]["finish_reason"] == "length"


def test_tools_auto(caller):
    chunks = list(caller.create_chat_completion(MESSAGES, tools=TOOLS, max_tokens=8, temperature=0, stream=True))
    assert chunks[-1]["choices"][0]["finish_reason"] in ("length", "stop", "tool_calls")
    assert content(caller.create_chat_completion(MESSAGES, tools=TOOLS, tool_choice="none", max_tokens=4))


def test_tools_that_the_template_does_not_show():
    """They are described in a system message, and calls are JSON."""
    keywords = {"max_tokens": 120, "temperature": 0, "tools": TOOLS, "tool_choice": "required"}
    with llama_cpp.Llama(shipped_model(), n_ctx=1024) as loaded:
        whole = loaded.create_chat_completion(MESSAGES, **keywords)["choices"][0]
        chunks = list(loaded.create_chat_completion(MESSAGES, stream=True, **keywords))
    (called, *_) = whole["message"]["tool_calls"]
    pieces = [piece for chunk in chunks for piece in delta(chunk).get("tool_calls", ()) if piece["index"] == 0]
    assert "".join(piece["function"]["arguments"] for piece in pieces) == called["function"]["arguments"]
    assert json.loads(called["function"]["arguments"])["n"] in (True, False)


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_object"},
        {"type": "json_object", "schema": SCHEMA},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
    ],
)
def test_response_formats_are_held(model, form):
    answer = model.create_chat_completion(MESSAGES, response_format=form, max_tokens=100, temperature=0)
    if "schema" in str(form):
        assert json.loads(content(answer))["n"] in (True, False)
    else:
        assert content(answer).startswith("{")


@pytest.mark.parametrize("name", [name for name in FORMATS["prompts"] if name not in MENDED])
def test_formats_write_what_was_recorded(name, monkeypatch):
    found = {}

    class Tokenizes:
        def tokenize(self, text, add_bos, special):
            found["text"] = text.decode()
            return [1]

    monkeypatch.setattr(llama_chat_format, "answered", lambda *_, stop, **__: found.update(stop=list(stop)))
    messages = FORMATS["messages"]
    for which, given in {"system": messages, "plain": messages[1:], "one": messages[1:2]}.items():
        llama_chat_format.get_chat_completion_handler(name)(llama=Tokenizes(), messages=given)
        assert [found["text"], found["stop"]] == FORMATS["prompts"][name][which]


@pytest.mark.parametrize("name", MENDED)
def test_mended_formats_keep_all_messages(name):
    text = written(STYLES[name], FORMATS["messages"])
    assert [word for word in ("Hi", "Hello", "Bye") if word not in text] == []


def test_formats_and_handlers_of_the_callers_own(model):
    @llama_chat_format.register_chat_format("own")
    def own(messages, **kwargs):
        return llama_chat_format.ChatFormatterResponse("Once upon a time", stop=[" was"])

    def handler(*, llama, messages, **options):
        return llama.create_completion("The cat", max_tokens=options["max_tokens"], temperature=0)

    try:
        with llama_cpp.Llama(shipped_model(), chat_format="own") as other:
            assert content(other.create_chat_completion(MESSAGES, temperature=0)) == ", there"
            other.chat_handler = handler
            answer = other.create_chat_completion(MESSAGES, max_tokens=3)
        assert answer["choices"] == model("The cat", max_tokens=3, temperature=0)["choices"]
        with pytest.raises(ValueError, match="own"):
            llama_chat_format.register_chat_format("own")(own)
    finally:
        llama_chat_format.LlamaChatCompletionHandlerRegistry().unregister_chat_handler("own")


def test_jinja_formatters(model):
    formatter = llama_chat_format.Jinja2ChatFormatter(
        model.vocabulary.chat_template, eos_token="<|endoftext|>", bos_token="<|begin|>", stop_token_ids=[1]
    )
    made = formatter(messages=MESSAGES)
    assert (made.stop, made.added_special) == (["<|endoftext|>"], True)
    assert model.tokenize(made.prompt.encode(), False, True) == model.engine.chat_tokens(MESSAGES)
    answer = formatter.to_chat_handler()(llama=model, messages=MESSAGES, max_tokens=6, temperature=0)
    assert content(answer) == content(model.create_chat_completion(MESSAGES, max_tokens=6, temperature=0))


def test_formats_refuse_what_they_do_not_write():
    with llama_cpp.Llama(shipped_model(), chat_format="chatml", n_ctx=512) as model:
        with pytest.raises(ConfigError, match="tools must be None with this chat_format"):
            model.create_chat_completion(MESSAGES, tools=TOOLS)
        with pytest.raises(MessageError, match=r"messages\[0\]"):
            model.create_chat_completion([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}])
        parts = [{"role": "user", "content": [{"type": "text", "text": MESSAGES[0]["content"]}]}]
        texts = [content(model.create_chat_completion(m, max_tokens=4, temperature=0)) for m in (MESSAGES, parts)]
        answer = model.create_chat_completion(MESSAGES, tools=TOOLS, tool_choice=CHOICE, max_tokens=30)
    assert texts[0] == texts[1]
    assert answer["choices"][0]["finish_reason"] == "tool_calls"


def test_formatters_of_a_tokenizer_config(model):
    config = {"chat_template": model.vocabulary.chat_template, "bos_token": "<|begin|>", "eos_token": "<|endoftext|>"}
    made = llama_chat_format.hf_tokenizer_config_to_chat_formatter(config)(messages=MESSAGES)
    blank = [*MESSAGES, {"role": "assistant", "content": ""}]
    assert made.prompt == model.vocabulary.template().render(blank, add_generation_prompt=False)
    assert made.stop == ["<|endoftext|>", "<|begin|>"]
    with pytest.raises(ConfigError, match=r"tokenizer_config\['eos_token'\] must be"):
        llama_chat_format.hf_tokenizer_config_to_chat_completion_handler(config | {"eos_token": None})


def test_formatters_as_functions():
    for name in ("format_chatml", "format_llama2", "format_llama3", "format_mistral_instruct", "format_baichuan2"):
        assert "Tell me" in getattr(llama_chat_format, name)(messages=MESSAGES).prompt
    with pytest.raises(AttributeError, match="format_other"):
        llama_chat_format.format_other  # noqa: B018


def test_objects_of_the_openai_package(model, monkeypatch):
    module = types.ModuleType("openai.types.chat")
    module.ChatCompletion = module.ChatCompletionChunk = dict
    for name in ("openai", "openai.types"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "openai.types.chat", module)
    keywords = {"max_tokens": 3, "temperature": 0}
    expected = content(model.create_chat_completion(MESSAGES, **keywords))
    assert content(model.create_chat_completion_openai_v1(MESSAGES, **keywords)) == expected
    chunks = model.create_chat_completion_openai_v1(MESSAGES, stream=True, **keywords)
    assert "".join(delta(chunk).get("content", "") for chunk in chunks) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"response_format": {"type": "xml"}}, r"response_format\['type'\] must be"),
        ({"response_format": {"type": "json_schema"}}, "json_schema"),
        ({"tool_choice": "auto"}, "tool_choice is given without tools"),
        ({"tools": TOOLS, "tool_choice": {"function": {"name": "g"}}}, "'g' not found"),
        ({"top_logprobs": 2}, "top_logprobs is given without"),
        ({"logprobs": 3}, "logprobs must be True"),
    ],
)
def test_wrong_options_are_named(model, options, message):
    with pytest.raises(ConfigError, match=message):
        model.create_chat_completion(MESSAGES, **options)


def test_other_refusals(model):
    with pytest.raises(MessageError, match=r"messages\[0\]"):
        model.create_chat_completion([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}])
    with pytest.raises(TypeError, match="beam"):
        model.create_chat_completion(MESSAGES, beam=3)
    for name, match in (("functionary-v1", "LlamaHFTokenizer"), ("unknown", "Invalid chat handler: unknown")):
        with llama_cpp.Llama(shipped_model(), chat_format=name) as other, pytest.raises(ValueError, match=match):
            other.create_chat_completion(MESSAGES)
