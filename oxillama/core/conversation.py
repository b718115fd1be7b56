"""Conversations: dialogues whose KV blocks are kept between turns."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, Self, cast

from oxillama._util.pickling import stays_here
from oxillama.core.engine_core import EngineCore
from oxillama.core.options import TextOptions
from oxillama.core.request import Request, SnapshotProtocol
from oxillama.core.request_factory import RequestFactory
from oxillama.core.text_stream import Chunks, answer
from oxillama.errors import ConfigError, GenerateError
from oxillama.scheduling.scheduler import Scheduler
from oxillama.scheduling.sequence import Sequence, n_common

__all__ = [
    "Conversation",
]

ANSWERING = "the conversation is answering: finish or close its stream first"


class _Memory:
    """Memory of a dialogue: the sequence of its last turn. Its methods run in a turn of the engine's loop.

    Apart from the dialogue, which thereby can be dropped, and its blocks be given back.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.sequence = Sequence([], 0)
        self.closed = False

    def check_idle(self) -> None:
        """Raises GenerateError if no turn can begin."""
        if self.closed:
            raise GenerateError("the conversation is closed: begin another one")
        if self.sequence.is_scheduled:
            raise GenerateError(ANSWERING)

    def begin(self, sequence: Sequence) -> None:
        """`sequence` takes the place of the one before, and the blocks of what is computed of their common beginning.

        The last token is computed again, since its logits are wanted. Raises GenerateError during an answer.
        """
        self.check_idle()
        before = self.sequence
        same = before.weights == sequence.weights
        limit = max(0, min(before.n_computed, len(sequence.tokens) - 1)) if same else 0
        common = min(limit, n_common(before.tokens, sequence.tokens))
        if before.untrusted and common:
            sequence.cache_key, sequence.untrusted = None, True
        self.scheduler.blocks.rewind(before, common)
        self.scheduler.blocks.transfer(before, sequence)
        self.scheduler.blocks.checkpoint(sequence)
        if sequence.slots is not None:  # the place to come back to for another answer
            sequence.slots.mark = len(sequence.tokens) - 1
        self.sequence = sequence

    def forget(self) -> bool:
        """Frees the blocks, unless it is answering: False."""
        if self.sequence.is_scheduled:
            return False
        self.scheduler.blocks.keep_tail(self.sequence)
        self.scheduler.blocks.rewind(self.sequence, 0)
        self.sequence = Sequence([], 0)
        return True

    def abandon(self) -> None:
        """Frees the blocks now, or with the end of the answer that is under way."""
        self.closed = True
        if not self.forget():
            cast(Request, self.sequence.handle).keep_blocks = False


class Conversation:
    """Prompts that mostly continue one another: each computes only what differs from the one before and its answer.

    Its KV blocks stay its own until `reset`, `close` (or the end of a `with` block), or until it is dropped. It gives
    one answer at a time: a call meanwhile, from any thread, gets a GenerateError.

    messages: what the caller keeps of it as plain data, such as the messages so far; in snapshots too.
    """

    __reduce_ex__ = stays_here("send snapshot_bytes() instead, with which engine.resume() goes on")

    def __init__(self, core: EngineCore, factory: RequestFactory, snapshots: SnapshotProtocol) -> None:
        core.check_continues()
        self._core = core
        self._factory = factory
        self._snapshots = snapshots
        self.messages: list[Any] = []
        self._memory = memory = _Memory(core.scheduler)
        self._dropped = core.loop.finalizer(memory.abandon)

    @property
    def n_computed(self) -> int:
        """Tokens whose keys and values are there."""
        return self._memory.sequence.n_computed

    @property
    def tokens(self) -> list[int]:
        """A copy of the tokens of the last turn, prompt and answer."""
        return list(self._memory.sequence.tokens)

    def snapshot(
        self, path: str | os.PathLike[str], *, base: Any = None, compress: bool = False, shared: bool = False
    ) -> None:
        """Saves it to a file, between two answers: `Engine.resume` goes on with it.

        An answer that is under way is saved by its own stream. Options and errors are those of `Engine.snapshot`;
        GenerateError during an answer and after `close`.
        """
        self._snapshots.write(self._take, path, base=base, compress=compress, shared=shared)

    def snapshot_bytes(self, *, compress: bool = False) -> bytes:
        """Bytes that `snapshot` would write."""
        return self._snapshots.pack(self._take, compress=compress)

    def _take(self, known: Any) -> Any:
        self._memory.check_idle()
        return self._snapshots.conversation(self._memory.sequence, self.messages, known)

    def stream(self, prompt: list[int], options: TextOptions) -> Chunks:
        """Chunks of what follows the whole prompt, which is given as token ids.

        Raises what `Engine.stream` raises, and GenerateError while another answer is under way or after `close`; the
        conversation can go on after any error. ConfigError for prompt_logprobs, n and echo.
        """
        if options.prompt_logprobs is not None:
            raise ConfigError("prompt_logprobs is not for a conversation, which doesn't compute its prompts whole")
        if options.n is not None:
            raise ConfigError("n is not for a conversation, which goes on from one answer")
        if options.echo:
            raise ConfigError("echo is not for a conversation, whose caller has the prompt")
        self._core.check_open()
        self._memory.check_idle()
        ids = self._factory.ids("prompt", prompt)
        self._factory.limit("prompt", len(ids), options.max_tokens)
        self._factory.prepare(options)
        begin = self._memory.begin
        found = answer(self._core, self._factory, ids, options, self._snapshots, keep_blocks=True, begin=begin)
        found.owner = self  # which thereby lives as long as the answer
        return found

    def reset(self) -> None:
        """Forgets everything and frees its blocks. Raises GenerateError during an answer."""
        if not self._core.change(self._memory.forget):
            raise GenerateError(ANSWERING)

    def close(self) -> None:
        """Ends the answer that is under way, as "cancelled", and frees the blocks; further calls do nothing."""
        self._memory.closed = True
        sequence = self._memory.sequence
        if sequence.is_scheduled:
            self._core.cancel([cast(Request, sequence.handle)])
        self._core.loop.post(self._memory.abandon)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
