"""The scoring program, on a folder of one template."""

import json

import pytest

from tests.chat.score import __main__ as program
from tests.chat.score.answers import Recorded, read_folder
from tests.chat.score.faults import doubled, unclosed, unopened
from tests.chat.score.variants import VARIANTS, bare, fenced, listed
from tests.chat.shapes import CALLS, REASONS

CALL = {"type": "function", "id": "call00001", "function": {"name": "look", "arguments": '{"at": "é"}'}}
CONVERSATIONS = {
    "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
    "first_tools": {},
    "conversations": {
        "plain": {"messages": [{"role": "user", "content": "hello"}]},
        "call": {
            "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [CALL]}],
            "tools": True,
            "add_generation_prompt": False,
        },
        "continue": {
            "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "It"}],
            "continue_final_message": True,
        },
    },
}
PROMPTS = {
    "plain": {"prompt": "<s><u>hello</u><a>2026-01-15", "transformers": "equal"},
    "plain/no_thinking": {"same_as": "plain"},
    'plain/mood="kind"': {"prompt": "<s><u>hello</u><a>kind2026-01-15", "transformers": "equal"},
    "call": {"prompt": '<s><u>a</u><a>(call00001:look:{"at": "é"})</a>2026-01-15', "transformers": "equal"},
    "other": {"error": "none"},
    "continue": {"prompt": "<s><u>a</u><a>It"},
}


@pytest.mark.parametrize("table", ["prompts", "engine_prompts"])
def test_scores(table, tmp_path, capsys, monkeypatch):
    source = "{{ bos_token }}" + CALLS + "{{ mood }}{{ strftime_now('%Y-%m-%d') }}"
    file = {"template": source, "bos_token": "<s>", "eos_token": "</s>", "prompts": PROMPTS}
    (tmp_path / "conversations.json").write_text(json.dumps(CONVERSATIONS))
    (tmp_path / "one.json").write_text(json.dumps(file))
    (tmp_path / "one.B.json").write_text(json.dumps({"outputs": {}}))
    monkeypatch.setattr("sys.argv", ["score", str(tmp_path), "--table", table])
    program.main()
    rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()[2:4]]
    cells = [[cell.strip() for cell in row if cell] for row in rows]
    assert cells == [[name, "4 of 4", "4 of 4", "0 of 0", "1 of 1"] for name in ("one", "all")]
    file["prompts"] = PROMPTS | {"plain": {"prompt": "<u>hello</u><a>2026-01-16", "transformers": "equal"}}
    (tmp_path / "one.json").write_text(json.dumps(file))
    program.main()
    line = capsys.readouterr().out.splitlines()[2]
    assert "2 of 4" in line
    assert line.endswith("  plain plain/no_thinking")


def test_reuse(tmp_path, capsys, monkeypatch):
    """The turn's mark moves with the last message, so that the answer and what follows it are computed again."""
    (tmp_path / "conversations.json").write_text(json.dumps(CONVERSATIONS))
    for name, source in ("keeps", CALLS), ("drops", REASONS("reasoning")), ("none", "{{ raise_exception('no') }}"):
        file = {"template": source, "bos_token": "<s>", "eos_token": "</s>", "prompts": {}}
        (tmp_path / f"{name}.json").write_text(json.dumps(file))
    monkeypatch.setattr("sys.argv", ["score", str(tmp_path), "--table", "reuse"])
    program.main()
    rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()[2:5]]
    drops, keeps, none = [[cell.strip() for cell in row if cell] for row in rows]
    assert none == ["none", "ChatTemplateError", "ChatTemplateError"]
    for one, other in zip(drops[1:], keeps[1:], strict=True):
        (reused, again, _), (kept, closing, _) = (map(int, cell.split(", ")) for cell in (one, other))
        assert reused < kept
        assert again > closing + 20


def test_variants(tmp_path, capsys, monkeypatch):
    """A template whose marks are its own is read by the same rule; one that is known by its words isn't."""
    (tmp_path / "conversations.json").write_text(json.dumps(CONVERSATIONS))
    source = (
        "{% macro call(f) %}<call>\n{{ {'name': f.name, 'arguments': f.arguments} | tojson }}\n</call>{% endmacro %}"
        "{% for one in messages %}<turn>{{ one.content }}{% for c in one.tool_calls or [] %}{{ call(c.function) }}"
        "{% endfor %}{% endfor %}"
    )
    known = "{% for one in messages %}<turn>{{ one.content }}{% endfor %}{# <tool_call> </tool_call> #}"
    for name, template, mark in (("known", known, "tool_call"), ("own", source, "call")):
        text = f'Well. <{mark}>\n{{"name": "look", "arguments": {{"at": "é"}}}}\n</{mark}>'
        meant = {"content": "Well.", "calls": [["look", {"at": "é"}]]}
        answer = {"case": "call", "settings": {"tools": True}, "generation_prompt": "", "text": text, "meant": meant}
        alone = {"text": text.removeprefix("Well. "), "meant": {"calls": meant["calls"]}}  # which can be without marks
        answers = [answer | {"as_meant": True}, answer | alone | {"as_meant": True}]
        file = {"template": template, "bos_token": "", "eos_token": "", "outputs": answers}
        (tmp_path / f"{name}.json").write_text(json.dumps(file | {"template_name": name}))
    monkeypatch.setattr("sys.argv", ["score", str(tmp_path), "--table", "variants"])
    program.main()
    of_known, of_own, _ = [line.split("  ") for line in capsys.readouterr().out.splitlines()[1:4]]
    assert {cell.strip().partition(" ")[2] for cell in of_own[1:] if cell} == {"4 of 4"}
    assert [cell.strip().partition(" ")[0] for cell in of_own[1:] if cell.strip()] == list(VARIANTS)
    *_, own = read_folder(tmp_path, "own")
    said, alone = '{"name": "look", "arguments": {"at": "é"}}', text.removeprefix("Well. ")
    wrapped = '[{"type": "function", "function": {"name": "look", "parameters": "{\\"at\\": \\"\\\\u00e9\\"}"}}]'
    pretty = json.dumps(json.loads(said), indent=2, ensure_ascii=False)
    assert [case["text"] for case in own.data["outputs"]] == [text, alone]
    for vary, written in ((bare, said), (listed, wrapped), (fenced, f"```json\n{pretty}\n```\n")):
        assert [case["text"] for case in vary(own).data["outputs"]] == [text, written]
    assert "words 2 of 4" in [cell.strip() for cell in of_known]  # nothing is lost, but it isn't read


PUT = {"type": "object", "properties": {"at": {"type": "string"}, "what": {"type": "string"}}}
FAULTY = (
    "{% for m in messages %}<turn>{{ m.content }}{% for c in m.tool_calls or [] %}<do>\n<fn={{ c.function.name }}>\n"
    "{% for k, v in c.function.arguments.items() %}<arg={{ k }}>\n{{ v }}\n</arg>\n{% endfor %}</fn>\n</do>"
    "{% endfor %}{% endfor %}"
)


def test_answers_with_faults(tmp_path):
    """Of known tools and arguments, and with marks in no value; others stay as they are."""
    conversations = json.loads(json.dumps(CONVERSATIONS))
    conversations["tools"] = [{"type": "function", "function": {"name": "put", "parameters": PUT}}]
    (tmp_path / "conversations.json").write_text(json.dumps(conversations))
    head, value = "Well.\n<do>\n<fn=put>\n<arg=at>\n1\n</arg>\n", "<arg=what>\n2\n</arg>\n"
    text = f"{head}{value}</fn>\n</do>"
    calls = [["put", {"at": "1", "what": "2"}]]
    case = {"case": "call", "settings": {"tools": True}, "generation_prompt": "", "text": text, "as_meant": True}
    answers = [
        case | {"meant": {"content": "Well.", "calls": calls}},
        case | {"meant": {"content": "Well.", "calls": [["get", {"at": "1", "what": "2"}]]}},
        case | {"case": "markers_in_argument", "meant": {"content": "Well.", "calls": calls}},
    ]
    file = {"template": FAULTY, "bos_token": "", "eos_token": "", "outputs": answers, "template_name": "one"}
    (tmp_path / "one.json").write_text(json.dumps(file))
    (one,) = read_folder(tmp_path)
    twice = "<arg=at>\n1\n</arg>\n</arg>\n<arg=what>\n2\n</arg>\n</arg>\n</fn>\n</fn>\n</do>\n</do>"
    for vary, written in (
        (unopened, text.replace("<do>\n", "")),
        (unclosed, text.replace("1\n</arg>", "1")),
        (doubled, f"Well.\n<do>\n<fn=put>\n{twice}"),
    ):
        assert [case["text"] for case in vary(one).data["outputs"]] == [written, text, text]
    single = {"outputs": [case | {"text": f"{head}</fn>\n</do>", "meant": {"calls": [["put", {"at": "1"}]]}}]}
    alone = Recorded(one.data | single, one.source, one.conversations)
    assert unclosed(alone).data["outputs"][0]["text"] == f"{head}</fn>\n</do>".replace("1\n</arg>", "1")


def test_tables_that_there_are_not(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["score", ".", "--table", "nope"])
    with pytest.raises(SystemExit):
        program.main()
    assert "invalid choice: 'nope'" in capsys.readouterr().err
