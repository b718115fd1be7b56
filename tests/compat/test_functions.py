"""Chat formats that choose functions by turns: prompts and answers as recorded, and with a model."""

import copy
import html
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import oxillama.compat as llama_cpp
from oxillama.compat.functions import _arguments
from oxillama.compat.llama_chat_format import get_chat_completion_handler
from oxillama.core.loading import shipped_model
from oxillama.core.results import Chunk, Completion
from oxillama.errors import ConfigError, GrammarError

RECORDED = json.loads((Path(__file__).parents[1] / "data/compat/functions.json").read_text())
TOOLS, MESSAGES = RECORDED["tools"], RECORDED["messages"]
NEXT = "\n<|from|>assistant\n"


class Characters:
    """A vocabulary whose tokens are characters; that of "<|recipient|>" is a control token."""

    bos_id = None

    def encode(self, text, add_special, parse_special=True):
        return [1 << 21] if text == "<|recipient|>" else [ord(c) for c in text]

    def decode(self, ids, **options):
        return "".join(map(chr, ids))

    def is_special(self, i):
        return i >= 1 << 21


class Scripted:
    """A `Llama` that writes given texts, each "text" or ("text", what ended it)."""

    model_path, logits_all, spm_infill, penalty_window, vocabulary = "m", False, False, 64, Characters()

    def __init__(self, texts, version=2):
        self.texts, self.asked, self.engine, self.n_left = list(texts), [], self, 1 << 20
        first = ["<|START_OF_FUNCTION_CALL|>"] if version == 1 else []
        hf = SimpleNamespace(additional_special_tokens=first, apply_chat_template=self.apply)
        self.tokenizer_ = SimpleNamespace(hf_tokenizer=hf)

    def apply(self, messages, tokenize):
        def calls(message):
            return json.dumps(message["tool_calls"]) if message.get("tool_calls") else ""

        return "".join(f"[{m['role']}]{m.get('content') or None}{calls(m)}\n" for m in messages)

    def n_ctx(self):
        return self.n_left

    def prompt_ids(self, text):
        return self.vocabulary.encode(text, True)

    def checked_ids(self, name, ids):
        return ids

    def next_seed(self, given):
        return 1

    def draft_options(self):
        return {}

    def keep_bounds(self):
        pass

    def _next(self, ids, options):
        self.asked.append([self.vocabulary.decode(ids), list(options["stop"])])
        text = self.texts.pop(0)
        return text if isinstance(text, tuple) else (text, None)

    def generate(self, prompts, **options):
        text, _ = self._next(prompts[0], options)
        return [Completion(text, [1], "stop", len(prompts[0]))]

    def stream(self, ids, **options):
        text, ended_by = self._next(ids, options)
        assert not isinstance(ended_by, int) or ended_by in options["stop_token_ids"]
        yield from (Chunk(text[i : i + 3], [1]) for i in range(0, len(text), 3))
        yield Chunk("", finish_reason="stop", stop_reason=ended_by)


def answer(llm, handler, messages=MESSAGES, **options):
    return get_chat_completion_handler(handler)(llama=llm, messages=copy.deepcopy(messages), **options)


@pytest.mark.parametrize("name", RECORDED["cases"])
def test_as_recorded(name):
    case = RECORDED["cases"][name]
    llm = Scripted(case["texts"], 1 if name.startswith("v1") else 2)
    # what is recorded leaves results of tools out of the prompt, and escapes texts as HTML
    messages = [m for m in MESSAGES if m["role"] != "tool" or not name.startswith("chatml")]
    (choice,) = answer(llm, case["handler"], messages, **case["options"])["choices"]
    prompts = [[html.unescape(prompt), stop] for prompt, stop in case["prompts"]]
    if len(prompts) > 2:  # with the stop that tells one more call
        assert llm.asked.pop()[0] == prompts.pop()[0]
    assert llm.asked == prompts
    message = choice["message"]
    for call in message.get("tool_calls", []):
        call["id"] = call["id"] if case["handler"] == "functionary" else "x"
    if "function_call" in message:  # whose name is recorded as that of the call that doesn't follow
        case["message"]["function_call"]["name"] = "weather"
    assert message == case["message"]
    assert choice["finish_reason"] == case["finish_reason"]


def summed(chunks):
    """Content and calls of a stream, and why it ended."""
    content, calls = "", []
    for chunk in chunks:
        (choice,) = chunk["choices"]
        delta = choice["delta"]
        content += delta.get("content") or ""
        for piece in delta.get("tool_calls") or ():
            if piece["function"]["name"]:
                calls.append([piece["index"], piece["id"], piece["function"]["name"], ""])
            assert piece["id"] == calls[-1][1]
            calls[-1][3] += piece["function"]["arguments"]
    return content, [(index, name, arguments) for index, _, name, arguments in calls], choice["finish_reason"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("handler", "version", "texts", "content", "calls"),
    [
        (
            "functionary-v2",
            2,
            ["all", ("I look.\n<|from|>assistant\n", "<|recipient|>"), "weather", '{"city": "Oslo"}', ""],
            "I look.",
            [("weather", '{"city": "Oslo"}')],
        ),
        (
            "functionary-v2",
            2,  # marks that are control tokens have no text
            ["weather", '{"city": "A"}', ("\nassistant\n", 1 << 21), "ping", "{}", "", ""],
            "",
            [("weather", '{"city": "A"}'), ("ping", "{}")],
        ),
        (
            "functionary-v1",
            1,
            [("I look. ", "<|START_OF_FUNCTION_CALL|>"), "weather", '{"city": "Oslo"}'],
            "I look. ",
            [("weather", '{"city": "Oslo"}')],
        ),
        ("functionary-v1", 1, ["Sunny.\nIt is."], "Sunny.\nIt is.", []),
        ("functionary-v2", 2, ["all", "One\nassistants\n<two"], "One\nassistants\n<two", []),
        (
            "chatml-function-calling",
            2,
            ["functions.ping", "{}", "functions.weather", '{"city": "B"}', ""],
            "",
            [("ping", "{}"), ("weather", '{"city": "B"}')],
        ),
        ("functionary", 2, [" to=functions.ping:", "{}"], "", [("ping", "{}")]),
        ("functionary", 2, [":", "Sunny."], "Sunny.", []),
    ],
)
def test_turns(handler, version, texts, content, calls, stream):
    llm = Scripted(texts, version)
    found = answer(llm, handler, tools=TOOLS, tool_choice="auto", stream=stream)
    reason = "tool_calls" if calls else "stop"
    if stream:
        assert summed(found) == (content, [(i, *call) for i, call in enumerate(calls)], reason)
        return
    (choice,) = found["choices"]
    message = choice["message"]
    written = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", [])]
    assert (message["content"] or "", written, choice["finish_reason"]) == (content, calls, reason)


def test_tools_are_told_of_without_a_system_message():
    llm = Scripted(["message", "Hi."])
    answer(llm, "chatml-function-calling", MESSAGES[1:2], tools=TOOLS, tool_choice="auto")
    assert "functions.weather:" in llm.asked[0][0]


def test_calls_end_with_the_context():
    llm = Scripted(["functions.ping", "{}"])
    llm.n_left = 2000
    llm.prompt_ids = lambda text: [1] * (2000 if text.endswith("{}\n") else 1)
    (choice,) = answer(llm, "chatml-function-calling", tools=TOOLS, tool_choice="auto")["choices"]
    assert len(choice["message"]["tool_calls"]) == 1


@pytest.mark.parametrize(
    ("handler", "options", "match"),
    [
        ("functionary-v2", {"tools": TOOLS, "response_format": {"type": "json_object"}}, "grammar or response_format"),
        ("functionary-v2", {"logprobs": True}, "logprobs must be None"),
        ("functionary", {"tools": TOOLS, "tool_choice": "required"}, "tool_choice must be a tool"),
        ("functionary", {"messages": [{"role": "critic", "content": "x"}]}, "'critic'"),
        *(
            (handler, {"tools": tools, "tool_choice": "auto"}, match)
            for handler in ("functionary", "functionary-v2", "chatml-function-calling")
            for tools, match in (
                ([{}], r"tools\[0\]"),
                (["x"], r"tools\[0\]"),
                ([{"a": 1}], r"tools\[0\]"),
                ([{"type": "function", "function": {}}], r"tools\[0\]"),
                ([*TOOLS, {"type": "function", "function": "f"}], rf"tools\[{len(TOOLS)}\]"),
                (5, "tools must be a list"),
                ("ab", "tools must be a list"),
            )
        ),
    ],
)
def test_refused(handler, options, match):
    with pytest.raises(ConfigError, match=match):
        answer(Scripted([]), handler, **{"messages": MESSAGES, **options})


def test_versions_need_their_tokenizer():
    llm = Scripted([])
    llm.tokenizer_ = None
    with pytest.raises(ConfigError, match="LlamaHFTokenizer"):
        answer(llm, "functionary-v1")


SCHEMA = {"type": "object", "properties": {"n": {"type": "boolean"}}, "required": ["n"]}
ONE = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("handler", ["chatml-function-calling", "functionary"])
def test_a_model_calls(handler, stream):
    with llama_cpp.Llama(shipped_model(), n_ctx=1024, chat_format=handler) as model:
        choice = {"type": "function", "function": {"name": "f"}}
        messages = [{"role": "user", "content": "Tell me a story."}]
        found = model.create_chat_completion(
            messages, tools=ONE, tool_choice=choice, temperature=0, max_tokens=40, stream=stream
        )
        if stream:
            pieces = [chunk["choices"][0]["delta"].get("tool_calls") for chunk in found]
            text = "".join(piece[0]["function"]["arguments"] for piece in pieces if piece)
        else:
            text = found["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
            assert found["usage"]["completion_tokens"] > 0
        assert json.loads(text)["n"] in (True, False)
        found = model.create_chat_completion(messages, tools=ONE, tool_choice="auto", temperature=0, max_tokens=20)
        assert found["choices"][0]["finish_reason"] in ("stop", "length", "tool_calls")


def test_a_function_that_no_grammar_holds():
    """The model may choose it, and calls it with any object; by its name it can't be asked for."""
    names = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    tag = {"type": "function", "function": {"name": "tag", "parameters": {"properties": {"names": names}}}}
    form = "chatml-function-calling"
    with llama_cpp.Llama(shipped_model(), n_ctx=512, seed=1, verbose=False, chat_format=form) as model:
        options = {"messages": [{"role": "user", "content": "hi"}], "tools": [tag], "max_tokens": 4}
        assert model.create_chat_completion(**options, tool_choice="auto")["choices"]
        with pytest.raises(GrammarError, match="uniqueItems"):
            model.create_chat_completion(**options, tool_choice={"type": "function", "function": {"name": "tag"}})
    assert _arguments(tag["function"], asked=False).constraint == {"json_schema": '{"type": "object"}'}
    with pytest.raises(GrammarError, match="uniqueItems"):
        _arguments(tag["function"], asked=True)
