"""Drafts: the protocol of draft tokens, and drafts that need no second model."""

from oxillama.drafts.draft import Distribution, Draft, DraftTask, Proposal, SpecStats, Target
from oxillama.drafts.grammar_draft import GrammarDraft
from oxillama.drafts.prompt_lookup import PromptLookup

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
