"""Speculative decoding: several tokens of a text in one step, where somebody guesses them well."""

from oxillama.speculative.draft import Distribution, Draft, DraftTask, Proposal, Target
from oxillama.speculative.forced import GrammarDraft
from oxillama.speculative.lookup import PromptLookup
from oxillama.speculative.stats import SpecStats

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
