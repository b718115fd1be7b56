"""Diffusion models in the engine: logits of whole texts, and what asks for a next token refused."""

import threading

import numpy as np
import pytest

import oxillama.gguf as gguf
from oxillama.config import EngineConfig
from oxillama.core.loading import EngineParts, choose_sizes
from oxillama.core.runner import Runner
from oxillama.engine import Engine
from oxillama.errors import ContextOverflowError, GenerateError, UnsupportedModelError
from oxillama.models import load_model
from oxillama.speculative.synthesise import synthesise_draft
from tests.fakes import assert_idle
from tests.models import naive
from tests.models.letters import N_VOCAB, Letters, same
from tests.models.tiny import tiny

MODELS = ("dream", "llada", "rnd1")
CONTEXT = 120


@pytest.fixture(scope="module", params=MODELS)
def path(request, tmp_path_factory):
    return tiny(request.param, tmp_path_factory.mktemp("models"))


def engine_of(path, **fields):
    with gguf.open(path) as file:
        model = load_model(file, num_threads=2)
    config = EngineConfig(kv_type="f32", **fields)
    n_blocks, n_slots = choose_sizes(model.spec.states, CONTEXT, config)[:2]
    runner = Runner(model, num_threads=2, kv_type="f32", n_blocks=n_blocks, n_slots=n_slots)
    return Engine(config, parts=EngineParts(runner, Letters(), model.spec, CONTEXT, n_blocks, n_slots))


@pytest.fixture(scope="module")
def engine(path):
    return engine_of(path, prefill_chunk_size=16)


def text(seed, n):
    return np.random.default_rng(seed).integers(0, N_VOCAB, n).tolist()


def test_logits_of_whole_texts(path, engine):
    """Longer than a step has tokens elsewhere, as every position sees every other."""
    tokens = text(0, 70)
    expected = naive.logits(path, tokens)
    assert np.abs(engine.forward_logits(tokens) - expected).max() <= 2e-5 * np.abs(expected).max()
    assert_idle(engine)


def test_logits_are_the_same_beside_others(engine):
    texts = [text(i, n) for i, n in enumerate((5, 40, 17, 90, 1, 33))]
    alone, beside = [engine.forward_logits(tokens) for tokens in texts], {}

    def ask(i):
        beside[i] = engine.forward_logits(texts[i])

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(same(beside[i], alone[i]) for i in range(len(texts)))


def test_no_token_comes_next(path, engine):
    message = "reads texts whole and predicts no next token"
    for call in (
        lambda: engine.generate("abc"),
        lambda: engine.session(),
        lambda: engine.prefill([1, 2]),
        lambda: list(engine.stream("abc")),
        lambda: engine.beam_search("abc", 2),
    ):
        with pytest.raises(GenerateError, match=message):
            call()
    with pytest.raises(UnsupportedModelError, match="denoises whole texts: there is nothing to draft"):
        synthesise_draft(path)
    with pytest.raises(ContextOverflowError, match=f"{CONTEXT + 1} tokens"):
        engine.forward_logits(text(0, CONTEXT + 1))


def test_hidden_states(engine):
    """What an embedding is made of, as of encoders."""
    states = engine.embed(text(0, 9), pooling="none", normalize=False)
    assert states.shape == (9, engine.model_config.n_embd)
