"""Choosing the next token: a list of plain stages (`SamplerChain`) and the state of one request (`Sampler`)."""

from oxillama.sampling.chain import Sampler, SamplerChain
from oxillama.sampling.grammar import Grammar, GrammarState, Vocabulary, apply_grammar_mask
from oxillama.sampling.stages import Stage

__all__ = ["Grammar", "GrammarState", "Sampler", "SamplerChain", "Stage", "Vocabulary", "apply_grammar_mask"]
