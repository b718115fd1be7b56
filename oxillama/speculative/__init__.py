"""Speculative decoding with a draft model: its selection, its synthesis, and drafts that run ahead in a thread.

The names of drafts in general (`oxillama.drafts`) can be imported from here too.
"""

from oxillama.drafts.draft import Draft, DraftTask, Proposal, SpecStats, Target
from oxillama.drafts.grammar_draft import GrammarDraft
from oxillama.drafts.prompt_lookup import PromptLookup
from oxillama.sampling import Distribution

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
