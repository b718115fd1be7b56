"""A dialogue that keeps its KV between turns."""

from collections.abc import Generator
from contextlib import closing

from oxillama.engine.core import EngineCore
from oxillama.engine.request import Outbox
from oxillama.engine.results import Chunk
from oxillama.engine.sequence import Sequence
from oxillama.engine.stream import chunks
from oxillama.engine.texts import TextMaker, TextOptions

__all__ = ["Conversation"]


class Conversation:
    """Prompts that mostly continue one another: each computes only what differs from the one before and its answer.

    For one thread at a time. Its KV blocks stay its own until `reset`.
    """

    def __init__(self, core: EngineCore, maker: TextMaker) -> None:
        self._core = core
        self._maker = maker
        self._sequence = Sequence([], 0)

    @property
    def n_computed(self) -> int:
        """Tokens whose keys and values are there."""
        return self._sequence.n_computed

    def stream(self, prompt: list[int], options: TextOptions) -> Generator[Chunk, None, None]:
        """Chunks of what follows the whole prompt, which is given as token ids.

        Raises what `Engine.stream` raises; the conversation can go on then.
        """
        ids = self._maker.ids("prompt", prompt)
        self._maker.limit("prompt", len(ids), options.max_tokens)
        outbox = Outbox(1)
        self._core.change(lambda: self._continue(ids))
        request = self._maker.request(ids, options, outbox, sequence=self._sequence)
        with closing(chunks(self._core, [request], outbox, options.cancel_token)) as pieces:
            for _, chunk in pieces:
                yield chunk

    def reset(self) -> None:
        """Forgets everything and frees its blocks."""
        self._core.change(lambda: self._continue([]))

    def _continue(self, ids: list[int]) -> None:
        """Replaces the tokens, keeping what is computed of the common beginning; the last token is computed again."""
        sequence = self._sequence
        limit = max(0, min(sequence.n_computed, len(ids) - 1))
        common = 0
        while common < limit and sequence.tokens[common] == ids[common]:
            common += 1
        sequence.tokens = list(ids)
        sequence.n_prompt = sequence.n_reserve = len(ids)
        sequence.n_computed = common
        self._core.scheduler.release(sequence, common)
