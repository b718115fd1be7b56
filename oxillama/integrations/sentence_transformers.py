"""Sentence embeddings by the names of the library sentence-transformers, which isn't needed.

>>> from oxillama.integrations.sentence_transformers import SentenceTransformer
>>> model = SentenceTransformer("embeddinggemma.gguf")
>>> model.similarity(model.encode_query("red ball"), model.encode_document(["a ball", "a dog"]))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from tqdm.auto import tqdm  # type: ignore[import-untyped]  # a widget in notebooks

from oxillama._util.checks import check_choice, check_flag, check_int
from oxillama.data.engines import EngineSource
from oxillama.errors import ConfigError

if TYPE_CHECKING:
    from oxillama.engine import Engine

__all__ = ["PROMPTS", "SentenceTransformer"]

# Prompts that families of models were trained with, by name.
PROMPTS: dict[str, dict[str, str]] = {
    "e5": {"query": "query: ", "document": "passage: "},
    "bge": {"query": "Represent this sentence for searching relevant passages: ", "document": ""},
    "nomic": {
        "query": "search_query: ", "document": "search_document: ", "clustering": "clustering: ",
        "classification": "classification: ",
    },
    "embeddinggemma": {
        "query": "task: search result | query: ", "document": "title: none | text: ",
        "clustering": "task: clustering | query: ", "classification": "task: classification | query: ",
        "similarity": "task: sentence similarity | query: ",
    },
}  # fmt: skip
# Architectures all models of which have the prompts of a family.
OF_ARCHITECTURE = {"nomic-bert": "nomic", "nomic-bert-moe": "nomic", "gemma-embedding": "embeddinggemma"}
POOLINGS = ("mean", "last", "cls", "max")  # which give one vector for a text
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
Vectors = NDArray[Any] | list[NDArray[Any]]


class SentenceTransformer:
    """A model of sentence embeddings, whose `encode` has the arguments of sentence-transformers'.

    model_name_or_path: a path, None for the model that ships with the package, or an `Engine`.
    prompts: what `encode` puts before a text, by name; or a family of `PROMPTS`. None: those that the architecture in
        the model's file tells, else none. default_prompt_name: that of calls which name none.
    truncate_dim: values of a vector that are kept, of models trained for it (Matryoshka).
    pooling: as for `engine.embed`. truncate: "end", "start", or False, which refuses texts beyond the context.
    engine: fields of `EngineConfig`.

    Vectors have length 1 unless `normalize_embeddings` is False: a file doesn't say which models divide by the length.
    The engine is opened when it is first needed; its pickle holds settings.
    """

    def __init__(
        self, model_name_or_path: Any = None, *, prompts: Mapping[str, str] | str | None = None,
        default_prompt_name: str | None = None, truncate_dim: int | None = None, similarity_fn_name: str = "cosine",
        pooling: str | None = None, truncate: Literal["end", "start", False] = "end",
        engine: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self._source = EngineSource(model_name_or_path, engine)
        self._given = None if prompts is None else read_prompts(prompts)
        self.similarity_fn_name = check_choice("similarity_fn_name", similarity_fn_name, SIMILARITIES)
        self.truncate_dim = truncate_dim
        check_choice("pooling", pooling or "mean", POOLINGS)
        self._options = {"pooling": pooling, "truncate": truncate}
        self.default_prompt_name = default_prompt_name
        if default_prompt_name is not None:
            self._prompt(default_prompt_name, None)

    @property
    def engine(self) -> Engine:
        return self._source.engine

    @property
    def prompts(self) -> dict[str, str]:
        """Prompts by name; those of queries and documents are there in any case, and may be empty."""
        family = OF_ARCHITECTURE.get(self.engine.model_config.arch, "") if self._given is None else ""
        return {"query": "", "document": ""} | (self._given or PROMPTS.get(family, {}))

    @property
    def max_seq_length(self) -> int:
        """Tokens of a text at most."""
        return self.engine.context_size

    def get_sentence_embedding_dimension(self) -> int:
        """Values of a vector."""
        return len(self._row("a", {"dimensions": self.truncate_dim, **self._options}))

    get_embedding_dimension = get_sentence_embedding_dimension

    def encode(
        self, sentences: str | Sequence[str], prompt_name: str | None = None, prompt: str | None = None,
        batch_size: int = 32, show_progress_bar: bool | None = None, *, normalize_embeddings: bool | None = None,
        convert_to_numpy: bool = True, truncate_dim: int | None = None, precision: str = "float32",
    ) -> Vectors:  # fmt: skip
        """Vectors of texts: float32 [d] for one text, [n, d] for a list, or a list of n if not `convert_to_numpy`.

        prompt_name: the prompt of this name goes before each text; prompt: this one does, and no other.
        batch_size: texts that are computed together at most. Those of like length meet, whatever their order.
        precision: "float32", "int8" or "binary": see `dtype` of `engine.embed`.

        Raises ConfigError, and what `engine.embed` raises.
        """
        check_int("batch_size", batch_size, 1, 1 << 31)
        before = self._prompt(prompt_name, prompt)
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise ConfigError(f"sentences[{i}] must be text, not {type(text).__name__}")
        dimensions = self.truncate_dim if truncate_dim is None else truncate_dim
        options = {"normalize": normalize_embeddings, "dimensions": dimensions, "dtype": precision} | self._options
        rows = self._rows([before + text for text in texts], batch_size, show_progress_bar, options)
        if isinstance(sentences, str):
            return rows[0]
        if not convert_to_numpy:
            return rows
        return np.stack(rows or [self._row("a", options)])[: len(rows)]

    def _row(self, text: str, options: Mapping[str, Any]) -> NDArray[Any]:
        vector: NDArray[Any] = self.engine.embed(text, **options)
        return vector

    def _rows(self, texts: list[str], size: int, bar: bool | None, options: Mapping[str, Any]) -> list[NDArray[Any]]:
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]), reverse=True)
        found: list[NDArray[Any]] = [np.empty(0)] * len(texts)
        hidden = not check_flag("show_progress_bar", bool(bar) if bar is None else bar)
        with tqdm(total=len(texts), desc="Embedding", unit="text", disable=hidden) as shown:
            for start in range(0, len(texts), size):
                part = order[start : start + size]
                vectors = self.engine.embed([texts[i] for i in part], **options)
                for i, row in zip(part, vectors, strict=True):
                    found[i] = row
                shown.update(len(part))
        return found

    def encode_query(self, sentences: str | Sequence[str], **options: Any) -> Vectors:
        """Vectors of queries: `encode` with the prompt of the name "query", unless another one is given."""
        return self.encode(sentences, **self._named(options, "query"))

    def encode_document(self, sentences: str | Sequence[str], **options: Any) -> Vectors:
        """Vectors of documents: `encode` with the prompt "document", or else "passage" or "corpus"."""
        known = self._given or {}
        name = next((name for name in ("document", "passage", "corpus") if name in known), "document")
        return self.encode(sentences, **self._named(options, name))

    def _named(self, options: dict[str, Any], name: str) -> dict[str, Any]:
        given = options.get("prompt") is not None or options.get("prompt_name") is not None
        return options if given else {**options, "prompt_name": name}

    def _prompt(self, name: str | None, prompt: str | None) -> str:
        if prompt is not None:
            if not isinstance(prompt, str):
                raise ConfigError(f"prompt must be text, not {type(prompt).__name__}")
            return prompt
        name = self.default_prompt_name if name is None else name
        if name is None:
            return ""
        known = self.prompts
        if name not in known:
            raise ConfigError(f"prompt_name must be one of {', '.join(map(repr, known))}, not {name!r:.60}")
        return known[name]

    def similarity(self, embeddings1: Any, embeddings2: Any) -> NDArray[np.float32]:
        """Similarity of each vector of the first to each of the second, float32 [n, m]; distances are negative."""
        a, b = rows_of(embeddings1), rows_of(embeddings2)
        if self.similarity_fn_name == "euclidean":
            return np.stack([-np.sqrt(((row - b) ** 2).sum(1)) for row in a])
        if self.similarity_fn_name == "manhattan":
            return np.stack([-np.abs(row - b).sum(1) for row in a])
        if self.similarity_fn_name == "cosine":
            a, b = unit(a), unit(b)
        products: NDArray[np.float32] = a @ b.T
        return products

    def close(self) -> None:
        """Closes an engine that was opened here; the next call opens it again."""
        self._source.close()


def read_prompts(prompts: Any) -> dict[str, str]:
    """Prompts by name, of a mapping or of the name of a family. Raises ConfigError for others."""
    if isinstance(prompts, str):
        return PROMPTS[check_choice("prompts", prompts, tuple(PROMPTS))]
    if not isinstance(prompts, Mapping) or not all(isinstance(part, str) for pair in prompts.items() for part in pair):
        raise ConfigError("prompts must be a mapping of names to texts, or the name of a family of models")
    return dict(prompts)


def rows_of(vectors: Any) -> NDArray[np.float32]:
    """Vectors as rows, also of a single one. Raises ConfigError for arrays of other dimensions."""
    found = np.asarray(vectors, np.float32)
    if found.ndim not in (1, 2):
        raise ConfigError(f"vectors must be an array of one or two dimensions, not {found.ndim}")
    return found if found.ndim == 2 else found[None]


def unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows divided by their length; those of zeros stay."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    found = np.zeros_like(rows)
    np.divide(rows, lengths, out=found, where=lengths > 0)
    return found
