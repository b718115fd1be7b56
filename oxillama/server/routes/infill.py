"""llama-server's own calls: the text in a gap, as editors ask for it, and the prompt that a chat template makes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from oxillama.core.chat import chat_text
from oxillama.core.prompts import fim_marks, opening
from oxillama.core.results import Chunk
from oxillama.errors import UnsupportedModelError
from oxillama.sampling.file_defaults import idle_settings
from oxillama.server.answers import usage_of
from oxillama.server.asks import Ask, Run, engine_options
from oxillama.server.errors import ApiError, bad_value
from oxillama.server.exchange import Exchange
from oxillama.server.fields_infill import APPLY_TEMPLATE, INFILL, samplers_of
from oxillama.server.generating import answered, choices_of
from oxillama.server.models import Chosen
from oxillama.server.numbers import engine_errors
from oxillama.server.prompting import template_options
from oxillama.server.sse import SSE, Event
from oxillama.tokenizer import Tokenizer

__all__ = ["LineWatch", "apply_template", "infill", "infill_prompt"]

# What the places around a gap are called where the model has tokens for repositories and files, as llama-server does.
REPOSITORY, FILE = "myproject\n", "filename\n"
SNIPPET = "\n\n--- snippet ---\n\n"  # before a file, where there is no token for it
SHARE = 4  # of the context: one part is for what is generated, and one of the rest for what is after the gap
CHARACTERS = 16  # of a text for each token that there is room for: what is farther from the gap isn't tokenised


async def infill(exchange: Exchange) -> None:
    """POST /infill"""
    await answered(exchange, INFILL, read_ask, InfillDialect)


def read_ask(values: Mapping[str, Any], exchange: Exchange, chosen: Chosen) -> Ask:
    """Reads a request of `/infill`. Raises ApiError."""
    names = {"max_tokens": "n_predict"}
    exchange.reading.names = names
    engine = chosen.model.ready.engine
    options, constraint = engine_options(values, exchange, chosen)
    if "samplers" in values:
        options |= idle_settings(samplers_of(values["samplers"], exchange.reading))
    n_predict = values.get("n_predict", -1)
    options["max_tokens"] = None if n_predict < 0 else min(max(n_predict, 1), 1 << 24)
    try:
        ids, cut = infill_prompt(engine.tokenizer, values, engine.context.factory.room)
    except UnsupportedModelError as error:
        raise bad_value("model", str(error), "unsupported_parameter") from None
    for name in cut:
        exchange.reading.say(name)
    watch = LineWatch(values.get("n_indent", 0), values.get("t_max_predict_ms", 0))
    if watch.watches:
        token_bytes = engine.tokenizer.token_bytes
        options["stopping_criteria"] = lambda ids, logits: watch.ends(token_bytes(ids[-1]).decode("latin-1"))
    return Ask(
        chosen, options, prompts=[ids], whole=not values.get("stream"), constraint=constraint, names=names,
        is_cut=bool(cut),
    )  # fmt: skip


def infill_prompt(tokenizer: Tokenizer, values: Mapping[str, Any], context_size: int) -> tuple[list[int], list[str]]:
    """Token ids of the prompt for the text in a gap, and the fields of which a part has no room.

    Files come first, each behind its name, then the text before the gap, the text after it, and the mark of the text in
    it. What has no room is cut off at the ends that are far from the gap, files first. Raises UnsupportedModelError.
    """
    before_mark, after_mark, middle = fim_marks(tokenizer)
    n_predict, begin = values.get("n_predict", -1), opening(tokenizer)
    wanted = context_size if n_predict < 0 else max(n_predict, 1)
    room = max(context_size - min(wanted, context_size // SHARE) - len(begin) - 3, 0)
    most = CHARACTERS * room
    prefix, suffix = values["input_prefix"] + values.get("prompt", ""), values["input_suffix"]
    before = tokenizer.encode(prefix[max(0, len(prefix) - most) :], add_special=False)
    after = tokenizer.encode(suffix[:most], add_special=False, continuation=True)
    n_after = min(len(after), max(room // SHARE, room - len(before)))
    n_before = min(len(before), room - n_after)
    n_extra = room - n_after - n_before
    extra = _files(tokenizer, values.get("input_extra", ()), CHARACTERS * n_extra)
    cut = [
        name
        for name, is_cut in (
            ("input_prefix", n_before < len(before) or len(prefix) > most),
            ("input_suffix", n_after < len(after) or len(suffix) > most),
            ("input_extra", n_extra < len(extra) and bool(values.get("input_extra"))),
        )
        if is_cut
    ]
    ids = begin + extra[max(0, len(extra) - n_extra) :]
    return [*ids, before_mark, *before[len(before) - n_before :], after_mark, *after[:n_after], middle], cut


def _files(tokenizer: Tokenizer, files: Sequence[Mapping[str, Any]], most: int) -> list[int]:
    """Token ids of what comes before the gap's own file, of which the last `most` characters count."""

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False, continuation=True)

    parts: list[list[int]] = []
    for one in reversed(files):
        text = one["text"][max(0, len(one["text"]) - most) :]
        filename = SNIPPET if tokenizer.fim_sep_id is None else one.get("filename", "tmp") + "\n"
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


class InfillDialect:
    """llama-server's own form of an answer, and its events."""

    stream_format = SSE
    tail = b""

    def __init__(self, run: Run, values: Mapping[str, Any]) -> None:
        self.run, self.values = run, values
        self.choices = choices_of(run)
        self._lines = LineWatch(values.get("n_indent", 0), 0)
        self._is_read_only = values.get("n_predict") == 0  # the one token that it takes is none of the answer

    def add(self, index: int, chunk: Chunk) -> None:
        """Takes a chunk of an answer that is no stream."""
        self.choices[index].add(chunk)

    # ---- a stream

    def begin(self) -> list[Event]:
        return []

    def step(self, index: int, chunk: Chunk) -> list[Event]:
        self.choices[index].add(chunk)
        text = self._lines.kept(chunk.text)
        if self._is_read_only or not (text or (chunk.token_ids and self.values.get("return_tokens"))):
            return []
        said: dict[str, Any] = {"index": 0, "content": text, "stop": False}
        return [(None, said | self._tokens(chunk.token_ids) | self._counts())]

    def end(self) -> list[Event]:
        return [(None, self._shown({"content": "", **self._final()}))]

    def failed(self, error: ApiError) -> list[Event]:
        return [(None, error.openai())]

    # ---- a whole answer

    def whole(self) -> dict[str, Any]:
        text = "" if self._is_read_only else self._lines.kept(self.choices[0].text)
        return self._shown({"content": text, **self._tokens(self.choices[0].token_ids), **self._final()})

    def _tokens(self, ids: list[int]) -> dict[str, Any]:
        return {"tokens": ids} if self.values.get("return_tokens") else {}

    def _counts(self) -> dict[str, Any]:
        n = 0 if self._is_read_only else len(self.choices[0].token_ids)
        return {"tokens_predicted": n, "tokens_evaluated": len(self.run.prompts[0])}

    def _final(self) -> dict[str, Any]:
        """Fields of the last event and of a whole answer beside the text."""
        choice, counts = self.choices[0], self._counts()
        kind = "word" if isinstance(choice.stop_reason, str) else "eos" if choice.reason == "stop" else "limit"
        if self._lines.why or (kind == "eos" and not self._ended_by_model()):
            kind = "limit"
        n_prompt, n_text = counts["tokens_evaluated"], counts["tokens_predicted"]
        options = self.run.ask.options
        engine = self.run.ask.chosen.model.ready.engine
        return {
            "index": 0,
            "model": self.run.ask.chosen.name,
            **counts,
            "tokens_cached": n_prompt + n_text,
            "stop": True,
            "stop_type": kind,
            "stopping_word": choice.stop_reason if kind == "word" else "",
            "has_new_line": "\n" in choice.text,
            "truncated": self.run.ask.is_cut,
            "generation_settings": {"n_ctx": engine.context.factory.room, "n_predict": options["max_tokens"] or -1},
            "timings": self._timings(n_prompt, n_text),
        }

    def _ended_by_model(self) -> bool:
        """Whether the text ended by a token of the model's own, and not by the watch over its lines."""
        return self.run.requests[0].stop_reason is not None

    def _timings(self, n_prompt: int, n_text: int) -> dict[str, Any]:
        cached = usage_of(self.run, self.choices)["prompt_tokens_details"]["cached_tokens"]
        times = self.run.requests[0].clock.timings
        found: dict[str, Any] = {"cache_n": cached}
        counts = (("prompt", n_prompt - cached, times.prefill_seconds), ("predicted", n_text, times.decode_seconds))
        for name, n, seconds in counts:
            found[f"{name}_n"], found[f"{name}_ms"] = n, 1000 * seconds
            found[f"{name}_per_token_ms"] = 1000 * seconds / n if n else 0.0
            found[f"{name}_per_second"] = n / seconds if seconds else 0.0
        return found

    def _shown(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The fields that are wanted, by their paths."""
        if "response_fields" not in self.values:
            return answer
        found: dict[str, Any] = {}
        for path in self.values["response_fields"]:
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
        messages, options = template_options(values, exchange, chosen)
        return chat_text(tokenizer, messages, options)

    with chosen.in_use():
        text = await exchange.elsewhere(lambda: engine_errors(make, chosen))
    await exchange.answer(await exchange.written(lambda: {"prompt": text}), "application/json")
