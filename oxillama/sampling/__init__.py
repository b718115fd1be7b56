"""Sampling of the next token: a list of plain stages (`SamplerChain`) and the state of one request (`Sampler`)."""

from oxillama.grammar import Grammar, GrammarState, Vocabulary, apply_grammar_mask
from oxillama.grammar.json_schema import JsonSchemaCompiler
from oxillama.sampling.chain import SamplerChain
from oxillama.sampling.distribution import Distribution
from oxillama.sampling.sampler import LogitsProcessor, Sampler
from oxillama.sampling.stages import Stage

__all__ = [
    "Distribution",
    "Grammar",
    "GrammarState",
    "JsonSchemaCompiler",
    "LogitsProcessor",
    "Sampler",
    "SamplerChain",
    "Stage",
    "Vocabulary",
    "apply_grammar_mask",
]
