"""T5 in the engine: an encoder reads each prompt once and whole, and however it is served, the bits are the same."""

import asyncio

import numpy as np
import pytest

import oxillama as ox
import oxillama.gguf as gguf
from oxillama.config import EngineConfig
from oxillama.core.loading import EngineParts
from oxillama.core.runner import Runner
from oxillama.engine import Engine
from oxillama.engine.async_engine import AsyncEngine
from oxillama.errors import ConfigError, ContextOverflowError, GenerateError, UnsupportedModelError
from oxillama.lora import Lora
from oxillama.models import load_model
from tests.engine.encoded import EncodedPrompts
from tests.fakes import assert_idle, core_of
from tests.lora.loaded import adapter_for
from tests.models.letters import N_VOCAB, Letters
from tests.models.naive import File
from tests.models.naive.t5 import decode, encode
from tests.models.references import rewritten
from tests.models.tiny import tiny
from tests.models.tiny.t5 import vocabulary

CONTEXT = 200
START = 7


@pytest.fixture(scope="module", params=["t5", "t5-flan"])
def path(request, tmp_path_factory):
    return tiny(request.param, tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def model(path):
    with gguf.open(path) as file:
        return load_model(file, num_threads=2)


def engine_of(model, n_blocks=60, **fields):
    config = EngineConfig(**fields)
    runner = Runner(model, num_threads=2, kv_type=config.kv_type, kv_block_size=config.kv_block_size, n_blocks=n_blocks)
    engine = Engine(config, parts=EngineParts(runner, Letters(), model.spec, CONTEXT, n_blocks))
    core_of(engine).scheduler.debug = True
    return engine


def prompts_of(seed, *sizes):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, N_VOCAB, n).tolist() for n in sizes]


def test_logits_against_the_twin(model, path):
    (ids, text) = prompts_of(1, 37, 20)
    got = engine_of(model, kv_type="f32").forward_logits(ids, decoder_tokens=text)
    expected = decode(File(path), encode(File(path), ids), text)
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0"])
def test_chunks_and_blocks_give_equal_bits(model, kv_type):
    (ids, text) = prompts_of(2, 50, 40)
    whole = engine_of(model, kv_type=kv_type).forward_logits(ids, decoder_tokens=text)
    for chunk, block in ((1, 16), (7, 32), (16, 64), (64, 128)):
        engine = engine_of(model, kv_type=kv_type, prefill_chunk_size=chunk, kv_block_size=block)
        assert (engine.forward_logits(ids, decoder_tokens=text) == whole).all()
        assert_idle(engine)


def test_greedy_text_is_that_of_its_own_logits(model):
    engine = engine_of(model)
    (ids,) = prompts_of(3, 21)
    found = engine.generate(ids, max_tokens=30, temperature=0, ignore_eos=True)
    assert (found.prompt_tokens, len(found.token_ids)) == (21, 30)
    rows = engine.forward_logits(ids, decoder_tokens=[START, *found.token_ids])
    assert rows.argmax(-1)[:-1].tolist() == found.token_ids


@pytest.mark.parametrize(("chunk", "n_blocks"), [(1, 60), (5, 9), (40, 11), (512, 8)])
def test_together_as_alone(model, chunk, n_blocks):
    """With few blocks, sequences lose what the encoder left of their prompts, and have it computed again."""
    alone, engine = engine_of(model, prefix_cache=False), engine_of(model, n_blocks, prefill_chunk_size=chunk)
    prompts = prompts_of(chunk, 1, 64, 5, 17, 33, 16, 70)
    expected = [alone.generate(p, max_tokens=40, seed=3).token_ids for p in prompts]
    assert [r.token_ids for r in engine.generate(prompts, max_tokens=40, seed=3)] == expected
    assert (core_of(engine).scheduler.n_preempted > 0) == (n_blocks < 60)
    several = [c.token_ids for c in engine.generate(prompts[1], n=3, max_tokens=20, seed=5)]
    assert several == [c.token_ids for c in alone.generate(prompts[1], n=3, max_tokens=20, seed=5)]
    assert_idle(engine)


def test_a_prompt_is_read_once(model):
    engine = engine_of(model)
    first, second = prompts_of(4, 40, 41)
    with EncodedPrompts() as read:
        found = [engine.generate(p, max_tokens=9, seed=1) for p in (first, first, first[:-1], second, first)]
    assert read == [first, first[:-1], second]
    assert found[1].token_ids == found[0].token_ids == found[4].token_ids
    assert [c.cached_tokens for c in found] == [0, 40, 0, 0, 40]
    with EncodedPrompts() as read:
        engine.generate(first, max_tokens=9, seed=1, cache_salt="another")
        engine.generate(second, max_tokens=9, seed=1, cache_prompt=False)
        engine.generate([second[:30]] * 3, max_tokens=9, seed=1)
    assert read[:2] == [first, second]
    assert read[2:] == [second[:30]] * len(read[2:])
    assert_idle(engine)


def test_a_prompt_is_read_once_for_all_of_its_completions(model):
    engine = engine_of(model)
    (ids,) = prompts_of(5, 70)
    with EncodedPrompts() as read:
        engine.generate(ids, n=4, max_tokens=5, seed=1)
        engine.beam_search(ids, beam_width=3, max_new_tokens=5)
    assert read == [ids]


def test_a_prompt_is_read_again_after_its_blocks_are_gone(model):
    engine = engine_of(model, 12)
    first, *others = prompts_of(6, 40, 90, 90)
    expected = engine.generate(first, max_tokens=9, seed=1).token_ids
    engine.generate(others, max_tokens=30, seed=1)
    with EncodedPrompts() as read:
        assert engine.generate(first, max_tokens=9, seed=1).token_ids == expected
    assert read == [first]
    assert_idle(engine)


def test_long_prompts_do_not_wait_for_ever_beside_texts(model):
    """An encoder reads more than a step's budget, also while others write."""
    engine = engine_of(model, prefill_chunk_size=8)
    short, long = prompts_of(7, 5, 120)
    alone = engine.generate(long, max_tokens=3, seed=1).token_ids
    stream = engine.stream(short, max_tokens=100, seed=1, ignore_eos=True)
    next(stream)
    with EncodedPrompts() as read:
        assert engine.generate([9, *long[1:]], max_tokens=3, seed=1).token_ids != []
    assert read == [[9, *long[1:]]]
    assert engine.generate(long, max_tokens=3, seed=1).token_ids == alone
    stream.close()


@pytest.mark.parametrize("acceptance", ["match", "rejection"])
def test_drafts_from_the_prompt(model, acceptance):
    (ids,) = prompts_of(8, 6)
    options = {"max_tokens": 60, "ignore_eos": True, "temperature": 0.0}
    plain = engine_of(model).generate(ids * 6, **options)
    found = engine_of(model).generate(ids * 6, **options, draft="lookup", acceptance=acceptance)
    assert found.token_ids == plain.token_ids


def test_beams_are_those_of_the_twin(model, path):
    """Exhaustive for two tokens: as many beams as there are tokens."""
    (ids,) = prompts_of(9, 30)
    file = File(path)
    states = encode(file, ids)

    def logprobs(text):
        row = decode(file, states, [START, *text])[-1]
        return row - np.logaddexp.reduce(row)

    first = logprobs([])
    scores = {(a, b): (first[a] + x) / 2 for a in range(N_VOCAB) for b, x in enumerate(logprobs([a]))}
    best = sorted(scores, key=lambda pair: -scores[pair])[:3]
    engine = engine_of(model, 2 + 2 * N_VOCAB, kv_type="f32")
    found = engine.beam_search(ids, beam_width=N_VOCAB, max_new_tokens=2, ignore_eos=True)
    assert [tuple(h.token_ids) for h in found[:3]] == best
    assert np.allclose([h.score for h in found[:3]], [scores[pair] for pair in best], atol=1e-5)
    assert_idle(engine)


def test_embeddings_are_the_encoders(model, path):
    engine = engine_of(model, kv_type="f32", prefill_chunk_size=16)
    texts = prompts_of(10, 5, 90, 17)
    file = File(path)
    for text, rows in zip(texts, engine.embed(texts, pooling="none", normalize=False), strict=True):
        expected = encode(file, text)
        assert np.abs(rows - expected).max() <= 2e-5 * np.abs(expected).max()
        assert (engine.embed(text, pooling="none", normalize=False) == rows).all()
    assert_idle(engine)


def test_embeddings_beside_texts(model):
    engine = engine_of(model)
    first, second = prompts_of(11, 30, 50)
    expected = engine.generate(first, max_tokens=20, seed=1).token_ids, engine.embed(second)
    stream = engine.stream(first, max_tokens=20, seed=1)
    pieces = [next(stream)]
    assert (engine.embed(second) == expected[1]).all()
    assert [t for piece in [*pieces, *stream] for t in piece.token_ids] == expected[0]


def test_adapters_change_both_parts(model, path, tmp_path):
    ids, text = prompts_of(12, 20, 9)
    adapter, _ = adapter_for(path, tmp_path / "adapter.gguf")
    engine = engine_of(model)
    plain = engine.forward_logits(ids, decoder_tokens=text)
    states = engine.embed(ids, pooling="none")
    engine.load_lora("a", Lora.load(adapter))
    changed = engine.forward_logits(ids, decoder_tokens=text, lora="a")
    assert np.abs(changed - plain).max() > 0.01
    assert not (engine.embed(ids, pooling="none", lora="a") == states).all()
    with EncodedPrompts() as read:
        own = [engine.generate(ids, max_tokens=9, seed=1, lora=x).token_ids for x in (None, "a", None, "a")]
    assert len(read) == 2
    assert own[:2] == own[2:]
    together = engine.batch([ids, ids], max_tokens=9, seed=1)
    assert [c.token_ids for c in together] == [own[0]] * 2


def test_sampling_sees_the_text_alone(model):
    """Penalties, processors and criteria: what an encoder has read is no text that repeats itself."""
    engine = engine_of(model)
    (ids,) = prompts_of(13, 20)
    seen = []

    def look(tokens, logits):
        seen.append(list(tokens))

    found = engine.generate(ids, max_tokens=4, seed=1, logits_processors=[look], ignore_eos=True)
    assert seen == [[START, *found.token_ids[:i]] for i in range(4)]
    stops = engine.generate(ids, max_tokens=9, seed=1, ignore_eos=True,
                            stopping_criteria=lambda tokens, row: tokens == [START, *found.token_ids[:2]])  # fmt: skip
    assert stops.token_ids == found.token_ids[:2]


def test_coroutines(model):
    engine = engine_of(model)
    ids, text = prompts_of(14, 33, 5)
    expected = engine.generate(ids, max_tokens=9, seed=1), engine.forward_logits(ids, decoder_tokens=text)

    async def run():
        async with AsyncEngine(engine) as a:
            pieces = [piece async for piece in a.stream(ids, max_tokens=9, seed=1)]
            return pieces, await a.forward_logits(ids, decoder_tokens=text), await a.embed(ids)

    pieces, logits, vector = asyncio.run(run())
    assert [t for piece in pieces for t in piece.token_ids] == expected[0].token_ids
    assert (logits == expected[1]).all()
    assert vector.shape == (model.spec.n_embd,)


def test_text_ends_with_the_vocabularys_end(path, tmp_path):
    """Of a file with a tokenizer: prompts end with EOS, have no BOS, and so may texts."""
    with ox.load(rewritten(path, tmp_path, vocabulary()), context_size=CONTEXT) as engine:
        ids = engine.tokenize("abc: hij?")
        assert (ids[-1], engine.context.tokenizer.bos_id) == (1, None)
        found = engine.generate("abc: hij?", max_tokens=5, temperature=0, logit_bias={1: 100.0})
        assert (found.text, found.finish_reason, found.prompt_tokens) == ("", "stop", len(ids))
        assert engine.generate("abc: hij?", max_tokens=5, temperature=0).token_ids == engine.generate(
            ids, max_tokens=5, temperature=0
        ).token_ids  # fmt: skip
        with pytest.raises(ox.OxiLlamaError, match="no chat template"):
            engine.chat([{"role": "user", "content": "abc"}])


def test_what_continues_a_prompt_is_refused(model):
    engine = engine_of(model)
    for call in (
        lambda: engine.prefill([1, 2]),
        lambda: engine.forward_one(1),
        engine.session,
        engine.conversation,
        engine.fork,
    ):
        with pytest.raises(GenerateError, match="architecture t5 reads each prompt whole, with an encoder"):
            call()


def test_what_an_encoder_leaves_out_is_refused(model):
    engine = engine_of(model)
    for call, error, match in (
        (lambda: engine.generate([1], prompt_logprobs=1), ConfigError, "prompt_logprobs must be left out"),
        (lambda: engine.forward_logits([1]), ConfigError, "architecture t5 needs decoder_tokens"),
        (lambda: engine.forward_logits([1], decoder_tokens=[]), ConfigError, "decoder_tokens is empty"),
        (lambda: engine.forward_logits([1], decoder_tokens=[N_VOCAB]), ox.TokenizerError, "decoder_tokens"),
        (lambda: engine.generate([1] * CONTEXT), ContextOverflowError, "which must also hold the output"),
        (
            lambda: engine.forward_logits([1] * 190, decoder_tokens=[1] * 20),
            ContextOverflowError,
            "ids with decoder_tokens has 212 tokens",
        ),
        (engine.as_draft, UnsupportedModelError, "it can't be a draft"),
    ):
        with pytest.raises(error, match=match):
            call()
    assert_idle(engine)


@pytest.mark.parametrize("seed", range(4))
def test_served_at_random(model, seed):
    """Requests come and are left at any time, in little memory: those that end have the text that they have alone."""
    rng = np.random.default_rng(seed)
    alone = engine_of(model, prefix_cache=False)
    engine = engine_of(model, int(rng.integers(8, 20)), prefill_chunk_size=int(rng.choice([1, 5, 33, 512])))
    prompts, open_streams = prompts_of(seed, 3, 16, 30, 47, 64), []
    for _ in range(40):
        prompt = prompts[rng.integers(len(prompts))]
        options = {"max_tokens": int(rng.integers(1, 50)), "seed": int(rng.integers(3)), "ignore_eos": True}
        stream = engine.stream(prompt, **options, priority=int(rng.integers(3)), draft=rng.choice(["lookup", None]))
        open_streams.append((stream, alone.generate(prompt, **options).token_ids, []))
        for _ in range(rng.integers(6)):
            stream, expected, found = open_streams[rng.integers(len(open_streams))]
            found += next(stream, ox.Chunk("", [])).token_ids
            assert found == expected[: len(found)]
        if rng.random() < 0.2:
            open_streams.pop(rng.integers(len(open_streams)))[0].close()
    for stream, expected, found in open_streams:
        assert found + [t for chunk in stream for t in chunk.token_ids] == expected
    assert_idle(engine)


def test_drafts_of_models_are_refused(model, path, tmp_path):
    engine = engine_of(model)
    with gguf.open(tiny("llama", tmp_path)) as file:
        draft = engine_of(load_model(file))
    with pytest.raises(UnsupportedModelError, match="a draft model can't read the prompts of an engine with an enc"):
        engine.generate([1, 2], draft=draft)
    with pytest.raises(UnsupportedModelError, match="a draft model can't read the prompts of an engine with an enc"):
        ox.SpeculativeEngine(engine, draft)
    with pytest.raises(UnsupportedModelError, match="architecture t5 reads prompts with an encoder, which a draft"):
        ox.synthesise_draft(path)
    with pytest.raises(ConfigError, match="architecture llama has no place for decoder_tokens"):
        draft.forward_logits([1, 2], decoder_tokens=[1])
