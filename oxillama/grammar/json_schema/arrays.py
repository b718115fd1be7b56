"""Arrays: items by index, limits on their number, and required items."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product

from oxillama.grammar.json_schema.checks import counted, flagged, listed
from oxillama.grammar.json_schema.json_text import JsonText
from oxillama.grammar.json_schema.literals import Literal, refusal

__all__ = ["array_expr"]

Value = Callable[[Sequence[Literal]], int]
Values = Callable[[Sequence[Literal]], "list[int] | None"]
MAX_UNIQUE = 10
MAX_EDGES = 6000


@dataclass(slots=True)
class _Wanted:
    """A required item: at index `start` or later, `least` to `most` times."""

    literal: Literal
    start: int = 0
    least: int = 1
    most: int | None = None


@dataclass(slots=True)
class _Plan:
    """All demands on an array. prefix: demands on the first items; rest: on those after them."""

    prefix: list[list[Literal]] = field(default_factory=list)
    rest: list[Literal] = field(default_factory=list)
    least: int = 0
    most: int | None = None
    wanted: list[_Wanted] = field(default_factory=list)
    unique: Literal | None = None


def array_expr(texts: JsonText, literals: Sequence[Literal], value: Value, values: Values) -> int:
    """The expression of arrays that meet all schemas. value: returns the expression of a demand on an item; values: the
    expressions of all its single values, if these are few. Raises GrammarError for demands that can't be expressed."""
    rules = texts.rules
    plan = _plan(texts, literals)
    if any(lit.schema is False for lit in plan.rest):
        plan.most = len(plan.prefix) if plan.most is None else min(plan.most, len(plan.prefix))
    for i, demands in enumerate(plan.prefix):
        if any(lit.schema is False for lit in demands):
            plan.most = i if plan.most is None else min(plan.most, i)
    if plan.most is not None and plan.most < plan.least:
        return rules.alt(())
    if plan.unique is not None and (plan.most is None or plan.most > 1):
        body = _unique(texts, plan, values)
    elif plan.wanted:
        body = _containing(texts, plan, value)
    else:
        body = _listed(texts, plan, value)
    return rules.seq((texts.open_array, body, texts.close_array))


# ---- demands


def _plan(texts: JsonText, literals: Sequence[Literal]) -> _Plan:
    plan = _Plan()
    shapes = [_shape(literal) for literal in literals]
    texts.budget.spend(2 * len(shapes) * max(len(prefix) for prefix, _ in shapes), "the schema of an array")
    for i in range(max(len(prefix) for prefix, _ in shapes)):
        at = [prefix[i] if i < len(prefix) else rest for prefix, rest in shapes]
        plan.prefix.append([lit for lit in at if lit is not None])
    plan.rest = [rest for _, rest in shapes if rest is not None]
    for literal in literals:
        schema = literal.schema
        if "minItems" in schema:
            plan.least = max(plan.least, counted(literal, "minItems"))
        if "maxItems" in schema:
            most = counted(literal, "maxItems")
            plan.most = most if plan.most is None else min(plan.most, most)
        if "uniqueItems" in schema and flagged(literal, "uniqueItems"):
            plan.unique = literal
        if "\0some" in schema:
            start, sub = schema["\0some"]
            plan.wanted.append(_Wanted(literal.sub(sub), start))
        if "contains" in schema:
            plan.wanted += _contained(literal)
    return plan


def _shape(literal: Literal) -> tuple[list[Literal], Literal | None]:
    """A schema's demands on the first items, and on the rest."""
    schema = literal.schema
    key = "prefixItems" if "prefixItems" in schema else "items" if isinstance(schema.get("items"), list) else None
    rest_key = "additionalItems" if key == "items" else "items"
    prefix = [literal.sub(s, key, i) for i, s in enumerate(listed(literal, key))] if key else []
    return prefix, literal.sub(schema[rest_key], rest_key) if rest_key in schema else None


def _contained(literal: Literal) -> list[_Wanted]:
    schema = literal.schema
    least = counted(literal, "minContains") if "minContains" in schema else 1
    most = counted(literal, "maxContains") if "maxContains" in schema else None
    if least == 0 and most is None:
        return []
    return [_Wanted(literal.sub(schema["contains"], "contains"), 0, least, most)]


def _demands(plan: _Plan, i: int) -> list[Literal]:
    return plan.prefix[i] if i < len(plan.prefix) else plan.rest


# ---- expressions of the items between the brackets


def _listed(texts: JsonText, plan: _Plan, value: Value) -> int:
    """Items one after the other; built from the last index back."""
    rules = texts.rules
    least, most = plan.least, plan.most
    if most == 0:
        return rules.seq(())
    n = len(plan.prefix) if most is None else min(len(plan.prefix), most)
    tail = rules.seq(())
    if most is None or most > n:
        item = value(plan.rest)
        following = rules.seq((texts.comma, item))
        if n == 0:
            body = rules.seq((item, rules.repeat(following, max(least - 1, 0), None if most is None else most - 1)))
            return body if least else texts.maybe(body)
        tail = rules.repeat(following, max(least - n, 0), None if most is None else most - n)
    for i in range(n - 1, -1, -1):
        item = value(plan.prefix[i])
        tail = rules.seq((texts.comma, item, tail) if i else (item, tail))
        if i >= least:
            tail = texts.maybe(tail)
    return tail


def _containing(texts: JsonText, plan: _Plan, value: Value) -> int:
    """A graph whose nodes are (number of items, numbers of required items), both capped where they don't matter."""
    rules = texts.rules
    wanted = plan.wanted
    # At least 1, so that no edge leads back to the start, where no comma comes.
    last = max(1, len(plan.prefix), plan.least, *(w.start for w in wanted)) if plan.most is None else plan.most
    caps = [w.least if w.most is None else w.most for w in wanted]
    size = last + 1
    for cap in caps:
        size *= cap + 2
    if size << len(wanted) > MAX_EDGES:
        raise refusal(
            wanted[0].literal.path, "contains",
            "it has too many states together with the limits of the array: make the limits smaller",
        )  # fmt: skip
    start = (0, (0,) * len(wanted))
    known, todo = {start: 0}, [start]
    edges, finals = [], []
    for state in todo:
        i, counts = state
        if i >= plan.least and all(c >= w.least for c, w in zip(counts, wanted, strict=True)):
            finals.append(known[state])
        if plan.most is not None and i >= plan.most:
            continue
        for choice in product((False, True), repeat=len(wanted)):
            following = _after(wanted, counts, choice, i)
            if following is None:
                continue
            to = (min(i + 1, last), following)
            if to not in known:
                known[to] = len(known)
                todo.append(to)
            item = value([*_demands(plan, i), *_chosen(wanted, choice, i)])
            edges.append((known[state], item if state == start else rules.seq((texts.comma, item)), known[to]))
    return rules.graph(len(known), edges, finals)


def _after(wanted: list[_Wanted], counts: tuple[int, ...], choice: tuple[bool, ...], i: int) -> tuple[int, ...] | None:
    """Counts after one more item; None if that item isn't allowed."""
    out = []
    for w, count, yes in zip(wanted, counts, choice, strict=True):
        if yes and (i < w.start or (w.most is not None and count >= w.most)):
            return None
        out.append(min(count + 1, w.least) if yes and w.most is None else count + yes)
    return tuple(out)


def _chosen(wanted: list[_Wanted], choice: tuple[bool, ...], i: int) -> list[Literal]:
    """Demands of a choice on an item: to be a required one, or, where these are limited, not to be."""
    found = []
    for w, yes in zip(wanted, choice, strict=True):
        if yes:
            found.append(w.literal)
        elif w.most is not None:
            found.append(w.literal.of_sign(False))
    return found


def _unique(texts: JsonText, plan: _Plan, values: Values) -> int:
    """Items of a few values, each at most once; nodes are sets of values."""
    rules = texts.rules
    assert plan.unique is not None
    found = None if plan.prefix or plan.wanted else values(plan.rest)
    if found is None or len(found) > MAX_UNIQUE:
        raise refusal(
            plan.unique.path, "uniqueItems",
            f"items can be compared only if they have at most {MAX_UNIQUE} values: give `items` an enum, or leave "
            "it out",
        )  # fmt: skip
    edges, finals = [], []
    for seen in range(1 << len(found)):
        count = seen.bit_count()
        if plan.least <= count:
            finals.append(seen)
        if plan.most is not None and count >= plan.most:
            continue
        for i, expr in enumerate(found):
            if not seen >> i & 1:
                edges.append((seen, rules.seq((texts.comma, expr)) if seen else expr, seen | 1 << i))
    return rules.graph(1 << len(found), edges, finals)
