"""Draft sequences: the draft model's KV of each request's text."""

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from oxillama.scheduling.scheduler import Scheduler
from oxillama.scheduling.sequence import Sequence as Tokens
from oxillama.scheduling.state_slots import StateSlots

__all__ = [
    "DraftText",
    "DraftTexts",
    "Mark",
]

Mark = tuple[int, float]  # where a sampler is: its generator's state, and mirostat's mu


class DraftText:
    """One text: the tokens that are known, those that were guessed after them, and what is computed of both.

    n_known: how many tokens were known when the rest was guessed. marks: where the sampler was after these, and after
    each guess; none if the guesses can't be used again.
    """

    __slots__ = ("marks", "n_known", "sequence")

    def __init__(self, cache_key: Hashable) -> None:
        self.sequence = Tokens([], 0, cache_key=cache_key)
        self.n_known = 0
        self.marks: list[Mark] = []

    @property
    def guessed(self) -> list[int]:
        """The tokens that were guessed."""
        return self.sequence.tokens[self.n_known :]

    def agrees(self, tokens: Sequence[int]) -> bool:
        """Whether a text goes on as was guessed, as far as either reaches."""
        mine = self.sequence.tokens
        n = min(len(mine), len(tokens))
        return mine[:n] == list(tokens[:n])


class DraftTexts:
    """Texts by key, the one that was asked for last at the end; each has blocks of the scheduler's pool."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._texts: OrderedDict[int, DraftText] = OrderedDict()

    def __len__(self) -> int:
        return len(self._texts)

    def find(self, key: int) -> DraftText | None:
        """Of this key, if it is known."""
        return self._texts.get(key)

    def follow(self, key: int, cache_key: Hashable, tokens: Sequence[int], mark: Mark | None) -> DraftText:
        """A text as it is now. What is computed of it stays; guesses that turned out wrong are forgotten.

        mark: where its sampler is. Guesses that follow stay if it was there when they were drawn; None if they aren't
        wanted. Without any, the last token counts as not computed: its logits are gone.
        """
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = DraftText(cache_key)
        self._texts.move_to_end(key)
        sequence, at = text.sequence, len(tokens) - text.n_known
        mine = sequence.tokens
        if len(mine) > len(tokens) and 0 <= at < len(text.marks) and text.marks[at] == mark and text.agrees(tokens):
            text.n_known, text.marks = len(tokens), text.marks[at:]
            self.scheduler.blocks.rewind(sequence, len(mine) - 1)  # if nothing could be drawn after the last guess
            return text
        self.scheduler.blocks.rewind(sequence, min(n_common(mine, tokens), len(tokens) - 1))
        sequence.tokens[:] = tokens
        text.n_known, text.marks = len(tokens), [] if mark is None else [mark]
        return text

    def make_room(self, needs: Sequence[tuple[DraftText, int]]) -> None:
        """Of the texts that nobody asks for now, the ones that were not asked for longest lose what is kept of them,
        until there is room for so many tokens of each that is."""
        asked = {id(text) for text, _ in needs}
        for key, text in list(self._texts.items()):
            if id(text) in asked or self._has_room(needs):
                break
            self.scheduler.blocks.rewind(text.sequence, 0)
            del self._texts[key]

    def _has_room(self, needs: Sequence[tuple[DraftText, int]]) -> bool:
        if not needs:
            return True
        scheduler = self.scheduler
        missing = [scheduler.blocks.missing(text.sequence, n) for text, n in needs]
        slots = [(text.sequence.slots or StateSlots()).n_missing(scheduler.pool.slots) for text, _ in needs]
        if scheduler.pool.n_slots and sum(slots) > scheduler.pool.slots.n_available:
            return False
        return scheduler.blocks.fits([sum(n) for n in zip(*missing, strict=True)])

    def forget(self, key: int) -> None:
        """Frees what is kept of a text; nothing if it is not known."""
        text = self._texts.pop(key, None)
        if text is not None:
            self.scheduler.blocks.rewind(text.sequence, 0)


def n_common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two lists begin alike. Compares slices, which is quicker than one by one."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
