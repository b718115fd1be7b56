"""Diffusion models in the engine: logits of whole texts, and texts by denoising as the authors' code writes them."""

import asyncio
import threading

import numpy as np
import pytest

import oxillama.gguf as gguf
from oxillama.config import EngineConfig
from oxillama.core.loading import EngineParts, choose_sizes
from oxillama.core.results import CancelToken
from oxillama.core.runner import Runner
from oxillama.engine import Engine
from oxillama.engine.async_engine import AsyncEngine
from oxillama.errors import (
    ConfigError,
    ContextOverflowError,
    GenerateError,
    LoadError,
    TokenizerError,
    UnsupportedModelError,
)
from oxillama.models import load_model
from oxillama.speculative.synthesise import synthesise_draft
from tests.engine import denoised
from tests.fakes import assert_idle, make_engine
from tests.models import naive
from tests.models.letters import N_VOCAB, Letters, same
from tests.models.references import rewritten
from tests.models.tiny import tiny

MODELS = ("dream", "llada", "llada-moe", "rnd1")
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


MASK = 130
PROMPT = [5, 17, 80, 3, 44]


def shift_of(engine):
    return not engine.model_config.arch.startswith("llada")


@pytest.mark.parametrize(("steps", "block"), [(12, 12), (6, 12), (5, 12), (12, 4), (8, 3), (3, 12), (4, 3)])
def test_blocks_as_llada_writes_them(engine, steps, block):
    found = engine.diffuse(
        PROMPT, max_tokens=12, steps=steps, block_length=block, mask_token=MASK, shift_logits=False,
        order="low_confidence",
    )  # fmt: skip
    expected = denoised.llada(engine.forward_logits, PROMPT, MASK, steps=steps, length=12, block=block)
    assert found.token_ids == expected
    assert (found.finish_reason, found.prompt_tokens, len(found.text)) == ("length", 5, 12)


@pytest.mark.parametrize("cfg", [0.5, 2.0])
def test_guidance_as_llada_has_it(engine, cfg):
    options = {"steps": 6, "block": 4, "length": 12}
    expected = denoised.llada(engine.forward_logits, PROMPT, MASK, cfg=cfg, **options)
    found = engine.diffuse(
        PROMPT, max_tokens=12, steps=6, block_length=4, cfg_scale=cfg, mask_token=MASK, shift_logits=False,
        order="low_confidence",
    )  # fmt: skip
    assert found.token_ids == expected
    assert_idle(engine)


@pytest.mark.parametrize("cuts", [{}, {"top_p": 0.7}, {"top_k": 5}, {"top_p": 0.9, "top_k": 20}])
@pytest.mark.parametrize("order", ["maskgit_plus", "topk_margin", "entropy"])
@pytest.mark.parametrize(("steps", "eps"), [(14, 1e-3), (5, 1e-3), (6, 0.2), (1, 1e-3), (20, 1e-3)])
def test_times_as_dream_has_them(engine, steps, eps, order, cuts):
    expected = denoised.dream(engine.forward_logits, PROMPT, MASK, steps=steps, length=14, order=order, eps=eps, **cuts)
    found = engine.diffuse(
        PROMPT, max_tokens=14, steps=steps, order=order, eps=eps, mask_token=MASK, shift_logits=True, **cuts
    )
    assert found.token_ids == expected


def test_times_of_models_whose_logits_are_in_their_place(engine):
    expected = denoised.dream(
        engine.forward_logits, PROMPT, MASK, steps=5, length=14, order="entropy", eps=0.1, shift=False
    )
    options = {"steps": 5, "order": "entropy", "eps": 0.1, "mask_token": MASK, "shift_logits": False}
    assert engine.diffuse(PROMPT, max_tokens=14, **options).token_ids == expected


def test_what_files_say(path, engine, tmp_path):
    """LLaDA's logits are for their own place, others' for the next; a file's word on it counts."""
    plain = engine.diffuse(PROMPT, max_tokens=8, mask_token=MASK)
    shifted = engine.model_config.shifted
    order = "entropy" if shifted else "low_confidence"
    said = {"shift_logits": shifted, "order": order, "steps": 8}
    assert engine.diffuse(PROMPT, max_tokens=8, mask_token=MASK, **said) == plain
    for key, meant in ((not shifted, not shifted), (None, bool(shift_of(engine)))):
        other = engine_of(rewritten(path, tmp_path, {"diffusion.shift_logits": key}))
        assert other.model_config.shifted is meant
    with pytest.raises(LoadError, match=r"diffusion\.shift_logits"):
        engine_of(rewritten(path, tmp_path, {"diffusion.shift_logits": "no"}))


CHANCES = [
    {"temperature": 0.8},
    {"temperature": 1.5, "top_p": 0.9, "order": "maskgit_plus", "order_temperature": 0.5},
    {"order": "origin", "temperature": 1.0},
    {"order": "random", "block_length": 5},
    {"order": "origin", "block_length": 4, "steps": 6, "temperature": 1.0},
    {"temperature": 0.7, "cfg_scale": 1.0},
]


@pytest.mark.parametrize("options", CHANCES)
def test_the_same_seed_gives_the_same_text_whatever_runs_beside_it(engine, options):
    options = {"max_tokens": 15, "steps": 7, "mask_token": MASK, **options}
    alone = [engine.diffuse(PROMPT, seed=seed, **options) for seed in range(4)]
    assert len({tuple(found.token_ids) for found in alone}) > 1
    assert all(MASK not in found.token_ids and len(found.token_ids) == 15 for found in alone)
    beside = {}

    def ask(seed):
        beside[seed] = engine.diffuse(PROMPT, seed=seed, **options)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    engine.forward_logits(text(1, 100))
    for thread in threads:
        thread.join()
    assert [beside[seed] for seed in range(4)] == alone
    assert_idle(engine)


def test_tokens_are_drawn_by_their_probabilities(engine):
    """Of one place: the logits are the same with each seed."""
    options = {"max_tokens": 1, "mask_token": MASK, "temperature": 0.6, "top_k": 6}
    drawn = [engine.diffuse(PROMPT, seed=seed, **options).token_ids[0] for seed in range(400)]
    row = engine.forward_logits([*PROMPT, MASK])[len(PROMPT) - shift_of(engine)].astype(np.float64)
    row[MASK] = -np.inf
    best = np.argsort(-row)[:6]
    p = np.exp((row[best] - row[best[0]]) / 0.6)
    p /= p.sum()
    assert set(drawn) <= set(best.tolist())
    assert np.abs(np.array([drawn.count(token) for token in best]) / 400 - p).max() < 0.09


def test_steps_are_told(engine):
    seen = []
    found = engine.diffuse(
        PROMPT, max_tokens=9, block_length=3, mask_token=MASK, on_step=lambda n, tokens: seen.append((n, tokens))
    )
    assert [n for n, _ in seen] == list(range(1, 10))
    assert [sum(token is not None for token in tokens) for _, tokens in seen] == list(range(1, 10))
    assert all(None not in tokens[: 3 * (n // 3)] for n, tokens in seen)
    assert seen[-1][1] == found.token_ids


def test_end_tokens_end_the_text_and_its_blocks(path):
    engine = engine_of(path)
    whole = engine.diffuse(PROMPT, max_tokens=12, block_length=3, mask_token=MASK).token_ids
    engine.tokenizer.eog_ids, seen = frozenset({whole[4]}), []
    first = whole.index(whole[4])
    found = engine.diffuse(
        PROMPT, max_tokens=12, block_length=3, mask_token=MASK, on_step=lambda n, tokens: seen.append(n)
    )
    assert found.token_ids == whole[:first]
    assert (found.finish_reason, found.stop_reason) == ("stop", whole[4])
    assert len(seen) == 3 * (first // 3 + 1)


def test_cancelled_between_steps(engine):
    token = CancelToken()

    def stop(n, tokens):
        if n == 4:
            token.cancel()

    found = engine.diffuse(PROMPT, max_tokens=12, block_length=1, mask_token=MASK, on_step=stop, cancel_token=token)
    assert (found.finish_reason, len(found.token_ids)) == ("cancelled", 4)
    assert_idle(engine)

    def fail(n, tokens):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        engine.diffuse(PROMPT, max_tokens=4, mask_token=MASK, on_step=fail)
    assert_idle(engine)


def test_coroutines_get_the_same(engine):
    async def main():
        beside = AsyncEngine(engine)
        calls = (beside.diffuse(PROMPT, max_tokens=10, mask_token=MASK, temperature=1.0, seed=s) for s in range(3))
        return await asyncio.gather(*calls)

    expected = [engine.diffuse(PROMPT, max_tokens=10, mask_token=MASK, temperature=1.0, seed=s) for s in range(3)]
    assert asyncio.run(main()) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "max_tokens must be from 1"),
        ({"steps": 0}, "steps must be from 1"),
        ({"steps": 2, "max_tokens": 12, "block_length": 4}, "steps is 2, but 12 tokens in blocks of 4 need at least 3"),
        ({"max_tokens": 4, "block_length": 5}, "block_length must be from 1 to 4, not 5"),
        ({"order": "likeliest"}, "order must be"),
        ({"eps": 1.5}, "eps must be a number from 0 to 1"),
        ({"eps": 0.1, "block_length": 4}, "eps is 0.1 and block_length 4: times have no meaning"),
        ({"temperature": -1}, "temperature must be"),
        ({"temperature": float("nan")}, "temperature must be"),
        ({"top_p": 0}, "top_p must be"),
        ({"top_k": -1}, "top_k must be"),
        ({"order": "origin", "order_temperature": 1.0}, "has no order to draw"),
        ({"cfg_scale": float("inf")}, "cfg_scale must be"),
        ({"seed": -1}, "seed must be"),
        ({"mask_token": 17}, "prompt has the mask token 17 at index 1"),
        ({"mask_token": None}, "names no mask token"),
        ({"shift_logits": 1}, "shift_logits must be"),
        ({"on_step": 3}, "on_step must be callable"),
        ({"cancel_token": 3}, "cancel_token must be"),
    ],
)
def test_bad_options_are_named(engine, options, message):
    with pytest.raises(ConfigError, match=message):
        engine.diffuse(PROMPT, **{"mask_token": MASK, "max_tokens": 8, **options})


def test_what_can_not_be_denoised(engine):
    with pytest.raises(ContextOverflowError, match=f"prompt has 5 tokens, max_tokens is {CONTEXT - 4}"):
        engine.diffuse(PROMPT, max_tokens=CONTEXT - 4, mask_token=MASK)
    with pytest.raises(TokenizerError, match=f"mask_token must be from 0 to {N_VOCAB - 1}"):
        engine.diffuse(PROMPT, mask_token=N_VOCAB)
    with pytest.raises(TypeError, match="steeps"):
        engine.diffuse(PROMPT, steeps=3)
    with pytest.raises(ConfigError, match="empty"):
        engine.diffuse([], mask_token=MASK)
    for causal, use in ((True, r"generate\(\) is for it"), (False, r"embed\(\) alone")):
        with pytest.raises(GenerateError, match=f"architecture fake does not denoise texts: .*{use}"):
            make_engine(causal=causal).diffuse("abc")
