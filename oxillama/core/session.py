"""Sessions: the low-level calls on one sequence."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from oxillama._util.checks import check_int, check_keywords, check_type, given_of
from oxillama._util.pickling import stays_here
from oxillama._util.places import Path
from oxillama._util.signals import DeferredInterrupt
from oxillama._util.signatures import takes
from oxillama.config import SamplerConfig, SamplingOptions
from oxillama.core.engine_core import EngineCore
from oxillama.core.options import GenerateOptions, ServingOptions
from oxillama.core.prompts import check_token, check_tokens
from oxillama.core.request import Request, ResultQueue, SnapshotOptions, SnapshotProtocol, Want
from oxillama.core.request_factory import RequestFactory
from oxillama.core.results import FinishReason
from oxillama.errors import ConfigError, ContextOverflowError, GenerateError, GrammarError
from oxillama.lora import NO_LORAS, LoraSet
from oxillama.sampling import LogitsProcessor, Sampler, SamplerChain
from oxillama.sampling.chain import make_chain
from oxillama.sampling.sampler import check_processors
from oxillama.scheduling.sequence import Sequence, n_common

__all__ = [
    "SamplerLike",
    "Session",
    "SessionOptions",
    "SessionSampler",
    "session_options",
]

SamplerLike = SamplerConfig | SamplerChain | Sampler | None
Make = Callable[[SamplerChain, list[int], Iterable[LogitsProcessor]], Sampler]

KEYWORDS = ("sampler", "logits_processors", *SamplingOptions.__annotations__)
OPTIONS = ("n", *GenerateOptions.__annotations__)


class SessionSampler:
    """A sampler, or none yet, and whether it goes with the session's tokens, which it does from its first draw on.

    Its prompt is what the session holds at that draw; what comes later is its text. One that only the caller uses is
    left alone.
    """

    def __init__(self, make: Make, defaults: SamplerChain) -> None:
        """`make(chain, prompt, processors)` gives a sampler at the beginning of a text. `defaults`: of a call
        that gives no settings."""
        self._make, self._defaults = make, defaults
        self.sampler: Sampler | None = None
        self.follows = False
        self._lowest: int | None = None  # where the session went back to since then

    def put(self, sampler: Any) -> None:
        """Takes a sampler of the caller's own in place of the present one; None for none."""
        if sampler is not None:
            check_type("sampler", sampler, Sampler)
        if sampler is not self.sampler:
            self.sampler, self.follows = sampler, False

    def choose(self, sampler: SamplerLike, processors: Any, fields: dict[str, Any]) -> Sampler:
        """The sampler that a call asks for: the present one, unless it asks for other settings.

        Raises ConfigError, GrammarError, and TypeError for unknown fields.
        """
        check_keywords("sample", fields, KEYWORDS, OPTIONS, "it draws one token: generate() takes that, for a text")
        fields = given_of(fields)
        if isinstance(sampler, Sampler):
            if processors is not None or fields:
                raise ConfigError("sampler is a Sampler, which has its settings: give it alone")
            self.put(sampler)
        elif self.sampler is None or sampler is not None or processors is not None or fields:
            chain = make_chain(sampler, fields, self._defaults)
            functions = check_processors("logits_processors", processors)
            if self.sampler is None or self.sampler.config != chain.config:
                self.put(self._make(chain, [], functions))
            else:  # functions made anew for each call don't begin a new text
                self.sampler.chain, self.sampler.processors = chain, functions
        assert self.sampler is not None
        return self.sampler

    def draw(self, logits: NDArray[np.float32], tokens: list[int]) -> int:
        """A token to follow the session's tokens. Raises what `Sampler.sample` raises, GrammarError, ConfigError."""
        sampler = self.sampler
        assert sampler is not None
        self._go_back(tokens)
        if not self.follows:
            self._begin(sampler, tokens)
        self._accept(tokens)
        return sampler.sample(logits)

    def went_back(self, n: int) -> None:
        """The session has forgotten what came after its first n tokens."""
        self._lowest = n if self._lowest is None else min(n, self._lowest)

    def settle(self, tokens: list[int]) -> None:
        """Goes with the session's tokens as far as the grammar allows: the next draw raises what is wrong."""
        self._go_back(tokens)
        with suppress(GrammarError):
            self._accept(tokens)

    def _begin(self, sampler: Sampler, tokens: list[int]) -> None:
        """The first draw: a sampler that has accepted nothing has the session's tokens as its prompt."""
        if min(tokens, default=0) < 0:
            raise GenerateError("not all tokens of the session are known: its snapshot doesn't tell them; reset() it")
        history = sampler.memory.history.tokens
        if not sampler.memory.n_accepted:
            if history.tolist() != tokens:
                sampler.restart(tokens)
        elif n_common(history, array("i", tokens)) < len(history):
            raise ConfigError(
                "session.sampler has accepted other tokens than the session has: use it by hand, or give sample() "
                "settings, with which it begins anew"
            )
        self.follows = True

    def _go_back(self, tokens: list[int]) -> None:
        """Restores the state after the tokens that the session still has, or has again, before anything was drawn
        there.

        If the session went back into the prompt, the next draw begins anew: with the same seed, if there is one.
        """
        sampler, lowest, self._lowest = self.sampler, self._lowest, None
        if sampler is None or not self.follows:
            return
        history = sampler.memory.history.tokens
        n = n_common(history, array("i", tokens))
        if n == len(history) and lowest is None:
            return
        if min(n, n if lowest is None else lowest) < sampler.memory.n_prompt:
            sampler.restart(reseed=True)
            self.follows = False
        else:
            sampler.rewind(len(history) - n)

    def _accept(self, tokens: list[int]) -> None:
        """Tells grammar and penalties of the tokens since the last draw. Raises GrammarError for what may not come
        there."""
        if self.follows and self.sampler is not None:
            for token in tokens[len(self.sampler.memory.history.tokens) :]:
                self.sampler.accept(token)

    def fork(self) -> SessionSampler:
        """One in the same state, on its own from here on."""
        twin = SessionSampler(self._make, self._defaults)
        twin.sampler = None if self.sampler is None else self.sampler.copy()
        twin.follows, twin._lowest = self.follows, self._lowest
        return twin


T = TypeVar("T")


class SessionOptions(TypedDict, total=False):
    """Keywords of `Engine.session`; `session_options` says what they mean."""

    cache_prompt: bool
    cache_salt: str | None
    lora: Any


def session_options(*, cache_prompt: bool = True, cache_salt: str | None = None, lora: Any = None) -> ServingOptions:
    """Options of a session, checked.

    cache_prompt: begin with the KV of earlier requests that began alike, and leave it for others.
    cache_salt: only requests with the same one share beginnings.
    lora: adapters, a list of (name, scale) or of names; [] for none, None for those that were pushed.
    """
    return ServingOptions(cache_prompt=cache_prompt, cache_salt=cache_salt, lora=lora)


class _SessionRequest(Request):
    def __init__(
        self, sequence: Sequence, outbox: ResultQueue, begin: Callable[[Sequence], None], loras: LoraSet
    ) -> None:
        super().__init__(sequence, outbox, keep_blocks=True, begin=begin, loras=loras)
        self.logits: NDArray[np.float32] | None = None

    def absorb(self, rows: NDArray[np.float32]) -> FinishReason | None:
        self.logits = rows[0].copy()
        return "stop"


class _RowsRequest(_SessionRequest):
    """Logits of the last n tokens of a session, float32 [n, n_vocab], in `rows`."""

    want: Want = "all"

    def __init__(self, rows: NDArray[np.float32], *given: Any) -> None:
        super().__init__(*given)
        self.rows = rows

    def absorb(self, rows: NDArray[np.float32]) -> FinishReason | None:
        n, n_computed = len(self.rows), self.sequence.n_computed
        end = n_computed - (len(self.sequence.tokens) - n)  # where the session lost its blocks, earlier ones come again
        found = rows[max(0, len(rows) - end) :] if end > 0 else rows[:0]
        self.rows[end - len(found) : end] = found
        if end < n:
            return None
        self.logits = self.rows[-1].copy()
        return "stop"


class Session:
    """One sequence of tokens, fed by hand: tokens in, logits of the last position out. `Engine.session` makes one.

    It is served like every other request, takes its turns with them, begins with what the prefix cache has and leaves
    its own there. Its KV blocks are kept between calls until `close` (or the end of a `with` block), or until it is
    dropped; if others can't run without them they are lost, and computed again by the next call.

    `sample` draws a token to go on with, by a sampler that the session keeps.

    It uses the adapters of its own, or those that are pushed at the time of a call: after a change of these the tokens
    so far are computed again. A session is for one thread at a time: another one that comes in between gets a
    GenerateError.
    """

    __reduce_ex__ = stays_here("send snapshot_bytes() instead, with which engine.resume() goes on, or fork() it here")

    def __init__(
        self, core: EngineCore, factory: RequestFactory, serving: ServingOptions, snapshots: SnapshotProtocol
    ) -> None:
        self._core = core
        self._snapshots = snapshots
        self._loras = snapshots.loras
        self._factory = factory
        self._n_vocab = factory.n_vocab
        self._context_size = factory.context_size
        self._serving = serving
        self._kv_type = kv_type = snapshots.config.kv_type
        self._sequence = Sequence([], 0, cache_key=serving.cache_key(kv_type, NO_LORAS))
        self._logits: tuple[NDArray[np.float32], int] | None = None
        self._sampling = SessionSampler(factory.sampler, factory.default_chain)
        self._in_use = threading.Lock()
        self._release = partial(core.scheduler.blocks.rewind, self._sequence, 0)
        self._dropped = core.loop.finalizer(self._release)
        core.sessions.add(self)

    @property
    def position(self) -> int:
        """Tokens so far; where the next one goes."""
        return len(self._sequence.tokens)

    @property
    def tokens(self) -> list[int]:
        """A copy of the tokens so far."""
        return list(self._sequence.tokens)

    @property
    def logits(self) -> NDArray[np.float32] | None:
        """Logits of the last position, float32 [n_vocab]; None unless a call has just computed them."""
        found, at = self._logits or (None, -1)
        return found if at == self.position else None

    @property
    def sampler(self) -> Sampler | None:
        """Sampler of `sample`; None before its first call. It goes into snapshots of the session, and into forks.

        Set to None, it is forgotten. A `Sampler` of one's own may take its place, for `sample` or for use by hand.
        """
        return self._sampling.sampler

    @sampler.setter
    def sampler(self, sampler: Sampler | None) -> None:
        self._sampling.put(sampler)

    @property
    def closed(self) -> bool:
        return not self._dropped.alive

    def sample(
        self,
        sampler: SamplerLike = None,
        *,
        logits_processors: SequenceOf[LogitsProcessor] | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> int:
        """Draws a token to follow the session's tokens, by `logits`; `forward_one` appends it, or another one.

        sampler, logits_processors, sampling: as for `generate`, or a `Sampler`. The session keeps the sampler that is
            made of them, and what it remembers: calls that give the same settings again, or none, go on with it. Other
            settings begin anew here, with a grammar at its beginning.

        What the session holds at the first draw is the prompt; tokens after it, drawn or not, are the text, which
        penalties see and a grammar must allow. So a loop of this and `forward_one` gives the tokens that `generate`
        gives for the same seed, up to the token that ends the text (`Engine.is_eos`), which is drawn like others. Each
        call draws anew. Where the session goes back (`truncate`, `forward_decode` at an earlier position), so does the
        sampler: after the same tokens, it draws the same ones again. Where it goes back into the prompt, the next draw
        is a first one: it gives another text, unless there is a seed.

        Raises GenerateError if there are no logits, if they are no numbers, or while another thread uses the session;
        GrammarError if no token can follow, or the session got one that may not; ConfigError, TypeError.
        """
        self._check_open()

        def draw() -> int:
            self._sampling.choose(sampler, logits_processors, dict(sampling))
            logits = self.logits
            if logits is None:
                raise GenerateError(
                    "the session has no logits to draw from: prefill() it, or after truncate() put its last token "
                    "there again with forward_decode()"
                )
            return self._sampling.draw(logits, self._sequence.tokens)

        return self._alone(draw)

    def prefill(self, tokens: SequenceOf[int]) -> NDArray[np.float32]:
        """Appends tokens; logits of the last one, float32 [n_vocab].

        If it fails or is interrupted, the session is as before. Raises TokenizerError, ConfigError,
        ContextOverflowError, KvCacheFullError, GenerateError.
        """
        return self._extend("tokens", tokens, self.position)

    def forward_prefill(self, tokens: SequenceOf[int], pos: int) -> NDArray[np.float32]:
        """Puts tokens at position `pos`, forgetting what was there and after; logits of the last one.

        If it fails, the session is as after forgetting. Raises what `prefill` raises.
        """
        return self._extend("tokens", tokens, pos)

    def forward_logits(
        self, tokens: SequenceOf[int], pos: int, *, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """`forward_prefill` with the logits of every token given, float32 [len(tokens), n_vocab].

        out: an array of this form that is filled and returned, instead of a new one.

        All of them are computed: the prefix cache is not asked for them.
        """
        ids, start = self._checked("tokens", tokens, pos)
        shape = len(ids), self._n_vocab
        if out is not None and not (
            isinstance(out, np.ndarray) and out.shape == shape and out.dtype == np.float32 and out.flags.writeable
        ):
            raise ConfigError(f"out must be a float32 array of the shape {shape} that can be written to")
        rows = np.empty(shape, np.float32) if out is None else out
        self._alone(partial(self._feed, ids, start, rows))
        return rows

    def forward_decode(self, token: int, pos: int) -> NDArray[np.float32]:
        """`forward_prefill` of one token."""
        return self._extend("token", [check_token("token", token, self._n_vocab)], pos)

    def forward_one(self, token: int) -> NDArray[np.float32]:
        """`prefill` of one token."""
        return self.forward_decode(token, self.position)

    def truncate(self, n: int) -> None:
        """Forgets all but the first n tokens and frees their blocks. Raises ConfigError outside 0 … position."""
        self._check_open()
        keep = check_int("n", n, 0, self.position)

        def cut() -> None:
            back = keep < self.position
            self._logits = None if back else self._logits
            try:
                self._core.change(lambda: self._rewind(keep))
            finally:
                if back:
                    self._sampling.went_back(keep)

        self._alone(cut)

    def reset(self) -> None:
        """Forgets everything."""
        self.truncate(0)

    def fork(self) -> Session:
        """Another session with the same tokens, on its own from here on.

        Both have the same blocks: nothing is copied but the one in which they part, when one of them writes to it.
        What a model's recurrent layers keep isn't shared, and computed again by the other's first call.
        """
        self._check_open()
        twin = Session(self._core, self._factory, self._serving, self._snapshots)

        def share() -> None:
            self._core.change(lambda: self._share(twin._sequence))
            twin._logits, twin._sampling = self._logits, self._sampling.fork()

        self._alone(share)
        return twin

    def _share(self, sequence: Sequence) -> None:
        sequence.tokens = self.tokens
        sequence.weights, sequence.cache_key = self._sequence.weights, self._sequence.cache_key
        sequence.n_prompt = sequence.n_reserve = len(sequence.tokens)
        self._core.scheduler.blocks.fork(self._sequence, sequence, n_recompute=0)

    @takes(SnapshotOptions, SnapshotProtocol.write)
    def snapshot(self, path: Path, **options: Unpack[SnapshotOptions]) -> None:
        """Saves the session to a file; see `Engine.snapshot`."""
        check_keywords("snapshot", options, ("path", *SnapshotOptions.__annotations__))
        self._check_open()
        self._alone(lambda: self._snapshots.write(self._take, path, **options))

    def snapshot_bytes(self, *, compress: bool = False, format: int = 2) -> bytes:
        """Bytes that `snapshot` would write."""
        self._check_open()
        pack = self._snapshots.pack
        return self._alone(lambda: pack(self._take, compress=compress, format=format))

    def _take(self, known: Any) -> Any:
        sampling = self._sampling
        sampling.settle(self._sequence.tokens)
        return self._snapshots.session(self._sequence, self._serving, self.logits, sampling, known)

    def cancel(self) -> None:
        """Ends the call that another thread waits for, if there is one: it raises GenerateError, and the session is as
        before it."""
        request = self._sequence.handle
        if request is not None:
            self._core.cancel([request])

    def close(self) -> None:
        """Frees its blocks; further calls do nothing. Raises GenerateError while another thread uses it."""
        if not self.closed:
            self._alone(self._end)

    def _end(self) -> None:
        self._core.loop.post(self._release)
        self._dropped.detach()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Session {'closed' if self.closed else f'at position {self.position}'}>"

    def _extend(self, name: str, tokens: Iterable[int], position: int) -> NDArray[np.float32]:
        return self._alone(partial(self._feed, *self._checked(name, tokens, position)))

    def _checked(self, name: str, tokens: Iterable[int], position: int) -> tuple[list[int], int]:
        """Tokens and their first position. Raises TokenizerError, ConfigError, ContextOverflowError."""
        self._check_open()
        ids = check_tokens(name, tokens, self._n_vocab)
        if not ids:
            raise ConfigError(f"{name} is empty: give at least one token")
        start = check_int("pos", position, 0, self.position)
        if start + len(ids) > self._context_size:
            raise ContextOverflowError(
                f"{len(ids)} tokens at position {start} don't fit context_size {self._context_size}: "
                "truncate() or reset() the session, or load with a larger context_size"
            )
        return ids, start

    def _feed(self, ids: list[int], start: int, rows: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        back = start < self.position
        try:
            return self._compute(ids, start, rows)
        finally:
            if back:
                self._sampling.went_back(start)

    def _compute(self, ids: list[int], start: int, rows: NDArray[np.float32] | None) -> NDArray[np.float32]:
        """Logits of the last token; of all of them in `rows`, if that is given."""
        outbox = ResultQueue(1)
        loras = self._loras.select(self._serving.lora)
        cached = rows is None

        def begin(_: Sequence) -> None:
            self._append(ids, start, loras, cached=cached)

        given = (self._sequence, outbox, begin, loras)
        request = _SessionRequest(*given) if rows is None else _RowsRequest(rows, *given)
        request.n_prompt = len(ids)
        self._core.scheduler.check_fits(start + len(ids))
        try:
            self._core.run([request], outbox)
            if request.logits is None:
                raise GenerateError(
                    "the session's call was cancelled: by cancel(), or another thread forked this process"
                )
            self._logits = request.logits.copy(), start + len(ids)
            return request.logits
        except BaseException:
            self._core.change(lambda: self._rewind(start))
            raise
        finally:
            request.begin = None  # the sequence keeps its last request, which must not keep the session

    def _append(self, ids: list[int], start: int, loras: LoraSet, *, cached: bool) -> None:
        sequence = self._sequence
        kept = sequence.tokens[:start]
        self._rewind(start if sequence.weights == loras.key else 0)
        sequence.tokens[:], sequence.weights, sequence.every_row = kept, loras.key, not cached
        sequence.cache_key = self._serving.cache_key(self._kv_type, loras) if cached else None
        self._core.scheduler.blocks.checkpoint(sequence)
        sequence.tokens.extend(ids)
        sequence.n_prompt = sequence.n_reserve = len(sequence.tokens)

    def _rewind(self, n: int) -> None:
        sequence = self._sequence
        del sequence.tokens[n:]
        sequence.n_prompt = sequence.n_reserve = len(sequence.tokens)
        self._core.scheduler.blocks.rewind(sequence, n)

    def _check_open(self) -> None:
        self._core.check_continues()
        if self.closed:
            raise GenerateError("the session is closed: begin another one with engine.session()")

    def _alone(self, action: Callable[[], T]) -> T:
        """Runs an action that no other thread's comes between, and returns its result. No context manager: a signal may
        come while one is entered or left."""
        lock, mine = self._in_use, False
        try:
            with DeferredInterrupt():  # no interrupt comes between taking the lock and its release
                mine = lock.acquire(blocking=False)
            if not mine:
                raise GenerateError("the session is in use by another thread: a session is for one thread at a time")
            return action()
        finally:
            if mine:
                lock.release()

    def after_fork(self) -> None:
        """Frees the session of a forked child, where the thread that used it may not be there to end its call."""
        self._in_use = threading.Lock()
