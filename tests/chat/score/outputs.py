"""Table of answers: what a parser makes of a whole text, and of its pieces, beside what was meant."""

import json
import re
from collections.abc import Iterator
from typing import Any

from oxillama.chat.calls import BrokenToolCall, ToolCall
from oxillama.chat.format import ChatFormat
from oxillama.chat.message import ChatDelta, ChatMessage
from tests.chat.score.answers import Recorded

__all__ = ["Row", "format_of", "outputs", "streams"]

Row = tuple[str, bool, bool | None, str]  # (column, ours, theirs, fault)
LATER = 16  # characters that the first piece of arguments may come later


def format_of(recorded: Recorded) -> ChatFormat:
    return ChatFormat.of_template(recorded.source, bos_token=recorded.bos, eos_token=recorded.eos)


def _parser(form: ChatFormat, recorded: Recorded, case: dict[str, Any]) -> Any:
    settings = case["settings"]
    return form.parser(
        recorded.tools(settings),
        case["generation_prompt"],
        settings.get("parallel_tool_calls", False),
        reasoning=settings.get("reasoning_format", "auto"),
    )


def _said(message: ChatMessage) -> dict[str, Any]:
    calls = [[c.name, c.arguments] for c in message.tool_calls if isinstance(c, ToolCall)]
    return {"reasoning": message.reasoning.strip(), "content": message.content.strip(), "calls": calls}


def _meant(case: dict[str, Any]) -> dict[str, Any]:
    meant = case["meant"]
    return {
        "reasoning": meant.get("reasoning", "").strip(),
        "content": meant.get("content", "").strip(),
        "calls": meant.get("calls", []),
    }


def _loses(message: ChatMessage, text: str, form: ChatFormat) -> str:
    """Words of a text that are nowhere in the message, and in no mark of the format."""
    frame = form.frame
    kept = [message.reasoning, message.content, frame.content_begin, frame.content_end, frame.turn_end, *frame.breaks]
    kept += [] if frame.reasoning is None else [frame.reasoning.begin, frame.reasoning.end]
    kept += [] if form.calls is None else [form.calls.end, form.calls.separator]
    kept.append("think start assistant commentary final channel message end")
    for call in message.tool_calls:
        kept.append(call.raw)
    whole = _words(" ".join(kept))
    return " ".join(sorted(_words(text) - whole))


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def outputs(recorded: Recorded) -> Iterator[Row]:
    """Whole texts: column "equal" where the other implementation says what was meant, "meant" for the rest."""
    form = format_of(recorded)
    for case in recorded.data["outputs"]:
        parser = _parser(form, recorded, case)
        parser.push(case["text"])
        message = parser.finish()
        where = f"{recorded.label} {case['case']}"
        as_meant = case.get("as_meant")
        if as_meant is not None:
            said, meant = _said(message), _meant(case)
            fault = "" if said == meant else f"{where}: {said} is not {meant}, of {case['text']!r}"
            broken = [c.error for c in message.tool_calls if isinstance(c, BrokenToolCall)]
            yield (
                ("equal" if as_meant else "meant"),
                not fault,
                as_meant,
                fault + (f" {broken}" if fault and broken else ""),
            )
        lost = _loses(message, case["text"], form)
        yield "kept", not lost, None, f"{where}: loses {lost!r} of {case['text']!r}, {message}" if lost else ""


def streams(recorded: Recorded) -> Iterator[Row]:
    """Texts in pieces: the sum is the same for every cut, and arguments come early."""
    form = format_of(recorded)
    for case in recorded.data["outputs"]:
        where, text = f"{recorded.label} {case['case']}", case["text"]
        whole = _summed(form, recorded, case, [text])
        cuts = [[text[:i], text[i:]] for i in range(1, len(text), 5)] + [list(text), _every(text, 3), _every(text, 7)]
        bad = next((cut for cut in cuts if _summed(form, recorded, case, cut) != whole), None)
        fault = "" if bad is None else f"{where}: {_summed(form, recorded, case, bad)} is not {whole} for {bad}"
        yield "cuts", bad is None, None, fault
        late = _late(form, recorded, case)
        if late is not None:
            yield (
                "early",
                late <= LATER,
                None,
                f"{where}: the arguments come {late} characters later" if late > LATER else "",
            )


def _every(text: str, n: int) -> list[str]:
    return [text[i : i + n] for i in range(0, len(text), n)]


def _summed(form: ChatFormat, recorded: Recorded, case: dict[str, Any], pieces: list[str]) -> dict[str, Any]:
    parser = _parser(form, recorded, case)
    deltas: list[ChatDelta] = [delta for piece in pieces for delta in parser.push(piece)]
    message = parser.finish()
    deltas += message.deltas
    calls: dict[int, list[Any]] = {}
    for delta in deltas:
        piece = delta.tool_call
        if piece is not None:
            if piece.name is not None:
                assert piece.index not in calls
                assert not piece.arguments
                calls[piece.index] = [piece.id, piece.name, ""]
            calls[piece.index][2] += piece.arguments
    reasoning, content = "".join(d.reasoning for d in deltas), "".join(d.content for d in deltas)
    for index, call in enumerate(message.tool_calls):
        if isinstance(call, ToolCall):
            assert [call.id, call.name] == calls[index][:2]
            assert json.loads(calls[index][2]) == call.arguments
    assert content == message.content
    assert reasoning.strip() == message.reasoning
    found = [(c.raw, getattr(c, "error", "")) for c in message.tool_calls]
    return {"reasoning": reasoning, "content": content, "calls": calls, "found": found}


def _late(form: ChatFormat, recorded: Recorded, case: dict[str, Any]) -> int | None:
    """How many characters later than the other's the first piece of arguments comes; None if the other has none."""
    theirs: int | None = next(
        (n for n, deltas in case.get("deltas", []) for d in deltas if "t" in d and d["t"].get("a")), None
    )
    if theirs is None or not case.get("as_meant"):
        return None
    parser = _parser(form, recorded, case)
    for i, c in enumerate(case["text"], 1):
        if any(d.tool_call is not None and d.tool_call.arguments for d in parser.push(c)):
            return i - theirs
    return len(case["text"]) + 1 - theirs
