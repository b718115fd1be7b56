"""Speculative decoding with a draft model: its selection, its synthesis, and drafts that run ahead in a thread.

The names of drafts in general (`oxillama.drafts`) can be imported from here too.
"""

from oxillama.drafts import (
    Distribution,
    Draft,
    DraftTask,
    GrammarDraft,
    PromptLookup,
    Proposal,
    SpecStats,
    Target,
)

__all__ = [
    "Distribution",
    "Draft",
    "DraftTask",
    "GrammarDraft",
    "PromptLookup",
    "Proposal",
    "SpecStats",
    "Target",
]
