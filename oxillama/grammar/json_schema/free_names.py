"""Properties that are not named: for each choice of patterns that a name may match, the demands on the value."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from oxillama.grammar.automata.dfa import WORK_UNITS, Part, is_empty
from oxillama.grammar.json_schema.json_text import JsonText
from oxillama.grammar.json_schema.literals import Literal, refusal
from oxillama.grammar.json_schema.strings import Strings, string_expr

__all__ = ["Parts", "others"]

Parts = tuple[Part, ...]
FEW_CELLS = 4  # choices of patterns up to which impossible ones are not looked for
MAX_CELLS = 32
MAX_CELL_WORK = 50_000


class Patterned(Protocol):
    """A schema of objects, as far as it speaks of properties without a name: patterns with their conditions and the
    demand on the value, and the demand on all others."""

    literal: Literal
    patterns: list[tuple[str, Parts, Literal]]
    additional: Literal | None


def others(
    texts: JsonText,
    schemas: Sequence[Patterned],
    named: Iterable[str],
    sets: list[Strings],
    values: list[Literal],
    value: Callable[[Sequence[Literal]], int],
    closed: bool,
) -> int | None:
    """A property that is not named: for each choice of patterns that its name matches, their demands on its value.
    values: other demands on it; closed: its name matches at least one."""
    patterns = {pattern: parts for schema in schemas for pattern, parts, _ in schema.patterns}
    if closed and not patterns:
        return None
    rules = texts.rules
    cells = _cells(texts, patterns, schemas[0].literal)
    pairs = []
    for met, choices in cells.items():
        texts.budget.spend(2 * len(schemas), "the schema of an object")
        demands = [*values, *(demand for schema in schemas for demand in _of_choice(schema, met))]
        if any(demand.schema is False for demand in demands) or (closed and not met):
            continue
        met_sets = (one.having(*parts) for one in sets for parts in choices)
        keys = [string_expr(texts, one.without(frozenset(one.those(named, texts.budget)))) for one in met_sets]
        pairs.append(rules.seq((rules.alt(keys), texts.colon, value(demands))))
    if not pairs:
        return None
    rule = rules.new_rule("other")
    rules.define(rule, rules.alt(pairs))
    return rules.rule(rule)


def _cells(texts: JsonText, patterns: dict[str, Parts], literal: Literal) -> dict[frozenset[str], list[Parts]]:
    """All choices of patterns that a name may match: for each, conditions of which the name meets one."""
    cells: list[tuple[frozenset[str], Parts]] = [(frozenset(), ())]
    work = 0
    for pattern, parts in patterns.items():
        split = []
        for met, known in cells:
            split.append((met | {pattern}, (*known, *parts)))
            for i, part in enumerate(parts):  # the name meets the conditions before this one, and not this one
                split.append((met, (*known, *parts[:i], Part(part.node, not part.negated))))
        cells = split
        if len(split) > FEW_CELLS:
            answers = [is_empty(parts) for _, parts in split]
            cells = [cell for cell, (empty, _) in zip(split, answers, strict=True) if not empty]
            work += sum(cost for _, cost in answers)
            texts.budget.spend(WORK_UNITS * sum(cost for _, cost in answers), "all choices of `patternProperties`")
        if len(cells) > MAX_CELLS or work > MAX_CELL_WORK:
            raise refusal(literal.path, "patternProperties", "there are too many choices of them that a name may meet")
    found: dict[frozenset[str], list[Parts]] = {}
    for met, known in cells:
        found.setdefault(met, []).append(known)
    return found


def _of_choice(schema: Patterned, met: frozenset[str]) -> list[Literal]:
    found = [literal for pattern, _, literal in schema.patterns if pattern in met]
    return found or ([] if schema.additional is None else [schema.additional])
