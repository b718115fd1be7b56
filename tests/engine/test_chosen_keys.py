"""Models whose attention chooses its keys, in the engine: however they are served, the bits of a whole computation."""

import numpy as np
import pytest

import oxillama.gguf as gguf
from oxillama.config import EngineConfig
from oxillama.core.loading import EngineParts
from oxillama.core.runner import Runner
from oxillama.engine import Engine
from oxillama.models import load_model
from tests.fakes import assert_idle
from tests.models.letters import N_VOCAB, Letters, forwards_and_back, same
from tests.models.tiny import Shape, tiny

CONTEXT = 200


MODELS = {
    "deepseek32": ("deepseek32", 3),
    "glm-dsa": ("glm-dsa", 3),
    "the last layer shares a choice": ("glm-dsa", 2),
    "minimax-m3": ("minimax-m3", 3),
    "minimax-m3-panels": ("minimax-m3-panels", 3),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    name, n_layers = MODELS[request.param]
    with gguf.open(tiny(name, tmp_path_factory.mktemp("models"), Shape(n_layers=n_layers))) as file:
        return load_model(file, num_threads=2)


def engine_of(model, n_blocks=60, **fields):
    runner = Runner(model, num_threads=2, n_blocks=n_blocks)
    parts = EngineParts(runner, Letters(), model.spec, CONTEXT, n_blocks, 0)
    return Engine(EngineConfig(**fields), parts=parts)


@pytest.mark.parametrize("chunk", [1, 7, 512])
def test_a_session_forwards_and_back(model, chunk):
    forwards_and_back(engine_of(model, prefill_chunk_size=chunk), engine_of(model), seed=chunk)


@pytest.mark.parametrize(("chunk", "n_blocks"), [(3, 13), (16, 13), (512, 60)])
def test_together_as_alone(model, chunk, n_blocks):
    """Also with so few blocks that some wait and others begin anew, and with a prefix that several share."""
    alone, engine = engine_of(model), engine_of(model, n_blocks, prefill_chunk_size=chunk)
    rng = np.random.default_rng(chunk)
    prompts = [rng.integers(0, N_VOCAB, n).tolist() for n in (1, 70, 5, 37, 2, 90)]
    prompts += [prompts[1] + [3], [*prompts[1][:40], 5, 6]]
    expected = [alone.generate(p, max_tokens=30, seed=3).token_ids for p in prompts]
    for _ in range(2):
        assert [r.token_ids for r in engine.generate(prompts, max_tokens=30, seed=3)] == expected
    assert_idle(engine)


def test_a_text_of_few_tokens_chooses_nothing(model):
    """Up to as many tokens as may be chosen, what queries of the index are has no effect: nothing is scored."""
    of_layers = [getattr(layer.mixer, "index", None) for layer in model.layers]
    indices = [index for index in of_layers if index is not None]
    tokens, queries = list(range(60)), [index.q for index in indices]
    n = 11
    whole = engine_of(model).forward_logits(tokens)
    for index in indices:
        index.q = None
    few = engine_of(model).forward_logits(tokens[:n])
    for index, q in zip(indices, queries, strict=True):
        index.q = q
    assert same(few, whole[:n])
