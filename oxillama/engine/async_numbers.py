"""Numbers of whole texts, for coroutines."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Any, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from oxillama._util.checks import check_keywords
from oxillama.core.async_requests import Call, CoroutineBell
from oxillama.core.embedding import EMBED_KEYWORDS, Embeddings, EmbedOptions, EmbedPooling, RankedDocument
from oxillama.core.options import Prompt
from oxillama.core.prompts import plain, read_prompts
from oxillama.engine.async_batch import made, size_of
from oxillama.engine.engine import Engine

__all__ = ["AsyncNumberMethods"]


class AsyncNumberMethods:
    """Methods of the asynchronous engine that compute whole texts."""

    engine: Engine

    @overload
    async def embed(
        self, input: Prompt, *, pooling: str | None = None, **options: Unpack[EmbedOptions]
    ) -> NDArray[Any]: ...

    @overload
    async def embed(
        self, input: SequenceOf[Prompt], *, pooling: EmbedPooling, **options: Unpack[EmbedOptions]
    ) -> NDArray[Any]: ...

    @overload
    async def embed(
        self, input: SequenceOf[Prompt], *, pooling: str | None = None, **options: Unpack[EmbedOptions]
    ) -> Embeddings: ...

    async def embed(
        self,
        input: Prompt | SequenceOf[Prompt],
        *,
        pooling: Any = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        dtype: str = "float32",
        lora: Any = None,
        **unknown: object,
    ) -> Embeddings:
        """Pooled hidden states of a text, or of each of a list, as `Engine.embed` gives them."""
        check_keywords("embed", unknown, EMBED_KEYWORDS)
        options = {"normalize": normalize, "dimensions": dimensions, "dtype": dtype}
        core = self.engine._core
        bell = CoroutineBell(core.loop)
        _, named = read_prompts("input", input)
        requests, outbox, results = await made(
            size_of([prompt for _, prompt in named]),
            lambda: self.engine._embedding(input, pooling, options, lora, bell),
        )
        await _finish(Call(core, requests, outbox, bell))
        return results()

    async def rerank(
        self, query: str, documents: SequenceOf[str], *, top_n: Any = None, template: Any = None, lora: Any = None
    ) -> list[RankedDocument]:
        """The documents, best first, as `Engine.rerank` gives them."""
        bell = CoroutineBell(self.engine._core.loop)
        texts = plain("documents", documents)
        requests, outbox, results = await made(
            size_of(texts) if isinstance(texts, list) else 0,
            lambda: self.engine._ranking(query, texts, top_n, template, lora, bell),
        )
        await _finish(Call(self.engine._core, requests, outbox, bell))
        return results()

    async def forward_logits(self, ids: SequenceOf[int], *, lora: Any = None) -> NDArray[np.float32]:
        """Logits of every position, float32 [len(ids), n_vocab], as `Engine.forward_logits` gives them."""
        core = self.engine._core
        bell = CoroutineBell(core.loop)
        request = self.engine._logits(ids, lora, bell)
        await _finish(Call(core, [request], request.outbox, bell))
        return request.out


async def _finish(call: Call[Any]) -> None:
    try:
        await call.finish()
    finally:
        call.leave()
