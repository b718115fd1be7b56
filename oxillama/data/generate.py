"""Generate: columns of prompts or messages to columns of text, choices or structs."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

from oxillama.chat.calls import read_json
from oxillama.data.columns import FLOAT, INT, JSON, TEXT, ColumnType, Items, check_name, fitted, is_empty
from oxillama.data.identity import identity_of
from oxillama.data.mapper import Done, Mapper, OnError
from oxillama.data.options import Options, check_details
from oxillama.data.progress import Progress
from oxillama.data.schema import type_of_schema
from oxillama.data.templates import Template
from oxillama.errors import ConfigError, GenerateError, OxiLlamaError

if TYPE_CHECKING:
    from oxillama.core.batch import BatchPrompt
    from oxillama.core.results import CancelToken, Completion
    from oxillama.engine import Engine

__all__ = ["DETAILS", "Generate"]

# What `details` may name: the type of its column, and its value of a completion.
DETAILS: dict[str, tuple[ColumnType, Any]] = {
    "finish_reason": (TEXT, lambda c: c.finish_reason),
    "tokens": (INT, lambda c: len(c.token_ids)),
    "prompt_tokens": (INT, lambda c: c.prompt_tokens),
    "token_ids": (Items(INT), lambda c: c.token_ids),
    "logprobs": (Items(FLOAT), lambda c: [token.logprob for token in c.logprobs]),
    "prompt_logprobs": (Items(FLOAT), lambda c: [token and token.logprob for token in c.prompt_logprobs]),
    "reasoning": (TEXT, lambda c: c.reasoning),
    "tool_calls": (JSON, lambda c: [call.to_dict() for call in c.tool_calls]),
    "warnings": (Items(TEXT), lambda c: c.warnings),
}
USUAL = ("finish_reason", "tokens")


class Generate(Mapper):
    """A mapper that adds a column of what a model writes: that of `engine.generate`, or of `engine.chat`.

    model: a path, None for the model that ships with the package, or an `Engine`.
    prompt: the column of prompts, each text or token ids. template: instead of it, a text with columns in braces,
        "Summarise: {text}". messages: instead of both, the column of messages (lists, or JSON text), or messages whose
        contents are templates, [{"role": "user", "content": "Summarise: {text}"}]; the model's chat template is used.
        A row whose prompt is null or empty gets null, as does one with a null in a column of its template, or with
        nothing but empty text in all of them.
    output: the column that is added. With `json_schema` (a schema, or a pydantic class) it has the type of the schema's
        instances, a struct for an object; parts that have no one type are JSON text. A text that max_tokens cut off is
        an error then. With n it has lists.
    details: more columns, `<output>_<name>`: True for finish_reason and tokens (how many), or names among
        finish_reason, tokens, prompt_tokens, token_ids, logprobs, prompt_logprobs, reasoning, tool_calls (JSON)
        and warnings.
    on_error: what becomes of a row that fails: "raise", "null", or "column" (see `Mapper`).
    progress: True shows a bar on stderr; a function is called with the number of rows done, and of all if known.
    engine: fields of `EngineConfig` by name, {"num_threads": 2}.

    Other options are those of `engine.generate` (of `engine.chat` with messages), and of `engine.batch`
    `max_in_flight`; `seed=oxd.col("seed")` takes each row's from a column. Without a seed, or temperature=0, texts are
    drawn at random as they are by `generate`.

    Raises ConfigError and TypeError, which name the option.
    """

    def __init__(
        self, model: Any = None, *, prompt: str | None = None, template: str | None = None, messages: Any = None,
        output: str = "answer", details: bool | Sequence[str] = False, on_error: OnError = "raise",
        progress: Progress = False, engine: Mapping[str, Any] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(model, output, on_error=on_error, progress=progress, engine=engine)
        sources = {"prompt": prompt, "template": template, "messages": messages}
        if sum(value is not None for value in sources.values()) != 1:
            raise ConfigError("one of prompt, template and messages must be given: the prompts of rows are made of it")
        self._prompt = None if prompt is None else check_name("prompt", prompt)
        self._template = None if template is None else Template("template", template)
        self._messages = _messages_of(messages)
        self.details = check_details(details, DETAILS, USUAL)
        self._options = Options(options, chat=messages is not None, details=self.details)
        self._shape: ColumnType | None = None
        if (schema := self._options.schema) is not None:
            self._shape = type_of_schema(schema, closed=options.get("schema_mode") in (None, "generate"))

    @property
    def inputs(self) -> tuple[str, ...]:
        own = _columns_of(self._prompt, self._template, self._messages)
        return tuple(dict.fromkeys((*own, *self._options.columns)))

    @property
    def texts(self) -> tuple[str, ...]:
        column = self._messages if isinstance(self._messages, str) else self._prompt
        return () if column is None else (column,)

    def results(self) -> dict[str, ColumnType]:
        own = {self.output: self._shape or TEXT}
        found = own | {f"{self.output}_{name}": DETAILS[name][0] for name in self.details}
        return {name: Items(kind) for name, kind in found.items()} if self._options.n is not None else found

    def cells(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Done]:
        with closing(self.outcomes(rows)) as found:
            for _, done in found:
                yield done

    def outcomes(
        self, rows: Iterable[Mapping[str, Any]], *, ordered: bool = True, cancel: CancelToken | None = None
    ) -> Generator[tuple[int, Done], None, None]:
        """`cells`, each with the number of its row; not `ordered`: as they finish.

        cancel: when it is cancelled, no more rows are taken; those that are finished come, and no others.
        """
        from oxillama.core.batch import BatchPrompt

        engine = self.engine
        if self._prepared is not engine:
            self._options.prepare(engine.context)
            self._prepared = engine
        known: dict[int, Done] = {}  # rows that need no prompt: what they get when their turn comes

        def prompts() -> Iterator[BatchPrompt]:
            for row, given in enumerate(rows):
                made = None
                try:
                    made = self._prompt_of(engine, given)
                except OxiLlamaError as error:
                    known[row] = self.failed(row, error)
                if made is None:
                    known.setdefault(row, self.empty())
                # None is refused at once, and so gives control back, however many rows need no prompt.
                yield made or BatchPrompt(cast(Any, None), {})

        options = {"errors": "yield", "ordered": ordered, "cancel_token": cancel, **self._options.of_batch}
        with engine.batch(cast(Any, prompts()), **options) as outcomes:
            for outcome in outcomes:
                first = outcome[0] if isinstance(outcome, list) else outcome
                row = first.index
                if row in known:
                    yield row, known.pop(row)
                elif not _is_cancelled(outcome):
                    yield row, self._done(row, outcome)

    def job(self) -> dict[str, str]:
        """Settings that the results depend on, each as text: equal for jobs of which one can go on with the other."""
        messages = self._messages if isinstance(self._messages, str | None) else [
            {name: part.text if isinstance(part, Template) else part for name, part in one.items()}
            for one in self._messages
        ]  # fmt: skip
        template = self._template and self._template.text
        own = {"prompt": self._prompt, "template": template, "messages": messages, "output": self.output}
        found = {**own, "details": self.details, **self._options.deciding}
        return identity_of(self.engine) | {name: repr(value) for name, value in found.items() if value is not None}

    def _prompt_of(self, engine: Engine, row: Mapping[str, Any]) -> BatchPrompt | None:
        """The prompt of a row with its own options; None if it has none."""
        from oxillama.core.batch import BatchPrompt

        own = self._options.of_row(row)
        if self._messages is not None:
            messages = _filled(self._messages, row)
            return None if not messages else BatchPrompt(*self._options.rendered(engine.context, messages, own))
        prompt = row[cast(str, self._prompt)] if self._template is None else self._template.fill(row)
        return None if is_empty(prompt) else BatchPrompt(prompt, own)

    def _done(self, row: int, outcome: Any) -> Done:
        from oxillama.core.results import BatchFailure

        if isinstance(outcome, BatchFailure):
            return self.failed(row, outcome.error)
        completions: list[Completion] = outcome if isinstance(outcome, list) else [outcome]
        found = self.empty()[0]
        for name in self.details:
            kind, value = DETAILS[name]
            found[f"{self.output}_{name}"] = self._shaped([fitted(value(one), kind) for one in completions])
        n_tokens = sum(len(one.token_ids) for one in completions)
        try:
            found[self.output] = self._shaped([self._value(one) for one in completions])
        except GenerateError as error:
            return self.failed(row, error, found)[0], n_tokens
        return found, n_tokens

    def _shaped(self, values: list[Any]) -> Any:
        """One value, or a list of those of n completions."""
        return values[0] if self._options.n is None else values

    def _value(self, completion: Completion) -> Any:
        """The cell of a completion. Raises GenerateError for JSON that is cut off, or doesn't fit its column."""
        if self._shape is None:
            return completion.text
        try:
            value = json.loads(completion.text)
            if "\\u" in completion.text:  # half of a surrogate pair is JSON, and no text of a column
                json.dumps(value, ensure_ascii=False).encode()
            return fitted(value, self._shape)
        except (RecursionError, ValueError, OverflowError) as error:
            n, reason = len(completion.token_ids), completion.finish_reason
            raise GenerateError(
                f"the JSON text of {n} tokens can't be read, and ended by {reason!r} ({error}): give it more "
                "max_tokens, or bound the schema's texts and arrays (maxLength, maxItems)"
            ) from None


def _is_cancelled(outcome: Any) -> bool:
    """Whether one of its completions was cut short by a cancel token."""
    found = outcome if isinstance(outcome, list) else [outcome]
    return any(getattr(one, "finish_reason", None) == "cancelled" for one in found)


Messages = str | list[dict[str, Any]]


def _columns_of(prompt: str | None, template: Template | None, messages: Messages | None) -> tuple[str, ...]:
    """Columns that prompts are made of."""
    if isinstance(messages, list):
        contents = (value for message in messages for value in message.values() if isinstance(value, Template))
        return tuple(name for content in contents for name in content.columns)
    return template.columns if template is not None else (prompt or messages or "",)


def _messages_of(messages: Any) -> Messages | None:
    """A column, or messages with templates in them. Raises ConfigError for anything else."""
    if messages is None:
        return None
    if isinstance(messages, str):
        return check_name("messages", messages)
    if not isinstance(messages, Sequence) or not messages or not all(isinstance(one, Mapping) for one in messages):
        raise ConfigError("messages must be the name of a column, or a list of messages whose contents are templates")
    return [
        {k: Template(f"messages[{i}].{k}", v) if k == "content" and isinstance(v, str) else v for k, v in one.items()}
        for i, one in enumerate(messages)
    ]


def _filled(messages: Messages, row: Mapping[str, Any]) -> Any:
    """The messages of a row; None if it has none."""
    if isinstance(messages, str):
        return _read_messages(row[messages])
    made = [{k: v.fill(row) if isinstance(v, Template) else v for k, v in message.items()} for message in messages]
    lacks = any(one.get("content") is None and "content" in given for one, given in zip(made, messages, strict=True))
    return None if lacks else made


def _read_messages(cell: Any) -> Any:
    """Messages of a cell. Fields that are null, as Arrow has them where a message lacks one, are left out."""
    if is_empty(cell):
        return None
    if isinstance(cell, str):
        try:
            cell = read_json(cell, halves=True)
        except ValueError as error:
            raise ConfigError(f"messages must be a list, or JSON text of one: {error}") from None
    if hasattr(cell, "tolist"):
        cell = cell.tolist()
    if not isinstance(cell, Sequence):
        return cell
    return [
        {k: v for k, v in one.items() if v is not None or k == "content"} if isinstance(one, Mapping) else one
        for one in cell
    ]
