"""llama-server's own calls: the text in a gap, as editors ask for it, and the prompt that a chat template makes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from oxillama.core.chat import chat_text
from oxillama.core.prompts import fim_marks, opening
from oxillama.core.results import Chunk
from oxillama.errors import UnsupportedModelError
from oxillama.sampling.file_defaults import idle_settings
from oxillama.server.answers import usage_of
from oxillama.server.embedding_run import engine_errors
from oxillama.server.engine_options import read_engine
from oxillama.server.errors import ApiError, bad_value
from oxillama.server.exchange import Exchange
from oxillama.server.field_types import Values
from oxillama.server.fields_infill import APPLY_TEMPLATE, INFILL, samplers_of
from oxillama.server.generation import GenerationRun, GenerationSpec, Texts, spec_of
from oxillama.server.json_pieces import Body
from oxillama.server.models import Chosen
from oxillama.server.prompting import read_prompt_of
from oxillama.server.respond import answered, choices_of
from oxillama.server.sse import SSE, Event
from oxillama.server.translate import renamed
from oxillama.tokenizer import Tokenizer

__all__ = ["Gap", "LineWatch", "apply_template", "infill", "infill_prompt"]

# What the places around a gap are called where the model has tokens for repositories and files, as llama-server does.
REPOSITORY, FILE = "myproject\n", "filename\n"
SNIPPET = "\n\n--- snippet ---\n\n"  # before a file, where there is no token for it
SHARE = 4  # of the context: one part is for what is generated, and one of the rest for what is after the gap
CHARACTERS = 16  # of a text for each token that there is room for: what is farther from the gap isn't tokenised


async def infill(exchange: Exchange) -> None:
    """POST /infill"""
    await answered(exchange, INFILL, read_infill, InfillDialect)


def read_infill(values: Values, exchange: Exchange, chosen: Chosen) -> GenerationSpec:
    """Reads a request of `/infill`. Raises ApiError."""
    names = {"max_tokens": "n_predict"}
    exchange.reading.names = names
    engine = chosen.model.ready.engine
    options, constraint = read_engine(values, exchange, chosen)
    idle = idle_settings(samplers_of(values["samplers"], exchange.reading)) if "samplers" in values else {}
    n_predict = values.get("n_predict", -1)
    most = None if n_predict < 0 else min(max(n_predict, 1), 1 << 24)
    try:
        ids, cut = infill_prompt(engine.tokenizer, read_gap(values), engine.context.factory.room)
    except UnsupportedModelError as error:
        raise bad_value("model", str(error), "unsupported_parameter") from None
    for name in cut:
        exchange.reading.say(name)
    watch = LineWatch(values.get("n_indent", 0), values.get("t_max_predict_ms", 0))
    token_bytes = engine.tokenizer.token_bytes

    def ends(ids: list[int], logits: object) -> bool:
        return watch.ends(token_bytes(ids[-1]).decode("latin-1"))

    given = {**options, **idle, "max_tokens": most, "stopping_criteria": ends if watch.watches else None}
    source, whole = Texts((ids,)), not values.get("stream")
    return renamed(
        lambda: spec_of(chosen, source, given, constraint, whole=whole, names=names, is_cut=bool(cut)), names
    )


@dataclass(frozen=True)
class Gap:
    """The texts around a gap, and what is known beside them. files: (text, name), those nearest to the gap last.
    n_predict: tokens that are wanted in it; below 0: as many as there is room for."""

    prefix: str
    suffix: str
    files: tuple[tuple[str, str], ...] = ()
    n_predict: int = -1


def read_gap(values: Values) -> Gap:
    """The gap of a request."""
    files = tuple((one["text"], one.get("filename", "tmp")) for one in values.get("input_extra", ()))
    prefix = values["input_prefix"] + values.get("prompt", "")
    return Gap(prefix, values["input_suffix"], files, values.get("n_predict", -1))


def infill_prompt(tokenizer: Tokenizer, gap: Gap, context_size: int) -> tuple[list[int], list[str]]:
    """Token ids of the prompt for the text in a gap, and the fields of which a part has no room.

    Files come first, each behind its name, then the text before the gap, the text after it, and the mark of the text in
    it. What has no room is cut off at the ends that are far from the gap, files first. Raises UnsupportedModelError.
    """
    before_mark, after_mark, middle = fim_marks(tokenizer)
    begin = opening(tokenizer)
    wanted = context_size if gap.n_predict < 0 else max(gap.n_predict, 1)
    room = max(context_size - min(wanted, context_size // SHARE) - len(begin) - 3, 0)
    most = CHARACTERS * room
    prefix, suffix = gap.prefix, gap.suffix
    before = tokenizer.encode(prefix[max(0, len(prefix) - most) :], add_special=False)
    after = tokenizer.encode(suffix[:most], add_special=False, continuation=True)
    n_after = min(len(after), max(room // SHARE, room - len(before)))
    n_before = min(len(before), room - n_after)
    n_extra = room - n_after - n_before
    extra = _files(tokenizer, gap.files, CHARACTERS * n_extra)
    cut = [
        name
        for name, is_cut in (
            ("input_prefix", n_before < len(before) or len(prefix) > most),
            ("input_suffix", n_after < len(after) or len(suffix) > most),
            ("input_extra", n_extra < len(extra) and bool(gap.files)),
        )
        if is_cut
    ]
    ids = begin + extra[max(0, len(extra) - n_extra) :]
    return [*ids, before_mark, *before[len(before) - n_before :], after_mark, *after[:n_after], middle], cut


def _files(tokenizer: Tokenizer, files: Sequence[tuple[str, str]], most: int) -> list[int]:
    """Token ids of what comes before the gap's own file, of which the last `most` characters count."""

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False, continuation=True)

    parts: list[list[int]] = []
    for whole, named in reversed(files):
        text = whole[max(0, len(whole) - most) :]
        filename = SNIPPET if tokenizer.fim_sep_id is None else named + "\n"
        name = encode(SNIPPET) if tokenizer.fim_sep_id is None else _named(tokenizer, filename)
        parts.append(name + encode(text))
        most -= len(text) + len(filename)
        if most <= 0:
            break
    found = [] if tokenizer.fim_rep_id is None else [tokenizer.fim_rep_id, *encode(REPOSITORY)]
    found += [token for part in reversed(parts) for token in part]
    return found if tokenizer.fim_sep_id is None else found + _named(tokenizer, FILE)


def _named(tokenizer: Tokenizer, name: str) -> list[int]:
    assert tokenizer.fim_sep_id is not None
    return [tokenizer.fim_sep_id, *tokenizer.encode(name, add_special=False, continuation=True)]


class LineWatch:
    """Sees to it that a text ends before a line that is indented too little, and some time after its first line.

    why: "indent" or "time", once it ended. Empty lines count as indented.
    """

    def __init__(self, indent: int, milliseconds: int) -> None:
        self._indent, self._seconds = indent, max(milliseconds, 0) / 1000
        self._began: float | None = None
        self._spaces: int | None = None  # of the line's beginning, as long as nothing else came; None behind it
        self._has_line = False
        self.why = ""

    @property
    def watches(self) -> bool:
        """Whether there is anything that could end the text."""
        return self._indent > 0 or self._seconds > 0

    def ends(self, piece: str) -> bool:
        """Takes the next piece; whether the text ends with it."""
        now = time.monotonic()
        self._began = now if self._began is None else self._began
        if len(self.kept(piece)) == len(piece) and self._seconds and self._has_line:
            self.why = "time" if now - self._began > self._seconds else ""
        return bool(self.why)

    def kept(self, piece: str) -> str:
        """Part of the next piece that is before a line that is indented too little."""
        if self.why:
            return ""
        for i, letter in enumerate(piece):
            if letter == "\n":
                self._has_line, self._spaces = True, 0
            elif self._spaces is not None and letter in " \t":
                self._spaces += 1
            elif self._spaces is not None:
                if self._indent and self._spaces < self._indent:
                    self.why = "indent"
                    return piece[:i]
                self._spaces = None
        return piece


@dataclass(frozen=True)
class Wanted:
    """Wanted parts of an answer. nothing: the prompt is read for later ones, and the one token that it takes is none of
    the answer. paths: of the fields that are wanted; None: all."""

    indent: int
    nothing: bool
    tokens: bool
    paths: list[str] | None


def read_wanted(values: Values) -> Wanted:
    """Reads what a request wants its answer to have."""
    nothing, tokens = values.get("n_predict") == 0, values.get("return_tokens", False)
    return Wanted(values.get("n_indent", 0), nothing, tokens, values.get("response_fields"))


class InfillDialect:
    """llama-server's own form of an answer, and its events."""

    stream_format = SSE
    tail = b""

    def __init__(self, run: GenerationRun, values: Values) -> None:
        self.run, self._wants = run, read_wanted(values)
        self.choices = choices_of(run)
        self._lines = LineWatch(self._wants.indent, 0)

    def add(self, index: int, chunk: Chunk) -> None:
        """Takes a chunk of an answer that is no stream."""
        self.choices[index].add(chunk)

    # ---- a stream

    def begin(self) -> list[Event]:
        return []

    def step(self, index: int, chunk: Chunk) -> list[Event]:
        self.choices[index].add(chunk)
        text = self._lines.kept(chunk.text)
        if self._wants.nothing or not (text or (chunk.token_ids and self._wants.tokens)):
            return []
        said: Body = {"index": 0, "content": text, "stop": False}
        return [(None, said | self._tokens(chunk.token_ids) | self._counts())]

    def end(self) -> list[Event]:
        return [(None, self._shown({"content": "", **self._final()}))]

    def failed(self, error: ApiError) -> list[Event]:
        return [(None, error.openai())]

    # ---- a whole answer

    def whole(self) -> Body:
        text = "" if self._wants.nothing else self._lines.kept(self.choices[0].text)
        return self._shown({"content": text, **self._tokens(self.choices[0].token_ids), **self._final()})

    def _tokens(self, ids: list[int]) -> Body:
        return {"tokens": ids} if self._wants.tokens else {}

    def _counts(self) -> Body:
        n = 0 if self._wants.nothing else len(self.choices[0].token_ids)
        return {"tokens_predicted": n, "tokens_evaluated": len(self.run.prompts[0])}

    def _final(self) -> Body:
        """Fields of the last event and of a whole answer beside the text."""
        choice, counts = self.choices[0], self._counts()
        kind = "word" if isinstance(choice.stop_reason, str) else "eos" if choice.reason == "stop" else "limit"
        if self._lines.why or (kind == "eos" and not self._ended_by_model()):
            kind = "limit"
        n_prompt, n_text = counts["tokens_evaluated"], counts["tokens_predicted"]
        engine = self.run.spec.chosen.model.ready.engine
        sizes = {"n_ctx": engine.context.factory.room, "n_predict": self.run.spec.text.max_tokens or -1}
        return {
            "index": 0,
            "model": self.run.spec.chosen.name,
            **counts,
            "tokens_cached": n_prompt + n_text,
            "stop": True,
            "stop_type": kind,
            "stopping_word": choice.stop_reason if kind == "word" else "",
            "has_new_line": "\n" in choice.text,
            "truncated": self.run.spec.is_cut,
            "generation_settings": sizes,
            "timings": self._timings(n_prompt, n_text),
        }

    def _ended_by_model(self) -> bool:
        """Whether the text ended by a token of the model's own, and not by the watch over its lines."""
        return self.run.requests[0].stop_reason is not None

    def _timings(self, n_prompt: int, n_text: int) -> Body:
        cached = usage_of(self.run, self.choices)["prompt_tokens_details"]["cached_tokens"]
        times = self.run.requests[0].clock.timings
        found: Body = {"cache_n": cached}
        counts = (("prompt", n_prompt - cached, times.prefill_seconds), ("predicted", n_text, times.decode_seconds))
        for name, n, seconds in counts:
            found[f"{name}_n"], found[f"{name}_ms"] = n, 1000 * seconds
            found[f"{name}_per_token_ms"] = 1000 * seconds / n if n else 0.0
            found[f"{name}_per_second"] = n / seconds if seconds else 0.0
        return found

    def _shown(self, answer: Body) -> Body:
        """The fields that are wanted, by their paths."""
        if self._wants.paths is None:
            return answer
        found: Body = {}
        for path in self._wants.paths:
            value: Any = answer
            for part in path.split("/"):
                value = value.get(part) if isinstance(value, dict) else None
            if value is not None:
                found[path] = value
        return found


async def apply_template(exchange: Exchange) -> None:
    """POST /apply-template"""
    values = await exchange.fields(APPLY_TEMPLATE)
    chosen = await exchange.service.models.use(values.get("model"))
    tokenizer = chosen.model.ready.engine.tokenizer

    def make() -> str:
        found = read_prompt_of(values, exchange, chosen)
        return chat_text(tokenizer, found.messages, found.prompt)

    with chosen.in_use():
        text = await exchange.elsewhere(lambda: engine_errors(make, chosen))
    await exchange.answer(await exchange.written(lambda: {"prompt": text}), "application/json")
