"""Prompts that end within the last message, for the model to go on from there."""

import pytest

from oxillama.chat import ChatTemplate
from oxillama.errors import ChatTemplateError, ConfigError, MessageError
from tests.chat.shapes import CALLS, OPENED, REASONS, by_role

USER = {"role": "user", "content": "hello"}
BEGUN = {"role": "assistant", "content": "It is sun"}
THINKS = {"role": "assistant", "content": "", "reasoning_content": "The user ask"}
BOTH = BEGUN | {"reasoning": "I know."}


@pytest.mark.parametrize("wanted", [True, "content"])
@pytest.mark.parametrize("text", ["It is sun", "It is ", "", "a </a> b", "oxmark", "\n\nIt is\n"])
def test_the_prompt_ends_with_the_text(wanted, text):
    messages = [USER, BEGUN | {"content": text}]
    assert ChatTemplate(CALLS).render(messages, continue_final_message=wanted) == f"<u>hello</u><a>{text}"
    parts = [{"type": "text", "text": "x"}, {"type": "text", "text": text}]
    messages[1] = BEGUN | {"content": parts}
    assert ChatTemplate(CALLS).render(messages, continue_final_message=wanted) == f"<u>hello</u><a>x\n{text}"


def test_space_at_the_end_stays_where_a_template_trims():
    """A token of it would be lost otherwise; that at the beginning is the template's."""
    template = ChatTemplate("{% for m in messages %}<{{ m.role[0] }}>{{ m.content | trim }}</>{% endfor %}")
    begun = BEGUN | {"content": " It is "}
    assert template.render([USER, begun], continue_final_message=True) == "<u>hello</><a>It is "


@pytest.mark.parametrize("wanted", [True, "reasoning", "reasoning_content", "thinking"])
def test_reasoning_is_gone_on_with(wanted):
    for name in ("reasoning_content", "reasoning", "thinking"):
        template = ChatTemplate(REASONS(name))
        found = template.render([USER, THINKS], continue_final_message=wanted)
        assert found == "<u>hello</u><a><think>The user ask"
        assert template.render([USER, BOTH], continue_final_message=True) == (
            "<u>hello</u><a><think>I know.</think>It is sun"
        )


def test_reasoning_that_answers_of_the_history_lack_stands_as_it_does_beside_calls():
    beside_calls = REASONS("reasoning_content").replace("loop.index > ns.last", "m.tool_calls")
    template = ChatTemplate(beside_calls)
    assert template.render([USER, BOTH]) == "<u>hello</u><a>It is sun</a><a>"
    assert template.render([USER, THINKS], continue_final_message=True) == "<u>hello</u><a><think>The user ask"
    assert template.render([USER, BOTH], continue_final_message=True) == (
        "<u>hello</u><a><think>I know.</think>It is sun"
    )
    calls_first = beside_calls.replace(
        "{{ m.content }}{% for c in m.tool_calls or [] %}({{ c.function.name }}){% endfor %}",
        "{% for c in m.tool_calls or [] %}({{ c.function.name }}){% endfor %}{{ m.content }}",
    )
    assert calls_first != beside_calls
    assert ChatTemplate(calls_first).render([USER, BOTH], continue_final_message=True) == (
        "<u>hello</u><a><think>I know.</think>It is sun"
    )


def test_reasoning_goes_on_where_the_generation_prompt_opens_it():
    template = ChatTemplate(OPENED)
    assert template.render([USER]) == "<u>hello</u><a><think>\n"
    assert template.render([USER, THINKS], continue_final_message=True) == "<u>hello</u><a><think>\nThe user ask"
    found = template.render([USER, BOTH], continue_final_message=True)
    assert found == "<u>hello</u><a><think>\nI know.</think>It is sun"
    assert template.render([USER, BEGUN], continue_final_message=True) == "<u>hello</u><a>It is sun"


def test_a_template_without_a_place_for_reasoning():
    with pytest.raises(ChatTemplateError, match=r"doesn't print messages\[1\]\.reasoning_content"):
        ChatTemplate(CALLS).render([USER, THINKS], continue_final_message=True)
    upper = by_role(user="<u>{{ m.content }}", assistant="<a>{{ m.content | reverse }}")
    with pytest.raises(ChatTemplateError, match=r"doesn't print messages\[1\]\.content"):
        ChatTemplate(upper).render([USER, BEGUN], continue_final_message=True)


def test_the_variable_of_templates_that_read_it():
    source = (
        "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{% if not loop.last or not continue_final_message %}</>"
    )
    template = ChatTemplate(source + "{% endif %}{% endfor %}")
    assert template.render([USER, BEGUN], continue_final_message=True) == "<u>hello</><a>It is sun"
    assert template.render([USER, BEGUN]) == "<u>hello</><a>It is sun</>"


@pytest.mark.parametrize(("messages", "wanted", "why"), [
    ([USER], True, r"^messages\[0\]\.role must be 'assistant'"),
    ([USER, BEGUN, USER], "content", r"^messages\[2\]\.role must be 'assistant'"),
    ([USER, BEGUN | {"tool_calls": [{"function": {"name": "f"}}]}], True, r"^messages\[1\] has tool_calls"),
    ([USER, BOTH], "reasoning", r"^messages\[1\] has a content"),
    ([USER, BEGUN | {"content": ""}], "thinking", r"^messages\[1\] has no reasoning"),
])  # fmt: skip
def test_messages_that_can_not_be_gone_on_with(messages, wanted, why):
    with pytest.raises(MessageError, match=why):
        ChatTemplate(CALLS).render(messages, continue_final_message=wanted)


@pytest.mark.parametrize("wanted", ["text", 1, 0, [], "", {}])
def test_other_values(wanted):
    with pytest.raises(ConfigError, match="continue_final_message must be True, False or one of 'content'"):
        ChatTemplate(CALLS).render([USER, BEGUN], continue_final_message=wanted)


def test_both_ways_to_end_a_prompt():
    template = ChatTemplate(CALLS)
    with pytest.raises(ConfigError, match="add_generation_prompt and continue_final_message are both given"):
        template.render([USER, BEGUN], continue_final_message=True, add_generation_prompt=True)
    found = template.render([USER, BEGUN], continue_final_message=True, add_generation_prompt=False)
    assert found == template.render([USER, BEGUN], continue_final_message=True)


def test_a_message_before_it_that_is_left_out():
    with pytest.raises(MessageError, match=r"^messages\[0\] is not in the prompt"):
        ChatTemplate(CALLS).render([{"role": "critic", "content": "x"}, USER, BEGUN], continue_final_message=True)


def test_the_end_that_an_answer_goes_on_from():
    for source, said in (CALLS, "<a>"), (OPENED, "<a><think>\n"), ("{{ messages[0].content }}", ""):
        assert ChatTemplate(source).generation_prompt([USER]) == said
        assert ChatTemplate(source).generation_prompt([USER], add_generation_prompt=False) == ""
    template = ChatTemplate(REASONS("reasoning"))
    assert template.generation_prompt([USER, BOTH, USER]) == "<a>"
    said = template.generation_prompt([USER, BOTH], continue_final_message=True)
    assert said == "<a><think>I know.</think>It is sun"
    assert template.generation_prompt([BEGUN], continue_final_message=True) == "<a>It is sun"
    switch = CALLS + "{% if not enable_thinking %}</think>{% endif %}"
    assert ChatTemplate(switch).generation_prompt([USER], enable_thinking=True) == "<a>"
