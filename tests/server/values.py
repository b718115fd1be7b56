"""Values of JSON of every kind, most of them wrong for any field."""

import json

NESTED = json.loads("[" * 300 + "]" * 300)
VALUES_OF_JSON = {
    "null": None, "true": True, "text": "x", "empty text": "", "zero": 0, "negative": -7, "huge": 10**25,
    "float": 1.5, "huge float": 1e300, "list": [], "list of lists": [[1], ["x"], {}], "object": {},
    "strange": {"no": [1]},
    "nested": NESTED, "long": "y" * 100_000,
}  # fmt: skip
