"""Grammars that texts are held to: GBNF, or a JSON schema that the engine compiles."""

from __future__ import annotations

import json
import os
from typing import Any

from oxillama._util.json_values import unique_keys
from oxillama._util.text_files import read_text, without_mark
from oxillama.errors import ConfigError
from oxillama.grammar import Grammar
from oxillama.grammar.json_schema import JsonSchemaCompiler

__all__ = ["JSON_GBNF", "LLAMA_GRAMMAR_DEFAULT_ROOT", "LlamaGrammar"]

LLAMA_GRAMMAR_DEFAULT_ROOT = "root"
# Any JSON object.
JSON_GBNF = r"""root ::= object
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws (member ("," ws member)*)? ws "}"
member ::= string ws ":" ws value ws
array ::= "[" ws (value ws ("," ws value ws)*)? "]"
string ::= "\"" ([^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F]))* "\""
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)?
ws ::= [ \n]?
"""


class LlamaGrammar:
    """A grammar for `grammar=`. `from_string`, `from_file` and `from_json_schema` make one.

    constraint: the field of `SamplerConfig` that holds texts to it.
    """

    def __init__(self, *, _grammar: str = "", _schema: str | None = None) -> None:
        self._grammar, self._root = _grammar, LLAMA_GRAMMAR_DEFAULT_ROOT
        self.constraint: dict[str, Any] = {"grammar": _grammar} if _schema is None else {"json_schema": _schema}

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> LlamaGrammar:
        """Reads GBNF. Raises GrammarError, which gives line and column, for what is none."""
        if not isinstance(grammar, str):
            raise ConfigError(f"grammar must be GBNF as a str, not {type(grammar).__name__}")
        Grammar.parse(grammar, token_id=lambda text: 0)  # its tokens are those of the model that it will serve
        return cls(_grammar=grammar)

    @classmethod
    def from_file(cls, file: str | os.PathLike[str], verbose: bool = True) -> LlamaGrammar:
        """Reads a file of GBNF. Raises OSError if it can't be read, GrammarError."""
        return cls.from_string(read_text(file), verbose)

    @classmethod
    def from_json_schema(cls, json_schema: str, verbose: bool = True) -> LlamaGrammar:
        """Reads a JSON schema as text. Raises GrammarError for a schema that no grammar can express, ConfigError."""
        try:
            text = without_mark(json_schema) if isinstance(json_schema, str) else json_schema
            schema = json.loads(text, object_pairs_hook=unique_keys)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"json_schema must be JSON text: {error}") from None
        JsonSchemaCompiler().compile(schema)
        return cls(_schema=json_schema)
