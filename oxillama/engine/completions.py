"""From requests for text to what a caller gets: chunks, completions, and lists of these."""

from collections.abc import Generator, Iterable
from contextlib import closing
from typing import Any

from oxillama.engine.core import EngineCore
from oxillama.engine.options import TextOptions
from oxillama.engine.request import Outbox
from oxillama.engine.results import Chunk, Completion
from oxillama.engine.stream import TextRequest, chunks
from oxillama.engine.texts import TextMaker

__all__ = ["Chunks", "answer", "completions_of", "shaped"]

Chunks = Generator[Chunk, None, None]


def answer(core: EngineCore, maker: TextMaker, ids: list[int], options: TextOptions, **held: Any) -> Chunks:
    """Chunks of what follows `ids`; requests are made and queued when the first is asked for."""
    outbox = Outbox(options.n_each)
    requests = maker.group(ids, options, outbox, **held)
    with closing(chunks(core, requests, outbox, options.cancel_token)) as pieces:
        for _, chunk in pieces:
            yield chunk


def completions_of(
    requests: list[TextRequest], found: Iterable[tuple[int, Chunk]], n_each: int, first: int = 0
) -> list[Completion]:
    """Each of the finished requests as one, of its (request's index, chunk); `n_each` for each prompt.

    `first`: the index of the first prompt.
    """
    pieces: list[list[Chunk]] = [[] for _ in requests]
    for i, chunk in found:
        pieces[i].append(chunk)
    return [
        _completion(request, of, first + i // n_each)
        for i, (request, of) in enumerate(zip(requests, pieces, strict=True))
    ]


def _completion(request: TextRequest, pieces: list[Chunk], index: int) -> Completion:
    return Completion(
        text="".join(piece.text for piece in pieces),
        token_ids=[token for piece in pieces for token in piece.token_ids],
        finish_reason=request.finish_reason or "cancelled",
        prompt_tokens=request.n_prompt,
        logprobs=request.scores.tokens if request.scores else None,
        timings=request.timings,
        index=index,
        prompt_logprobs=request.scores.prompt if request.scores else None,
        tool_calls=[call for piece in pieces for call in piece.tool_calls],
        speculation=request.speculation.stats() if request.speculation else None,
    )


def shaped(found: list[Completion], n: int | None, single: bool) -> Any:
    """As the caller asked: a completion, or a list of n, for each prompt; for one prompt, or a list for several."""
    each: list[Any] = list(found) if n is None else [found[i : i + n] for i in range(0, len(found), n)]
    return each[0] if single else each
