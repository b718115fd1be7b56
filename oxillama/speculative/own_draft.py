"""Draft model of an engine's own weights, made when it is first asked for."""

from __future__ import annotations

from oxillama.core.context import LoadedEngine
from oxillama.speculative.draft_model import DraftModel

__all__ = ["OwnDraft"]


class OwnDraft:
    """The draft model that shares an engine's weights: one at most, which is closed with the engine."""

    def __init__(self) -> None:
        self._kept: dict[str, DraftModel] = {}  # no lock: `setdefault` and `pop` of a str are atomic

    def get(self, engine: LoadedEngine) -> DraftModel:
        """The same one each time. Raises EngineClosedError, GenerateError if the model is an encoder."""
        engine.context.core.check_open()
        found = self._kept.get("draft")
        if found is None:
            made = DraftModel(engine)
            found = self._kept.setdefault("draft", made)
            if found is not made:  # another thread's call came first
                made.close()
        if engine.closed:
            self.close()
        return found

    def close(self) -> None:
        """Closes it, if it was made."""
        if (draft := self._kept.pop("draft", None)) is not None:
            draft.close()
