"""Variables of templates: which they read, and what callers give them."""

import datetime
import json

import pytest

from oxillama.chat import ChatTemplate
from oxillama.errors import ChatTemplateError, ConfigError, TemplateVariableError

USER = [{"role": "user", "content": "hello"}]
SAYS = "{{ messages[0].content }}"


def test_variables_that_a_template_reads():
    source = SAYS + "{% set a = 1 %}{{ a }}{{ b }}{% if c is defined %}{% set d = 2 %}{% endif %}{{ d }}{{ range(2) }}"
    assert ChatTemplate(source).variables == {"messages", "b", "c", "d"}


def test_a_name_that_it_does_not_read_is_an_error_that_lists_those_it_does():
    template = ChatTemplate(SAYS + "{{ enable_thinking }}{{ documents }}{{ bos_token }}{{ add_generation_prompt }}")
    with pytest.raises(TemplateVariableError) as caught:
        template.render(USER, enable_thinkin=False)
    text = "the chat template reads no variable 'enable_thinkin'; it reads documents, enable_thinking"
    assert str(caught.value) == text
    assert isinstance(caught.value, ConfigError)
    assert isinstance(caught.value, ChatTemplateError)
    assert template.render(USER, enable_thinking=False) == "helloFalseTrue"
    with pytest.raises(TemplateVariableError, match="it reads none"):
        ChatTemplate(SAYS).render(USER, enable_thinking=True)


@pytest.mark.parametrize("name", ["reasoning_effort", "thinking_effort", "reasoning_strength"])
def test_reasoning_effort_goes_to_the_variable_that_a_template_has_for_it(name):
    assert ChatTemplate(SAYS + "{{ " + name + " }}").render(USER, reasoning_effort="high") == "hellohigh"


@pytest.mark.parametrize("effort", ["", 3, True, ["high"]])
def test_efforts_of_another_form(effort):
    with pytest.raises(ConfigError, match="reasoning_effort must be a string"):
        ChatTemplate(SAYS + "{{ reasoning_effort }}").render(USER, reasoning_effort=effort)


def test_an_effort_that_no_variable_takes():
    with pytest.raises(TemplateVariableError, match="no variable 'reasoning_effort'; it reads x"):
        ChatTemplate(SAYS + "{{ x }}").render(USER, reasoning_effort="low")


@pytest.mark.parametrize(("test", "on", "off"), [
    ("enable_thinking is defined and not enable_thinking", {"enable_thinking": True}, {"enable_thinking": False}),
    ("not thinking", {"thinking": True}, {"thinking": False}),
    ("thinking_mode == 'disabled'", {"thinking_mode": "enabled"}, {"thinking_mode": "disabled"}),
    ("thinking_budget is defined and thinking_budget == 0", {}, {"thinking_budget": 0}),
    ("reasoning_effort == 'none'", {}, {"reasoning_effort": "none"}),
    ("(enable_thinking or true) and thinking == false", {"thinking": True}, {"thinking": False}),
])  # fmt: skip
def test_the_variable_that_lets_a_model_think(test, on, off):
    template = ChatTemplate(SAYS + "{% if " + test + " %}<think></think>{% endif %}")
    assert (template.thinking(True), template.thinking(False)) == (on, off)
    assert template.render(USER, **template.thinking(False)) == "hello<think></think>"


def test_a_template_without_such_a_variable():
    for source in (SAYS, SAYS + "{{ enable_thinking if false }}"):
        with pytest.raises(TemplateVariableError, match="lets the model think"):
            ChatTemplate(source).thinking(False)
    with pytest.raises(ConfigError, match="on must be"):
        ChatTemplate(SAYS).thinking(1)


def test_time():
    moment = datetime.datetime(2026, 1, 15, 12)
    template = ChatTemplate(SAYS + "{{ strftime_now(' %Y-%m-%d %H') }}")
    assert template.render(USER, now=moment) == "hello 2026-01-15 12"
    assert template.render(USER)[:8] == f"hello {datetime.datetime.now():%Y}"[:8]
    with pytest.raises(ConfigError, match="now must be"):
        template.render(USER, now="2026-01-15")


@pytest.mark.parametrize("value", [None, 0, 1, "yes", []])
def test_add_generation_prompt_is_a_bool(value):
    if value is None:
        assert (
            ChatTemplate(SAYS + "{{ add_generation_prompt }}").render(USER, add_generation_prompt=None) == "helloTrue"
        )
        return
    with pytest.raises(ConfigError, match="add_generation_prompt must be"):
        ChatTemplate(SAYS).render(USER, add_generation_prompt=value)


_TURNS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
NEEDY = "{{ 'Today is ' + datetime + '. Functions: ' + functions }}" + _TURNS


def test_functions_and_the_date_are_given_to_a_template_that_needs_them():
    template = ChatTemplate(NEEDY)
    now = datetime.datetime(2026, 1, 15)
    user = [{"role": "user", "content": "Hi"}]
    assert template.render(user, now=now) == "Today is Jan 15 2026. Functions: <user>Hi"
    tools = [{"type": "function", "function": {"name": "é", "parameters": {}}}]
    text = template.render(user, tools=tools, now=now)
    assert json.loads(text[text.index("[") : text.index("<user>")]) == tools
    assert (
        template.render(user, tools=tools, functions="none", datetime="now") == "Today is now. Functions: none<user>Hi"
    )
    # one that has tools itself, and asks whether there are functions
    other = ChatTemplate(
        "{% if functions is defined %}{{ datetime }}{% endif %}{{ tools }}" + NEEDY[NEEDY.index("{% for") :]
    )
    assert "Functions" not in other.render(user, tools=tools, now=now)
    assert "Jan" not in other.render(user, tools=tools, now=now)
