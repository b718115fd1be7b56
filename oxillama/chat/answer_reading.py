"""Reading of one answer while it is generated: its parts for chunks, its tokens of reasoning, and their budget."""

from typing import Any

from oxillama.chat.message import ChatDelta
from oxillama.chat.parser import ChatParser

__all__ = ["AnswerReading"]


class AnswerReading:
    """Divides the text of one request.

    n_reasoning: tokens of reasoning so far, with its marks.
    """

    __slots__ = ("_budget", "_end", "_forced", "_parser", "_raw", "_thinks", "n_reasoning")

    def __init__(self, parser: ChatParser, budget: int | None = None, end: list[int] | None = None) -> None:
        """budget: how many tokens of reasoning may come, before `end`, the tokens that end it, are written."""
        self._parser = parser
        self._budget, self._end = budget, end or []
        self._forced: list[int] | None = None
        self._raw: list[str] = []
        parser.push("")  # up to where the prompt has opened the reasoning
        self._thinks = parser.in_reasoning
        self.n_reasoning = 0

    def forced(self) -> int | None:
        """The token that must come next, since the budget is used up; None for any. Called once before each token."""
        if self._budget is None:
            return None
        if self._forced is None and self._parser.in_reasoning and self.n_reasoning >= self._budget:
            self._forced = self._end[::-1]
        return self._forced.pop() if self._forced else None

    def push(self, text: str) -> list[dict[str, Any]]:
        """The parts that more of the text completes: fields of a chunk each."""
        if not text:
            return []
        self._raw.append(text)
        return self._parts(self._parser.push(text))

    def count(self) -> None:
        """Counts one token, whose text has been pushed, as reasoning if it is."""
        thinks = self._parser.in_reasoning
        self.n_reasoning += thinks or self._thinks
        self._thinks = thinks

    def end(self) -> list[dict[str, Any]]:
        """The parts that were held back until the end."""
        return self._parts(self._parser.end())

    def take_raw(self) -> str:
        """The text since the last part."""
        raw, self._raw = "".join(self._raw), []
        return raw

    def _parts(self, deltas: list[ChatDelta]) -> list[dict[str, Any]]:
        """Parts of the answer, each with reasoning first, then text, then pieces of calls, then whole calls."""
        parts: list[dict[str, Any]] = []
        rank = 4
        for delta in deltas:
            own = 0 if delta.reasoning else 1 if delta.content else 2 if delta.tool_call is not None else 3
            if own < rank:
                parts.append({"text": "", "calls": []})
            rank, part = own, parts[-1]
            if own == 0:
                part["reasoning"] = part.get("reasoning", "") + delta.reasoning
            elif own == 1:
                part["text"] += delta.content
            elif delta.tool_call is not None:
                part.setdefault("tool_call_deltas", []).append(delta.tool_call)
            else:
                part["calls"].append(delta.call)
        if parts:
            parts[0]["raw"] = self.take_raw()
        return parts
