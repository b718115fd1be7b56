"""A JSON text as a schema: it is refused, or compiled to a grammar of its instances and of nothing else.

Texts that the grammar makes are read by `json`, and held against the tests' own validator where the schema uses no more
than that knows. Values that are near to them are accepted only if they are valid.
"""

import json
import lzma
import re
import zlib
from functools import cache
from pathlib import Path
from random import Random

from oxillama.errors import GrammarError
from oxillama.grammar.json_schema import JsonSchemaCompiler
from tests.fuzz.mutate import TEXT, with_word
from tests.fuzz.target import Target, told
from tests.fuzz.targets.json_values import VALUES, at, on_value, places, remove, replace, transplant
from tests.fuzz.targets.walks import text_of
from tests.grammar.json_schema.naive import CHECKS, is_valid

DATA = Path(__file__).parents[2] / "data"
KEYWORDS = [
    *CHECKS, "then", "else", "minContains", "maxContains", "$ref", "$defs", "definitions", "$id", "$anchor", "$schema",
    "format", "unevaluatedItems", "unevaluatedProperties", "dependencies", "additionalItems", "$dynamicRef",
    "$dynamicAnchor", "title",
]  # fmt: skip
KNOWN = {
    *CHECKS,
    "then",
    "else",
    "minContains",
    "maxContains",
    "title",
    "description",
    "default",
    "examples",
    "$comment",
}
SCHEMAS = ("not", "if", "then", "else", "items", "contains", "additionalProperties", "propertyNames")
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
MAPS = ("properties", "patternProperties", "dependentSchemas")
KINDS = ((LISTS, list), (MAPS, dict), (("pattern",), str))
FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "ipv6", "email", "hostname", "uri", "regex", "duration", "x")
# Patterns that Python's `re` and ECMAScript read alike, and that take no long time.
PLAIN = re.compile(r"\^?(?:[a-zé0-9_]|\[\^?[a-z0-9_]+\]|\[[a-z]-z\])(?:[*+?]|\{[0-4]\}|\{[0-4],[5-9]\})?(?:[a-z])?\$?")


def run(data):
    text = data.decode("utf-8", "surrogateescape")
    draw = Random(zlib.crc32(data))
    flexible = draw.random() < 0.2
    try:
        grammar = JsonSchemaCompiler.compile(text, whitespace="flexible" if flexible else "json")
    except GrammarError as error:
        if "no text at all" in str(error) and is_simple(schema := json.loads(text)):
            assert not any(is_valid(value, schema) for value in VALUES)
        return [told(error)]
    schema = json.loads(text)
    try:
        return [*checked(grammar, schema, draw)]
    except GrammarError as error:
        if "too ambiguous" not in str(error):
            raise
        return [told(error)]


def is_simple(schema, depth=0):
    """Whether the naive validator knows all of a schema, and each keyword's value is of the kind that it should be."""
    if isinstance(schema, bool):
        return True
    if not isinstance(schema, dict) or depth > 12 or not KNOWN.issuperset(schema):
        return False
    if not all(isinstance(schema[k], kind) for ks, kind in KINDS for k in ks if k in schema):
        return False
    patterns = [*([schema["pattern"]] if "pattern" in schema else []), *schema.get("patternProperties", ())]
    if not all(PLAIN.fullmatch(p) for p in patterns):
        return False
    inner = [schema[k] for k in SCHEMAS if k in schema]
    for keyword in LISTS:
        inner += schema.get(keyword, [])
    for keyword in MAPS:
        inner += schema.get(keyword, {}).values()
    return all(is_simple(x, depth + 1) for x in inner)


def pairs_once(pairs):
    """An object as it is written; with a name that stands twice the validators' readers differ."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Twice
    return found


class Twice(Exception):
    pass


def checked(grammar, schema, draw):
    simple = is_simple(schema)
    yield f"simple {simple}"
    for _ in range(3):
        raw = text_of(grammar, draw)
        if raw is None:
            yield "no end in time"
            continue
        text = raw.decode()
        try:
            value = json.loads(text, object_pairs_hook=pairs_once)
        except Twice:
            value = json.loads(text)
            yield "a name twice"
        if simple and fits(value):
            assert is_valid(value, schema), f"{text!r} is no instance"
            near(grammar, schema, value, draw)
        yield f"found {type(value).__name__}"
    if simple:
        for value in VALUES:
            agree(grammar, schema, value)


def fits(value):
    """Numbers that Python's floats hold as they are written, and no lone surrogates."""
    if isinstance(value, float):
        return abs(value) < 1e15 and (value == 0 or abs(value) > 1e-6)
    if isinstance(value, str):
        return not any("\ud800" <= c <= "\udfff" or c == "\n" for c in value)
    if isinstance(value, dict):
        return all(map(fits, value)) and all(map(fits, value.values()))
    return all(map(fits, value)) if isinstance(value, list) else True


def agree(grammar, schema, value):
    """What is accepted is valid. (What is valid may be refused: with its keys in another order.)"""
    for ascii_only in (True, False):
        if grammar.accepts(json.dumps(value, ensure_ascii=ascii_only)):
            assert is_valid(value, schema), f"{value!r} is accepted, and is no instance"
        elif not isinstance(value, dict | list):
            assert not is_valid(value, schema), f"{value!r} is an instance, and isn't accepted"


def near(grammar, schema, value, draw):
    """The same with a small change."""
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int | float):
        others = [value + 1, value - 1, -value]
    elif isinstance(value, str):
        others = [value + "a", value[1:], value * 2]
    elif isinstance(value, list):
        others = [value[1:], [*value, draw.choice(VALUES)], value[::-1]]
    else:
        others = [dict(list(value.items())[1:]), value | {draw.choice("abz"): draw.choice(VALUES)}]
    for other in others:
        if fits(other):
            agree(grammar, schema, other)


@cache
def seeds():
    suite = json.loads(lzma.decompress((DATA / "json_schema_suite.json.xz").read_bytes()))
    groups = [group for files in suite.values() for file in files.values() for group in file]
    found = {json.dumps(schema, ensure_ascii=False) for _, schema, _ in groups}
    found |= {case["source"] for case in json.loads((DATA / "schema_cases.json").read_text())}
    return [text.encode("utf-8", "surrogatepass") for text in sorted(found) if len(text) < 800][::8]


# ---- changes of the schema as a value


def random_schema(draw, depth=0):
    """Keywords with values that mostly fit them."""
    if depth > 3 or draw.random() < 0.1:
        return draw.random() < 0.7
    found = {}
    for _ in range(draw.choice((1, 1, 2, 3))):
        k = draw.choice(KEYWORDS)
        if k in SCHEMAS:
            found[k] = random_schema(draw, depth + 1)
        elif k in LISTS:
            found[k] = [random_schema(draw, depth + 1) for _ in range(draw.choice((1, 2, 2, 3)))]
        elif k in MAPS or k in ("$defs", "definitions"):
            found[k] = {draw.choice(("a", "b", "^a", "é")): random_schema(draw, depth + 1) for _ in range(2)}
        elif k == "$ref":
            found[k] = draw.choice(("#", "#/$defs/a", "#/properties/a", "#/definitions/b", "#a", "x.json"))
        elif k == "type":
            found[k] = draw.choice(
                ("null", "boolean", "number", "integer", "string", "array", "object", ["string", "null"])
            )
        elif k == "pattern":
            found[k] = draw.choice(("a", "^a*$", "^[ab]{2}", "b$", "(a|b)c", "^(?=a).", "\\d+"))
        elif k == "format":
            found[k] = draw.choice(FORMATS)
        else:
            found[k] = draw.choice((0, 1, 2, 3, 5, 0.5, -1, ["a"], ["a", "b"], True, {"a": ["b"]}, 30))
    return found


def add_keyword(draw, value, other):
    objects = [path for path in places(value) if isinstance(at(value, path), dict)]
    at(value, draw.choice(objects)).update(random_schema(draw, 1))
    return value


def wrap(draw, value, other):
    path = draw.choice(list(places(value)))
    inner = at(value, path)
    k = draw.choice((*SCHEMAS, *LISTS, *MAPS))
    new = {k: inner} if k in SCHEMAS else {k: [inner, other]} if k in LISTS else {k: {"a": inner}}
    if not path:
        return new
    at(value, path[:-1])[path[-1]] = new
    return value


def repeat_key(draw, value, other):
    objects = [path for path in places(value) if isinstance(at(value, path), dict)]
    node = at(value, draw.choice(objects))
    key = draw.choice(list(node))
    node[draw.choice(KEYWORDS)] = node[key]
    return value


CHANGES = [
    on_value(f) for f in (replace, replace, transplant, transplant, add_keyword, add_keyword, remove, wrap, repeat_key)
]

TARGET = Target(
    "schema",
    run,
    seeds,
    (*CHANGES, *CHANGES, *CHANGES, *TEXT, with_word([f'"{k}":'.encode() for k in KEYWORDS])),
    max_bytes=1500,
    work=(4_000_000, 4000),
    memory=(256 << 20, 100_000),
)
