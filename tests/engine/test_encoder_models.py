"""BERT in the engine: texts of any length beside one another are embedded as each alone."""

import numpy as np
import pytest

import oxillama.gguf as gguf
from oxillama.config import EngineConfig
from oxillama.core.loading import EngineParts
from oxillama.core.runner import Runner
from oxillama.engine import Engine
from oxillama.errors import ContextOverflowError, GenerateError
from oxillama.kernels.batch import Span
from oxillama.models import load_model
from tests.fakes import FakeTokenizer, assert_idle
from tests.models.tiny import tiny

CONTEXT, N_BLOCKS = 200, 40


@pytest.fixture(scope="module", params=["bert", "nomic-bert"])
def model(request, tmp_path_factory):
    with gguf.open(tiny(request.param, tmp_path_factory.mktemp("models"))) as file:
        return load_model(file, num_threads=2)


def engine_of(model, budget):
    config = EngineConfig(prefill_chunk_size=budget)
    runner = Runner(model, num_threads=2, n_blocks=N_BLOCKS)
    return Engine(config, parts=EngineParts(runner, FakeTokenizer(), model.spec, CONTEXT, N_BLOCKS, pooling="cls"))


@pytest.mark.parametrize("budget", [1, 30, 512])
def test_together_as_alone(model, budget):
    rng = np.random.default_rng(budget)
    texts = [rng.integers(0, model.spec.n_vocab, n).tolist() for n in (5, 200, 1, 64, 33, 33)]
    engine, runner = engine_of(model, budget), Runner(model, num_threads=1, n_blocks=N_BLOCKS)
    every = engine.embed(texts, pooling="none", normalize=False)
    for text, rows in zip(texts, every, strict=True):
        alone = runner.hidden([Span(text, 0, list(range(N_BLOCKS)), "all")])
        assert np.array_equal(rows, alone)
    assert np.array_equal(engine.embed(texts, normalize=False), np.stack([rows[0] for rows in every]))
    assert_idle(engine)


def test_refusals_name_the_architecture(model):
    engine = engine_of(model, 512)
    with pytest.raises(GenerateError, match=f"architecture {model.spec.arch} reads texts whole"):
        engine.generate("ab")
    with pytest.raises(ContextOverflowError, match="201 tokens and context_size is 200"):
        engine.embed([3] * 201)
