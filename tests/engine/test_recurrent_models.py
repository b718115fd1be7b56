"""Models with recurrent layers in the engine: however they are served and rewound, the bits of a whole computation."""

import threading

import numpy as np
import pytest

import oxillama.gguf as gguf
from oxillama.config import EngineConfig
from oxillama.core.loading import EngineParts, choose_sizes
from oxillama.core.results import CancelToken
from oxillama.core.runner import Runner
from oxillama.engine import Engine
from oxillama.models import load_model
from tests.fakes import assert_idle, core_of
from tests.models.letters import N_VOCAB, Letters, forwards_and_back, same
from tests.models.tiny import tiny

MODELS = ("mamba", "mamba2", "jamba", "granitehybrid", "falcon-h1", "lfm2", "nemotron_h_moe-latent", "qwen35",
          "qwen3next", "kimi-linear", "bailingmoe3",
          "minimax-01-mixed", "rwkv7")  # fmt: skip


CONTEXT = 200


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    with gguf.open(tiny(request.param, tmp_path_factory.mktemp("models"))) as file:
        return load_model(file, num_threads=2)


def engine_of(model, n_slots=None, **fields):
    config = EngineConfig(**fields)
    n_blocks, slots = choose_sizes(model.spec.states, CONTEXT, config)[:2]
    n_slots = n_slots or slots
    runner = Runner(model, num_threads=2, n_blocks=n_blocks, n_slots=n_slots)
    return Engine(config, parts=EngineParts(runner, Letters(), model.spec, CONTEXT, n_blocks, n_slots))


def test_memory_is_told(model):
    engine = engine_of(model)
    held, states = engine.memory_bytes(), model.spec.states
    slabs = [slab for layer in core_of(engine).runner.arrays.layers for slab in layer]
    kinds = {kind: sum(n for k, n in map(size, slabs) if k == kind) for kind in ("KvSlab", "RecurrentSlab")}
    assert held["kv_cache"] == kinds["KvSlab"]
    assert held["recurrent_state"] == kinds["RecurrentSlab"] > 0
    assert [len(layer) for layer in core_of(engine).runner.arrays.layers] == [len(layer) for layer in states]


def size(slab):
    if type(slab).__name__ == "KvSlab":
        return "KvSlab", slab.k.nbytes + slab.v.nbytes
    return "RecurrentSlab", slab.n_slots * -(-slab.n_values // 16) * 64


@pytest.mark.parametrize("chunk", [1, 7, 512])
def test_a_session_forwards_and_back(model, chunk):
    forwards_and_back(engine_of(model, prefill_chunk_size=chunk), engine_of(model), seed=chunk)


@pytest.mark.parametrize(("chunk", "n_slots"), [(3, 4), (16, 7), (512, 40)])
def test_together_as_alone(model, chunk, n_slots):
    alone, engine = engine_of(model), engine_of(model, n_slots, prefill_chunk_size=chunk)
    rng = np.random.default_rng(n_slots)
    prompts = [rng.integers(0, N_VOCAB, n).tolist() for n in (1, 30, 5, 17, 2, 9)]
    expected = [alone.generate(p, max_tokens=12, seed=3).token_ids for p in prompts]
    assert [r.token_ids for r in engine.generate(prompts, max_tokens=12, seed=3)] == expected
    assert same(engine.embed(prompts), np.stack([alone.embed(p) for p in prompts]))
    assert_idle(engine)


def test_cancelled_in_the_middle_of_a_pass(model):
    """From another thread, while layers have written some of their states and others have not."""
    engine, whole = engine_of(model, 4), engine_of(model)
    tokens = np.random.default_rng(0).integers(0, N_VOCAB, 120).tolist()
    engine.prefill(tokens[:50])
    for wait in np.linspace(0, 0.01, 8):
        token = CancelToken()
        timer = threading.Timer(wait, token.cancel)
        timer.start()
        engine.generate(tokens, max_tokens=50, seed=1, cancel_token=token)
        timer.join()
    assert same(engine.forward_prefill(tokens[50:60], 50), whole.forward_logits(tokens[:60])[-1])
    engine.truncate(55)
    assert same(engine.forward_one(7), whole.forward_logits([*tokens[:55], 7])[-1])
    assert_idle(engine)
