"""Table of variants: answers of templates that were changed so that the same rule holds under other words.

words: the words in marks are others, in the template and in the answers. names: variables and macros of the template
have other names. prose: the sentences that the template tells the model have other words.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from jinja2 import Environment

from tests.chat.score.answers import Recorded, read_folder
from tests.chat.score.outputs import outputs

__all__ = ["VARIANTS", "table"]

# A word behind what opens a mark; of more than one letter.
_MARKED = re.compile(r"(<[/|｜:]*|(?<!!)\[/?(?=[A-Z_]{3}))([A-Za-z][\w▁]+)")
# Words that the data name, or that the reader of gpt-oss's channels knows.
_KEPT = {"start", "channel", "message", "end", "call", "return", "constrain", "city", "unit", "br", "stdio", "int", "b"}
_LETTERS = "bcdfghjklmnpqrstvwxz"
_SHIFT = str.maketrans(_LETTERS + _LETTERS.upper(), _LETTERS[3:] + _LETTERS[:3] + _LETTERS[3:].upper() + _LETTERS[:3].upper())
_PAIRS = ("begin", "end", "start", "open", "close", "prefix", "suffix", "BEGIN", "END", "START")


def _other(word: str) -> str:
    """Another word of the same length and case; what tells a mark from its counterpart stays."""
    parts = re.split(r"([_▁])", word)
    return "".join(part if part in _PAIRS else part.translate(_SHIFT) for part in parts)


def words(recorded: Recorded) -> Recorded:
    """Other words in marks."""
    found = {m.group(2) for m in _MARKED.finditer(recorded.source)} - _KEPT
    tokens = {w for t in (recorded.bos, recorded.eos) for w in re.findall(r"[\w▁]+", t)}
    names = sorted(found - tokens, key=len, reverse=True)
    if not names:
        return recorded
    inside = re.compile(r"(<[/|｜:]*|(?<!!)\[/?)(" + "|".join(map(re.escape, names)) + r")(?![\w▁])")

    def changed(text: str) -> str:
        return inside.sub(lambda m: m.group(1) + _other(m.group(2)), text)

    data = json.loads(changed(json.dumps(recorded.data["outputs"], ensure_ascii=False)))
    return Recorded({**recorded.data, "outputs": data}, changed(recorded.source), recorded.conversations)


_CODE = re.compile(r"\{[%{#].*?[%}#]\}", re.DOTALL)
_VARIABLES = {"messages", "tools", "loop", "self", "caller", "varargs", "kwargs", "namespace", "none", "true", "false"}


def names(recorded: Recorded) -> Recorded:
    """Other names of what the template sets."""
    tokens = list(Environment(extensions=["jinja2.ext.loopcontrols", "jinja2.ext.do"]).lex(recorded.source))
    own, after = set(), ""
    for i, (_, kind, value) in enumerate(tokens):
        if kind == "name" and after in ("set", "for", "macro", ","):
            own |= {value} if after != "," or _in_targets(tokens, i) else set()
        after = value if kind in ("name", "operator") else after if kind == "whitespace" else ""
    keywords = {v for i, (_, k, v) in enumerate(tokens) if k == "name" and _is_keyword(tokens, i)}
    own -= keywords | _VARIABLES
    if not own:
        return recorded
    name = re.compile(f"({_TEXT.pattern})" + r"|(?<![\w.])(" + "|".join(sorted(own, key=len, reverse=True)) + r")(?!\w)", re.DOTALL)
    renamed = _CODE.sub(
        lambda code: name.sub(lambda m: m.group(1) or f"v_{m.group(2)}", code.group()), recorded.source
    )
    return Recorded(recorded.data, renamed, recorded.conversations)


def _in_targets(tokens: list[tuple[int, str, str]], at: int) -> bool:
    """Whether a name is a target of a loop, behind a comma."""
    for _, _, value in reversed(tokens[:at]):
        if value in ("for",):
            return True
        if value.strip() not in ("", ",") and not value.isidentifier():
            return False
    return False


def _is_keyword(tokens: list[tuple[int, str, str]], at: int) -> bool:
    """Whether a name is a keyword of a call."""
    rest = [v for _, k, v in tokens[at + 1 : at + 3] if k != "whitespace"]
    before = [v for _, k, v in tokens[max(at - 2, 0) : at] if k != "whitespace"]
    return bool(rest) and rest[0] == "=" and bool(before) and before[-1] in ("(", ",")


_SENTENCE = re.compile(r"(?<![\w<|{%])[A-Za-z]{2,}(?: [a-z]{2,}){3,}(?![\w>|=(])")
_TEXT = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)


def prose(recorded: Recorded) -> Recorded:
    """Other words in sentences: pieces of text with four words in a row."""

    def changed(text: str) -> str:
        return _SENTENCE.sub(lambda m: m.group().translate(_SHIFT), text)

    source, at = "", 0
    for found in _CODE.finditer(recorded.source):
        source += changed(recorded.source[at : found.start()])
        source += _TEXT.sub(lambda m: changed(m.group()), found.group())
        at = found.end()
    source += changed(recorded.source[at:])
    told = [found for found in _SENTENCE.findall(recorded.source) if found not in source]
    data = json.dumps(recorded.data["outputs"], ensure_ascii=False)
    for sentence in told:  # some begin answers
        data = data.replace(sentence, sentence.translate(_SHIFT))
    return Recorded({**recorded.data, "outputs": json.loads(data)}, source, recorded.conversations)


def spaces(recorded: Recorded) -> Recorded:
    """Answers without the line breaks between marks."""
    data = [{**case, "text": case["text"].replace(">\n<", "><").replace(">\n{", ">{")} for case in recorded.data["outputs"]]
    return Recorded({**recorded.data, "outputs": data}, recorded.source, recorded.conversations)


def breaks(recorded: Recorded) -> Recorded:
    """Answers with a line break more before marks that end something."""
    def more(text: str) -> str:
        return re.sub(r"([}\]])(</|<\|[a-z_]*end|<｜tool▁calls?▁end|\[/)", r"\1\n\2", text)
    data = [{**case, "text": more(case["text"])} for case in recorded.data["outputs"]]
    return Recorded({**recorded.data, "outputs": data}, recorded.source, recorded.conversations)


def tight(recorded: Recorded) -> Recorded:
    """Template and answers without line breaks behind marks."""
    data = [{**case, "text": case["text"].replace(">\n", ">"), "generation_prompt": case["generation_prompt"].replace(">\n", ">")} for case in recorded.data["outputs"]]
    source = re.sub(r">\\n", ">", recorded.source)
    return Recorded({**recorded.data, "outputs": data}, source, recorded.conversations)


def keys(recorded: Recorded) -> Recorded:
    """Other keys of calls."""
    def other(text: str) -> str:
        return text.replace('"name"', '"tool"').replace('"arguments"', '"args"').replace('"parameters"', '"params"')
    if '"name"' not in recorded.source:
        return recorded
    data = [{**case, "text": other(case["text"]) if case["case"] not in ("call_nested",) else case["text"]} for case in recorded.data["outputs"]]
    return Recorded({**recorded.data, "outputs": data}, other(recorded.source), recorded.conversations)


VARIANTS: dict[str, Callable[[Recorded], Recorded]] = {"words": words, "names": names, "prose": prose, "spaces": spaces, "breaks": breaks, "tight": tight, "keys": keys}


def table(folder: Path) -> Iterator[str]:
    """Answers that are what was meant, of those that are so without the change."""
    yield "== variants: answers as meant, of those that are without a change"
    totals = dict.fromkeys(VARIANTS, (0, 0))
    for recorded in read_folder(folder):
        right = {i for i, row in enumerate(outputs(recorded)) if row[1]}
        shown = []
        for name, vary in VARIANTS.items():
            varied = {i for i, row in enumerate(outputs(vary(recorded))) if row[1]}
            n = len(right & varied)
            totals[name] = totals[name][0] + n, totals[name][1] + len(right)
            shown.append(f"{name} {n} of {len(right)}")
        yield f"{recorded.label:50} {'  '.join(shown)}"
    yield f"{'all':50} {'  '.join(f'{name} {n} of {m}' for name, (n, m) in totals.items())}"
