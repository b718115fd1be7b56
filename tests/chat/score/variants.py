"""Table of variants: answers of templates that were changed in ways that a rule for their formats must not depend on.

words: those in marks are others, in the template and in the answers. names: variables and macros of the template have
others. prose: the sentences that the template tells its model have other words. spaces, breaks: answers without line
breaks between marks, and with one more before those that end something. tight: template and answers without line
breaks behind marks. bare, listed, fenced: answers that are calls of offered tools alone, as JSON without any mark of
the format: objects in a row, a list of objects, and an object or a list in a fence. unopened, unclosed, doubled:
answers with faults, as `faults` has them.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jinja2 import Environment

from oxillama.chat.arguments import faults
from oxillama.chat.dispatch import read_tools
from oxillama.chat.format import is_open
from oxillama.chat.harmony import BEGIN, MESSAGE
from tests.chat.score.answers import Recorded, read_folder
from tests.chat.score.faults import doubled, unclosed, unopened
from tests.chat.score.outputs import format_of, outputs

__all__ = ["VARIANTS", "table"]

_CODE = re.compile(r"\{[%{#].*?[%}#]\}", re.DOTALL)
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_MARK = r"(<[/|｜:]*|(?<!!)\[/?)"
_MARKED = re.compile(r"(<[/|｜:]*|(?<!!)\[/?(?=[A-Z_]{3}))([A-Za-z][\w▁]+)")
_SENTENCE = re.compile(r"(?<![\w<|{%])[A-Za-z]{2,}(?: [a-z]{2,}){3,}(?![\w>|=(])")
_END = re.compile(r"([}\]])(</|<\|[a-z_]*end|<｜tool▁calls?▁end|\[/)")
# Words in marks that answers name too, or that the reader of gpt-oss's channels knows.
_KEPT = {"start", "channel", "message", "end", "call", "return", "constrain", "city", "unit", "br", "stdio", "int", "b"}
# Parts of words by which a mark is told from its counterpart.
_PAIRS = ("begin", "end", "start", "open", "close", "prefix", "suffix", "BEGIN", "END", "START")
_LETTERS = "bcdfghjklmnpqrstvwxz"
_OTHERS = _LETTERS[3:] + _LETTERS[:3]
_SHIFT = str.maketrans(_LETTERS + _LETTERS.upper(), _OTHERS + _OTHERS.upper())


def _with(recorded: Recorded, source: str, answers: list[dict[str, Any]] | None = None) -> Recorded:
    data = recorded.data if answers is None else {**recorded.data, "outputs": answers}
    return Recorded(data, source, recorded.conversations)


def words(recorded: Recorded) -> Recorded:
    """Other words in marks."""
    tokens = {word for token in (recorded.bos, recorded.eos) for word in re.findall(r"[\w▁]+", token)}
    found = {match.group(2) for match in _MARKED.finditer(recorded.source)} - _KEPT - tokens
    if not found:
        return recorded
    inside = re.compile(_MARK + "(" + "|".join(sorted(found, key=len, reverse=True)) + r")(?![\w▁])")

    def other(word: str) -> str:
        parts = re.split(r"([_▁])", word)
        return "".join(part if part in _PAIRS else part.translate(_SHIFT) for part in parts)

    def changed(text: str) -> str:
        return inside.sub(lambda match: match.group(1) + other(match.group(2)), text)

    answers = json.loads(changed(json.dumps(recorded.data["outputs"], ensure_ascii=False)))
    return _with(recorded, changed(recorded.source), answers)


def names(recorded: Recorded) -> Recorded:
    """Other names of what the template sets, but for those that are keywords of calls too."""
    lexed = Environment(extensions=["jinja2.ext.loopcontrols", "jinja2.ext.do"]).lex(recorded.source)
    tokens = [(kind, value) for _, kind, value in lexed if kind != "whitespace"]
    own, keywords = set[str](), {"messages", "tools", "loop"}
    for (_, before), (kind, value), (_, behind) in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if kind == "name" and before in ("set", "for", "macro"):
            own.add(value)
        elif kind == "name" and before in ("(", ",") and behind == "=":
            keywords.add(value)
    if not own - keywords:
        return recorded
    alternatives = "|".join(sorted(own - keywords, key=len, reverse=True))
    name = re.compile(rf"({_STRING.pattern})|(?<![\w.])({alternatives})(?!\w)", re.DOTALL)

    def renamed(code: re.Match[str]) -> str:
        return name.sub(lambda match: match.group(1) or f"v_{match.group(2)}", code.group())

    return _with(recorded, _CODE.sub(renamed, recorded.source))


def prose(recorded: Recorded) -> Recorded:
    """Other words in sentences: four words in a row, in the template's text and in its strings."""

    def changed(text: str) -> str:
        return _SENTENCE.sub(lambda match: match.group().translate(_SHIFT), text)

    source, at = "", 0
    for found in _CODE.finditer(recorded.source):
        source += changed(recorded.source[at : found.start()])
        source += _STRING.sub(lambda match: changed(match.group()), found.group())
        at = found.end()
    source += changed(recorded.source[at:])
    answers = json.dumps(recorded.data["outputs"], ensure_ascii=False)
    for sentence in _SENTENCE.findall(recorded.source):  # some begin answers
        answers = answers if sentence in source else answers.replace(sentence, sentence.translate(_SHIFT))
    return _with(recorded, source, json.loads(answers))


def _answers(recorded: Recorded, change: Callable[[str], str]) -> list[dict[str, Any]]:
    fields = ("text", "generation_prompt")
    return [{**case, **{field: change(case[field]) for field in fields}} for case in recorded.data["outputs"]]


def spaces(recorded: Recorded) -> Recorded:
    """Answers without the line breaks between marks."""
    return _with(recorded, recorded.source, _answers(recorded, lambda text: re.sub(r">\n([<{])", r">\1", text)))


def breaks(recorded: Recorded) -> Recorded:
    """Answers with a line break more before marks that end something."""
    return _with(recorded, recorded.source, _answers(recorded, lambda text: _END.sub(r"\1\n\2", text)))


def tight(recorded: Recorded) -> Recorded:
    """Template and answers without line breaks behind marks."""
    answers = _answers(recorded, lambda text: text.replace(">\n", ">"))
    return _with(recorded, recorded.source.replace(">\\n", ">"), answers)


def _unmarked(recorded: Recorded, write: Callable[[list[dict[str, Any]]], str]) -> Recorded:
    """Answers whose calls stand behind the reasoning as JSON, where they are of offered tools, and all of the answer.

    write: the JSON text of calls.
    """
    form = format_of(recorded)
    marks = form.marks_of("auto")
    before = f"<|start|>assistant{BEGIN}final{MESSAGE}" if form.harmony else ""

    def changed(case: dict[str, Any]) -> dict[str, Any]:
        meant, schemas = case.get("meant", {}), read_tools(recorded.tools(case["settings"]) or [])
        calls = [{"name": name, "arguments": arguments} for name, arguments in meant.get("calls", [])]
        offered = all(
            call["name"] in schemas and not list(faults(schemas[call["name"]], call["arguments"])) for call in calls
        )
        if not calls or not offered or meant.get("content", "").strip():
            return case
        thinks = marks and (meant.get("reasoning") or is_open(marks, case["generation_prompt"]))
        end = marks.end.strip() if marks and thinks else ""
        thought = case["text"].partition(end) if end else ("", "", "")
        return {**case, "text": "".join(thought[:2]) + before + write(calls)}

    return _with(recorded, recorded.source, [changed(case) for case in recorded.data["outputs"]])


def bare(recorded: Recorded) -> Recorded:
    """Objects in a row."""
    return _unmarked(recorded, lambda calls: "\n".join(json.dumps(call, ensure_ascii=False) for call in calls))


def listed(recorded: Recorded) -> Recorded:
    """Lists of objects, with wrappers and parameters as JSON text."""

    def write(calls: list[dict[str, Any]]) -> str:
        return json.dumps(
            [
                {"type": "function", "function": {"name": c["name"], "parameters": json.dumps(c["arguments"])}}
                for c in calls
            ]
        )

    return _unmarked(recorded, write)


def fenced(recorded: Recorded) -> Recorded:
    """Fences around an object, or around a list of several."""

    def write(calls: list[dict[str, Any]]) -> str:
        return f"```json\n{json.dumps(calls if calls[1:] else calls[0], indent=2, ensure_ascii=False)}\n```\n"

    return _unmarked(recorded, write)


VARIANTS: dict[str, Callable[[Recorded], Recorded]] = {
    "words": words,
    "names": names,
    "prose": prose,
    "spaces": spaces,
    "breaks": breaks,
    "tight": tight,
    "bare": bare,
    "listed": listed,
    "fenced": fenced,
    "unopened": unopened,
    "unclosed": unclosed,
    "doubled": doubled,
}


def table(folder: Path) -> Iterator[str]:
    """How many answers are what was meant, of those that are without the change."""
    yield "Variants: answers as meant, of those that are without the change"
    totals = dict.fromkeys(VARIANTS, (0, 0))
    for recorded in read_folder(folder):
        right = _right(recorded)
        shown = []
        for name, vary in VARIANTS.items():
            n = len(right & _right(vary(recorded)))
            totals[name] = totals[name][0] + n, totals[name][1] + len(right)
            shown.append(f"{name} {n} of {len(right)}")
        yield f"{recorded.label:50} {'  '.join(shown)}"
    yield f"{'all':50} {'  '.join(f'{name} {n} of {m}' for name, (n, m) in totals.items())}"


def _right(recorded: Recorded) -> set[int]:
    return {i for i, (_, ours, _, _) in enumerate(outputs(recorded)) if ours}
