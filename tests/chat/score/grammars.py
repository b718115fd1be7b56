"""Table of grammars: texts that a required call, or an answer that fits a schema, may be or not."""

from collections.abc import Iterator
from typing import Any

from oxillama.chat.call_grammar import AnswerGrammar
from oxillama.errors import OxiLlamaError
from tests.chat.score.answers import Recorded
from tests.chat.score.outputs import Row, format_of

__all__ = ["grammars"]


def grammars(recorded: Recorded) -> Iterator[Row]:
    """Column "accepted" of texts that must be, "refused" of those that must not; "auto" of calls that are lazy."""
    form = format_of(recorded)
    marks = form.marks_of("auto")
    made: dict[tuple[str, str], AnswerGrammar | str] = {}
    for kind, recordings in recorded.data.get("grammars", {}).items():
        for label, case in recordings["strings"].items():
            prompt = _prompt(recorded, case["enable_thinking"], kind)
            if marks is not None and case["text"].lstrip().startswith(marks.begin.strip()):
                prompt = ""
            elif marks is not None and case["text"].startswith(marks.end.split()[0]):
                prompt = _prompt(recorded, True, kind)
            if (kind, prompt) not in made:
                made[kind, prompt] = _grammar(recorded, kind, recordings, prompt)
            grammar = made[kind, prompt]
            valid, verdict = case.get("valid"), case["verdict"]
            if kind.startswith("auto"):
                valid = True if label in ("call", "call_nested", "call_text", "content_call", "plain") else None
                verdict = "accept" if verdict in ("accept", "not triggered") else verdict
            if valid is None:
                continue
            ours = isinstance(grammar, AnswerGrammar) and grammar.accepts(case["text"]) is valid
            column = "auto" if kind.startswith("auto") else "accepted" if valid else "refused"
            why = grammar if isinstance(grammar, str) else ""
            fault = "" if ours else f"{recorded.label} {kind} {label} {valid} {prompt!r}: {case['text']!r} {why}"
            yield column, ours, (verdict == "accept") is valid, fault


def _prompt(recorded: Recorded, thinking: bool, kind: str) -> str:
    names: tuple[str, ...] = ("reasoning_call", "reasoning_with_tools") if thinking else ("call", "plain_with_tools")
    if kind == "json_schema":
        names = ("reasoning",) if thinking else ("plain",)
    cases = {case["case"]: case for case in recorded.data["outputs"]}
    found = next((cases[name] for name in names if name in cases), None) or cases["plain"]
    return str(found["generation_prompt"])


def _grammar(recorded: Recorded, kind: str, recordings: dict[str, Any], prompt: str) -> AnswerGrammar | str:
    form = format_of(recorded)
    try:
        if kind == "json_schema":
            return form.grammar(json_schema=recordings["schema"], generation_prompt=prompt)
        settings = recordings["settings"]
        return form.grammar(
            recorded.tools(settings),
            settings.get("tool_choice", "auto"),
            parallel_tool_calls=settings.get("parallel_tool_calls", False),
            generation_prompt=prompt,
        )
    except OxiLlamaError as error:
        return f"{type(error).__name__}: {error}"
