"""Draft models of the replaced package as drafts of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from oxillama.compat.llama_speculative import LlamaDraftModel, LlamaPromptLookupDecoding
from oxillama.drafts.draft import DraftTask, Proposal, Target
from oxillama.drafts.prompt_lookup import PromptLookup
from oxillama.errors import ConfigError

__all__ = ["CalledDraft", "engine_draft"]

N_TOKENS = 10  # that a draft model of the caller's is asked for


class CalledDraft:
    """A draft that asks a function of the caller's."""

    def __init__(self, model: LlamaDraftModel) -> None:
        self._model = model
        self._n_vocab = 0

    def bind(self, target: Target) -> None:
        self._n_vocab = target.n_vocab

    def propose(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        return [Proposal(self._tokens(task)) for task in tasks]

    def _tokens(self, task: DraftTask) -> list[int]:
        found: list[int] = np.asarray(self._model(np.array(task.tokens, np.intc))).astype(int).tolist()[: task.n]
        for token in found:
            if not 0 <= token < self._n_vocab:
                raise ConfigError(f"draft_model gave the token {token}, outside the vocabulary 0..{self._n_vocab - 1}")
        return found

    def forget(self, key: int) -> None:
        """Forgets nothing: nothing is kept."""


def engine_draft(model: Any) -> tuple[Any, int] | None:
    """(draft, number of draft tokens) of a draft model; None of none. Raises ConfigError for anything else."""
    if model is None:
        return None
    if type(model) is LlamaPromptLookupDecoding:
        return PromptLookup(model.max_ngram_size, min_ngram=1), model.num_pred_tokens
    if not callable(model):
        raise ConfigError(f"draft_model must be a LlamaDraftModel, not {model!r:.60}")
    return CalledDraft(model), N_TOKENS
