"""Chat templates: what they render, what they may see, and what is wrong with messages."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

from oxillama.chat import ChatTemplate
from oxillama.errors import ChatTemplateError, TokenizerError
from tests.tokenizer.build import byte_level, make, tokenizer

CONVERSATION = [
    {"role": "system", "content": "You are a helpful assistant"},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi there"},
    {"role": "user", "content": "Who are you"},
    {"role": "assistant", "content": "   I am an assistant   "},
    {"role": "user", "content": "Another question"},
]
HI = [{"role": "user", "content": "hi"}]

# Templates of published models, with the texts that llama.cpp's own Jinja interpreter makes of CONVERSATION.
RECORDED = json.loads((Path(__file__).parent / "data" / "templates.json").read_text(encoding="utf-8"))


def render(source: str, messages: Any = HI, **arguments: Any) -> str:
    return ChatTemplate(source).render(messages, **arguments)


@pytest.mark.parametrize("case", RECORDED, ids=[case["name"] for case in RECORDED])
def test_published_templates(case: dict[str, Any]) -> None:
    template = ChatTemplate(case["template"], bos_token=case["bos"], eos_token=case["eos"])
    assert template.render(CONVERSATION + case["messages"]) == case["expected"]


def test_there_are_29_published_templates() -> None:
    assert len(RECORDED) == 29


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}|{{ eos_token }}|{{ add_generation_prompt }}|{{ tools }}", "||True|None"),
        ("{% if true %}\nx\n{% endif %}\ny", "x\ny"),
        ("  {% if true %}x{% endif %}", "x"),
        ("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "02345678"),
        ("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
        ("{% generation %}a{{ 1 }}{% endgeneration %}b", "a1b"),
        ("{{ {'b': 'é<&>\"', 'a': [1, 2.5, none, true]} | tojson }}", '{"b": "é<&>\\"", "a": [1, 2.5, null, true]}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=2, sort_keys=true) }}", '{\n  "a": 2,\n  "b": 1\n}'),
        ("{{ [1, 'é'] | tojson(separators=(',', ':'), ensure_ascii=true) }}", '[1,"\\u00e9"]'),
        ("{{ '<' + messages[0].content + '>' }}", "<hi>"),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages * 3 %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            "3",
        ),
        ("{% for m in messages %}{{ loop.index }}{{ loop.last }}{{ loop.length }}{% endfor %}", "1True1"),
        ("{% macro f(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(3, b=4) }}", "1234"),
        ("{% macro f(a) %}{{ a }}{{ caller() }}{% endmacro %}{% call f(3) %}c{% endcall %}", "3c"),
        ("{% set x %}a{{ 1 }}b{% endset %}{{ x | upper }}{% filter upper %}z{% endfilter %}", "A1BZ"),
        ("{{ messages | map(attribute='role') | join(',') }}", "user"),
        ("{{ messages | selectattr('role', 'equalto', 'x') | list }}", "[]"),
        (
            "{{ '%s-%05.2f' % ('a', 1.5) }} {{ '{0}{x:>4}'.format(1, x=2) }} {{ '%s!' | format('b') }}",
            "a-01.50 1   2 b!",
        ),
        ("{{ 'a,b'.split(',')[1] }}{{ ' x '.strip() }}{{ 'aXbX' | replace('X', '-', 1) }}{{ 'ab'[::-1] }}", "bxa-bXba"),
        (
            "{{ 'a\nb' | indent(2, true) }}|{{ 'a' | center(5) }}|{{ 'a'.rjust(3, '.') }}|{{ '7'.zfill(3) }}",
            "  a\n  b|  a  |..a|007",
        ),
        ("{{ [1, 2] | sum }}{{ messages | sum(attribute='n', start=5) if false }}{{ [3, 1] | sort | first }}", "31"),
        ("{{ [1, 2, 3] | batch(2, 'x') | list }}{{ [1, 2, 3] | slice(2) | list }}", "[[1, 2], [3, 'x']][[1, 2], [3]]"),
        (
            "{{ ', '.join(['a', 'b']) }}{{ 2 ** 10 }}{{ 7 % 4 }}{{ 'ab' * 2 }}{{ 'a' ~ 1 ~ none }}",
            "a, b10243ababa1None",
        ),
        (
            "{{ nope }}{% for x in nope %}{% endfor %}{{ nope is defined }}{{ messages[0].content is string }}",
            "FalseTrue",
        ),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}{{ {'a': 1} | items | list }}", "a1[('a', 1)]"),
        ("{{ strftime_now('%Y') | int > 2000 }}", "True"),
        ("{{ enable_thinking }}", ""),
        ("{{ 'a: '|safe + '<\"' + {'b': '&'} | tojson }}{{ 1 | safe }}", 'a: <"{"b": "&"}1'),
    ],
)
def test_what_templates_use(source: str, text: str) -> None:
    assert render(source) == text


def test_arguments_reach_the_template() -> None:
    template = ChatTemplate("{{ bos_token }}{{ add_generation_prompt }}{{ tools[0].name }}{{ x }}", bos_token="<s>")
    assert template.render(HI, add_generation_prompt=False, tools=[{"name": "f"}], x=[1]) == "<s>Falsef[1]"


def test_a_template_that_raises_says_what() -> None:
    with pytest.raises(ChatTemplateError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ 'a' | nope }}", "{% endfor %}", "{{ (", "{% nope %}", "{{ '\\ud800' }}{{"]
)
def test_a_broken_template_is_refused_when_it_is_built(source: str) -> None:
    with pytest.raises(ChatTemplateError, match="does not compile"):
        ChatTemplate(source)


@pytest.mark.parametrize("source", [None, 3, b"x"])
def test_a_template_must_be_a_str(source: object) -> None:
    with pytest.raises(ChatTemplateError, match="must be a str, not"):
        ChatTemplate(source)  # type: ignore[arg-type]


@pytest.mark.parametrize("tools", ["f", {"name": "f"}, ["f"], 3])
def test_bad_tools_are_named(tools: object) -> None:
    with pytest.raises(ChatTemplateError, match="tools must be a list of dicts"):
        render("x", tools=tools)


def test_values_that_contain_themselves_are_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ChatTemplateError, match="contains itself"):
        render("{{ x }}", x=loop)


class TestOfAModel:
    META: ClassVar = {**byte_level(["a b"], extra=("<s>", "</s>")), "tokenizer.ggml.bos_token_id": 257}

    def test_templates_by_name(self) -> None:
        meta = {
            **self.META,
            "tokenizer.ggml.eos_token_id": 258,
            "tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}",
            "tokenizer.chat_template.tool_use": "tools",
        }
        vocab = make(meta)
        assert vocab.chat_template == meta["tokenizer.chat_template"]
        assert vocab.template().render(HI) == "<s>hi</s>"
        assert vocab.template("tool_use").render(HI) == "tools"
        assert sorted(vocab.chat_templates) == ["default", "tool_use"]

    def test_a_model_without_a_template(self) -> None:
        vocab = make(self.META)
        assert vocab.chat_template is None
        with pytest.raises(ChatTemplateError, match=r"no chat template 'default'.*chat_template=\.\.\."):
            vocab.template()

    def test_rendered_special_tokens_are_parsed_back(self) -> None:
        vocab = tokenizer("qwen2")
        text = render("<|im_start|>{{ messages[0].role }}\n{{ messages[0].content }}<|im_end|>\n")
        ids = vocab.encode(text, parse_special=True)
        assert vocab.decode(ids) == text
        assert vocab.token_to_id("<|im_end|>") in ids


def test_the_errors_are_tokenizer_errors() -> None:
    assert issubclass(ChatTemplateError, TokenizerError)


def test_importing_loads_neither_library() -> None:
    code = "import sys, oxillama.tokenizer; sys.exit(bool({'jinja2', 'tokenizers'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)
