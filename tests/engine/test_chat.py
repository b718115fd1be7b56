"""Messages on their way to a prompt, in every call that takes them."""

import asyncio
import json

import pytest

import oxillama as ox
from tests.chat.shapes import calls_as

PLAIN = [
    {"role": "system", "content": "Be kind.\nBe short."},
    {"role": "user", "content": "What is 2 + 3?"},
    {"role": "assistant", "content": "5"},
    {"role": "user", "content": "And\n4 + 4?"},
]
PARTS = [m | {"content": [{"type": "text", "text": line} for line in m["content"].split("\n")]} for m in PLAIN]
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]}]
ONLY_PARTS = "{% for m in messages %}{{ m.role }}:{% for p in m.content %}{{ p.text }}\n{% endfor %}{% endfor %}"


@pytest.fixture(scope="module")
def engine():
    with ox.load(num_threads=1) as engine:
        yield engine


def test_parts_give_the_prompt_of_their_text(engine):
    assert engine.chat_tokens(PARTS) == engine.chat_tokens(PLAIN)
    answers = [engine.chat(m, max_tokens=8, seed=1) for m in (PARTS, PLAIN)]
    assert answers[0].token_ids == answers[1].token_ids
    chunks = engine.chat(PARTS, max_tokens=8, seed=1, stream=True)
    assert "".join(chunk.text for chunk in chunks) == answers[0].text


def test_coroutines_take_parts_too(engine):
    async def ask(messages):
        return await ox.AsyncEngine(engine).chat(messages, max_tokens=8, seed=1)

    assert asyncio.run(ask(PARTS)).token_ids == asyncio.run(ask(PLAIN)).token_ids
    with pytest.raises(ox.MessageError, match=r"messages\[0\]\.content\[0\]\.type"):
        asyncio.run(ask(IMAGE))


def test_a_speculative_engine_takes_parts_too(engine):
    with ox.SpeculativeEngine(engine, "lookup") as guessing:
        assert guessing.chat(PARTS, max_tokens=8, seed=1).text == engine.chat(PLAIN, max_tokens=8, seed=1).text
        with pytest.raises(ox.MessageError, match=r"messages\[0\]\.content\[0\]\.type"):
            guessing.chat(IMAGE)


def test_a_template_of_ones_own_that_prints_only_parts(engine):
    prompts = [engine.detokenize(engine.chat_tokens(m, chat_template=ONLY_PARTS)) for m in (PLAIN, PARTS)]
    assert [text for text in prompts if "user:And\n4 + 4?\n" not in text] == []


@pytest.mark.parametrize("chat_template", [None, "{{ messages[0].content }}", ONLY_PARTS, "{% broken"])
def test_other_parts_are_refused_before_the_template_runs(engine, chat_template):
    with pytest.raises(ox.MessageError, match=r"messages\[0\]\.content\[0\]\.type must be 'text', not str 'image_url'"):
        engine.chat(IMAGE, chat_template=chat_template)


# ---- how the prompt is made

THINKS = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% if not enable_thinking %}</think>{% endif %}"
    "{{ reasoning_effort }}{% endif %}"
)
TOOLS = [{"type": "function", "function": {"name": "look", "description": "d", "parameters": {"type": "object"}}}]


def prompt(engine, messages=PLAIN, **options):
    return engine.detokenize(engine.chat_tokens(messages, **options)).removeprefix("<|begin|>")


def test_options_of_the_template(engine):
    options = {"chat_template": THINKS, "template_kwargs": {"enable_thinking": True}, "reasoning_effort": "low"}
    assert prompt(engine, **options).endswith("[user]And\n4 + 4?[assistant]low")
    assert prompt(engine, **options | {"template_kwargs": None}).endswith("[assistant]</think>low")
    kwargs = {"enable_thinking": True, "reasoning_effort": "high"}
    assert prompt(engine, chat_template=THINKS, template_kwargs=kwargs).endswith("[assistant]high")
    assert prompt(engine, **options, add_generation_prompt=False).endswith("[user]And\n4 + 4?")
    begun = [*PLAIN, {"role": "assistant", "content": "It is "}]
    assert prompt(engine, begun, chat_template=THINKS, continue_final_message=True).endswith("[assistant]It is ")


def test_chat_makes_the_prompt_that_chat_tokens_gives(engine):
    begun = [*PLAIN, {"role": "assistant", "content": "It is "}]
    for messages, options in [
        (PLAIN, {"chat_template": THINKS, "template_kwargs": {"enable_thinking": True}}),
        (PLAIN, {"chat_template": THINKS, "reasoning_effort": "low", "add_generation_prompt": False}),
        (begun, {"continue_final_message": "content"}),
    ]:
        expected = engine.generate(engine.chat_tokens(messages, **options), max_tokens=6, seed=1)
        assert engine.chat(messages, max_tokens=6, seed=1, **options).token_ids == expected.token_ids
        chunks = list(engine.chat(messages, max_tokens=6, seed=1, stream=True, **options))
        assert [token for chunk in chunks for token in chunk.token_ids] == expected.token_ids

        async def ask(messages=messages, options=options):
            return await ox.AsyncEngine(engine).chat(messages, max_tokens=6, seed=1, **options)

        assert asyncio.run(ask()).token_ids == expected.token_ids
        with ox.SpeculativeEngine(engine, "lookup") as guessing:
            assert guessing.chat(messages, max_tokens=6, seed=1, **options).token_ids == expected.token_ids


@pytest.mark.parametrize(("options", "error", "why"), [
    ({"template_kwargs": {"enable_thinkin": True}}, ox.TemplateVariableError, "no variable 'enable_thinkin'; it reads"),
    ({"template_kwargs": ["enable_thinking"]}, ox.ConfigError, "template_kwargs must be a dict"),
    ({"template_kwargs": {1: 2}}, ox.ConfigError, "template_kwargs must be a dict"),
    ({"template_kwargs": {"tools": []}}, ox.ConfigError, "'tools', which is no variable but an argument"),
    ({"template_kwargs": {"now": 1}}, ox.ConfigError, "'now', which is no variable but an argument"),
    ({"template_kwargs": {"reasoning_effort": "low"}, "reasoning_effort": "low"}, ox.ConfigError, "give it once"),
    ({"reasoning_effort": 3}, ox.ConfigError, "reasoning_effort must be"),
    ({"add_generation_prompt": "no"}, ox.ConfigError, "add_generation_prompt must be"),
    ({"continue_final_message": True}, ox.MessageError, r"messages\[3\]\.role must be 'assistant'"),
    ({"continue_final_message": "text"}, ox.ConfigError, "continue_final_message must be"),
])  # fmt: skip
def test_bad_options_of_the_template(engine, options, error, why):
    for call in (engine.chat, engine.chat_tokens):
        with pytest.raises(error, match=why):
            call(PLAIN, chat_template=THINKS, **options)
    with pytest.raises(TypeError, match="chat_templat"):
        engine.chat_tokens(PLAIN, chat_templat=THINKS)


def test_a_file_s_template_for_tools_is_used_for_them():
    named = {
        "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
        "tokenizer.chat_template.tool_use": "{% for t in tools %}<tool_call>{{ t.function.name }}{% endfor %}"
        "{% for m in messages %}{{ m.content }}{% endfor %}",
    }
    with ox.load(num_threads=1, overrides=named) as engine:
        assert prompt(engine, tools=TOOLS).startswith("<tool_call>lookBe kind.")
        assert prompt(engine, tools=TOOLS, chat_template=named["tokenizer.chat_template"]).startswith("Be kind.")
        for none in (None, []):
            assert prompt(engine, tools=none).startswith("Be kind.")
        asked = {"max_tokens": 4, "seed": 1, "tools": TOOLS}
        shown = engine.generate(engine.chat_tokens(PLAIN, tools=TOOLS), max_tokens=4, seed=1)
        assert engine.chat(PLAIN, **asked, tool_format="text").token_ids == shown.token_ids
        hidden = engine.generate(engine.chat_tokens(PLAIN), max_tokens=4, seed=1)
        assert engine.chat(PLAIN, **asked, tool_choice="none").token_ids == hidden.token_ids


def test_a_message_that_the_template_leaves_out_is_an_error(engine):
    source = "{% for m in messages if m.role != 'assistant' %}{{ m.content }}{% endfor %}"
    with pytest.raises(ox.MessageError, match=r"messages\[2\] is not in the prompt"):
        engine.chat(PLAIN, chat_template=source)


@pytest.mark.parametrize("arguments", ['{"a": "<|user|>', '{"<|end|>": 1, "<|end|>": 2}', "<|user|><|end|>"])
@pytest.mark.parametrize("form", ["c.function.arguments | tojson", "c.function.arguments | string"])
@pytest.mark.parametrize("refused", ["", "{% if messages[1].tool_calls %}{{ raise_exception('calls') }}{% endif %}"])
def test_control_tokens_in_calls_that_are_wrong_stay_text(engine, arguments, form, refused):
    """Whether the call is shown as it is, or as text of the answer."""
    call = {"id": "call00001", "type": "function", "function": {"name": "<|system|>", "arguments": arguments}}
    asked = {"role": "user", "content": "hi"}
    messages = [
        asked,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "<|end|>"},
    ]
    template = refused + calls_as(form)
    ids = engine.chat_tokens(messages, chat_template=template)
    assert not any(map(engine.tokenizer.is_special, ids[1:]))
    assert engine.detokenize(ids[1:]) == ox.ChatTemplate(template).render(messages)
    assert arguments in engine.detokenize(ids) or json.dumps(arguments)[1:-1] in engine.detokenize(ids)
