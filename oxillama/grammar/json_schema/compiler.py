"""Compiler of JSON schemas to grammars of exactly the texts that are their instances: `JsonSchemaCompiler`."""

import pickle
from contextlib import suppress
from typing import Any

from oxillama._util.collector import paused_collector
from oxillama._util.json_values import loads_unique
from oxillama._util.text_files import without_mark
from oxillama.errors import GrammarError
from oxillama.grammar.automaton import Budget, RuleSet
from oxillama.grammar.json_schema.compilation import Compilation
from oxillama.grammar.json_schema.documents import Documents
from oxillama.grammar.json_schema.drafts import DRAFTS, draft_of
from oxillama.grammar.json_schema.json_text import JsonText
from oxillama.grammar.json_schema.literals import Schema
from oxillama.grammar.json_schema.sharing import shared
from oxillama.grammar.matcher import Grammar
from oxillama.sampler_config import SCHEMA_MODES, SchemaMode

__all__ = ["JsonSchemaCompiler"]

WHITESPACE = ("json", "flexible")


class JsonSchemaCompiler:
    """Compiles JSON schemas, of draft 2020-12, 7 or 4."""

    @staticmethod
    def compile(
        schema: "dict[str, Any] | bool | str",
        *,
        mode: SchemaMode = "full",
        whitespace: str = "json",
        draft: int | None = None,
        budget: int | None = None,
    ) -> Grammar:
        """The grammar of a schema's instances.

        schema: the result of `json.loads`, or its text. mode: "full" for all instances, "generate" for the subset that
        a model should write (below). whitespace: "json" as `json.dumps` writes by default, "flexible" for any that JSON
        allows. draft: 4, 7 or 2020, by default the one that `$schema` names; without either, the assertions of all
        drafts apply. In draft 4 an integer is written without a point.

        Properties come in the order of `properties`, each once, and those of several schemas in a row to generate (a
        schema's own, those of its `$ref` and `allOf`, those of alternatives), else mixed. Others may stand anywhere,
        and come twice: a reader keeps the last, and each is valid by itself. (Without an order, past 400 optional ones
        in a row, any may.) Strings and numbers are spelled as `json.dumps` does, with or without `ensure_ascii`; where
        little is asked of them, in any way. Numbers are compared as the decimals that they are. Formats assert. Unknown
        keywords and formats say nothing.

        To generate, integers are digits without point or exponent, and those of 64 bits unless bounds or divisors ask
        for greater ones; other numbers have about 17 significant digits and exponents up to 37, unless bounds leave no
        such number, and are finite floats. Names and values that the schema lists are spelled as `json.dumps(...,
        ensure_ascii=False)` does, with the keys of an object in their order. An object with `properties`, of which no
        schema says what others it may have (`additionalProperties`, `unevaluatedProperties`), has only those that are
        named, are required, or meet one of `patternProperties`; unless `minProperties` asks for more. "flexible"
        whitespace is a space behind a comma or a colon, or none.

        budget: limit of the work, as in `Grammar.parse`.

        Raises GrammarError that names keyword and place for a schema that can't be honoured, or is too large.
        """
        if whitespace not in WHITESPACE:
            raise GrammarError(f"whitespace must be one of {', '.join(WHITESPACE)}, not {whitespace!r}")
        narrow = _is_narrow(mode)
        if draft is not None and draft not in DRAFTS:
            raise GrammarError(f"draft must be {', '.join(map(str, DRAFTS))} or None, not {draft!r}")
        with paused_collector():
            made = _outcome(schema, draft, Budget(budget), whitespace == "flexible", narrow)
        if isinstance(made, GrammarError):
            raise made
        with suppress(pickle.PicklingError, TypeError, AttributeError, RecursionError):  # not JSON, or too deep
            # A pickle of a dict now, not its text: the text would repeat shared parts again and again.
            source = schema if isinstance(schema, str) else pickle.dumps(schema)
            made.made_by(_from_source, source, mode, whitespace, draft, budget)
        return made

    @staticmethod
    def add_to(
        rules: RuleSet, schema: "dict[str, Any] | bool | str", *, mode: SchemaMode = "full", whitespace: str = "json"
    ) -> int:
        """Adds the rules of a schema's instances, as `compile` makes them, to others. Returns the rule's id."""
        if whitespace not in WHITESPACE:
            raise GrammarError(f"whitespace must be one of {', '.join(WHITESPACE)}, not {whitespace!r}")
        texts = JsonText(rules, whitespace == "flexible", narrow=_is_narrow(mode))
        schema = shared(_read(schema))
        return Compilation(Documents(schema, draft_of(schema)), texts).root()


def _is_narrow(mode: str) -> bool:
    if mode not in SCHEMA_MODES:
        raise GrammarError(f"mode must be one of {', '.join(SCHEMA_MODES)}, not {mode!r}")
    return mode == "generate"


def _outcome(schema: Any, draft: int | None, budget: Budget, flexible: bool, narrow: bool) -> Grammar | GrammarError:
    """The grammar, or why there is none.

    Reference counts have freed all else on return. What a traceback's frames hold would be alive when the collector
    goes on, and be looked at then: a third of the time of large schemas that are refused.
    """
    try:
        schema = _read(schema)
        return _compiled(Documents(shared(schema), draft or draft_of(schema)), budget, flexible, narrow)
    except GrammarError as error:
        error.__context__ = None
        return error.with_traceback(None)


def _compiled(documents: Documents, budget: Budget, flexible: bool, narrow: bool) -> Grammar:
    texts = JsonText(RuleSet(budget=budget), flexible, narrow=narrow)
    try:
        return Grammar(Compilation(documents, texts).automaton())
    except GrammarError:
        texts.drop_postponed()
        if not texts.counted_on_names:
            raise
    texts = JsonText(RuleSet(budget=budget), flexible, narrow=narrow)
    texts.counts_on_names = False
    try:
        return Grammar(Compilation(documents, texts).automaton())
    finally:
        texts.drop_postponed()


def _from_source(
    schema: str | bytes, mode: SchemaMode, whitespace: str, draft: int | None, budget: int | None
) -> Grammar:
    """The grammar of a schema's text, or pickle, and options."""
    return JsonSchemaCompiler.compile(
        schema if isinstance(schema, str) else pickle.loads(schema),
        mode=mode, whitespace=whitespace, draft=draft, budget=budget,
    )  # fmt: skip


def _read(schema: Any) -> Schema:
    if isinstance(schema, str | bytes):
        try:
            text = without_mark(schema) if isinstance(schema, str) else schema
            schema = loads_unique(text)
        except (ValueError, RecursionError) as error:
            raise GrammarError(f"the schema is no JSON: {error}") from None
    if not isinstance(schema, dict | bool):
        raise GrammarError(f"a schema is an object or a boolean, not {type(schema).__name__}")
    return schema
