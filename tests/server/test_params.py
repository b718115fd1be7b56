"""Refusals name their field: also those that come from deep within a template, or while the text is written."""

import pytest

from tests.server.client import HI

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
# Read in too many ways at once, which is seen when a text is held to it.
AMBIGUOUS = "root ::= r0\n" + "\n".join(
    [*(f'r{i} ::= "b" r{i + 1} | r{i + 1} "c" | "x"' for i in range(5000)), 'r5000 ::= "a"']
)  # fmt: skip


@pytest.mark.parametrize(
    "name", ["messages", "tools", "add_generation_prompt", "continue_final_message", "now", "self"]
)
def test_arguments_are_no_variables_of_a_template(client, name):
    for path in (CHAT, "/tokenize"):
        answer = client.post(path, messages=HI, chat_template_kwargs={name: 1})
        assert (answer.status, answer.error["param"]) == (400, "chat_template_kwargs")
        assert answer.error["message"].startswith("chat_template_kwargs has")


def test_a_variable_that_is_given_twice(client):
    error = client.post(
        CHAT, messages=HI, reasoning_effort="high", chat_template_kwargs={"reasoning_effort": "low"}
    ).error
    assert error["param"] in ("reasoning_effort", "chat_template_kwargs")
    assert "in template_kwargs" not in error["message"]


def test_an_ambiguous_grammar_is_named(client):
    for path, given in ((CHAT, {"messages": HI}), (COMPLETIONS, {"prompt": "a"})):
        for field in ({"grammar": AMBIGUOUS}, {"structured_outputs": {"grammar": AMBIGUOUS}}):
            answer = client.post(path, max_tokens=3, **given, **field)
            assert answer.status == 400
            assert answer.error["param"].startswith(next(iter(field)))
