"""Messages on their way to a prompt, in every call that takes them."""

import asyncio

import pytest

import oxillama as ox

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
