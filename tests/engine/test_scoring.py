"""Scoring: log-probabilities of a prompt after which nothing is generated."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oxillama as ox
from oxillama.config import SamplerConfig
from oxillama.engine.async_engine import AsyncEngine
from oxillama.errors import ConfigError, ContextOverflowError, SnapshotDamagedError
from oxillama.snapshot.format.writer import packed
from tests.fakes import assert_idle, make_engine, options, runner_of
from tests.plain_loop import PROMPTS, plain_logprobs
from tests.snapshot.contents import placed_state, unpacked
from tests.snapshot.models import load, tokens_of

SCORE = {"max_tokens": 0, "prompt_logprobs": 2}


@given(st.lists(PROMPTS, min_size=1, max_size=4), st.sampled_from([1, 3, 16]), st.integers(4, 9))
def test_a_prompt_is_scored_as_the_plain_loop_does(prompts, chunk, n_blocks):
    engine = make_engine(prefill_chunk_size=chunk, n_blocks=n_blocks)
    for prompt, r in zip(prompts, engine.generate(prompts, **SCORE), strict=True):
        assert r.prompt_logprobs == [None, *plain_logprobs(prompt, 1, 2)]
        assert (r.text, r.token_ids, r.finish_reason) == ("", [], "length")
        assert (r.stop_reason, r.end, r.usage) == (None, None, ox.Usage(len(prompt), 0, 0))
    assert_idle(engine)


def test_however_it_is_asked_for():
    engine = make_engine(prefill_chunk_size=4)
    expected = engine.generate("the cab", max_tokens=1, prompt_logprobs=2).prompt_logprobs
    asked = {**SCORE, "logprobs": 1, "stop": "zz", "seed": 1, "draft": "lookup"}
    (chunk,) = engine.stream("the cab", **asked)
    assert (chunk.prompt_logprobs, chunk.logprobs, chunk.finish_reason) == (expected, [], "length")
    several = engine.generate("the cab", n=3, echo=True, **asked)
    assert [(r.prompt_logprobs, r.text, r.logprobs) for r in several] == [(expected, "the cab", [])] * 3
    assert [r.prompt_logprobs for r in engine.batch(["the cab", "the cab"], **asked)] == [expected] * 2

    async def use():
        many = AsyncEngine(engine)
        return await many.generate("the cab", **asked), [c async for c in many.stream("the cab", **asked)]

    whole, chunks = asyncio.run(use())
    assert [whole.prompt_logprobs, *(c.prompt_logprobs for c in chunks)] == [expected] * 2
    assert_idle(engine)


def test_the_prefix_cache_is_neither_read_nor_filled():
    engine = make_engine()
    prompt = [3] * 40
    engine.generate(prompt, max_tokens=1)
    first = engine.generate(prompt, **SCORE)
    assert (first.cached_tokens, len(first.prompt_logprobs)) == (0, 40)
    other = make_engine()
    other.generate(prompt, **SCORE)
    assert other.generate(prompt, max_tokens=1).cached_tokens == 0


def test_nothing_is_computed_but_the_prompt():
    engine = make_engine(prefill_chunk_size=16)
    engine.generate([3] * 40, **SCORE)
    assert [n for step in runner_of(engine).steps for n in step] == [16, 16, 8]
    assert engine.metrics_snapshot().prompt_tokens == 40
    assert engine.metrics_snapshot().generation_tokens == 0


def test_a_prompt_may_fill_the_context():
    engine = make_engine(context_size=64)
    assert len(engine.generate([3] * 64, **SCORE).prompt_logprobs) == 64
    with pytest.raises(ContextOverflowError, match="65 tokens and context_size is 64: shorten"):
        engine.generate([3] * 65, **SCORE)
    with pytest.raises(ContextOverflowError, match="also hold the output"):
        engine.generate([3] * 64, max_tokens=1, prompt_logprobs=2)


def test_without_prompt_logprobs_something_is_to_be_generated():
    engine = make_engine()
    for asked in ({}, {"logprobs": 1}, {"echo": True}):
        with pytest.raises(ConfigError, match="max_tokens must be at least 1, not 0, unless prompt_logprobs"):
            engine.generate("ab", max_tokens=0, **asked)
    with pytest.raises(ConfigError, match="max_tokens must be"):
        engine.generate("ab", max_tokens=-1, prompt_logprobs=0)
    with engine.conversation() as talk, pytest.raises(ConfigError, match="prompt_logprobs is not for a conversation"):
        talk.stream([3, 4], options(**SCORE))


def test_scoring_beside_texts_changes_neither():
    engine, config = make_engine(prefill_chunk_size=4, n_blocks=12), SamplerConfig(temperature=1.0, seed=3)
    alone = engine.generate([5, 6, 7], max_tokens=20, sampler=config)
    stream = engine.stream([5, 6, 7], max_tokens=20, sampler=config)
    tokens = list(next(stream).token_ids)
    scored = engine.generate([3, 4] * 20, **SCORE)
    tokens += [t for c in stream for t in c.token_ids]
    assert tokens == alone.token_ids
    assert scored.prompt_logprobs == [None, *plain_logprobs([3, 4] * 20, 1, 2)]


def test_a_snapshot_of_it_goes_on():
    with load("llama", prefill_chunk_size=8, kv_block_size=16) as engine:
        tokens = tokens_of(engine, 30)
        (whole,) = engine.stream(tokens, **SCORE)
        stream = engine.stream(tokens, **SCORE)
        before = stream.snapshot_bytes()
        assert list(engine.resume(before)) == list(stream) == [whole]
        assert list(engine.resume(stream.snapshot_bytes())) == []


def test_a_snapshot_without_room_is_damaged_unless_it_scores():
    with load("llama") as engine:
        data = engine.stream(tokens_of(engine, 30), max_tokens=1, seed=1).snapshot_bytes()
        with pytest.raises(SnapshotDamagedError, match="max_tokens"):
            list(engine.resume(packed(placed_state(unpacked(data), ("text", "limit"), 30))))
