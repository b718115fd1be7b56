"""Changes of JSON values: by paths to what is in them."""

import json

VALUES = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    1.5,
    10,
    1e3,
    "",
    "a",
    "ab",
    "é",
    [],
    [1],
    ["a", "a"],
    {},
    {"a": 1},
    {"b": {}},
]
STRANGE = (
    10**20,
    -5,
    0.1,
    1e-9,
    1e308,
    3,
    7,
    100,
    5000,
    1 << 31,
    1 << 62,
    "^a",
    "b$",
    "x" * 40,
    "integer",
    "object",
    "array",
    "a/b",
    "..",
)


def places(node, path=()):
    """Paths to every value in it."""
    yield path
    if isinstance(node, dict | list):
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            yield from places(node[key], (*path, key))


def at(node, path):
    for key in path:
        node = node[key]
    return node


def random_value(draw, depth=0):
    kind = draw.randrange(6 if depth < 2 else 3)
    if kind < 2:
        return draw.choice(VALUES[:14])
    if kind == 2:
        return draw.choice(STRANGE)
    if kind == 3:
        return {draw.choice("abc"): random_value(draw, depth + 1) for _ in range(draw.randrange(3))}
    return [random_value(draw, depth + 1) for _ in range(draw.randrange(4))]


def on_value(change):
    """A mutator of text from one of JSON values: change(draw, value, value of another) -> value."""

    def mutate(draw, data, other):
        try:
            value = json.loads(data)
            return json.dumps(change(draw, value, json.loads(other)), ensure_ascii=draw.random() < 0.5).encode()
        except (ValueError, RecursionError, TypeError, KeyError, IndexError):
            return data

    return mutate


def put(draw, value, new):
    """The value with another somewhere in it."""
    path = draw.choice(list(places(value)))
    if not path:
        return new
    at(value, path[:-1])[path[-1]] = new
    return value


def replace(draw, value, other):
    return put(draw, value, random_value(draw))


def transplant(draw, value, other):
    return put(draw, value, at(other, draw.choice(list(places(other)))))


def remove(draw, value, other):
    path = draw.choice([path for path in places(value) if path])
    del at(value, path[:-1])[path[-1]]
    return value
