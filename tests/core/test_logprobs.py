"""Log-probabilities of tokens: those of the plain rows of logits, however they are asked for and served."""

import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oxillama as ox
from oxillama.config import SamplerConfig
from oxillama.core.results import CancelToken, TokenLogprob
from oxillama.engine.async_engine import AsyncEngine
from oxillama.errors import ConfigError, GenerateError
from tests.fakes import EOS, N_VOCAB, assert_idle, core_of, make_engine, options
from tests.plain_loop import CONFIGS, PROMPTS, plain_log_sum_exp, plain_logprobs, plain_tokens


@given(
    st.lists(PROMPTS, min_size=1, max_size=4), CONFIGS, st.sampled_from([1, 3, 16]), st.integers(4, 9),
    st.none() | st.integers(0, N_VOCAB + 2), st.none() | st.integers(0, 3),
)  # fmt: skip
def test_they_are_those_of_the_plain_loop(prompts, config, chunk, n_blocks, k, prompt_k):
    engine = make_engine(prefill_chunk_size=chunk, n_blocks=n_blocks)
    found = engine.generate(prompts, max_tokens=12, sampler=config, logprobs=k, prompt_logprobs=prompt_k)
    for prompt, r in zip(prompts, found, strict=True):
        assert (r.token_ids, r.finish_reason) == plain_tokens(prompt, config, 12)
        assert r.logprobs == (None if k is None else plain_logprobs([*prompt, *r.token_ids], len(prompt), k))
        expected = None if prompt_k is None else [None, *plain_logprobs(prompt, 1, prompt_k)]
        assert r.prompt_logprobs == expected
    assert_idle(engine)


def test_streams_and_batches_give_the_same():
    options = {"max_tokens": 20, "seed": 3, "logprobs": 2, "prompt_logprobs": 1, "stop": "zz", "ignore_eos": True}
    engine = make_engine(prefill_chunk_size=4)
    whole = engine.generate("the cab", **options)
    assert len(whole.logprobs) == 20
    assert len(whole.prompt_logprobs) == whole.prompt_tokens
    chunks = list(engine.stream("the cab", **options))
    assert all(len(c.logprobs) == len(c.token_ids) for c in chunks)
    assert [t for c in chunks for t in c.logprobs] == whole.logprobs
    assert [c.prompt_logprobs for c in chunks] == [whole.prompt_logprobs] + [None] * (len(chunks) - 1)
    (batched,) = engine.batch(["the cab"], **options)

    async def use():
        awaited = await AsyncEngine(engine).generate("the cab", **options)
        return awaited, [t async for c in AsyncEngine(engine).stream("the cab", **options) for t in c.logprobs]

    awaited, streamed = asyncio.run(use())
    assert streamed == whole.logprobs
    for other in (batched, awaited):
        assert (other.logprobs, other.prompt_logprobs) == (whole.logprobs, whole.prompt_logprobs)


def test_without_being_asked_for_there_are_none():
    engine = make_engine()
    r = engine.generate("ab", max_tokens=3)
    assert (r.logprobs, r.prompt_logprobs) == (None, None)
    assert all(c.logprobs is c.prompt_logprobs is None for c in engine.stream("ab", max_tokens=3))


def test_they_are_of_the_model_and_not_of_the_sampler():
    engine = make_engine()
    prompt = [3, 4]
    for config in (SamplerConfig.greedy(), SamplerConfig(temperature=5.0, top_k=2, seed=1, repetition_penalty=3.0)):
        r = engine.generate(prompt, max_tokens=8, sampler=config, logprobs=0, ignore_eos=True)
        assert r.logprobs == plain_logprobs(prompt + r.token_ids, 2, 0)


def test_the_end_token_is_in_neither_list():
    engine, reasons = make_engine(), set()
    for seed in range(20):
        r = engine.generate([3, 4], max_tokens=60, seed=seed, logprobs=1)
        assert [t.token_id for t in r.logprobs] == r.token_ids
        assert EOS not in r.token_ids
        reasons.add(r.finish_reason)
    assert "stop" in reasons


def test_a_stop_string_cuts_the_text_alone():
    engine = make_engine()
    free = engine.generate([3, 4], max_tokens=30, seed=1, ignore_eos=True, logprobs=1)
    stopped = engine.generate([3, 4], max_tokens=30, seed=1, ignore_eos=True, logprobs=1, stop=free.text[5:7])
    assert stopped.finish_reason == "stop"
    n = len(stopped.token_ids)
    assert (stopped.token_ids, stopped.logprobs) == (free.token_ids[:n], free.logprobs[:n])


def test_cancelling_loses_none():
    token, engine = CancelToken(), make_engine(prefill_chunk_size=2)

    def hook(runner, spans, poll):
        if len(runner.steps) == 3:
            token.cancel()

    runner = core_of(engine).runner
    runner.hook = hook
    r = engine.generate([3, 4, 5] * 5, max_tokens=5, cancel_token=token, logprobs=0, prompt_logprobs=1)
    assert (r.finish_reason, r.logprobs) == ("cancelled", [])
    assert r.prompt_logprobs == [None, *plain_logprobs([3, 4, 5] * 5, 1, 1)[:6]]
    assert_idle(engine)


def test_a_prompt_with_logprobs_is_computed_whole():
    engine = make_engine()
    prompt = [3, 4, 5] * 12
    engine.generate(prompt, max_tokens=2)
    before = engine.metrics_snapshot().prefix_hits
    r = engine.generate(prompt, max_tokens=2, prompt_logprobs=0)
    assert r.prompt_logprobs[1:] == plain_logprobs(prompt, 1, 0)
    assert engine.metrics_snapshot().prefix_hits == before
    assert engine.generate([4], max_tokens=1, prompt_logprobs=5).prompt_logprobs == [None]


def test_only_the_rows_that_are_needed_are_asked_for():
    engine, wanted = make_engine(prefill_chunk_size=4), []
    core_of(engine).runner.hook = lambda runner, spans, poll: wanted.extend((len(s.tokens), s.want) for s in spans)
    engine.generate([3] * 9, max_tokens=3, prompt_logprobs=1, ignore_eos=True)
    assert wanted == [(4, "all"), (4, "all"), (1, "last"), (1, "last"), (1, "last")]


def test_damaged_logits_are_an_error():
    engine = make_engine()
    forward = core_of(engine).runner.forward

    def damaged(spans, poll=None):
        rows = forward(spans, poll)
        rows[0, 3] = np.nan
        return rows

    core_of(engine).runner.forward = damaged
    with pytest.raises(GenerateError, match="NaN or infinite"):
        engine.generate([3, 4, 5], max_tokens=3, prompt_logprobs=0)
    assert_idle(engine)


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
@pytest.mark.parametrize("value", [-1, 1025, True, 1.5, "3"])
def test_other_numbers_are_refused(name, value):
    engine = make_engine()
    with pytest.raises(ConfigError, match=name):
        engine.generate("ab", **{name: value})


def test_a_conversation_has_no_logprobs_of_its_prompt():
    engine = make_engine()
    with pytest.raises(ConfigError, match="prompt_logprobs"):
        engine.conversation().stream([3, 4], options(prompt_logprobs=1))
    chunks = list(engine.conversation().stream([3, 4], options(max_tokens=3, logprobs=1)))
    assert sum(len(c.logprobs) for c in chunks) == sum(len(c.token_ids) for c in chunks)


def test_text_of_a_part_of_a_character():
    half = TokenLogprob(1, -0.5, b"\xc3")
    assert half.text == "\N{REPLACEMENT CHARACTER}"
    assert TokenLogprob(1, -0.5, b" the").text == " the"


def test_the_shipped_model():
    with ox.load(num_threads=1) as engine:
        r = engine.generate("Once upon a time", max_tokens=8, seed=1, logprobs=3, prompt_logprobs=2)
        ids = engine.tokenize("Once upon a time") + r.token_ids
        rows = engine.forward_logits(ids[:-1])
        found = r.prompt_logprobs[1:] + r.logprobs
        for row, token, got in zip(rows, ids[1:], found, strict=True):
            total = plain_log_sum_exp(row.tolist())
            assert (got.token_id, got.logprob) == (token, float(row[token]) - total)
            assert [t.token_id for t in got.top] == np.argsort(-row, kind="stable")[: len(got.top)].tolist()
            assert got.bytes == engine.tokenizer.token_bytes(token)
