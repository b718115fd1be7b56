"""Grammars of requests, compiled and kept for requests to come."""

from collections.abc import Callable, Hashable
from typing import Any

from oxillama.constraints import SchemaMode
from oxillama.engine.tool_use import ToolUse
from oxillama.lazy import lazy
from oxillama.sampler_config import SamplerConfig
from oxillama.sampling.grammar import Grammar, GrammarState, Vocabulary
from oxillama.sampling.grammar.json_schema import JsonSchemaCompiler
from oxillama.tokenizer import Tokenizer

__all__ = ["KEPT_GRAMMARS", "Grammars"]

Held = tuple[Grammar, tuple[str, ...]]  # with the texts that put it in force

KEPT_GRAMMARS = 32  # compiled, with their masks


class Grammars:
    """What the texts of one engine are held to, over its vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._kept: dict[Hashable, Held] = {}

    @lazy
    def _vocabulary(self) -> Vocabulary:
        """The tokens as grammars see them; takes a moment, once."""
        t = self._tokenizer
        return Vocabulary([None if t.is_special(i) else t.token_bytes(i) for i in range(t.n_vocab)], t.eog_ids)

    def state(self, config: SamplerConfig, tools: ToolUse | None = None) -> GrammarState | None:
        """The beginning of a text under the constraint of a request's settings, or with calls of tools.

        Raises GrammarError.
        """
        mode = config.schema_mode
        if config.constraint is not None:
            kind, source = config.constraint
            known = (kind, source, mode) if kind == "json_schema" else config.constraint
            grammar, triggers = self._found(known, lambda: (self._compiled(kind, source, mode), ()))
        elif tools is not None and tools.tools is not None:
            key = (tools.format, tools.tools, tools.choice, mode)
            grammar, triggers = self._found(key, lambda: tools.grammar(self._tokenizer, mode))
        else:
            return None
        return grammar.state(self._vocabulary, triggers=triggers)

    def _compiled(self, kind: str, source: Any, mode: SchemaMode) -> Grammar:
        if kind == "json_schema":
            return JsonSchemaCompiler.compile(source, mode=mode)
        if kind == "grammar":
            return Grammar.parse(source, token_id=self._tokenizer.token_to_id)
        return Grammar.from_regex(source) if kind == "regex" else Grammar.from_choices(source)

    def _found(self, key: Hashable, make: Callable[[], Held]) -> Held:
        """What is kept under this key, made if it isn't there."""
        held = self._kept.pop(key, None) or make()
        self._kept[key] = held  # the last one used is the last to leave
        while len(self._kept) > KEPT_GRAMMARS:
            self._kept.pop(next(iter(self._kept)), None)
        return held
