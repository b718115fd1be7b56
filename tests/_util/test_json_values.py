"""JSON that is large: read and written piece by piece, with the same results."""

import json

import pytest

from oxillama._util.json_values import loads_unique
from oxillama.chat.calls import read_json
from oxillama.sampler_config import SamplerConfig
from tests.other_threads import frozen, longest_turn


@pytest.mark.parametrize(
    "read",
    [
        loads_unique,
        read_json,
        lambda text: read_json(text, halves=True),
        lambda text: read_json(text, any_number=True),
    ],
)
def test_large_text_is_read_as_small_text_is(read, monkeypatch):
    texts = ['{"a": [1, 2.5, null, "\\ud83d"], "b": {"c": NaN}}', '{"a": 1, "a": 2}', '{"a": [1,', '{"a": 1}',
             '["\ud83d"]', '{"é": "\\u00e9", "n": 1e5, "i": -3}', "", "[1] 2", "1e999"]  # fmt: skip

    def outcome(text):
        try:
            return repr(read(text))
        except (ValueError, RecursionError) as error:
            return str(error)

    before = [outcome(text) for text in texts]
    monkeypatch.setattr("oxillama._util.json_values.LARGE", 0)
    monkeypatch.setattr("oxillama.chat.calls.LARGE", 0)
    assert [outcome(text) for text in texts] == before


def test_a_large_schema_is_written_as_a_small_one(monkeypatch):
    schema = {"properties": {"é": {"enum": [1, 2.5, None, True, "x"]}, "b": {"type": "string"}}, "required": ["b"]}
    monkeypatch.setattr("oxillama._util.json_values.MANY", 3)
    assert SamplerConfig(json_schema=schema).json_schema == json.dumps(schema)
    deep = {"not": {}}
    for _ in range(600):
        deep = {"not": deep}
    assert SamplerConfig(json_schema=deep).json_schema == json.dumps(deep)


@pytest.mark.parametrize(
    "work",
    [
        lambda schema, text: SamplerConfig(json_schema=schema),
        lambda schema, text: SamplerConfig(json_schema=text),
        lambda schema, text: read_json(text),
    ],
)
def test_other_threads_run_meanwhile(work):
    schema = {"properties": {f"p{i}": {"type": "string"} for i in range(100_000)}}
    text = json.dumps(schema)
    with frozen():
        assert any(longest_turn(lambda: work(schema, text)) < 1 / 5 for _ in range(12))
