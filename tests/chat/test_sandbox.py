"""Hostile chat templates: none reaches Python, hangs, or eats memory."""

import threading

import pytest

from oxillama.chat import ChatTemplate
from oxillama.errors import ChatTemplateError

HI = [{"role": "user", "content": "hi"}]
GROW = "{% set ns = namespace(x='ab', y=[]) %}{% for i in range(60) %}{% set ns.x = EXPRESSION %}{% endfor %}{{ ns.x }}"


def render(source: str, seconds: float = 0.5) -> str:
    return ChatTemplate(source, max_output=1 << 20, max_seconds=seconds).render(HI)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ ''['__class__'] }}",
        "{{ '' | attr('__class__') }}",
        "{{ '{0.__class__}'.format('') }}",
        "{{ '{x.__class__}'.format_map({'x': 1}) }}",
        "{{ ('{0.__class__}' | attr('format'))('') }}",
        "{% for f in ['{0.__class__}'.format] %}{{ f('') }}{% endfor %}",
        "{{ [''] | map(attribute='__class__') | list }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__code__ }}",
        "{{ self.__init__ }}",
        "{{ self._TemplateReference__context }}",
        "{{ namespace.__init__ }}",
        "{{ messages.append(1) }}",
        "{{ messages.pop() }}",
        "{{ messages[0].c.append(1) }}",
        "{% set x = [] %}{{ x.clear() }}",
        "{% set x = [] %}{{ x.append.__self__ }}",
        "{% set x = [] %}{{ x.__class__ }}",
        "{{ messages[0].update(a=1) }}",
        "{{ messages[0].clear() }}",
        "{{ (messages | map('upper')).gi_frame }}",
        "{% include 'x' %}",
        "{% import 'x' as y %}",
        "{% extends 'x' %}",
    ],
)
def test_attempts_to_escape_raise(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        render(source)


def test_messages_are_not_changed() -> None:
    with pytest.raises(ChatTemplateError):
        render("{{ messages[0].setdefault('x', 1) }}")
    assert HI == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% for a in range(10) recursive %}{{ loop(range(9999)) if loop.depth < 9 }}{% endfor %}",
        "{{ range(99999) | map('string') | select('in', range(99999) | map('string') | list) | list }}",
        "{% for i in range(99999) %}{% if 'x' in range(99999) | list %}{% endif %}{% endfor %}",
        "{% for i in range(99999) %}{% set x = messages | tojson %}{% for j in range(999) %}{% endfor %}{% endfor %}",
    ],
)
def test_time_is_bounded(source: str) -> None:
    with pytest.raises(ChatTemplateError, match=r"more than 0\.5 s"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10**9 }}",
        "{{ 10**9 * 'a' }}",
        "{{ [1] * 10**9 }}",
        "{{ (1, 2) * 10**9 }}",
        "{{ 9 ** (9 ** 9) }}",
        "{% set ns = namespace(x=3) %}{% for i in range(90) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%.1000000000f' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '%(a)1000000000d' % {'a': 1} }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '%((a))1000000000d' % {'(a)': 1} }}",
        "{{ '%%%1000000000d' % 1 }}",
        "{{ '%-+ 01000000000d' % 1 }}",
        "{{ '{:{}}'.format(1, 1000000000) }}",
        "{{ '{0[}]:{1}}'.format({'}': 1}, 1000000000) }}",
        "{{ '{0[}]:1000000000}'.format({'}': 1}) }}",
        "{{ ('{}' * 20000).format(1) }}",
        "{{ '{x:{w}}'.format_map({'x': 1, 'w': 1000000000}) }}",
        "{{ 'a' | center(10**9) }}",
        "{{ 'a' | center(width=10**9) }}",
        "{{ 'a'.ljust(10**9) }}",
        "{{ 'a'.rjust(10**9, 'x') }}",
        "{{ 'a'.center(10**9) }}",
        "{{ 'a'.zfill(10**9) }}",
        "{{ 'a'.encode().ljust(10**9) }}",
        "{{ ['a'] | map('center', 10**9) | list }}",
        "{{ 'a\nb' | indent(10**9) }}",
        "{{ 'a\nb' | indent('x' * 999999) }}",
        "{{ ('a' * 99999) | replace('a', 'b' * 99999) }}",
        "{{ ('a' * 99999).replace('a', 'b' * 99999) }}",
        "{{ ('a' * 99999) | replace('', 'b' * 99999) }}",
        "{{ range(99999) | join('b' * 99999) }}",
        "{{ ('b' * 99999).join(range(99999) | map('string')) }}",
        "{{ [1] | batch(10**9, 'x') | list }}",
        "{{ [1] | slice(10**9) | list }}",
        "{{ ([range(1000) | list] * 1000) | sum(start=[]) | length }}",
        "{{ [[1]] | tojson(indent=10**9) }}",
        "{{ (5).to_bytes(10**9, 'big') }}",
        "{{ ('a' * 99999).translate({97: 'b' * 99999}) }}",
        "{{ '\t'.expandtabs(10**9) }}",
        "{{ strftime_now('%Y' * 1000) }}",
        "{{ range(10**9) }}",
        "{{ lipsum(10**6) }}",
        "{{ 'x' | pprint }}",
        "{% for i in range(99999) %}aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa{% endfor %}",
        "{% set x %}{% for i in range(99999) %}" + "a" * 9999 + "{% endfor %}{% endset %}",
    ],
)
def test_values_are_bounded_before_they_are_made(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        render(source, 5.0)


@pytest.mark.parametrize(
    "expression",
    [
        "ns.x ~ ns.x",
        "ns.x + ns.x",
        "'%s%s' % (ns.x, ns.x)",
        "'{}{}'.format(ns.x, ns.x)",
        "[ns.x, ns.x] | join",
        "ns.x | replace('a', ns.x)",
        "ns.x.replace('a', ns.x)",
        "[ns.x, ns.x]",
        "(ns.x, ns.x)",
        "{'a': ns.x, 'b': ns.x}",
        "dict(a=ns.x, b=ns.x)",
        "[ns.x, ns.x] | list",
        "[ns.x] * 2",
        "[ns.x] + [ns.x]",
        "([], ns.x, ns.x) | list if ns.y.append(ns.x) or ns.y.append(ns.y[:]) else ns.y[:]",
    ],
)
def test_doubling_is_stopped(expression: str) -> None:
    with pytest.raises(ChatTemplateError, match="limit is 1048576"):
        render(GROW.replace("EXPRESSION", expression), 30.0)


@pytest.mark.parametrize(
    "source",
    [
        "{% set x = [1] %}{% set _ = x.append(x) %}{{ x }}",
        "{% set x = [1] %}{% set y = [x, x] %}{{ y }}{% set _ = x.append(y) %}{{ y | tojson }}",
        "{% set ns = namespace(x=['a']) %}{% for i in range(60) %}"
        "{% set y = [] %}{% set _ = y.append(ns.x) %}{% set _ = y.append(ns.x) %}{% set ns.x = y %}{% endfor %}"
        "{{ ns.x }}",
        "{% set x = [] %}{% set y = [x] %}{{ y }}"
        "{% for i in range(2000) %}{% set _ = x.append('a' * 999) %}{% endfor %}"
        "{{ y }}",
        "{{ ('[' * 9999) | from_json }}",
        '{{ \'{"a": 1, "a": 2}\' | from_json }}',
        "{{ 'NaN' | fromjson }}",
        "{{ '{' | from_json }}",
    ],
)
def test_lists_that_grow_and_json_that_is_read_are_bounded(source: str) -> None:
    with pytest.raises(ChatTemplateError, match=r"contains itself|limit is 1048576|from_json"):
        render(source, 30.0)


def test_a_template_changes_its_own_lists() -> None:
    source = "{% set x = [1, 2] %}{% set _ = x.append({'a': 3}) %}{{ x.pop(0) }}{{ x.pop() }}{{ x }}{{ x | tojson }}"
    assert render(source) == "1{'a': 3}[2][2]"


def test_json_is_read_and_filters_are_written_as_lists() -> None:
    assert render("{{ ('{\"a\": [1, null]}' | from_json).a[0] }}{{ '\"x\"' | fromjson }}") == "1x"
    assert render("{{ messages | map(attribute='role') | tojson }}") == '["user"]'
    with pytest.raises(ChatTemplateError, match="not JSON serializable"):
        render("{{ namespace() | tojson }}")


def test_doubling_by_blocks_is_stopped() -> None:
    block = "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}"
    source = GROW.replace("{% set ns.x = EXPRESSION %}", block + "{% set ns.x = y %}")
    with pytest.raises(ChatTemplateError, match=r"limit is 1048576|more than 1048576"):
        render(source, 30.0)


def test_namespaces_within_namespaces_print_briefly() -> None:
    assert render(GROW.replace("EXPRESSION", "namespace(a=ns.x, b=ns.x)")) == "<Namespace>"


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
        "{{ " + "not " * 20000 + "1 }}",
        "{{ " + "1+" * 10000 + "1 }}",
        "{{ a" + ".b" * 10000 + " }}",
        "{{ a" + "|e" * 10000 + " }}",
        "{{a}}" * 20000,
        "x" * 300000,
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_deep_and_long_templates_are_refused(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        render(source, 30.0)


def test_a_long_conversation_is_no_attack() -> None:
    messages = [{"role": "user", "content": "word " * 200}] * 2000
    source = "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}\n{% endfor %}{{ messages | length }}"
    assert len(ChatTemplate(source).render(messages)) == 2000 * (len("<|user|>\n") + 999) + 4


def test_output_is_bounded() -> None:
    messages = [{"role": "user", "content": "x" * 60}] * 2
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", max_output=150)
    assert len(template.render(messages)) == 120
    with pytest.raises(ChatTemplateError, match="limit is 150"):
        template.render(messages * 2)


def test_budgets_of_threads_are_separate() -> None:
    results: list[str] = []
    slow = ChatTemplate(
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", max_seconds=0.3
    )
    quick = ChatTemplate("{{ messages[0].content }}")

    def run_slow() -> None:
        try:
            slow.render(HI)
        except ChatTemplateError as error:
            results.append(str(error))

    thread = threading.Thread(target=run_slow)
    thread.start()
    while thread.is_alive():
        assert quick.render(HI) == "hi"
    thread.join()
    assert len(results) == 1
