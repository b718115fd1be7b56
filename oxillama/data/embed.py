"""Embed: a column of texts to a column of vectors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from oxillama._util.checks import check_keywords, given_of
from oxillama._util.lazy import lazy
from oxillama.data.columns import ColumnType, Items, Scalar, Vector, check_name, is_empty
from oxillama.data.mapper import Done, Mapper, OnError
from oxillama.data.progress import Progress
from oxillama.data.templates import Template
from oxillama.errors import ConfigError, OxiLlamaError

__all__ = ["Embed"]

# Rows that are computed together: many more than run in one step, so that texts of like length meet.
MOST_TOGETHER = 1024


class Embed(Mapper):
    """A mapper that adds a column of vectors, those of `engine.embed`, of float32 [d] each.

    model: a path, None for the model that ships with the package, or an `Engine`.
    input: the column of texts (or lists of token ids). template: instead of it, a text with columns in braces. Rows
        without a text get null.
    output: the column that is added; vectors have the fixed size of the model's.
    pooling, normalize, dimensions, dtype, lora: those of `engine.embed`. Vectors of dtype "int8" are int8, those of
        "binary" uint8; with pooling "none" each row has a list of vectors, one for each token.
    on_error, progress, engine: as for `Generate`.

    Raises ConfigError and TypeError, which name the option.
    """

    def __init__(
        self, model: Any = None, *, input: str | None = None, template: str | None = None, output: str = "vector",
        on_error: OnError = "raise", progress: Progress = False, engine: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        from oxillama.core.embedding import EmbedOptions

        super().__init__(model, output, on_error=on_error, progress=progress, engine=engine)
        if (input is None) == (template is None):
            raise ConfigError("one of input and template must be given: the texts of rows are made of it")
        check_keywords("Embed", options, ("pooling", *EmbedOptions.__annotations__))
        self._input = None if input is None else check_name("input", input)
        self._template = None if template is None else Template("template", template)
        self._options = given_of(options)

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self._input,) if self._input is not None else self._template.columns if self._template else ()

    @property
    def texts(self) -> tuple[str, ...]:
        return () if self._input is None else (self._input,)

    @lazy
    def _type(self) -> ColumnType:
        """The type of a vector, read off that of a text."""
        vector = self.engine.embed("a", **self._options)
        one = Vector(Scalar(str(vector.dtype)), vector.shape[-1])
        return Items(one) if vector.ndim > 1 else one

    def results(self) -> dict[str, ColumnType]:
        return {self.output: self._type}

    def cells(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Done]:
        rows, n_done = iter(rows), 0
        while part := list(islice(rows, MOST_TOGETHER)):
            yield from self._part(part, n_done)
            n_done += len(part)

    def _part(self, rows: list[Mapping[str, Any]], first: int) -> list[Done]:
        """Some rows, of which the first has this number."""
        found: dict[int, Done] = {}
        texts: dict[int, Any] = {}
        for i, row in enumerate(rows):
            try:
                text = row[self._input] if self._input is not None else self._template and self._template.fill(row)
            except OxiLlamaError as error:
                found[i] = self.failed(first + i, error)
                continue
            if is_empty(text):
                continue
            if is_one_text(text):
                texts[i] = text
            else:
                kind = type(text).__name__
                found[i] = self.failed(first + i, ConfigError(f"a text must be a str or token ids, not {kind}"))
        for i, vector in self._vectors(texts).items():
            if isinstance(vector, Exception):
                found[i] = self.failed(first + i, vector)
            else:
                found[i] = {**self.empty()[0], self.output: vector}, 0
        return [found.get(i) or self.empty() for i in range(len(rows))]

    def _vectors(self, texts: dict[int, Any]) -> dict[int, Any]:
        """Vectors of texts, all at once; if one of them fails, one by one, with the same bits: those, or errors."""
        if not texts:
            return {}
        try:
            return dict(zip(texts, self.engine.embed(list(texts.values()), **self._options), strict=True))
        except OxiLlamaError:
            return {i: self._vector(text) for i, text in texts.items()}

    def _vector(self, text: Any) -> Any:
        try:
            return self.engine.embed(text, **self._options)
        except OxiLlamaError as error:
            return error


def is_one_text(cell: Any) -> bool:
    """Whether a cell may be text or token ids: no number, of which a list would be one text, and no list of texts."""
    if isinstance(cell, str):
        return True
    return hasattr(cell, "__len__") and not any(hasattr(item, "__len__") for item in cell)
