"""Content of strings and parts, in the form that a chat template prints."""

import itertools
import json
from pathlib import Path

import pytest

from oxillama.chat import ChatTemplate
from oxillama.chat.messages import PART_SEPARATOR
from oxillama.errors import ChatTemplateError

RECORDED = json.loads((Path(__file__).parent / "data" / "templates.json").read_text(encoding="utf-8"))


def text(*texts):
    return [{"type": "text", "text": one} for one in texts]


def loop(body):
    return "{% for m in messages %}[" + body + "]{% endfor %}"


PRINTS_STRINGS = {
    "plain": "{{ m.content }}",
    "added": "{{ '' + m.content }}",
    "trimmed": "{{ m['content'] | trim }}",
    "printed as JSON": "{% if m.content is string %}{{ m.content }}{% else %}{{ m.content | tojson }}{% endif %}",
    "left out": "{% if m.content is string %}{{ m.content }}{% endif %}",
    "refused": "{% if m.content is not string %}{{ raise_exception('text!') }}{% endif %}{{ m.content }}",
    "first part alone": "{{ m.content if m.content is string else m.content[0].text }}",
    "loop over its words": "{{ m.content.split(' ') | join(' ') }}",
}
PARTS = "{% for p in m.content %}{% if p.type == 'text' %}<{{ p.text }}>{% endif %}{% endfor %}"
PRINTS_BOTH = {
    "tested": "{% if m.content is string %}{{ m.content }}{% else %}" + PARTS + "{% endif %}",
    "named otherwise": "{% macro show(x) %}{% if x is string %}{{ x }}{% else %}{% for y in x %}<{{ y['text'] }}>"
    "{% endfor %}{% endif %}{% endmacro %}{{ show(m['content']) }}",
    "filters": "{{ m.content if m.content is string else '<' + m.content | map(attribute='text') | join('><') + '>' }}",
}
PRINTS_PARTS = {
    "loop": PARTS,
    "selected": "{% for p in m['content'] | selectattr('type', 'equalto', 'text') %}<{{ p['text'] }}>{% endfor %}",
}


@pytest.mark.parametrize("source", PRINTS_STRINGS.values(), ids=PRINTS_STRINGS)
def test_parts_are_joined_for_templates_that_print_strings(source):
    template = ChatTemplate(loop(source))
    messages = [{"role": "user", "content": text("How is the weather", "in Rome?")}, {"role": "user", "content": "a b"}]
    assert PART_SEPARATOR == "\n"  # as vLLM and llama.cpp join them
    assert template.render(messages) == "[How is the weather\nin Rome?][a b]"


@pytest.mark.parametrize("source", PRINTS_BOTH.values(), ids=PRINTS_BOTH)
def test_parts_stay_for_templates_that_print_both(source):
    messages = [{"role": "user", "content": text("a", "b")}, {"role": "user", "content": "c"}]
    assert ChatTemplate(loop(source)).render(messages) == "[<a><b>][c]"


@pytest.mark.parametrize("source", PRINTS_PARTS.values(), ids=PRINTS_PARTS)
def test_strings_become_a_part_for_templates_that_print_parts(source):
    messages = [{"role": "user", "content": text("a", "b")}, {"role": "system", "content": "c"}]
    assert ChatTemplate(loop(source)).render(messages) == "[<a><b>][<c>]"


def test_each_role_has_its_own_format():
    source = loop("{% if m.role == 'user' %}" + PARTS + "{% else %}{{ m.content }}{% endif %}")
    contents = [("system", "s"), ("user", "u"), ("assistant", "a"), ("tool", "t"), ("developer", "d")]
    expected = "".join(f"[<{c}>]" if role == "user" else f"[{c}]" for role, c in contents)
    for as_parts in itertools.product((False, True), repeat=len(contents)):
        messages = [{"role": r, "content": text(c) if p else c} for (r, c), p in zip(contents, as_parts, strict=True)]
        assert ChatTemplate(source).render(messages) == expected


def test_role_that_a_template_refuses_is_still_refused():
    source = loop("{% if m.role == 'critic' %}{{ raise_exception('no critic') }}{% endif %}{{ m.content }}")
    with pytest.raises(ChatTemplateError, match="no critic"):
        ChatTemplate(source).render([{"role": "critic", "content": text("a")}])
    assert ChatTemplate(source).render([{"role": "user", "content": text("a")}]) == "[a]"


def test_no_parts_and_empty_parts():
    for source in (*PRINTS_STRINGS.values(), *PRINTS_BOTH.values(), *PRINTS_PARTS.values()):
        assert ChatTemplate(loop(source)).render([{"role": "user", "content": text("")}]) in ("[]", "[<>]")
    assert ChatTemplate(loop("{{ m.content }}")).render([{"role": "user", "content": []}]) == "[]"


@pytest.mark.parametrize("case", RECORDED, ids=[case["name"] for case in RECORDED])
def test_published_templates_print_one_part_as_its_text(case):
    """None of them prints a list, or loses a text, whichever form the content has."""
    template = ChatTemplate(case["template"], bos_token=case["bos"], eos_token=case["eos"])
    plain = [{"role": "user", "content": "ab cd"}]
    assert "ab cd" in template.render(plain)
    assert template.render([{"role": "user", "content": text("ab cd")}]) == template.render(plain)
    both = template.render([{"role": "user", "content": text("ab", "cd")}])
    assert both == template.render([{"role": "user", "content": "ab\ncd"}]) or "abcd" in both


def test_limits_hold_while_the_format_is_looked_for():
    spins = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    source = "{% if messages[0].content is not string %}" + spins + "{% endif %}{{ messages[0].content }}"
    with pytest.raises(ChatTemplateError, match="more than"):
        ChatTemplate(source, max_work=100_000).render([{"role": "user", "content": "hi"}])
