"""A request saved by an earlier version, when generation used the whole language of a schema."""

import json
from pathlib import Path

import oxillama as ox
from oxillama.snapshot.request_state import config_of, sampler_config_state
from tests.snapshot.models import load

SAVED = (Path(__file__).parents[1] / "data" / "oxisnap" / "schema.oxsnap2").read_bytes()
SCHEMA = {"type": "array", "items": {"type": "integer"}, "minItems": 3}
BEGUN = "[-0."  # which nothing but the whole language of the schema can go on with


def test_a_recorded_request_keeps_its_schema_mode():
    with load("llama") as engine:
        rest = [(chunk.text, chunk.token_ids) for chunk in engine.resume(SAVED)]
        again = engine.resume(engine.resume(SAVED).snapshot_bytes())  # what is saved now says so itself
        assert [(chunk.text, chunk.token_ids) for chunk in again] == rest
    text = BEGUN + "".join(text for text, _ in rest)
    assert len(json.loads(text)) >= 3
    assert ox.JsonSchemaCompiler.compile(SCHEMA).accepts(text)
    assert not ox.JsonSchemaCompiler.compile(SCHEMA, mode="generate").accepts(text)


def test_settings_without_the_mode_mean_mode_full():
    assert config_of({}).schema_mode == "full"
    assert config_of({"schema_mode": "generate"}).schema_mode == "generate"
    assert "schema_mode" not in sampler_config_state(ox.SamplerConfig())
    assert sampler_config_state(ox.SamplerConfig(schema_mode="full"))["schema_mode"] == "full"


def test_beams_keep_the_mode():
    with load("llama") as engine:
        for mode in ("generate", "full"):
            options = {"beam_width": 2, "max_new_tokens": 12, "json_schema": SCHEMA, "schema_mode": mode}
            rounds = engine.beam_rounds([1, 5, 9], **options)
            next(rounds)
            saved = engine.resume(rounds.snapshot_bytes())
            assert saved._search.options.chain.config.schema_mode == mode
            assert [r.token_ids for r in saved.results()] == [r.token_ids for r in rounds.results()]
