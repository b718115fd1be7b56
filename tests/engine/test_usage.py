"""What a completion says of its end and of its tokens: stop_reason, end and usage."""

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oxillama as ox
from oxillama.config import SamplerConfig
from oxillama.core.generation_request import StopMatcher
from oxillama.engine.async_engine import AsyncEngine
from tests.core.stop_strings import STOPS, TEXT
from tests.fakes import EOS, core_of, make_engine, options, outbox_of, requests_of, runner_of
from tests.plain_loop import CONFIGS, PROMPTS, plain_logprob, plain_tokens
from tests.snapshot.models import load, tokens_of

# Beginnings in common are likely.
ALIKE = st.lists(st.sampled_from([3, 3, 3, 4]), min_size=1, max_size=70)


# ---- which stop


@given(STOPS, st.lists(TEXT, max_size=8))
def test_the_stop_string_does_not_depend_on_the_pieces(stops, pieces):
    matcher, text = StopMatcher(stops), "".join(pieces)
    stopped = any(matcher.push(piece)[1] for piece in pieces) or matcher.flush()[1]
    places = sorted((text.find(s), len(s), s) for s in stops if s in text)
    assert stopped == bool(places)
    assert matcher.found == (places[0][2] if places else None)


@given(PROMPTS, CONFIGS, st.integers(1, 20))
def test_the_end_token_is_the_reason_and_has_its_log_probability(prompt, config, n):
    r = make_engine().generate(prompt, max_tokens=n, sampler=config, logprobs=2)
    tokens, reason = plain_tokens(prompt, config, n)
    assert r.token_ids == tokens
    if reason == "stop":
        assert (r.stop_reason, r.end) == (EOS, plain_logprob([*prompt, *tokens], EOS, 2))
    else:
        assert (r.stop_reason, r.end) == (None, None)


def test_a_stop_string_is_the_reason():
    engine = make_engine()
    free = engine.generate("the bed", max_tokens=20, ignore_eos=True, seed=1).text
    r = engine.generate("the bed", max_tokens=20, ignore_eos=True, seed=1, stop=["zzz", free[3:5]], logprobs=0)
    assert (r.finish_reason, r.stop_reason, r.end) == ("stop", free[3:5], None)
    assert engine.generate("the bed", max_tokens=20, seed=1, temperature=0, banned_tokens=[EOS]).stop_reason is None


def test_a_text_that_was_cancelled_has_no_reason():
    engine, token = make_engine(), ox.CancelToken()
    r = engine.generate("the bed", max_tokens=20, ignore_eos=True, stop="!!!!!!!!", cancel_token=token,
                        on_token=lambda text: token.cancel())  # fmt: skip
    assert (r.finish_reason, r.stop_reason) == ("cancelled", None)


def test_without_logprobs_the_end_has_none():
    engine = make_engine()
    bias = {EOS: 1e9}
    assert engine.generate("ab", prompt_logprobs=1, logit_bias=bias).end is None
    assert engine.generate("ab", logprobs=0, logit_bias=bias).end.token_id == EOS


# ---- usage


def test_usage_adds_up():
    usage = ox.Usage(5, 7, 3)
    assert usage.total_tokens == 12


@given(st.lists(st.tuples(ALIKE, st.integers(1, 20)), min_size=2, max_size=6), st.sampled_from([1, 5, 64]))
def test_what_is_not_cached_is_computed(requests, chunk):
    """The runner tells what it computes: all of the text but its last token, and of the prompt what was not found."""
    engine = make_engine(prefill_chunk_size=chunk, context_size=128)
    for prompt, n in requests:
        runner_of(engine).steps.clear()
        r = engine.generate(prompt, max_tokens=n, ignore_eos=True)
        computed = sum(itertools.chain(*runner_of(engine).steps))
        assert computed == r.usage.prompt_tokens - r.cached_tokens + r.usage.completion_tokens - 1
        assert r.usage == ox.Usage(len(prompt), n, r.cached_tokens)
    again = engine.generate(prompt, max_tokens=1)
    assert again.cached_tokens >= (len(prompt) - 1) // 16 * 16


def test_what_preemption_computes_again_is_not_cached():
    engine = make_engine(n_blocks=6)
    prompts = [[token] * 20 for token in range(3, 9)]
    found = engine.generate(prompts, max_tokens=30, ignore_eos=True)
    assert core_of(engine).scheduler.n_preempted > 0
    assert [r.cached_tokens for r in found] == [0] * 6


@pytest.mark.parametrize("slots", [0, 12])
def test_several_completions_say_what_their_prompt_found(slots):
    engine = make_engine(n_slots=slots)
    prompt = [3] * 33
    first = engine.generate(prompt, max_tokens=3, n=3, ignore_eos=True)
    assert [r.cached_tokens for r in first] == [0, 0, 0]
    again = engine.generate(prompt, max_tokens=3, n=3, ignore_eos=True)
    assert [r.cached_tokens for r in again] == [32, 32, 32]
    assert [r.usage.completion_tokens for r in again] == [3, 3, 3]


def test_what_a_conversation_keeps_is_cached():
    engine = make_engine(prefix_cache=False)
    talk = engine.conversation()
    first = list(talk.stream([3] * 20, options(max_tokens=5, ignore_eos=True)))
    answer = [t for c in first for t in c.token_ids]
    assert first[-1].usage == ox.Usage(20, 5, 0)
    # The last token of the answer was drawn but not computed.
    *_, last = talk.stream([3] * 20 + answer + [4, 5], options(max_tokens=1, ignore_eos=True))
    assert last.usage == ox.Usage(27, 1, 24)


def test_the_last_chunk_says_what_the_completion_says():
    engine = make_engine()
    asked = {"max_tokens": 9, "seed": 2, "logprobs": 1, "logit_bias": {EOS: 5.0}}
    engine.generate([3] * 33, max_tokens=1)
    whole = engine.generate([3] * 33, **asked)
    expected = (whole.stop_reason, whole.end, ox.Usage(33, len(whole.token_ids), 32))
    assert whole.stop_reason == EOS
    chunks = list(engine.stream([3] * 33, **asked))
    assert all(c.stop_reason is c.end is c.usage is None for c in chunks[:-1])
    (batched,) = engine.batch([[3] * 33], **asked)

    async def use():
        many = AsyncEngine(engine)
        return await many.generate([3] * 33, **asked), [c async for c in many.stream([3] * 33, **asked)]

    awaited, streamed = asyncio.run(use())
    for found in (chunks[-1], streamed[-1], batched, awaited):
        assert (found.stop_reason, found.end, found.usage) == expected


@pytest.mark.parametrize("n_read", [1, 3, 100])
def test_a_snapshot_keeps_them(n_read):
    with load("llama", kv_block_size=16) as engine:
        tokens = tokens_of(engine, 33)
        asked = {"max_tokens": 12, "seed": 1, "logprobs": 1, "sampler": SamplerConfig(temperature=0.0)}
        engine.generate(tokens, **asked)
        whole = engine.generate(tokens, stop="zzzz", **asked)
        assert whole.usage == ox.Usage(33, 12, 32)
        stream = engine.stream(tokens, **asked)
        for _ in range(n_read):
            if next(stream, None) is None:
                break
        data = stream.snapshot_bytes()
        stream.close()
        chunks = list(engine.resume(data))
    if n_read < 100:
        assert chunks[-1].usage == whole.usage
    else:
        assert chunks == []


def test_a_snapshot_keeps_an_end_that_nobody_has_read():
    with load("llama") as engine:
        tokens = tokens_of(engine, 20)
        asked = {"max_tokens": 6, "temperature": 0.0, "logprobs": 1}
        stop = engine.generate(tokens, **asked).text[2:4]
        stream = engine.stream(tokens, stop=stop, **asked)
        ticket = core_of(engine).submit(requests_of(stream))
        core_of(engine).drive(lambda: not outbox_of(stream).n_open)
        assert ticket.alive
        data, unread = stream.snapshot_bytes(), [chunk for _, chunk in outbox_of(stream).items]
        assert unread[-1].stop_reason == stop
        found = list(engine.resume(data))
    assert found == unread
    assert found[-1].usage == unread[-1].usage == ox.Usage(20, sum(len(c.token_ids) for c in found), 16)
