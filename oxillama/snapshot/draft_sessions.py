"""What a draft model has computed of an engine's session, saved and put back as if the draft were an engine."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from oxillama.engine.sequence import Sequence
from oxillama.engine.serving import ServingOptions
from oxillama.errors import SnapshotError, SnapshotMismatchError
from oxillama.interrupt import Finalizer
from oxillama.lora import LoraRegistry
from oxillama.sampler_config import SamplerConfig
from oxillama.sampling import Sampler
from oxillama.snapshot.fields import Fields
from oxillama.snapshot.maker import Known, SnapshotMaker
from oxillama.snapshot.resuming import load_saved
from oxillama.snapshot.saved import Rows, Saved
from oxillama.snapshot.sequences import UNKNOWN, put
from oxillama.snapshot.sources import Source
from oxillama.snapshot.text_resumer import tokens_of
from oxillama.speculative.draft import DraftTask

if TYPE_CHECKING:
    from oxillama.speculative.draft_model import DraftModel

__all__ = ["DraftSession"]


class _Core:
    """A draft model as what makes snapshots sees an engine; what is done, is done in the draft's turn."""

    def __init__(self, draft: DraftModel) -> None:
        self._draft, self.loop = draft, self
        self.sessions: weakref.WeakSet[Any] = weakref.WeakSet()  # a forked child begins without any text

    @property
    def runner(self) -> Any:
        return self._draft._runner

    @property
    def scheduler(self) -> Any:
        return self._draft._scheduler

    def check_open(self) -> None:
        self._draft.turn(bool)

    def change(self, action: Callable[[], object]) -> None:
        self._draft.turn(action)

    def post(self, action: Callable[[], object]) -> None:
        self._draft.post(action)

    def finalizer(self, change: Callable[[], object]) -> Finalizer:
        return Finalizer(partial(self._draft.post, change))


class DraftSession:
    """Of a draft model that is of a file; key: of the engine's session, as its text is known to the draft."""

    def __init__(self, draft: DraftModel, key: int) -> None:
        self._draft, self._key = draft, key
        loras = LoraRegistry(draft._parts.spec, dict)
        self.maker = SnapshotMaker(cast(Any, _Core(draft)), draft.config, draft._parts, loras)
        self.maker.given_as = "draft"

    def pack(self, *, compress: bool = False) -> bytes:
        """Version 2. Raises SnapshotError's children, EngineClosedError."""
        return self.maker.pack(self._take, compress=compress)

    def version1(self, tokens: list[int]) -> bytes:
        """As the original writes it, with all the session's tokens computed. Raises SnapshotError if it can't be."""
        known = self._draft._texts.find(self._key) is not None
        if not tokens or (UNKNOWN in tokens and self._has(tokens)):
            return self.maker.version1(self._take)
        if UNKNOWN in tokens:
            raise SnapshotError(
                "format=1 needs the draft's keys and values, and the session's tokens, of which they could be computed "
                "again, are not known: use format=2"
            )
        try:
            greedy = Sampler(replace(SamplerConfig.greedy(), seed=1))  # without one, the system is asked for it
            self._draft.propose([DraftTask(self._key, tokens, 1, greedy)])
            if not self._has(tokens):
                raise SnapshotError(f"format=1 needs room for the session's {len(tokens)} tokens in the draft's cache")
            return self.maker.version1(self._take)
        finally:
            if not known:
                self._draft.forget(self._key)

    def _has(self, tokens: list[int]) -> bool:
        text = self._draft._texts.find(self._key)
        return text is not None and text.sequence.n_computed == len(tokens) and text.agrees(tokens)

    def _take(self, known: Known) -> Saved:
        text = self._draft._texts.find(self._key)
        sequence = Sequence([], 0) if text is None else text.sequence
        n = sequence.n_computed
        saved = self.maker.session(sequence, ServingOptions(), None, None, known)
        saved.state["sequence"]["n_prompt"] = n
        # What is guessed can be guessed again.
        saved.tensors["tokens"] = Rows.whole(np.array(sequence.tokens[:n], np.int32))
        return saved

    def restore(self, source: Source) -> None:
        """Puts back what was saved. Raises SnapshotError's children, and then the draft is as it was."""
        saved, label = load_saved(self.maker, source), source.label
        tokens = tokens_of(saved, self.maker.n_vocab, label)
        n = Fields(saved.state, label).sub("sequence").integer("n_computed", 0, len(tokens))
        if len(tokens) > self._draft.context_size:
            raise SnapshotMismatchError(
                f"{label}: its {len(tokens)} tokens are more than the draft's context_size, {self._draft.context_size}"
            )

        def fill() -> None:
            text = self._draft._texts.follow(self._key, None, tokens, None)
            try:
                put(self.maker.core, text.sequence, saved.tensors, n, label)
            except Exception:
                self._draft._texts.forget(self._key)
                raise

        if tokens:
            self.maker.turn(fill)
