"""Text streams: chunks of a running completion, and completions made of chunks."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from functools import partial
from types import GeneratorType
from typing import Any, TypeVar, cast

from oxillama._util.checks import check_int
from oxillama._util.notebook import LiveText
from oxillama._util.pickling import stays_here
from oxillama._util.places import Path
from oxillama.chat.calls import AnyToolCall
from oxillama.core.context import EngineContext
from oxillama.core.engine_core import EngineCore
from oxillama.core.generation_request import GenerationRequest
from oxillama.core.options import TextOptions
from oxillama.core.prompts import check_callback, read_prompt, read_prompts
from oxillama.core.request import ResultQueue, SnapshotProtocol
from oxillama.core.request_factory import RequestFactory
from oxillama.core.results import CancelToken, Chunk, Completion
from oxillama.errors import ConfigError, GenerateError

__all__ = [
    "Chunks",
    "answer",
    "chunks",
    "complete",
    "completions_of",
    "shaped",
    "start_stream",
]

T = TypeVar("T")


class Chunks(Generator[Chunk, None, None]):
    """The chunks of what follows a prompt, one after another; requests are made when the first is asked for.

    Leaving early (`close`, or dropping it) ends them. owner: what must live as long.
    """

    owner: object = None

    __reduce_ex__ = stays_here("send snapshot_bytes() instead, with which engine.resume() goes on")

    def __init__(
        self, core: EngineCore, make: Callable[[], list[GenerationRequest]], outbox: ResultQueue, cancel_token:
        CancelToken | None,
        snapshots: SnapshotProtocol,
    ) -> None:  # fmt: skip
        self._requests = cached(make)
        self._outbox = outbox
        self._snapshots = snapshots
        self._running = cast("GeneratorType[Chunk, None, None]", _run(core, self._requests, outbox, cancel_token))

    def send(self, value: None) -> Chunk:
        self._check_free()
        return self._running.send(value)

    def throw(self, *error: Any) -> Chunk:
        self._check_free()
        return self._running.throw(*error)

    def close(self) -> None:
        """Ends what is not finished; further calls do nothing. Raises GenerateError while another thread reads it."""
        self._check_free()
        self._running.close()

    def _check_free(self) -> None:
        if self._running.gi_running:
            raise GenerateError(
                "another thread reads this stream already: chunks are for one thread at a time, and a cancel_token "
                "ends a stream from any thread"
            )

    def show(self) -> None:
        """Reads all chunks and shows their text as it comes: in a notebook in place, elsewhere on standard output.

        Raises what reading raises; what came until then stays shown.
        """
        live = LiveText()
        try:
            for chunk in self:
                live.push((chunk.index, chunk.reasoning, chunk.text))
        finally:
            live.end()

    def snapshot(
        self, path: Path | None = None, *, index: int | None = None, base: Path | None = None, compress: bool = False,
        shared: bool = False,
    ) -> bytes | None:  # fmt: skip
        """Saves the request as it is now: to a file, or as bytes if there is no path. It goes on unharmed.

        What was computed and not read yet is the first that `Engine.resume` gives. index: which completion, where
        there are several; None: all. The other options, and errors, are those of `Engine.snapshot`; `base` and `shared`
        are for one completion alone.
        """
        save = partial(save_request, self._snapshots, self._requests(), self._outbox, path)
        return save(index=index, base=base, compress=compress, shared=shared)

    def snapshot_bytes(self, *, index: int | None = None, compress: bool = False) -> bytes:
        """`snapshot` without a path."""
        return cast(bytes, self.snapshot(index=index, compress=compress))


def save_request(
    writer: SnapshotProtocol,
    requests: list[GenerationRequest],
    outbox: ResultQueue,
    path: Path | None = None,
    *,
    index: int | None = None,
    base: Path | None = None,
    compress: bool = False,
    shared: bool = False,
) -> bytes | None:
    """`Chunks.snapshot`."""
    if index is None and len(requests) > 1:
        return writer.save_texts(requests, outbox, path, base=base, compress=compress, shared=shared)
    request = requests[check_int("index", index or 0, 0, len(requests) - 1)]

    def take(known: Any) -> Any:
        return writer.text(request, outbox, known)

    if path is not None:
        writer.write(take, path, base=base, compress=compress, shared=shared)
        return None
    if base is not None or shared:
        raise ConfigError("base and shared are for files: give a path")
    return writer.pack(take, compress=compress)


def cached(make: Callable[[], T]) -> Callable[[], T]:
    """Function that returns the result of `make`, made once."""
    made: list[T] = []

    def get() -> T:
        if not made:
            made.append(make())
        return made[0]

    return get


def _run(
    core: EngineCore,
    requests: Callable[[], list[GenerationRequest]],
    outbox: ResultQueue,
    cancel_token: CancelToken | None,
) -> Generator[Chunk, None, None]:
    with closing(chunks(core, requests(), outbox, cancel_token)) as pieces:
        for _, chunk in pieces:
            yield chunk


def answer(
    core: EngineCore,
    factory: RequestFactory,
    ids: list[int],
    options: TextOptions,
    snapshots: SnapshotProtocol,
    **held: Any,
) -> Chunks:
    """Chunks of what follows `ids`; requests are made and queued when the first is asked for."""
    outbox = ResultQueue(options.n_each)
    made = partial(factory.group, ids, options, outbox, **held)
    return Chunks(core, made, outbox, options.cancel_token, snapshots)


def start_stream(context: EngineContext, prompt: Any, options: TextOptions) -> Chunks:
    """The chunks of `Engine.stream`. Raises its errors, but for those of the computation."""
    factory = context.factory
    context.core.check_generates()
    prompt = read_prompt("prompt", prompt, "stream() takes")
    ids = factory.ids("prompt", prompt)
    factory.limit("prompt", len(ids), options.max_tokens)
    factory.prepare(options)
    echo = factory.echo(prompt, ids) if options.echo else ""
    return answer(context.core, factory, ids, options, context.snapshots, echo=echo)


def complete(context: EngineContext, prompt: Any, options: TextOptions, on_token: Callable[..., object] | None) -> Any:
    """The completion of a prompt, or those of a list, when they are finished; `on_token` sees their text as it comes.

    Raises the errors of `Engine.generate`.
    """
    if on_token is not None:
        check_callback(on_token)
    context.core.check_generates()
    single, prompts = read_prompts("prompt", prompt)
    indexed = not single or options.n is not None
    outbox = ResultQueue(len(prompts) * options.n_each, whole=on_token is None)
    requests = context.factory.requests(prompts, options, outbox)
    found = []
    running = chunks(context.core, requests, outbox, options.cancel_token)
    try:
        for index, chunk in running:
            found.append((index, chunk))
            if on_token is not None and chunk.text:
                on_token(index, chunk.text) if indexed else on_token(chunk.text)
    finally:
        running.close()
    return shaped(completions_of(requests, found, options.n_each), options.n, single)


def completions_of(
    requests: list[GenerationRequest], found: Iterable[tuple[int, Chunk]], n_each: int, first: int = 0
) -> list[Completion]:
    """Each of the finished requests as one, of its (request's index, chunk); `n_each` for each prompt.

    `first`: the index of the first prompt.
    """
    pieces: dict[int, list[Chunk]] = {}
    for i, chunk in found:
        pieces.setdefault(i, []).append(chunk)
    made = []
    for i, request in enumerate(requests):
        made.append(_completion(request, pieces.get(i, []), first + i // n_each))
    return made


def _completion(request: GenerationRequest, pieces: list[Chunk], index: int) -> Completion:
    texts: list[str] = []
    token_ids: list[int] = []
    tool_calls: list[AnyToolCall] = []
    for piece in pieces:
        texts.append(piece.text)
        token_ids += piece.token_ids
        tool_calls += piece.tool_calls
    n_given = request.n_prompt - request.n_filling
    divided = {} if request.reading is None else _divided(request, pieces)
    return Completion(
        text="".join(texts),
        token_ids=token_ids,
        finish_reason=request.finish_reason or "cancelled",
        prompt_tokens=n_given,
        logprobs=request.scores.tokens if request.scores else None,
        timings=request.clock.timings,
        index=index,
        prompt_logprobs=request.scores.prompt if request.scores else None,
        tool_calls=tool_calls,
        speculation=request.speculation.stats() if request.speculation else None,
        stop_reason=request.stop_reason,
        end=request.scores.end if request.scores else None,
        cached_tokens=min(request.sequence.n_cached or 0, n_given),
        warnings=request.warnings,
        **divided,
    )


def _divided(request: GenerationRequest, pieces: list[Chunk]) -> dict[str, Any]:
    """The fields of a text that may have reasoning or calls."""
    reasoning, raw = "".join(piece.reasoning for piece in pieces), "".join(piece.raw for piece in pieces)
    return {"reasoning": reasoning, "raw": raw, "reasoning_tokens": request.usage.reasoning_tokens}


def shaped(found: list[Completion], n: int | None, single: bool) -> Any:
    """Completions in the form of the call: one, or a list of n, for each prompt; for one prompt, or a list for
    several."""
    each: list[Any] = list(found) if n is None else [found[i : i + n] for i in range(0, len(found), n)]
    return each[0] if single else each


def chunks(
    core: EngineCore,
    requests: list[GenerationRequest],
    outbox: ResultQueue,
    cancel_token: CancelToken | None = None,
) -> Generator[tuple[int, Chunk], None, None]:
    """Submits requests and yields (index, chunk) as they come; of an outbox that is `whole`, when all are finished.

    However it is left, nothing of the requests stays behind. Raises the error of the first request that failed, as soon
    as it is known.
    """

    def ready() -> bool:
        some = outbox.items and not outbox.whole
        stop = cancel_token is not None and cancel_token.cancelled
        return bool(some or stop or not outbox.n_open or outbox.error is not None)

    _ticket = None
    try:
        _ticket = core.submit(requests)
        while outbox.n_open and outbox.error is None:
            core.drive(ready)
            if cancel_token is not None and cancel_token.cancelled:
                core.cancel(requests)
                core.drive(lambda: not outbox.n_open)
            while outbox.items and outbox.error is None:
                yield outbox.items.popleft()
        if outbox.error is not None:
            raise outbox.error
        _ticket.detach()  # nothing is left to be cancelled
        while outbox.items:
            yield outbox.items.popleft()
    except BaseException:  # left early, or failed: a traceback may keep the ticket
        core.cancel(requests)
        raise
