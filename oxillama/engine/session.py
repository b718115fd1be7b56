"""The low-level session: one sequence that the caller feeds by hand."""

import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from oxillama.checks import check_int
from oxillama.engine.core import EngineCore
from oxillama.engine.prompts import check_token, check_tokens
from oxillama.engine.request import Outbox, Request
from oxillama.engine.results import FinishReason
from oxillama.engine.sequence import Sequence
from oxillama.errors import ConfigError, ContextOverflowError, GenerateError
from oxillama.lora import LoraRegistry, LoraSet

__all__ = ["Session", "SessionMethods"]


class _SessionRequest(Request):
    def __init__(self, sequence: Sequence, outbox: Outbox, begin: Callable[[Sequence], None], loras: LoraSet) -> None:
        super().__init__(sequence, outbox, keep_blocks=True, begin=begin, loras=loras)
        self.logits: NDArray[np.float32] | None = None

    def absorb(self, rows: NDArray[np.float32]) -> FinishReason | None:
        self.logits = rows[0].copy()
        return "stop"


class Session:
    """Tokens in, logits of the last position out; its KV blocks grow as needed and are kept between calls.

    Calls take their turns with everything else that the engine computes. A session is for one thread at a time:
    another one that comes in between gets a GenerateError. It uses the adapters that are pushed at the time of a call:
    after a change of those the tokens so far are computed again.
    """

    def __init__(self, core: EngineCore, n_vocab: int, context_size: int, loras: LoraRegistry) -> None:
        self._core = core
        self._loras = loras
        self._n_vocab = n_vocab
        self._context_size = context_size
        self._sequence = Sequence([], 0)
        self._in_use = threading.Lock()
        core.sessions.add(self)

    @property
    def position(self) -> int:
        """Tokens so far; where the next one goes."""
        return len(self._sequence.tokens)

    @property
    def tokens(self) -> list[int]:
        """A copy of the tokens so far."""
        return list(self._sequence.tokens)

    def truncate(self, n: int) -> None:
        """Forgets all but the first n tokens and frees their blocks. Raises ConfigError outside 0 … position."""
        keep = check_int("n", n, 0, self.position)
        with self._exclusive():
            self._core.change(lambda: self._rewind(keep))

    def reset(self) -> None:
        """Forgets everything."""
        with self._exclusive():
            self._core.change(lambda: self._rewind(0))

    def extend(self, name: str, tokens: Iterable[int], position: int) -> NDArray[np.float32]:
        """Puts tokens at `position` (at most the present one: then it rewinds first) and computes them.

        Returns the logits of the last one, float32 [n_vocab]. If it fails or is interrupted, the session is as it was
        after rewinding. Raises TokenizerError, ConfigError, ContextOverflowError, KvCacheFullError, GenerateError.
        """
        self._core.check_generates()
        ids = check_tokens(name, tokens, self._n_vocab)
        if not ids:
            raise ConfigError(f"{name} is empty: give at least one token")
        start = check_int("pos", position, 0, self.position)
        if start + len(ids) > self._context_size:
            raise ContextOverflowError(
                f"{len(ids)} tokens at position {start} don't fit context_size {self._context_size}: "
                "truncate() or reset() the session, or load with a larger context_size"
            )
        with self._exclusive():
            return self._compute(ids, start)

    def _compute(self, ids: list[int], start: int) -> NDArray[np.float32]:
        outbox = Outbox(1)
        loras = self._loras.select()
        request = _SessionRequest(self._sequence, outbox, lambda _: self._append(ids, start, loras.key), loras)
        request.n_prompt = len(ids)
        self._core.scheduler.check_fits(start + len(ids))
        try:
            self._core.run([request], outbox)
        finally:
            request.begin = None  # the sequence keeps its last request, which must not keep the session
            if request.logits is None:
                self._core.change(lambda: self._rewind(start))
        if request.logits is None:
            raise GenerateError("the session's call was cancelled: another thread forked this process")
        return request.logits

    def _append(self, ids: list[int], start: int, weights: Hashable) -> None:
        sequence = self._sequence
        kept = sequence.tokens[:start]
        self._rewind(start if sequence.weights == weights else 0)
        sequence.tokens[:], sequence.weights = kept, weights
        self._core.scheduler.checkpoint(sequence)
        sequence.tokens.extend(ids)
        sequence.n_prompt = sequence.n_reserve = len(sequence.tokens)

    def _rewind(self, n: int) -> None:
        sequence = self._sequence
        del sequence.tokens[n:]
        sequence.n_prompt = sequence.n_reserve = len(sequence.tokens)
        self._core.scheduler.rewind(sequence, n)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        if not self._in_use.acquire(blocking=False):
            raise GenerateError("the session is in use by another thread: a session is for one thread at a time")
        try:
            yield
        finally:
            self._in_use.release()

    def after_fork(self) -> None:
        """In a forked child: the thread that used the session may not be there to end its call."""
        self._in_use = threading.Lock()


class SessionMethods:
    """The session's calls as methods of the engine; each raises what `Session` raises."""

    _session: Session
    _end_ids: Collection[int]
    n_vocab: int

    @property
    def position(self) -> int:
        """Tokens in the session so far."""
        return self._session.position

    def reset(self) -> None:
        """Empties the session and frees its blocks."""
        self._session.reset()

    def prefill(self, tokens: SequenceOf[int]) -> NDArray[np.float32]:
        """Appends tokens to the session; logits of the last one, float32 [n_vocab]."""
        return self._session.extend("tokens", tokens, self.position)

    def forward_prefill(self, tokens: SequenceOf[int], pos: int) -> NDArray[np.float32]:
        """Puts tokens at position `pos`, forgetting what was there and after; logits of the last one."""
        return self._session.extend("tokens", tokens, pos)

    def forward_decode(self, token: int, pos: int) -> NDArray[np.float32]:
        """Puts one token at position `pos`, forgetting what was there and after; its logits."""
        return self._session.extend("token", [check_token("token", token, self.n_vocab)], pos)

    def forward_one(self, token: int) -> NDArray[np.float32]:
        """Appends one token to the session; its logits."""
        return self.forward_decode(token, self.position)

    def truncate(self, n: int) -> None:
        """Forgets all but the session's first n tokens. Raises ConfigError outside 0 … position."""
        self._session.truncate(n)

    def is_eos(self, token: int) -> bool:
        """Whether a token ends generation. Raises TokenizerError for an id out of range."""
        return check_token("token", token, self.n_vocab) in self._end_ids
