"""Engines restored from a snapshot with the weights of a loaded engine."""

import pytest

import oxillama as ox
from tests.fakes import core_of
from tests.snapshot.models import load, same, tokens_of, told

OPTIONS = {"max_tokens": 20, "seed": 2, "repetition_penalty": 1.1, "ignore_eos": True}


@pytest.mark.parametrize("name", ["llama", "jamba", "gemma3"])
def test_a_restored_engine_shares_weights(name, tmp_path):
    with load(name) as engine:
        tokens = tokens_of(engine, 40)
        engine.prefill(tokens[:30])
        engine.snapshot(tmp_path / "session")
        rows = [engine.forward_one(token) for token in tokens[30:]]
        other = ox.Engine.restore(tmp_path / "session", engine, num_threads=2)
        assert (other.num_threads, other.position, other.context_size) == (2, 30, engine.context_size)
        assert other.memory_bytes()["weights"] == engine.memory_bytes()["weights"]
        assert core_of(other).runner.model is core_of(engine).runner.model
        wanted = told(engine.stream(tokens, **OPTIONS))
    assert all(same(other.forward_one(token), row) for token, row in zip(tokens[30:], rows, strict=True))
    assert told(other.stream(tokens, **OPTIONS)) == wanted  # the weights stay after the first is closed
    again = ox.Engine.restore_bytes(other.snapshot_bytes(), other)
    assert again.position == 40
    other.close()
    again.close()


def test_a_sharing_engine_has_the_settings_of_the_snapshot(tmp_path):
    with load("llama", kv_type="q8_0", context_size=64) as small:
        small.prefill([5, 6, 7])
        small.snapshot(tmp_path / "session")
        row = small.forward_one(8)
    with load("llama", context_size=96) as engine, ox.Engine.restore(tmp_path / "session", engine) as other:
        assert (other.context_size, other.config.kv_type) == (64, "q8_0")
        assert same(other.forward_one(8), row)
        with pytest.raises(ox.ConfigError, match="context_size must be at most the engine's 64"):
            ox.Engine.restore_bytes(engine.snapshot_bytes(), other)
        with pytest.raises(ox.ConfigError, match="repack can't be given with a loaded Engine"):
            ox.Engine.restore(tmp_path / "session", engine, repack=False)
    with pytest.raises(ox.EngineClosedError):
        ox.Engine.restore(tmp_path / "session", engine)


def test_sharing_with_another_model_is_refused(tmp_path):
    with load("llama") as engine, load("qwen2") as other:
        engine.prefill([5, 6, 7])
        with pytest.raises(ox.SnapshotError, match="architecture llama, not qwen2"):
            ox.Engine.restore_bytes(engine.snapshot_bytes(), other)


def test_sharing_of_paged_weights_is_refused(tmp_path):
    with load("llama", offload=1 << 20) as engine:
        engine.prefill([5, 6, 7])
        with pytest.raises(ox.ConfigError, match="a model with offload can't be shared"):
            ox.Engine.restore_bytes(engine.snapshot_bytes(), engine)
