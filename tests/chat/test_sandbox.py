"""Hostile chat templates: none reaches Python, hangs, or eats memory."""

import threading

import pytest

from oxillama.chat import ChatTemplate
from oxillama.errors import ChatTemplateError

HI = [{"role": "user", "content": "hi"}]
GROW = "{% set ns = namespace(x='ab', y=[]) %}{% for i in range(60) %}{% set ns.x = EXPRESSION %}{% endfor %}{{ ns.x }}"


def render(source: str, work: int = 500_000) -> str:
    return ChatTemplate(source, max_output=1 << 20, max_work=work).render(HI)


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


MANY = "{% for i in range(99999) %}{% for j in range(99999) %}BODY{% endfor %}{% endfor %}"
LONG, ITEMS = "{% set l = 'ab ' * 200000 %}", "{% set l = range(99999) | map('string') | list %}"
BIG = "{% set ns = namespace(x=3) %}{% for i in range(15) %}{% set ns.x = ns.x * ns.x %}{% endfor %}"


@pytest.mark.parametrize("body", [
    "", "{% set x = i %}", "{% set x = messages[0].role %}" * 50, "{% if i == j %}{% endif %}", "{{ '' }}",
    "{% set x = strftime_now('%c') %}", "{% set x = {'a': [i, j]} %}", "{% filter upper %}a{% endfilter %}",
    "{% if 'x' in range(99999) %}{% endif %}", "{% set x = range(99999) | sum %}", "{% set x = 3 ** 20000 %}",
    "{% for k in [] if messages[0].role == 'x' %}{% endfor %}",
])  # fmt: skip
def test_work_of_loops_is_counted(body: str) -> None:
    with pytest.raises(ChatTemplateError, match=r"more than \d+ units of work"):
        render(MANY.replace("BODY", body))


@pytest.mark.parametrize("body", [
    "'c' in l", "l == l ~ ''", "l[::-1]", "l[1:]", "l.replace('a', 'b')", "l.upper()", "l | upper", "l | title",
    "l | wordcount", "l | urlencode", "l | escape", "l.split()", "l.split('a')", "l.find('c')",
    "l | truncate(800000)",
    "l ~ 'x'", "l + 'x'", "l | tojson", "('[' ~ '1,' * 99999 ~ '1]') | from_json", "l.encode()", "'{}'.format(l)",
    "'%s' % l", "l | indent", "l is upper", "l | trim", "l.isalpha()", "l.count('b')", "l is in(l)",
    "l | replace('a', 'b')",
])  # fmt: skip
def test_work_on_long_texts_is_counted(body: str) -> None:
    """Each takes longer than a step, by the length of the text."""
    with pytest.raises(ChatTemplateError, match=r"units of work|memory"):
        render(LONG + MANY.replace("BODY", f"{{% set x = {body} %}}"), 3_000_000)


@pytest.mark.parametrize("body", [
    "'x' in l", "l == l + []", "l[1:]", "l + l", "l | sort", "l | unique | list", "l | map('upper') | list", "l | join",
    "l | select | list", "l | map(attribute='a.b.c.d') | list", "l | batch(1000) | list", "l | slice(9) | list",
    "l | max",
    "l | tojson", "l | string", "l | reverse | list", "l.index('x') if false else l.count('x')",
    "[l] | string", "l is in([l])",
    "l | groupby(0) | list", "dict(l | batch(2)) | dictsort", "dict(l | batch(2)).copy()",
    "loop.changed(l + [i])",
])  # fmt: skip
def test_work_on_long_lists_is_counted(body: str) -> None:
    with pytest.raises(ChatTemplateError, match=r"units of work|memory"):
        render(ITEMS + MANY.replace("BODY", f"{{% set x = {body} %}}"), 3_000_000)


@pytest.mark.parametrize("source", [
    "{% set l = 'a' * 900000 %}{{ l.rfind('b' ~ 'a' * 400000) }}",
    "{% set l = 'a' * 900000 %}{{ l.rsplit('b' ~ 'a' * 400000) }}",
    "{% set l = 'a' * 900000 %}{{ l.strip('b' * 400000 ~ 'a') }}",
    "{% set l = 'a' * 900000 %}{{ l | trim('b' * 400000 ~ 'a') }}",
    "{{ 5.5 | round(1000000000, 'floor') }}", "{{ 5 | round(-100000000) }}",
    "{{ [5.5] | map('round', 10**9, 'ceil') | list }}",
    "{{ ('f' * 900000) | int(base=16) }}", "{{ ('9' * 900000) | float }}", "{{ ('ü' * 200000).encode('punycode') }}",
    "{{ ('<!---->' * 100000) | striptags }}", "{% set l = [1] * 500000 %}{{ dict(*l) }}",
    BIG + MANY.replace("BODY", "{% set x = ns.x // (ns.x - 7) %}"), BIG + MANY.replace("BODY",
    "{% set x = ns.x % 7 %}"),
    BIG + MANY.replace("BODY", "{% if ns.x is divisibleby(7) %}{% endif %}"),
])  # fmt: skip
def test_one_operation_is_bounded_before_it_runs(source: str) -> None:
    with pytest.raises(ChatTemplateError, match=r"units of work|memory|limit is|takes one of"):
        render(source)


@pytest.mark.parametrize("source", [
    "".join(f"{{% set a{i} = 'a' * 999999 ~ {i} %}}" for i in range(30)),
    "{% set l = [] %}{% for i in range(99) %}{% set _ = l.append(namespace(a='a' * 999999 ~ i)) %}{% endfor %}",
    "".join(f"{{% set a{i} = '😀' * 999999 %}}" for i in range(5)), "{{ ('ä' * 500000) | list | length }}",
    "{{ ('a ' * 500000).split() | length }}", "{% set l = ('[' ~ '[],' * 200000 ~ '1]') | from_json %}",
    "".join(f"{{% set a{i} = range(99999) | list %}}" for i in range(30)),
])  # fmt: skip
def test_memory_is_bounded(source: str) -> None:
    with pytest.raises(ChatTemplateError, match=r"memory|units of work"):
        render(source, 30_000_000)


def test_memory_that_is_let_go_is_not_counted() -> None:
    source = "{% set ns = namespace(n=0) %}{% for i in range(200) %}{% set x = 'a' * 500000 ~ i %}"
    assert render(source + "{% set ns.n = x | length %}{% endfor %}{{ ns.n }}", 5_000_000) == "500003"


def test_work_is_the_same_each_time_and_read_from_no_clock(monkeypatch) -> None:
    """One unit less than a rendering takes is too little, and it takes the same with a clock that races."""
    source = "{% for m in messages %}{{ m.role | upper }}{{ m.content ~ loop.index }}{% endfor %}"
    messages = HI * 50
    enough = next(n for n in range(1, 100_000) if _renders(source, messages, 16 * n))
    assert not _renders(source, messages, 16 * enough - 16)
    for clock in ("time", "monotonic", "perf_counter", "process_time", "thread_time"):
        monkeypatch.setattr(f"time.{clock}", lambda: 1e9)
    assert _renders(source, messages, 16 * enough)
    assert not _renders(source, messages, 16 * enough - 16)


def _renders(source: str, messages: list[dict[str, str]], work: int) -> bool:
    try:
        return bool(ChatTemplate(source, max_work=work).render(messages))
    except ChatTemplateError as error:
        return "units of work" not in str(error)


def test_what_was_found_of_a_template_costs_later_renderings_nothing() -> None:
    """The first rendering, which looks at the template, has the same budget as the others."""
    source = "{% for m in messages %}{{ m.content }}{{ m.tool_calls }}{% endfor %}{# " + "x" * 99 + " #}"
    first, *others = (_least(source) for _ in range(3))
    assert others == [first, first]


def _least(source: str) -> int:
    from oxillama.chat import template

    template._compile.cache_clear()
    return next(n for n in range(64, 1 << 20, 64) if _renders(source, HI, n))


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
    with pytest.raises(ChatTemplateError, match=r"more than \d+ units of work"):
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
        render(source, 5_000_000)


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
        render(GROW.replace("EXPRESSION", expression), 30_000_000)


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
        render(source, 30_000_000)


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
        render(source, 30_000_000)


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
        render(source, 30_000_000)


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
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", max_work=300_000
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
