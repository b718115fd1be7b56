"""Generation request: draws tokens, matches stop strings and emits chunks."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Container, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from oxillama.chat.answer_reading import AnswerReading
from oxillama.chat.calls import AnyToolCall
from oxillama.chat.message import ToolCallDelta
from oxillama.core.draft_options import Speculation
from oxillama.core.logprobs import LogprobRecorder
from oxillama.core.options import StoppingCriterion, is_met
from oxillama.core.request import Request, ResultQueue
from oxillama.core.results import FinishReason, Usage, new_chunk, new_text, new_usage
from oxillama.sampling import Sampler
from oxillama.scheduling.sequence import Sequence
from oxillama.tokenizer.control_texts import ControlTexts

if TYPE_CHECKING:
    from oxillama.core.options import TextOptions

__all__ = ["ControlStopMatcher", "GenerationRequest", "StopMatcher"]


class StopMatcher:
    """Cuts text at the leftmost occurrence of any stop string, however the text is divided into pieces.

    Text that may be the beginning of a stop string is held back until that is settled. A stop string that is complete
    still waits while one that began further left may become complete too, so that where the cut is depends on the text
    alone.

    stops: the strings, the shortest first. found: the stop string that was found; the shortest of those that begin in
    the same place. keeps: whether that stays at the end of the text.
    """

    __slots__ = ("_held", "found", "keeps", "stops")

    def __init__(self, stops: Iterable[str] = (), *, keeps: bool = False) -> None:
        # The shortest is complete first, however the text is divided.
        self.stops = tuple(sorted(stops, key=len))
        self._held = ""
        self.found: str | None = None
        self.keeps = keeps

    @property
    def held(self) -> str:
        """Text that may be the beginning of a stop string."""
        return self._held

    def push(self, piece: str, token: int | None = None) -> tuple[str, bool]:
        """(text that is safe to show, whether a stop string was found: then that text is the last).

        token: which the piece is the text of.
        """
        if not self.stops:
            return piece, False
        text = self._held + piece
        for start in range(len(text)):
            for stop in self.stops:
                if text.startswith(stop, start):
                    self._held, self.found = "", stop
                    return text[: start + self.keeps * len(stop)], True
            if any(stop.startswith(text[start:]) for stop in self.stops):
                self._held = text[start:]
                return text[:start], False
        self._held = ""
        return text, False

    def end(self, token: int) -> tuple[str, bool]:
        """The text ends with a token that isn't part of it: what `push` gives for it."""
        return "", False

    def flush(self) -> tuple[str, bool]:
        """The text ends here: what was held back, up to the leftmost stop string if there is one."""
        held, self._held = self._held, ""
        found = [(start, len(stop), stop) for stop in self.stops if (start := held.find(stop)) >= 0]
        if not found:
            return held, False
        start, length, self.found = min(found)
        return held[: start + self.keeps * length], True


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


class TextStream(Protocol):
    """Detokenizer of a stream, by whole characters; `tokenizer.TokenStream` is one.

    pending: bytes of a character that is not finished.
    """

    @property
    def pending(self) -> bytes: ...

    def push(self, token: int) -> str: ...

    def flush(self) -> str: ...


class GenerationRequest(Request):
    """Draws tokens after a prompt and turns them into chunks of text.

    Every finished token is in `sequence.tokens`; a chunk goes to the outbox when there is text to show.
    """

    __slots__ = (
        "_criteria", "_echo", "_kept_ids", "_last_text", "_least", "_limit", "_n_shown", "_stopped", "_stops",
        "_stops_after", "_stream", "_texts", "end_ids", "free_tools", "n_vocab", "number", "options", "reading",
        "sampler", "scores", "speculation", "stop_reason", "want", "warnings",
    )  # fmt: skip

    def __init__(
        self,
        sequence: Sequence,
        outbox: ResultQueue,
        *,
        sampler: Sampler,
        n_vocab: int,
        stream: TextStream,
        stops: StopMatcher | ControlStopMatcher,
        max_tokens: int,
        end_ids: Collection[int],
        scores: LogprobRecorder | None = None,
        number: int = 0,
        reading: AnswerReading | None = None,
        speculation: Speculation | None = None,
        options: TextOptions | None = None,
        criteria: tuple[StoppingCriterion, ...] = (),
        echo: str = "",
        min_tokens: int = 0,
        kept_ids: Collection[int] = (),
        free_tools: tuple[tuple[str, str], ...] = (),
        warnings: list[str] | None = None,
        **held: Any,
    ) -> None:
        """`end_ids` are the tokens that end the text; `scores` gets log-probabilities, `reading` finds
        reasoning and calls.

        `n_vocab`: length of a row. `number`: which of the completions of its prompt it is. `speculation`: None if
        there are no drafts. `options`: what it was made of, for snapshots. `criteria` end the text. `echo`: what stands
        before it. `min_tokens`: before, neither stop strings nor criteria end it. `kept_ids`: of the tokens that end
        it, those that stay in it. `free_tools`: tools whose arguments no grammar holds, and why.
        `warnings`: what of its options couldn't be done.
        """
        super().__init__(sequence, outbox, **held)
        self.options = options
        self.sampler = sampler
        self.n_vocab = n_vocab
        self._stream = stream
        self._stops = stops
        self.end_ids = end_ids
        self.reading = reading
        self.scores = scores
        self.number = number
        self.speculation = speculation
        wants_all = scores is not None and scores.wants_prompt(sequence) and not self.follows
        greedy = sampler.chain.greedy and not sampler.processors and sampler.memory.grammar is None
        looks = scores or speculation or criteria or reading is not None or not max_tokens  # at the row, or at none
        sequence.every_row = wants_all
        self.want = "all" if wants_all else "likeliest" if greedy and not looks else "last"
        self._limit = sequence.n_prompt + max_tokens
        self._least = sequence.n_prompt + min_tokens
        self._stops_after = self._least if stops.stops else math.inf  # tokens, before which none is looked for
        self._kept_ids = kept_ids
        self._n_shown = sequence.n_prompt
        self._stopped = False
        self._texts: list[str] = []  # for one chunk at the end, where no caller reads before it
        self._last_text = ""
        self._criteria = criteria
        self._echo = echo
        self.stop_reason: str | int | None = None
        self.free_tools = free_tools
        self.warnings = [] if warnings is None else warnings

    @property
    def usage(self) -> Usage:
        """Numbers of tokens that the request has taken so far."""
        n_given = self.n_prompt - self.n_filling
        n_new = len(self.sequence.tokens) - self.n_prompt
        n_reasoning = 0 if self.reading is None else self.reading.n_reasoning
        return new_usage(n_given, n_new, min(self.sequence.n_cached or 0, n_given), n_reasoning)

    def progress(self) -> dict[str, Any]:
        """Progress of the request, beside tokens and sampler, as plain data."""
        held, pending = self._stops.held, self._stream.pending.hex()
        shown = {"n_shown": self._n_shown, "held": held, "utf8": pending, "echo": self._echo}
        return {"number": self.number, "limit": self._limit, **shown}

    def go_on(self, drawn: list[int], sampler: Mapping[str, Any], *, finished: bool) -> None:
        """Restores the state that a request had after drawing `drawn`, with the text that it had shown; all if it
        finished.

        sampler: the state of its sampler. Raises ConfigError for a damaged one, GrammarError if tokens don't fit.
        """
        self.sampler.memory.restore(sampler)
        tokens = self.sequence.tokens
        for token in drawn:
            tokens.append(token)
            text = self._stream.push(token)
            if len(tokens) > self._stops_after:
                text, stopped = self._stops.push(text, token)
                self._stopped = self._stopped or stopped
            if self.reading is not None:
                self.reading.forced()
                if self.reading.push(text):
                    self._n_shown = len(tokens)
                self.reading.count()
            elif text:
                self._n_shown = len(tokens)
        if finished:
            self._n_shown = len(tokens)

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found."""
        return self._stopped

    def absorb(self, rows: NDArray[np.float32] | int) -> FinishReason | None:
        if isinstance(rows, int):
            return self.draw(rows)
        if self.scores is not None and self.want == "all":
            self.scores.add_prompt(self.sequence, rows)
            if not self.scores.wants_prompt(self.sequence):
                self.want, self.sequence.every_row = "last", False
            if self.sequence.n_computed < len(self.sequence.tokens):
                return None
        if self._limit == self.n_prompt:  # nothing but the prompt's log-probabilities is wanted
            return "length"
        return self.draw(rows[-1])

    def draw(self, row: Any) -> FinishReason | None:
        """The next token, from a row of logits, or this token; why the request is finished, or None."""
        speculation = self.speculation
        if isinstance(row, int):
            token = row
        elif self.reading is not None and (forced := self.reading.forced()) is not None:
            token = forced if speculation is None else speculation.forced(forced)
        else:
            token = self.sampler.sample(row) if speculation is None else speculation.choose(self.sampler, row)
        if not self.clock.first_at:
            self.clock.first_at = time.perf_counter()
        ends = token in self.end_ids
        if ends:
            self.stop_reason = token
            if token not in self._kept_ids:
                if self.scores is not None:
                    self.scores.add_end(row, token)
                return "stop"
        self.sampler.memory.push(token)
        if self.scores is not None:
            self.scores.add(row, token)
        tokens = self.sequence.tokens
        tokens.append(token)
        text = self._stream.push(token)
        if len(tokens) > self._stops_after:
            text, self._stopped = self._stops.push(text, token)
            if self._stopped:
                self._last_text = text
                if self.reading is not None:
                    self.reading.count()
                return "stop"
        if self.reading is not None:
            self._put_divided(text, None)
            self.reading.count()
        elif text and self.outbox.whole:
            self._texts.append(text)
        elif text:
            self._put_text(text)
        if ends or (self._criteria and len(tokens) >= self._least and self._meets_criteria(row)):
            return "stop"
        return "length" if len(tokens) == self._limit else None

    def _meets_criteria(self, row: NDArray[np.float32]) -> bool:
        tokens, n = self.sequence.tokens, self.sequence.n_encoded
        return is_met(self._criteria, tokens[n:] if n else tokens, row)

    def close(self, reason: FinishReason) -> FinishReason:
        text = self._last_text
        if not self._stopped:
            text = self._stream.flush()
            if len(self.sequence.tokens) > self._stops_after:
                text, self._stopped = self._stops.push(text)
        if not self._stopped and self._stops.stops:
            held, self._stopped = self._last_stop()
            text += held
        if self._stopped and reason == "length":
            reason = "stop"
        if self._stopped and reason == "stop":
            self.stop_reason = self._stops.found
        if self.reading is None:
            self._put("".join([*self._texts, text]), [], reason)
        else:
            self._put_divided(text, reason)
        return reason

    def _last_stop(self) -> tuple[str, bool]:
        """Text that stop strings hold back at the end, with the token that ended the text and isn't part of it."""
        text, token = "", self.stop_reason
        last = len(self.sequence.tokens) + 1
        if isinstance(token, int) and token not in self._kept_ids and last > self._stops_after:
            text, stopped = self._stops.end(token)
            if stopped:
                return text, True
        rest, stopped = self._stops.flush()
        return text + rest, stopped

    def _put_text(self, text: str) -> None:
        """A chunk of text as it comes."""
        if self._echo or self.scores is not None:
            return self._put(text, [], None)
        tokens = self.sequence.tokens
        ids, self._n_shown = tokens[self._n_shown :], len(tokens)
        self.outbox.put(self.index, new_text(text, ids, self.number))

    def _put_divided(self, text: str, reason: FinishReason | None) -> None:
        """Text as it comes, divided into reasoning, content and calls of tools."""
        assert self.reading is not None
        parts = self.reading.push(text) + (self.reading.end() if reason else [])
        if reason and not parts:
            parts = [{"text": "", "calls": [], "raw": self.reading.take_raw()}]
        for i, part in enumerate(parts, 1):
            self._put(**part, reason=reason if i == len(parts) else None)

    def _put(
        self,
        text: str,
        calls: list[AnyToolCall],
        reason: FinishReason | None,
        reasoning: str = "",
        tool_call_deltas: list[ToolCallDelta] | None = None,
        raw: str = "",
    ) -> None:
        """A chunk of text as it comes, and the reason with the last."""
        if self._echo:
            text, self._echo = self._echo + text, ""
        first = self._n_shown - self.n_prompt
        ids = self.sequence.tokens[self._n_shown :]
        self._n_shown += len(ids)
        logprobs = prompt = stop = end = usage = None
        warnings: list[str] = []
        if (scores := self.scores) is not None:
            logprobs = None if scores.tokens is None else scores.tokens[first:]
            prompt = None if first else scores.prompt
        if reason is not None:
            stop, end, usage, warnings = self.stop_reason, scores and scores.end, self.usage, self.warnings
        deltas = [] if tool_call_deltas is None else tool_call_deltas
        chunk = new_chunk(
            text, ids, reason, logprobs, prompt, self.number, calls, stop, end, usage, reasoning, deltas, raw, warnings
        )  # fmt: skip
        self.outbox.put(self.index, chunk)
