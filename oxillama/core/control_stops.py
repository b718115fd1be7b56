"""Stop strings that hold texts of control tokens, which are no text themselves."""

from collections.abc import Container, Iterable

from oxillama.core.generation_request import StopMatcher
from oxillama.tokenizer.control_texts import ControlTexts

__all__ = ["ControlStopMatcher"]


class ControlStopMatcher:
    """A `StopMatcher` some of whose stop strings hold texts of control tokens.

    These are looked for in the text as the model writes it, in which such a token has its text; the others in the text
    that is shown, in which it has none. So "<|user|>" ends a text where that token comes, and "</s>\\n" where that
    token and a line break come.

    texts: of all control tokens. shown: those whose text is shown.
    """

    __slots__ = ("_mask", "_plain", "_raw", "_shown", "_texts", "found", "keeps", "stops")

    def __init__(
        self, stops: Iterable[str], texts: ControlTexts, shown: Container[int] = (), *, keeps: bool = False
    ) -> None:
        self.stops = tuple(sorted(stops, key=len))
        raw = [stop for stop in self.stops if texts.are_in(stop)]
        self._raw, self._plain = StopMatcher(raw), StopMatcher([s for s in self.stops if s not in raw], keeps=keeps)
        self._texts, self._shown = texts, shown
        self._mask = bytearray()  # for each character that the first matcher holds: 1 if it isn't shown
        self.found: str | None = None
        self.keeps = keeps

    @property
    def held(self) -> str:
        """Text that may be the beginning of a stop string."""
        return self._plain.held + self._raw.held

    def push(self, piece: str, token: int | None = None) -> tuple[str, bool]:
        """(text that is safe to show, whether a stop string was found: then that text is the last).

        token: which the piece is the text of.
        """
        hidden = "" if token is None or token in self._shown else self._texts.get(token, "")
        return self._with(piece, hidden)

    def end(self, token: int) -> tuple[str, bool]:
        """The text ends with a token that isn't part of it: what `push` gives for it."""
        return self._with("", self._texts.get(token, ""))

    def flush(self) -> tuple[str, bool]:
        """The text ends here: what was held back, up to the leftmost stop string if there is one."""
        text, over = self._raw.flush()
        shown, stopped = self._then(self._visible(text), over)
        if stopped:
            return shown, True
        rest, stopped = self._plain.flush()
        self.found = self._plain.found
        return shown + rest, stopped

    def _with(self, piece: str, hidden: str) -> tuple[str, bool]:
        self._mask += bytes(len(piece)) + b"\1" * len(hidden)
        text, over = self._raw.push(piece + hidden)
        return self._then(self._visible(text), over)

    def _visible(self, text: str) -> str:
        """The characters of a text, the next that were held, that are shown."""
        mask, self._mask = self._mask[: len(text)], self._mask[len(text) :]
        return "".join(c for c, hidden in zip(text, mask, strict=True) if not hidden) if any(mask) else text

    def _then(self, text: str, over: bool) -> tuple[str, bool]:
        """More of the text that is shown. over: a stop string of the first matcher follows it."""
        shown, stopped = self._plain.push(text)
        if over and not stopped:
            rest, stopped = self._plain.flush()
            shown += rest
        if stopped:
            self.found = self._plain.found
        elif over:
            self.found = self._raw.found
            shown += (self.found or "") if self.keeps else ""
        return shown, stopped or over
