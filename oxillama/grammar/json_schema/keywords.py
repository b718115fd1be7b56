"""Keywords that hold: one function each, which adds the keyword's demands to a branch of the tableau."""

from collections.abc import Callable
from fractions import Fraction
from typing import Protocol

from oxillama.errors import GrammarError
from oxillama.grammar.automata.budget import Budget
from oxillama.grammar.automata.dfa import Part
from oxillama.grammar.json_schema.branch import Branch, Fork
from oxillama.grammar.json_schema.checks import check_demands, counted, finite, listed, mapped, names, type_mask
from oxillama.grammar.json_schema.disjoint import PAIRS, Disjoint
from oxillama.grammar.json_schema.documents import Documents
from oxillama.grammar.json_schema.formats import FORMATS, REFUSED
from oxillama.grammar.json_schema.literals import ARRAY, NUMBER, OBJECT, STRING, Literal, Schema, Ways, refusal, type_of
from oxillama.grammar.json_schema.numbers import spelled
from oxillama.grammar.json_schema.strings import format_parts, pattern_parts
from oxillama.grammar.json_schema.synthetic import absent, composite, made, present
from oxillama.grammar.json_schema.unevaluated import Links, combinations
from oxillama.grammar.regular import pattern_units

__all__ = ["HANDLERS", "OF_ARRAYS", "OF_OBJECTS", "SPEAKING"]

OF_ARRAYS = frozenset((
    "items", "prefixItems", "additionalItems", "minItems", "maxItems", "contains", "uniqueItems", "unevaluatedItems",
    "\0some",
))  # fmt: skip
OF_OBJECTS = frozenset((
    "properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties",
    "propertyNames", "unevaluatedProperties", "\0property",
))  # fmt: skip

ENCODED = ("base64", "base32", "base16", "quoted-printable", "application/json")

Demands = list[Literal]
_ONLY_TEXTS = {str}


class Expansion(Protocol):
    """`Tableau`, as the handlers of keywords see it."""

    @property
    def documents(self) -> Documents: ...

    @property
    def budget(self) -> Budget: ...

    @property
    def disjoint(self) -> Disjoint: ...

    @property
    def narrow(self) -> bool: ...

    @property
    def links(self) -> Links | None: ...

    def fork(self, literal: Literal, tag: object, ways: Ways | Callable[[], Ways]) -> Fork: ...


Handler = Callable[[Expansion, Branch, str, Literal, Demands], None]


def _type(tableau: Expansion, branch: Branch, keyword: str, literal: Literal, demands: Demands) -> None:
    mask, integer = type_mask(literal)
    branch.types &= mask
    if integer:
        branch.numbers = branch.numbers.of_kind(True)
        if tableau.documents.draft == 4:
            branch.numbers = branch.numbers._replace(plain=True)


def _types(tableau: Expansion, branch: Branch, keyword: str, literal: Literal, demands: Demands) -> None:
    branch.types &= literal.schema[keyword]


def _values(tableau: Expansion, branch: Branch, keyword: str, literal: Literal, demands: Demands) -> None:
    """`enum` and `const`. Arrays and objects become schemas of their own."""
    values = [literal.schema["const"]] if keyword == "const" else listed(literal, keyword)
    tableau.budget.spend(2 * len(values), "a list of values")
    mask, texts, others = 0, [], []
    numbers: dict[Fraction, str] = {}
    if set(map(type, values)) == _ONLY_TEXTS:  # most lists, and those of thousands
        mask, texts, values = STRING, values, []
    for i, value in enumerate(values):
        kind = type_of(value)
        mask |= kind
        if kind == STRING:
            texts.append(value)
        elif kind == NUMBER:
            numbers.setdefault(finite(literal, keyword, value), spelled(value))
        elif kind in (ARRAY, OBJECT):
            check_demands(len(value))
            tableau.budget.spend(2 * len(value), "a value of many parts")
            others.append(made(tableau.documents, literal, keyword, composite(value), i))
    branch.types &= mask
    branch.strings = branch.strings.among(frozenset(texts))
    branch.values = frozenset(numbers) if branch.values is None else branch.values & frozenset(numbers)
    branch.written = numbers | branch.written
    if others:
        scalars = made(tableau.documents, literal, keyword, {"\0types": mask & ~(ARRAY | OBJECT)}, "scalars")
        branch.added.append(tableau.fork(literal, keyword, [[scalars], *([other] for other in others)]))


def _without(tableau: Expansion, branch: Branch, keyword: str, literal: Literal, demands: Demands) -> None:
    texts, numbers = literal.schema[keyword]
    branch.strings = branch.strings.without(texts)
    branch.without |= numbers


def _refuse(tableau: Expansion, branch: Branch, keyword: str, literal: Literal, demands: Demands) -> None:
    if branch.types & literal.schema["\0types"]:
        raise refusal(literal.path, literal.schema[keyword], "its opposite can't be expressed")


# ---- references and combinations


def _ref(tableau: Expansion, branch: Branch, keyword: str, literal: Literal, demands: Demands) -> None:
    demands.append(tableau.documents.resolve(literal, keyword))


def _dynamic_ref(tableau: Expansion, branch: Branch, keyword: str, literal: Literal, demands: Demands) -> None:
    reference = literal.schema[keyword]
    name = reference.rpartition("#")[2] if isinstance(reference, str) else ""
    if keyword == "$recursiveRef" or len(tableau.documents.dynamic_anchors(name)) > 1:
        raise refusal(literal.path, keyword, "which schema is meant depends on the way that leads here")
    demands.append(tableau.documents.resolve(literal, keyword))


def _all(tableau: Expansion, branch: Branch, keyword: str, literal: Literal, demands: Demands) -> None:
    demands += reversed([literal.sub(s, keyword, i) for i, s in enumerate(listed(literal, keyword))])


def _folded(tableau: Expansion, keyword: str, literal: Literal) -> Demands:
    """The alternatives of a keyword, those that only list texts put together: hundreds of constants with a title each
    are one list. None of the texts is in two of these lists, or they stay as they are."""
    each = [literal.sub(s, keyword, i) for i, s in enumerate(listed(literal, keyword))]
    lists = [_texts(one.schema) for one in each]
    texts = [text for found in lists if found for text in found]
    if tableau.links is not None or sum(map(bool, lists)) < 2 or len(set(texts)) < len(texts):
        return each
    together = made(tableau.documents, literal, keyword, {"enum": texts}, "texts")
    return [together, *(one for one, found in zip(each, lists, strict=True) if not found)]


def _texts(schema: Schema) -> list[str]:
    """The texts that a schema lists, if that is all it says; none of others."""
    if (
        not isinstance(schema, dict)
        or not _BESIDE_VALUES.isdisjoint(schema)
        or schema.get("type", "string") != "string"
    ):
        return []
    values = schema.get("enum", [schema.get("const")])
    if not isinstance(values, list) or ("enum" in schema) == ("const" in schema):
        return []
    return values if all(isinstance(value, str) for value in values) else []


def _any(tableau: Expansion, branch: Branch, keyword: str, literal: Literal, demands: Demands) -> None:
    def ways() -> Ways:
        each = _folded(tableau, keyword, literal)
        return combinations(literal, each) if tableau.links is not None else [[way] for way in each]

    branch.added.append(tableau.fork(literal, keyword, ways))


def _one(tableau: Expansion, branch: Branch, keyword: str, literal: Literal, demands: Demands) -> None:
    branch.added.append(tableau.fork(literal, keyword, lambda: _each(tableau, keyword, literal)))


def _each(tableau: Expansion, keyword: str, literal: Literal) -> Ways:
    """Each alternative, without those of the others that it isn't known to exclude."""
    each = _folded(tableau, keyword, literal)
    apart = tableau.disjoint
    groups = apart.groups(each)
    tableau.budget.spend(len(each) ** 2 // 16, PAIRS)
    ways = []
    for way, group in zip(each, groups, strict=True):
        others = [o for o, g in zip(each, groups, strict=True) if (g < 0 or g != group) and o is not way]
        ways.append([way, *(o.of_sign(False) for o in others if not apart(way, o))])
    return ways


def _not(tableau: Expansion, branch: Branch, keyword: str, literal: Literal, demands: Demands) -> None:
    demands.append(literal.sub(literal.schema[keyword], keyword, positive=False))


def _if(tableau: Expansion, branch: Branch, keyword: str, literal: Literal, demands: Demands) -> None:
    schema = literal.schema
    if "then" not in schema and "else" not in schema and tableau.links is None:
        return
    test = literal.sub(schema["if"], "if")
    ways = [
        [test, literal.sub(schema.get("then", True), "then")],
        [test.of_sign(False), literal.sub(schema.get("else", True), "else")],
    ]
    branch.added.append(tableau.fork(literal, keyword, ways))


def _dependent(tableau: Expansion, branch: Branch, keyword: str, literal: Literal, demands: Demands) -> None:
    documents = tableau.documents
    for name, schema in mapped(literal, keyword).items():
        if isinstance(schema, list):
            schema = {"required": schema}
            schema = made(documents, literal, keyword, schema, name).schema
        ways = [
            [absent(documents, literal, name)],
            [present(documents, literal, name), literal.sub(schema, keyword, name)],
        ]
        branch.added.append(tableau.fork(literal, (keyword, name), ways))


# ---- numbers and strings


def _bound(tableau: Expansion, branch: Branch, keyword: str, literal: Literal, demands: Demands) -> None:
    schema = literal.schema
    if tableau.documents.early and isinstance(schema[keyword], bool):
        return  # draft 4: a boolean, whether the bound itself is excluded
    bound = finite(literal, keyword, schema[keyword])
    is_open = keyword.startswith("exclusive") or (
        tableau.documents.early and schema.get(f"exclusive{keyword[0].upper()}{keyword[1:]}") is True
    )
    numbers = branch.numbers
    branch.numbers = numbers.above(bound, is_open) if "inimum" in keyword else numbers.below(bound, is_open)


def _multiple(tableau: Expansion, branch: Branch, keyword: str, literal: Literal, demands: Demands) -> None:
    value = finite(literal, keyword.strip("\0!"), literal.schema[keyword])
    if value <= 0:
        raise refusal(literal.path, "multipleOf", f"{value} isn't above 0")
    numbers = branch.numbers
    if keyword == "multipleOf":
        branch.numbers = numbers._replace(multiples=numbers.multiples | {value})
    else:
        branch.numbers = numbers._replace(others=numbers.others | {value})


def _fractional(tableau: Expansion, branch: Branch, keyword: str, literal: Literal, demands: Demands) -> None:
    branch.numbers = branch.numbers.of_kind(False)


def _length(tableau: Expansion, branch: Branch, keyword: str, literal: Literal, demands: Demands) -> None:
    count = counted(literal, keyword)
    strings = branch.strings
    branch.strings = strings.longer(count) if keyword == "minLength" else strings.shorter(count)


def _pattern(tableau: Expansion, branch: Branch, keyword: str, literal: Literal, demands: Demands) -> None:
    """`pattern` and `format`, and their opposites."""
    value, name = literal.schema[keyword], keyword.strip("\0!")
    if name == "format":
        if isinstance(value, str) and value in REFUSED and branch.types & STRING:
            raise refusal(literal.path, name, f"{value!r} is not supported")
        if not isinstance(value, str) or value not in FORMATS:
            return
    try:
        if isinstance(value, str):
            tableau.budget.spend(pattern_units(value), f"a {name} of {len(value)} characters")
        narrow = tableau.narrow and keyword == "format"
        parts = format_parts(value, narrow) if name == "format" else pattern_parts(value)
    except (GrammarError, TypeError) as error:
        raise refusal(literal.path, name, str(error)) from None
    if keyword != name and len(parts) > 1:
        raise refusal(literal.path, name, "the opposite of a pattern that looks ahead can't be expressed")
    branch.strings = branch.strings.having(*(Part(p.node, p.negated != (keyword != name)) for p in parts))


def _content(tableau: Expansion, branch: Branch, keyword: str, literal: Literal, demands: Demands) -> None:
    """Draft 7 lets `contentEncoding` and `contentMediaType` assert; later drafts don't."""
    value = literal.schema[keyword]
    if tableau.documents.draft == 2020 or not branch.types & STRING:
        return
    if value == "base64" and "contentMediaType" not in literal.schema:
        branch.strings = branch.strings.having(*format_parts("\0base64"))
    elif value in ENCODED:
        raise refusal(literal.path, keyword, f"{value!r} is not supported")


def _least_contained(tableau: Expansion, branch: Branch, keyword: str, literal: Literal, demands: Demands) -> None:
    if tableau.documents.early and "\0types" not in literal.schema and counted(literal, keyword) == 0:
        raise refusal(
            literal.path, keyword, "this draft doesn't know it, and asks for an item all the same: name a later one"
        )


def _prefix(tableau: Expansion, branch: Branch, keyword: str, literal: Literal, demands: Demands) -> None:
    schema = literal.schema
    if tableau.documents.early and "\0types" not in schema and not {"items", "additionalItems"}.isdisjoint(schema):
        raise refusal(
            literal.path, keyword, "this draft doesn't know it, and has items count from the first: name a later one"
        )


def _required(tableau: Expansion, branch: Branch, keyword: str, literal: Literal, demands: Demands) -> None:
    names(literal, keyword)


def _unevaluated(tableau: Expansion, branch: Branch, keyword: str, literal: Literal, demands: Demands) -> None:
    if not tableau.documents.early and literal not in branch.unevaluated:
        branch.unevaluated += (literal,)


def _any_order(tableau: Expansion, branch: Branch, keyword: str, literal: Literal, demands: Demands) -> None:
    branch.any_order = True


HANDLERS: dict[str, Handler] = {
    "type": _type,
    "\0types": _types,
    "enum": _values,
    "const": _values,
    "\0excluded": _without,
    "\0refuse": _refuse,
    "$ref": _ref,
    "$dynamicRef": _dynamic_ref,
    "$recursiveRef": _dynamic_ref,
    "allOf": _all,
    "anyOf": _any,
    "oneOf": _one,
    "not": _not,
    "if": _if,
    "dependentRequired": _dependent,
    "dependentSchemas": _dependent,
    "dependencies": _dependent,
    "minimum": _bound,
    "maximum": _bound,
    "exclusiveMinimum": _bound,
    "exclusiveMaximum": _bound,
    "multipleOf": _multiple,
    "\0!multipleOf": _multiple,
    "\0fractional": _fractional,
    "minLength": _length,
    "maxLength": _length,
    "pattern": _pattern,
    "\0!pattern": _pattern,
    "format": _pattern,
    "\0!format": _pattern,
    "contentEncoding": _content,
    "contentMediaType": _content,
    "required": _required,
    "prefixItems": _prefix,
    "minContains": _least_contained,
    "unevaluatedItems": _unevaluated,
    "unevaluatedProperties": _unevaluated,
    "\0any order": _any_order,
}
# All keywords that say something about instances.
SPEAKING = OF_ARRAYS | OF_OBJECTS | HANDLERS.keys()
_BESIDE_VALUES = SPEAKING - {"type", "enum", "const"}
