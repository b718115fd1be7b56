"""Choosing the next token: a list of plain stages (`SamplerChain`) and the state of one request (`Sampler`)."""

from oxillama.sampling.chain import SamplerChain
from oxillama.sampling.grammar import Grammar
from oxillama.sampling.grammar.json_schema import JsonSchemaCompiler
from oxillama.sampling.sampler import LogitsProcessor, Sampler
from oxillama.sampling.stages import Stage

__all__ = ["Grammar", "JsonSchemaCompiler", "LogitsProcessor", "Sampler", "SamplerChain", "Stage"]
