"""Rerank: a column of queries and one of lists of documents to a column of their order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any

from oxillama._util.checks import check_keywords, given_of
from oxillama.data.columns import INT, ColumnType, Items, Scalar, Struct, check_name, is_empty
from oxillama.data.mapper import Done, Mapper, OnError
from oxillama.data.progress import Progress
from oxillama.errors import OxiLlamaError

__all__ = ["Rerank"]

ORDER: ColumnType = Items(Struct((("index", INT), ("score", Scalar("float64")))))


class Rerank(Mapper):
    """A mapper that adds a column of lists of {"index", "score"}, best first: the order of `engine.rerank`.

    model: a path of a reranker, or an `Engine`.
    query: the column of texts. documents: the column of lists of texts; `index` is a place in its list. Rows without a
        query, or without documents, get null.
    output: the column that is added. top_n, template, lora: those of `engine.rerank`.
    on_error, progress, engine: as for `Generate`.

    Raises ConfigError and TypeError, which name the option.
    """

    def __init__(
        self, model: Any = None, *, query: str = "query", documents: str = "documents", output: str = "order",
        on_error: OnError = "raise", progress: Progress = False, engine: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        from oxillama.core.ranking import RerankOptions

        super().__init__(model, output, on_error=on_error, progress=progress, engine=engine)
        check_keywords("Rerank", options, RerankOptions.__annotations__)
        self._query, self._documents = check_name("query", query), check_name("documents", documents)
        self._options = given_of(options)

    @property
    def inputs(self) -> tuple[str, ...]:
        return self._query, self._documents

    @property
    def texts(self) -> tuple[str, ...]:
        return self.inputs

    def results(self) -> dict[str, ColumnType]:
        return {self.output: ORDER}

    def cells(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Done]:
        for i, row in zip(count(), rows):
            query, documents = row[self._query], row[self._documents]
            if is_empty(query) or is_empty(documents):
                yield self.empty()
                continue
            try:
                found = self.engine.rerank(query, documents, **self._options)
            except OxiLlamaError as error:
                yield self.failed(i, error)
                continue
            order = [{"index": one.index, "score": one.score} for one in found]
            yield {**self.empty()[0], self.output: order}, 0
