"""Sampling of the next token: a list of plain stages (`SamplerChain`) and the state of one request (`Sampler`)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from oxillama.grammar import Grammar, GrammarState, Vocabulary, apply_grammar_mask
from oxillama.sampling.chain import SamplerChain
from oxillama.sampling.distribution import Distribution
from oxillama.sampling.sampler import LogitsProcessor, Sampler
from oxillama.sampling.stages import Stage

if TYPE_CHECKING:
    from oxillama.grammar.json_schema import JsonSchemaCompiler

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


def __getattr__(name: str) -> Any:
    if name == "JsonSchemaCompiler":  # twenty modules, which only schemas need
        return importlib.import_module("oxillama.grammar.json_schema").JsonSchemaCompiler
    raise AttributeError(f"module 'oxillama.sampling' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
