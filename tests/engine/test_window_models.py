"""Models with windows in the engine: blocks that are given back save memory, and change no bit."""

import numpy as np
import pytest

import oxillama.gguf as gguf
from oxillama.config import EngineConfig
from oxillama.core.loading import CacheSizes, EngineParts, choose_sizes
from oxillama.core.runner import Runner
from oxillama.engine import Engine
from oxillama.kv_cache.arrays import block_bytes
from oxillama.models import load_model
from tests.fakes import assert_idle, core_of
from tests.models.letters import Letters, same
from tests.models.tiny import Shape, tiny

MODELS = ("llama-window", "gemma2", "gemma3", "gpt-oss", "cohere2", "olmo3", "laguna", "mimo2", "gemma4-e4b",
          "llama4-short", "gemma3n")  # fmt: skip
CONTEXT, WINDOW = 1000, 30


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    shape = Shape(window=WINDOW, context=CONTEXT, n_layers=4)
    with gguf.open(tiny(request.param, tmp_path_factory.mktemp("models"), shape)) as file:
        return load_model(file, num_threads=2, context_size=CONTEXT)


def engine_of(model, sizes=None, **fields):
    config = EngineConfig(**fields)
    n_blocks, n_slots, n_windowed, window = sizes or choose_sizes(model.spec.states, CONTEXT, config)
    kinds = {"n_blocks": n_blocks, "n_slots": n_slots, "n_windowed": n_windowed}
    runner = Runner(model, num_threads=2, **kinds)
    return Engine(config, parts=EngineParts(runner, Letters(), model.spec, CONTEXT, window=window, **kinds))


def test_memory_shows_what_is_saved(model):
    engine = engine_of(model, prefill_chunk_size=64)
    states = model.spec.states
    windowed, whole = (block_bytes(states, 16, "f16", windowed=w) for w in (True, False))
    # A whole context takes 63 blocks; the window, a chunk and what lies between tiles and blocks 10, and one for good.
    # There is room for 16 contexts of 1000 tokens.
    assert core_of(engine).pool.windowed.n == 16 * 11
    assert engine.memory_bytes()["kv_cache"] == 16 * (63 * whole + 11 * windowed)
    slabs = [slab for layer in core_of(engine).runner.arrays.layers for slab in layer]
    assert engine.memory_bytes()["kv_cache"] == sum(s.k.nbytes + s.v.nbytes for s in slabs)
    assert {s.windowed for s in slabs} == ({True, False} if whole else {True})


@pytest.mark.sweep(11)
@pytest.mark.parametrize("chunk", [1, 40, 512])
def test_the_bits_of_layers_that_keep_everything(model, chunk):
    states = model.spec.states
    whole = engine_of(model, CacheSizes(63, 0))
    full = 63 * any(not shape.window for layer in states for shape in layer)
    engine = engine_of(model, CacheSizes(full, 0, 16, WINDOW), prefill_chunk_size=chunk)
    rng, tokens = np.random.default_rng(chunk), []
    for n in (5, 90, 1, 250) if chunk > 1 else (5, 90, 60):
        tokens += rng.integers(0, model.spec.n_vocab, n).tolist()
        assert same(engine.prefill(tokens[-n:]), whole.prefill(tokens[-n:]))
    for at in (len(tokens) - 2, len(tokens) - 80, 70):
        tokens = tokens[:at]
        assert same(engine.forward_decode(7, at), whole.forward_decode(7, at))
    prompts = [tokens[i:] for i in range(0, 40, 9)]
    served = [e.generate(prompts, max_tokens=30, seed=3, ignore_eos=True) for e in (engine, whole)]
    assert [r.token_ids for r in served[0]] == [r.token_ids for r in served[1]]
    assert_idle(engine)
