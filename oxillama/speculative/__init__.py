"""Speculative decoding: several tokens of a text in one step, where somebody guesses them well."""

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
