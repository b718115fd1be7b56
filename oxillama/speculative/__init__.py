"""Speculative decoding: several tokens of a text in one step, where somebody guesses them well."""

from oxillama.speculative.draft import Distribution, Draft, DraftTask, Proposal, Target

__all__ = ["Distribution", "Draft", "DraftTask", "Proposal", "Target"]
