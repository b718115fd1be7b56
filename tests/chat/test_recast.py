"""Conversations that a template refuses, in other forms that it takes."""

import pytest

from oxillama.chat import ChatTemplate
from oxillama.chat.format import ChatFormat
from oxillama.chat.recast import recasts
from oxillama.errors import ChatTemplateError, MessageError
from tests.chat.shapes import CALLS

USER = {"role": "user", "content": "hello"}
AGAIN = {"role": "user", "content": "again"}
ANSWER = {"role": "assistant", "content": "so"}
SYSTEM = {"role": "system", "content": "careful"}
PARTS = [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]


def call(id="call00001", name="look", arguments=None):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments or {}}}


def called(*calls, **fields):
    return {"role": "assistant", "content": "", "tool_calls": list(calls or [call()])} | fields


def result(text="sunny", id="call00001"):
    return {"role": "tool", "content": text, "tool_call_id": id}


# Rules of published templates, each before CALLS: turns that calls and results don't count in (Mistral), one call at a
# time (Llama 3.1), results behind a call alone (gpt-oss, MiniMax), answers with words (Ministral), systems at the
# beginning (Qwen 3.5).
TURNS = (
    "{% set ns = namespace(n=0) %}"
    "{% for m in messages if m.role != 'system' and m.role != 'tool' and not m.tool_calls %}"
    "{% if (m.role == 'user') != (ns.n % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}"
    "{% set ns.n = ns.n + 1 %}{% endfor %}" + CALLS
)
ONE_CALL = (
    "{% for m in messages if m.tool_calls %}{% if m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}"
    "{% endfor %}" + CALLS
)
BEHIND_CALLS = (
    "{% for m in messages %}{% set before = messages[loop.index0 - 1] if loop.index0 else {} %}"
    "{% if m.role == 'tool' and before.role != 'tool' and not before.tool_calls %}{{ raise_exception('no call') }}"
    "{% endif %}{% endfor %}" + CALLS
)
WORDS = (
    "{% for m in messages if m.role == 'assistant' %}{% if not m.content and not m.tool_calls %}"
    "{{ raise_exception('words') }}{% endif %}{% endfor %}"
)
SYSTEM_FIRST = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('first') }}{% endif %}"
    "{% endfor %}" + CALLS
)
# As those of models that know no tools.
NO_TOOLS = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}"
    "{% endif %}<{{ m.role[0] }}>{{ m.content }}</{{ m.role[0] }}>{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)
RESULT = "<tool_response>\nsunny\n</tool_response>"
CALLED = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize(("messages", "expected"), [
    ([USER, called(), result(), AGAIN],
     "<u>hello</u><a>(call00001:look:{})</a><t call00001 look>sunny</t><a></a><u>again</u><a>"),
    ([USER, called(), AGAIN], "<u>hello</u><a>(call00001:look:{})</a><a></a><u>again</u><a>"),
    ([USER, AGAIN], "<u>hello\nagain</u><a>"),
    ([USER, AGAIN | {"content": PARTS}], "<u>hello\nx\ny</u><a>"),
    ([USER, ANSWER, ANSWER, AGAIN], "<u>hello</u><a>so\nso</a><u>again</u><a>"),
    ([USER, ANSWER | {"content": ""}, ANSWER, AGAIN], "<u>hello</u><a>so</a><u>again</u><a>"),
    ([SYSTEM, USER, SYSTEM, AGAIN], "<s>careful</s><u>hello\n<system>\ncareful\n</system>\nagain</u><a>"),
    ([USER, result(), AGAIN], f"<u>hello\n{RESULT}\nagain</u><a>"),
])  # fmt: skip
def test_turns(messages, expected):
    assert ChatTemplate(TURNS).render(messages) == expected


def test_several_calls_come_one_by_one():
    both = called(call(), call("call00002", "hear"), content="I try.", reasoning_content="Both.")
    first, second = result("1"), result("2", "call00002")
    expected = (
        "<u>hello</u><a>I try.(call00001:look:{})</a><t call00001 look>1</t>"
        "<a>(call00002:hear:{})</a><t call00002 hear>2</t><u>again</u><a>"
    )
    bare = {"role": "tool", "content": "2"}
    for results in ([first, second], [second, first], [bare | {"content": "1"}, bare], [first, bare]):
        assert ChatTemplate(ONE_CALL).render([USER, both, *results, AGAIN]) == expected
    alone = ChatTemplate(ONE_CALL).render([USER, both, second])
    assert "(call00001:look:{})</a><a>(call00002:hear:{})</a><t call00002 hear>2</t>" in alone
    lost = ChatTemplate(ONE_CALL).render([USER, both, first, result("3", "other0000")])
    assert "<t call00001 look>1</t><a>(call00002:hear:{})</a><t other0000 hear>3</t>" in lost


def test_results_without_a_call_are_of_the_user():
    template = ChatTemplate(BEHIND_CALLS)
    assert template.render([USER, called(), result()]).endswith("<t call00001 look>sunny</t><a>")
    assert template.render([USER, result()]) == f"<u>hello</u><u>{RESULT}</u><a>"
    assert template.render([result(), USER]) == f"<u>{RESULT}</u><u>hello</u><a>"
    assert template.render([USER, ANSWER, result()]) == f"<u>hello</u><a>so</a><u>{RESULT}</u><a>"
    parts = result() | {"content": [{"type": "text", "text": "sun"}, {"type": "text", "text": "ny"}]}
    assert template.render([USER, parts]).endswith("<u><tool_response>\nsun\nny\n</tool_response></u><a>")


def test_an_answer_without_a_word():
    template = ChatTemplate(WORDS + TURNS)
    silent = ANSWER | {"content": ""}
    assert template.render([USER, silent, AGAIN]) == "<u>hello\nagain</u><a>"
    assert "</t><a> </a><u>again</u>" in template.render([USER, called(), result(), AGAIN])
    thought = silent | {"reasoning_content": "Well."}
    assert "<a></a>" in ChatTemplate(TURNS).render([USER, thought, AGAIN])  # it said something, to itself


def test_systems_in_the_middle():
    template = ChatTemplate(SYSTEM_FIRST)
    assert template.render([SYSTEM, USER, ANSWER, SYSTEM, AGAIN]) == (
        "<s>careful</s><u>hello</u><a>so</a><u><system>\ncareful\n</system>\nagain</u><a>"
    )
    assert template.render([SYSTEM, SYSTEM, USER]) == "<s>careful\ncareful</s><u>hello</u><a>"


@pytest.mark.parametrize(("messages", "expected"), [
    ([USER, called(), result(), ANSWER, AGAIN], f"<u>hello</u><a>{CALLED}</a><u>{RESULT}</u><a>so</a><u>again</u><a>"),
    ([USER, called(content="I look."), result(), AGAIN],
     f"<u>hello</u><a>I look.\n{CALLED}</a><u>{RESULT}\nagain</u><a>"),
    ([USER, called(call(arguments='{"a": "b')), AGAIN],
     '<u>hello</u><a><tool_call>\n{"name": "look", "arguments": {"a": "b}\n</tool_call></a><u>again</u><a>'),
    ([USER, called(call(name='a "b"')), result()],
     "<u>hello</u><a>" + CALLED.replace("look", r"a \"b\"") + f"</a><u>{RESULT}</u><a>"),
    ([SYSTEM, USER, called(), result(), result("2")],
     f"<u>careful\nhello</u><a>{CALLED}</a><u>{RESULT}\n{RESULT.replace('sunny', '2')}</u><a>"),
])  # fmt: skip
def test_calls_are_text_where_a_template_knows_none(messages, expected):
    assert ChatTemplate(NO_TOOLS).render(messages) == expected


def test_what_no_form_helps_is_refused_as_it_was():
    """The error is that of the messages as they came."""
    with pytest.raises(ChatTemplateError, match="alternate"):
        ChatTemplate(NO_TOOLS).render([ANSWER, USER, called(), result()])
    with pytest.raises(MessageError, match=r"^messages\[3\] is not in the prompt: .* 'critic'"):
        ChatTemplate(CALLS).render([USER, called(), result(), {"role": "critic", "content": "c"}])


def test_what_a_template_takes_stays_as_it_is():
    messages = [USER, AGAIN, called(), called(), result(), ANSWER | {"content": ""}, ANSWER, SYSTEM, AGAIN]
    expected = (
        "<u>hello</u><u>again</u><a>(call00001:look:{})</a><a>(call00001:look:{})</a><t call00001 look>sunny</t>"
        "<a></a><a>so</a><s>careful</s><u>again</u><a>"
    )
    assert ChatTemplate(CALLS).render(messages) == expected


def test_forms_lose_nothing_and_none_comes_twice():
    messages = [
        SYSTEM, USER, AGAIN, called(call(arguments='{"q'), call("call00002", "hear")), result(), result("x", "lost"),
        SYSTEM | {"content": "kind"}, called(content="I say."), AGAIN | {"content": "third"}, result("late"), ANSWER,
    ]  # fmt: skip
    before = repr(messages)
    forms = list(recasts(messages))
    assert len(forms) == 9
    assert all(form not in forms[:i] for i, form in enumerate(forms))
    for form in forms:
        said = repr(form)
        for word in ("careful", "hello", "again", '{"q', "hear", "sunny", "kind", "I say.", "third", "late", "so"):
            assert word in said
    assert repr(messages) == before
    assert list(recasts([USER])) == []


def test_long_conversations_are_tried_in_linear_time():
    """A template that refuses everything is asked once for each form."""
    source = "{% if messages | length > 9 %}{{ raise_exception('long') }}{% endif %}" + CALLS
    template = ChatTemplate(source)
    messages = [SYSTEM, USER, called(call(), call("call00002")), result(), result("", "call00002"), AGAIN]
    template.render([*messages, SYSTEM, AGAIN])
    asked = []
    output = template._output
    template._output = lambda variables: asked.append(len(variables["messages"])) or output(variables)
    with pytest.raises(ChatTemplateError, match="long"):
        template.render(messages * 300)
    assert len(asked) <= 10


def test_formats_are_found_as_before():
    """A template's refusals tell how its model writes calls: the forms are for conversations alone."""
    assert ChatFormat.of_template(NO_TOOLS).calls is None
    assert ChatFormat.of_template(ONE_CALL).calls is not None


def test_continued_answers_in_other_forms():
    messages = [USER, called(), result(), AGAIN, ANSWER]
    text = ChatTemplate(TURNS).render(messages, continue_final_message=True)
    assert text.endswith("</t><a></a><u>again</u><a>so")
    assert ChatTemplate(NO_TOOLS).render(messages, continue_final_message=True).endswith(f"{RESULT}\nagain</u><a>so")
