"""Tokens of a choice that an answer shows: those of its content, or all but those of its reasoning."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import accumulate, zip_longest

from oxillama.core.results import Chunk, TokenLogprob
from oxillama.server.answers import Delta

__all__ = ["AnswerTokens", "ContentTokens", "Token"]

Token = tuple[int, TokenLogprob | None]


class ContentTokens:
    """Finds the tokens of one choice that its content is made of, without reasoning, calls and the marks of both.

    A token without text, such as the first bytes of a character, a control token or the beginning of a stop string,
    waits until text or the end follows, whose it is then, or reasoning or a call.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._bytes = token_bytes
        self._waiting: list[Token] = []
        self._raw = ""  # text that the model wrote with them, if it has marks
        self._last = ""  # kind of the last part that had any: "text", "reasoning" or "call"

    def read(self, chunk: Chunk, delta: Delta) -> list[Token]:
        """Tokens of the content that the next chunk decides. delta: the chunk's own."""
        own = _tokens(chunk)
        self._waiting += own
        self._raw += "" if self._last else chunk.raw
        shown: list[Token] = []
        if delta.text:
            shown = self._take(delta.text, delta.reasoning != "")
        if delta.calls or delta.cut or (delta.reasoning and not delta.text):
            self._last = "call" if delta.calls or delta.cut else "reasoning"
            self._waiting = self._waiting[-len(own) :] if own else self._waiting  # text may follow with no new token
        if chunk.finish_reason is not None and self._last in ("", "text"):
            shown += self._waiting
            self._waiting = []
        return shown

    def _take(self, text: str, thought: bool) -> list[Token]:
        tokens, raw = self._waiting, self._raw
        goes_on = not thought and (self._last == "text" or (not self._last and raw in ("", text)))
        start, stop = _place([self._bytes(token) for token, _ in tokens], text, goes_on)
        self._waiting, self._raw, self._last = tokens[stop:], "", "text"
        return tokens[0 if goes_on else start : stop]


class AnswerTokens:
    """Finds the tokens of one choice that are shown: all (`whole`), or those behind its reasoning."""

    def __init__(self, token_bytes: Callable[[int], bytes], *, whole: bool) -> None:
        self._bytes = token_bytes
        self._waiting: list[Token] = []
        self._raw = ""
        self._thinks, self._over = False, whole

    def read(self, chunk: Chunk) -> list[Token]:
        """Tokens to show that the next chunk decides."""
        own = _tokens(chunk)
        if self._over:
            return own
        self._waiting += own
        self._raw += "" if self._thinks else chunk.raw
        if chunk.reasoning:
            self._thinks, self._waiting = True, own or self._waiting
        called = bool(chunk.tool_call_deltas or chunk.tool_calls)
        self._over = bool(chunk.text) or called or chunk.finish_reason is not None
        if not self._over:
            return []
        if chunk.text:
            if not self._thinks and self._raw in ("", chunk.text):
                return self._waiting
            start, _ = _place([self._bytes(token) for token, _ in self._waiting], chunk.text, False)
            return self._waiting[start:]
        return (own if called else []) if self._thinks else self._waiting


def _tokens(chunk: Chunk) -> list[Token]:
    return list(zip_longest(chunk.token_ids, chunk.logprobs or ()))


def _place(pieces: list[bytes], text: str, first: bool) -> tuple[int, int]:
    """(first, end) of the pieces that a text is made of; of all, if it isn't found in them.

    first: look for its first place, not for the last.
    """
    written, sought = b"".join(pieces), text.encode()
    at = written.find(sought) if first else written.rfind(sought)
    if at < 0:
        return 0, len(pieces)
    ends = list(accumulate(map(len, pieces)))
    return bisect_right(ends, at), bisect_left(ends, at + len(sought)) + 1
