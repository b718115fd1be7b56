"""Choosing the next token: a list of plain stages (`SamplerChain`) and the state of one request (`Sampler`)."""

from oxillama.sampling.chain import SamplerChain
from oxillama.sampling.grammar import Grammar
from oxillama.sampling.sampler import LogitsProcessor, Sampler
from oxillama.sampling.stages import Stage

__all__ = ["Grammar", "LogitsProcessor", "Sampler", "SamplerChain", "Stage"]
