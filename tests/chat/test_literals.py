"""Texts of control tokens in messages, which stay text in the prompt."""

import json
from pathlib import Path

import pytest

import oxillama as ox
from oxillama.chat.literals import marking_of
from tests.chat.shapes import CALLS

RECORDED = json.loads((Path(__file__).parent / "data" / "templates.json").read_text(encoding="utf-8"))
END = "<|end|>"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "description": END}}}


@pytest.fixture(scope="module")
def engine():
    with ox.load(num_threads=1) as engine:
        yield engine


def ids_of(engine, text, role="user", source=None, **options):
    return engine.chat_tokens([{"role": role, "content": text}], chat_template=source, **options)


@pytest.mark.parametrize("case", RECORDED, ids=[case["name"] for case in RECORDED])
def test_the_end_of_a_turn_is_text_in_a_message(engine, case):
    end = engine.tokenizer.token_to_id(END)
    source = case["template"]
    plain, said = (ids_of(engine, text, source=source) for text in ("ab", f"a{END}b"))
    assert said.count(end) == plain.count(end)
    assert len(said) >= len(plain) + 3
    assert END in engine.tokenizer.decode(said)


def test_ids_are_those_of_the_text(engine):
    """What the template writes is read as control tokens, and what the user wrote as if there were none."""
    tokenizer, source = engine.tokenizer, "<|user|>\n{{ messages[0].content }}<|end|>"
    text = f"one {END}{END} two <|user|>\n<|begin|> three"
    expected = tokenizer.encode("<|user|>", False, True) + tokenizer.encode("\n" + text, False)
    expected += tokenizer.encode(END, False, True)
    assert ids_of(engine, text, source=source)[1:] == expected
    assert engine.detokenize(ids_of(engine, text, source=source)[1:]) == f"<|user|>\n{text}<|end|>"


def test_prompts_without_such_text_are_as_they_were(engine):
    template = engine.tokenizer.template()
    for text in ("hello", "<|en", "<| end |>", "\ue000", ""):
        rendered = template.render([{"role": "user", "content": text}])
        assert ids_of(engine, text) == engine.tokenizer.encode(rendered, False, True)


def test_marks_are_characters_that_stand_nowhere(engine):
    used = "".join(map(chr, range(0xE000, 0xE0FF)))
    assert engine.detokenize(ids_of(engine, used + END, source="{{ messages[0].content }}")[1:]) == used + END
    every = "".join(map(chr, range(0xE000, 0xF900)))
    assert marking_of([every + END], [END], "") is None


def test_tools_calls_and_variables_too(engine):
    source = CALLS + "{% for t in tools %}{{ t | tojson(ensure_ascii=true) }}{% endfor %}{{ documents[0].text }}"
    arguments = {"at": END, END: ["x"]}
    call = {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": json.dumps(arguments)}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": END}]},
        {"role": "assistant", "content": END, "tool_calls": [call]},
        {"role": "tool", "content": END, "name": END},
    ]
    options = {"tools": [TOOL], "chat_template": source, "template_kwargs": {"documents": [{"text": END}]}}
    ids = engine.chat_tokens(messages, **options)
    assert engine.tokenizer.token_to_id(END) not in ids
    template = ox.ChatTemplate(source)
    text = template.render(messages, tools=[TOOL], documents=[{"text": END}])
    assert engine.detokenize(ids).removeprefix("<|begin|>") == text
    assert text.count(END) == 8


def test_markers_at_which_a_template_cuts_answers_stay(engine):
    """And no other, also if the template names it."""
    user = engine.tokenizer.token_to_id("<|user|>")
    source = (
        "{% for m in messages %}<|user|>{{ m.content.split('<|begin|>')[-1] if m.role == 'assistant' else m.content }}"
        "{% endfor %}"
    )
    messages = [
        {"role": "user", "content": "a<|begin|>b<|user|>"},
        {"role": "assistant", "content": "c<|begin|>d<|user|>"},
    ]
    ids = engine.chat_tokens(messages, chat_template=source)
    assert engine.detokenize(ids) == "<|begin|><|user|>a<|begin|>b<|user|><|user|>d<|user|>"
    assert ids.count(user) == 2
    assert ids.count(engine.tokenizer.bos_id) == 1


def test_long_prompts_are_counted_without_marks():
    with ox.load(num_threads=1, context_size=64) as engine:
        source = "{{ messages[0].content }}"
        text = END + " word" * 2000
        with pytest.raises(ox.ContextOverflowError):
            engine.chat([{"role": "user", "content": text}], chat_template=source)
        fits = END * 6
        assert engine.chat([{"role": "user", "content": fits}], chat_template=source, max_tokens=1).text is not None


def test_a_message_that_contains_itself(engine):
    message = {"role": "user", "content": END}
    message["self"] = message
    with pytest.raises(ox.ChatTemplateError, match="contains itself"):
        engine.chat([message], max_tokens=1)
