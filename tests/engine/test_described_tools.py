"""Tools that the chat template does not show, through the engine: described in the prompt, and called in JSON."""

import pickle

import pytest

import oxillama as ox
from oxillama._util.json_fields import Fields
from oxillama.core.answer_options import read_tool_use, tools_state
from tests.fakes import assert_idle

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9}}, "required": ["a"]}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": SCHEMA | {"additionalProperties": False}}}]
ASK = [{"role": "user", "content": "How much is 1 and 2?"}]
PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
THINKS = PLAIN.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}")
RANDOM = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
NOTE = "the chat template shows no tools: they are described in a system message, and calls are JSON"


@pytest.fixture(scope="module")
def engine():
    with ox.load(num_threads=1) as engine:
        yield engine
        assert_idle(engine)


@pytest.mark.parametrize("source", [None, PLAIN])
def test_required_calls(engine, source):
    """The shipped model's own template shows none either."""
    for seed in range(3):
        options = {
            "tools": TOOLS,
            "tool_choice": "add",
            "chat_template": source,
            "seed": seed,
            "max_tokens": 60,
            **RANDOM,
        }
        answer = engine.chat(ASK, **options)
        (call,) = answer.tool_calls
        assert (answer.text, call.name, list(call.arguments)) == ("", "add", ["a"])
        assert call.arguments["a"] <= 9
        chunks = list(engine.chat(ASK, stream=True, **options))
        assert [call for chunk in chunks for call in chunk.tool_calls] == [call]
        pieces = [delta.arguments for chunk in chunks for delta in chunk.tool_call_deltas]
        assert len([piece for piece in pieces if piece]) > 1  # as they are written


@pytest.mark.parametrize("text", [
    'So:\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
    '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n'
    '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>',
])  # fmt: skip
def test_calls_that_the_model_chooses(engine, text):
    """A conversation of two steps: the call stands in the next prompt as it was written."""
    grammar = "root ::= " + '"' + text.replace('"', '\\"').replace("\n", "\\n") + '"'
    answer = engine.chat(ASK, tools=TOOLS, chat_template=PLAIN, grammar=grammar)
    assert answer.text == ("So:\n" if text.startswith("So") else "")
    results = [{"role": "tool", "tool_call_id": call.id, "content": "3"} for call in answer.tool_calls]
    said = [*ASK, answer.message, *results]
    prompt = engine.detokenize(engine.chat_tokens(said, tools=TOOLS, chat_template=PLAIN))
    first = engine.detokenize(engine.chat_tokens(ASK, tools=TOOLS, chat_template=PLAIN))
    returned = "\n".join(["<tool_response>\n3\n</tool_response>"] * len(results))
    assert prompt == f"{first.removesuffix('<assistant>')}<assistant>{text}<user>{returned}<assistant>"
    again = engine.chat(said, tools=TOOLS, chat_template=PLAIN, tool_choice="required", max_tokens=30, seed=1)
    assert again.tool_calls[0].id == f"call0000{len(results)}"


def test_the_grammar_waits_for_a_call(engine):
    use = ox.ToolUse("generic", tools=TOOLS)
    grammar, triggers, _ = use.grammar(engine.tokenizer)
    assert triggers == ("<tool_call>",)
    assert grammar.accepts('<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>')
    assert not grammar.accepts('<tool_call>\n{"name": "add", "arguments": {"a": 10}}\n</tool_call>')
    assert not grammar.accepts('<tool_call>\n{"name": "sub", "arguments": {"a": 1}}\n</tool_call>')


def test_results_say_it(engine):
    """As the server's header does."""
    answer = engine.chat(ASK, tools=TOOLS, chat_template=PLAIN, max_tokens=2)
    assert answer.warnings == [NOTE]
    assert engine.chat(ASK, tools=TOOLS, chat_template=PLAIN, max_tokens=2, tool_format="generic").warnings == []


def test_reasoning_stays_that_of_the_template(engine):
    grammar = r'root ::= "<think>Hm.</think><tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>"'
    answer = engine.chat(ASK, tools=TOOLS, chat_template=THINKS, grammar=grammar, reasoning="none")
    assert answer.text == "<think>Hm.</think>"
    assert [call.arguments for call in answer.tool_calls] == [{"a": 1}]
    required = engine.chat(ASK, tools=TOOLS, chat_template=THINKS, tool_choice="required", max_tokens=60, seed=1)
    assert required.text == ""


def test_formats(engine):
    """A named one is shown too, "text" shows nothing, "none" refuses."""
    own = len(engine.chat_tokens(ASK))
    for form in (
        "mistral",
        "llama3",
        "generic",
        ox.ToolFormat("<a>"),
        ox.ChatFormat.of_template(PLAIN).with_generic_calls,
    ):
        answer = engine.chat(ASK, tools=TOOLS, tool_format=form, tool_choice="add", max_tokens=60, seed=1)
        assert [call.name for call in answer.tool_calls] == ["add"]
        assert answer.prompt_tokens > own + 60
    assert engine.chat(ASK, tools=TOOLS, tool_format="text", max_tokens=1).prompt_tokens == own
    with pytest.raises(ox.ToolFormatError, match=r"give tool_format= one of .*'generic', a ToolFormat, or 'text'"):
        engine.chat(ASK, tools=TOOLS, tool_format="none")
    assert engine.chat(ASK, tools=TOOLS, tool_choice="none", max_tokens=1).prompt_tokens == own


def test_control_tokens_in_descriptions_stay_text(engine):
    tool = {"type": "function", "function": {"name": "add", "description": "Adds.<|user|>", "parameters": SCHEMA}}
    plain = [TOOLS[0] | {"function": TOOLS[0]["function"] | {"description": "Adds."}}]
    user = engine.tokenizer.token_to_id("<|user|>")
    assert engine.tokenizer.is_special(user)
    counts = [engine.chat_tokens(ASK, tools=tools).count(user) for tools in ([tool], plain)]
    assert counts[0] == counts[1] > 0
    assert "Adds.<|user|>" in engine.detokenize(engine.chat_tokens(ASK, tools=[tool]))


def test_an_answer_goes_on_from_its_beginning(engine):
    begun = [*ASK, {"role": "assistant", "content": "It is"}]
    options = {"tools": TOOLS, "chat_template": PLAIN, "continue_final_message": True}
    assert engine.detokenize(engine.chat_tokens(begun, **options)).endswith("<assistant>It is")
    assert engine.chat(begun, max_tokens=2, seed=1, **options).token_ids


def test_uses_are_saved(engine):
    """The format as its template with a word, which older kinds of uses don't have."""
    form = ox.ChatFormat.of_template(PLAIN).with_generic_calls
    for made in (form, form.without_calls):
        use = ox.ToolUse(made, 3, TOOLS if made is form else None, note=NOTE)
        state = tools_state(use)
        words = ["generic"] if made is form else ["generic", "text"]
        assert state["format"] == {"template": [PLAIN, "", "", *words]}
        assert read_tool_use(Fields(state, "x"), "x") == use
        assert read_tool_use(Fields(state, "x"), "x").note == NOTE  # which results say
        assert "note" not in tools_state(ox.ToolUse(made, 3))
        assert pickle.loads(pickle.dumps(made)) == made
    stream = engine.chat(ASK, tools=TOOLS, tool_choice="add", max_tokens=60, seed=1, stream=True)
    data = stream.snapshot_bytes()
    whole = [call for chunk in stream for call in chunk.tool_calls]
    assert [call for chunk in engine.resume(data) for call in chunk.tool_calls] == whole != []
