"""Grammars of requests, compiled and kept for requests to come."""

from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any

from oxillama.sampling.grammar import Grammar, GrammarState, Vocabulary
from oxillama.sampling.grammar.json_schema import JsonSchemaCompiler
from oxillama.tokenizer import Tokenizer

__all__ = ["KEPT_GRAMMARS", "Grammars"]

KEPT_GRAMMARS = 32  # compiled, with their masks


class Grammars:
    """What the texts of one engine are held to, over its vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._kept: dict[Hashable, Grammar] = {}
        self._compilers: dict[str, Callable[[Any], Grammar]] = {
            "grammar": lambda text: Grammar.parse(text, token_id=tokenizer.token_to_id),
            "json_schema": JsonSchemaCompiler.compile,
            "regex": Grammar.from_regex,
            "choices": Grammar.from_choices,
        }

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        """The tokens as grammars see them; takes a moment, once."""
        t = self._tokenizer
        return Vocabulary([None if t.is_special(i) else t.token_bytes(i) for i in range(t.n_vocab)], t.eog_ids)

    def state(self, constraint: tuple[str, Any] | None) -> GrammarState | None:
        """The beginning of a text under `SamplerConfig.constraint`. Raises GrammarError."""
        if constraint is None:
            return None
        kind, source = constraint
        return self.kept(constraint, lambda: self._compilers[kind](source)).state(self._vocabulary)

    def kept(self, key: Hashable, make: Callable[[], Grammar]) -> Grammar:
        """The grammar with this key, made if it isn't there."""
        grammar = self._kept.pop(key, None) or make()
        self._kept[key] = grammar  # the last one used is the last to leave
        while len(self._kept) > KEPT_GRAMMARS:
            self._kept.pop(next(iter(self._kept)), None)
        return grammar
