"""Draft sequences: the draft model's KV of each request's text."""

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from oxillama.scheduling.scheduler import Scheduler
from oxillama.scheduling.sequence import Sequence as Tokens
from oxillama.scheduling.sequence import n_common
from oxillama.scheduling.state_slots import StateSlots

__all__ = [
    "DraftSequence",
    "DraftSequences",
    "Mark",
]

Mark = tuple[int, float]  # state of a sampler: its generator's state, and mirostat's mu


class DraftSequence:
    """Sequence of one request in the draft model: the request's tokens, draft tokens after them, and their KV.

    n_known: number of the request's tokens when the others were drafted. marks: state of the sampler after these, and
    after each draft token; empty if the draft tokens can't be used again.
    """

    __slots__ = ("marks", "n_known", "sequence")

    def __init__(self, cache_key: Hashable) -> None:
        self.sequence = Tokens([], 0, cache_key=cache_key)
        self.n_known = 0
        self.marks: list[Mark] = []

    @property
    def drafted(self) -> list[int]:
        """The draft tokens."""
        return self.sequence.tokens[self.n_known :]

    def agrees(self, tokens: Sequence[int]) -> bool:
        """Whether tokens agree with the draft tokens, as far as either reach."""
        mine = self.sequence.tokens
        n = min(len(mine), len(tokens))
        return mine[:n] == list(tokens[:n])


class DraftSequences:
    """Draft sequences by key, least recently used first; each has blocks of the scheduler's pool."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._texts: OrderedDict[int, DraftSequence] = OrderedDict()

    def __len__(self) -> int:
        return len(self._texts)

    def find(self, key: int) -> DraftSequence | None:
        """The sequence of a key; None if there is none."""
        return self._texts.get(key)

    def sync(self, key: int, cache_key: Hashable, tokens: list[int], mark: Mark | None) -> DraftSequence:
        """Updates a sequence to the request's tokens. KV of their common prefix stays; rejected draft tokens go.

        mark: state of the request's sampler. Draft tokens after `tokens` stay if the sampler had this state when they
        were drawn; none stay if it is None. Without any, the last token counts as not computed: its logits are gone.
        """
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = DraftSequence(cache_key)
        self._texts.move_to_end(key)
        sequence, at = text.sequence, len(tokens) - text.n_known
        mine = sequence.tokens
        if len(mine) > len(tokens) and 0 <= at < len(text.marks) and text.marks[at] == mark and text.agrees(tokens):
            text.n_known, text.marks = len(tokens), text.marks[at:]
            self.scheduler.blocks.rewind(sequence, len(mine) - 1)  # if none could be drawn after the last draft token
            return text
        self.scheduler.blocks.rewind(sequence, min(n_common(mine, tokens), len(tokens) - 1))
        sequence.tokens[:] = tokens
        text.n_known, text.marks = len(tokens), [] if mark is None else [mark]
        return text

    def make_room(self, needs: Sequence[tuple[DraftSequence, int]]) -> None:
        """Evicts sequences that are not in `needs`, least recently used first, until there is room for the tokens of
        each that is."""
        asked = {id(text) for text, _ in needs}
        for key, text in list(self._texts.items()):
            if id(text) in asked or self._has_room(needs):
                break
            self.scheduler.blocks.rewind(text.sequence, 0)
            del self._texts[key]

    def _has_room(self, needs: Sequence[tuple[DraftSequence, int]]) -> bool:
        if not needs:
            return True
        scheduler = self.scheduler
        missing = [scheduler.blocks.missing(text.sequence, n) for text, n in needs]
        slots = [(text.sequence.slots or StateSlots()).n_missing(scheduler.pool.slots) for text, _ in needs]
        if scheduler.pool.n_slots and sum(slots) > scheduler.pool.slots.n_available:
            return False
        return scheduler.blocks.fits([sum(n) for n in zip(*missing, strict=True)])

    def forget(self, key: int) -> None:
        """Frees the KV of a sequence; does nothing for an unknown key."""
        text = self._texts.pop(key, None)
        if text is not None:
            self.scheduler.blocks.rewind(text.sequence, 0)
