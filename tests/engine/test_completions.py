"""Several completions of one prompt: each is that of a request alone, and the prompt is computed once."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oxillama as ox
from oxillama.core.options import read_options
from oxillama.core.request import ResultQueue
from oxillama.core.results import BatchFailure, CancelToken
from oxillama.core.text_stream import chunks
from oxillama.engine.async_engine import AsyncEngine
from oxillama.errors import ConfigError, EngineClosedError, GenerateError, QueueFullError
from tests.fakes import assert_idle, core_of, drawn, factory_of, make_engine, options, runner_of
from tests.plain_loop import PROMPTS, plain_logprobs, plain_tokens

TOP = (1 << 64) - 1


def each_alone(prompt, seed, n, max_tokens):
    """(tokens, reason) of each: of a request with a seed of its own."""
    return [plain_tokens(prompt, drawn(seed=(seed + i) % (TOP + 1)), max_tokens) for i in range(n)]


@given(
    st.lists(PROMPTS, min_size=1, max_size=3), st.sampled_from([0, 5, TOP - 1]), st.integers(1, 4), st.integers(1, 30),
    st.sampled_from([1, 4, 50]), st.integers(4, 9), st.sampled_from([0, 2, 5]), st.booleans(),
)  # fmt: skip
def test_each_is_that_of_a_request_alone(prompts, seed, n, max_tokens, chunk, n_blocks, n_slots, prefix):
    """Also in caches that are too small for all, and with recurrent states, which aren't shared."""
    engine = make_engine(prefill_chunk_size=chunk, n_blocks=n_blocks, n_slots=n_slots, prefix_cache=prefix)
    found = engine.generate(prompts, n=n, max_tokens=max_tokens, seed=seed, logprobs=0, prompt_logprobs=1)
    assert [len(rs) for rs in found] == [n] * len(prompts)
    for i, (prompt, rs) in enumerate(zip(prompts, found, strict=True)):
        assert [(r.token_ids, r.finish_reason) for r in rs] == each_alone(prompt, seed, n, max_tokens)
        for r in rs:
            assert r.index == i
            assert r.logprobs == plain_logprobs(prompt + r.token_ids, len(prompt), 0)
            assert r.prompt_logprobs == [None, *plain_logprobs(prompt, 1, 1)]
    assert_idle(engine)


def test_the_prompt_is_computed_once_and_its_blocks_are_shared():
    for fields in ({}, {"prefix_cache": False}):
        engine = make_engine(n_blocks=12, prefill_chunk_size=64, **fields)
        copied, copy = [], runner_of(engine).copy_block
        runner_of(engine).copy_block = lambda a, b, copied=copied, copy=copy, **kind: (
            copied.append(b),
            copy(a, b, **kind),
        )
        engine.generate([3] * 40, n=4, max_tokens=5, seed=1, ignore_eos=True)
        assert runner_of(engine).steps == [[40], [1] * 4, [1] * 4, [1] * 4, [1] * 4]
        assert len(copied) == 3  # of the block that is half full; the last one to write keeps it
        assert_idle(engine)


def test_shapes():
    engine = make_engine()
    one = engine.generate("ab", max_tokens=3, seed=1)
    assert [r.text for r in engine.generate("ab", n=1, max_tokens=3, seed=1)] == [one.text]
    listed = engine.generate(["ab", "cab"], n=2, max_tokens=3, seed=1)
    assert [[r.index for r in rs] for rs in listed] == [[0, 0], [1, 1]]
    assert listed[0][0].text == one.text


def test_without_a_seed_they_differ():
    engine = make_engine()
    found = engine.generate([3, 4], n=6, max_tokens=30, temperature=2.0, ignore_eos=True)
    assert len({tuple(r.token_ids) for r in found}) == 6


def test_chunks_say_whose_they_are():
    engine = make_engine()
    whole = engine.generate([3, 4], n=3, max_tokens=12, seed=1, stop="ab")
    pieces = {0: [], 1: [], 2: []}
    for chunk in engine.stream([3, 4], n=3, max_tokens=12, seed=1, stop="ab"):
        pieces[chunk.index].append(chunk)
    for i, r in enumerate(whole):
        assert [t for c in pieces[i] for t in c.token_ids] == r.token_ids
        assert "".join(c.text for c in pieces[i]) == r.text
        assert [c.finish_reason for c in pieces[i]] == [None] * (len(pieces[i]) - 1) + [r.finish_reason]


def test_the_callback_gets_the_index():
    engine, said = make_engine(), {}
    found = engine.generate(
        ["ab", "b"], n=2, max_tokens=9, seed=1, on_token=lambda i, text: said.setdefault(i, []).append(text)
    )
    texts = [r.text for rs in found for r in rs]
    assert {i: "".join(said.get(i, [])) for i in range(4)} == dict(enumerate(texts))
    engine.generate("ab", n=2, max_tokens=2, seed=1, on_token=lambda i, text: said.setdefault("one", set()).add(i))
    assert said["one"] <= {0, 1}


def test_batches():
    engine = make_engine(prefill_chunk_size=16, n_blocks=9)
    prompts = [[3 + i % 5] * (1 + i) for i in range(20)]
    for ordered in (True, False):
        found = list(engine.batch(prompts, n=3, max_tokens=8, seed=2, ordered=ordered, max_in_flight=4))
        assert sorted(rs[0].index for rs in found) == list(range(20))
        for rs in found:
            assert [(r.token_ids, r.finish_reason) for r in rs] == each_alone(prompts[rs[0].index], 2, 3, 8)
    assert_idle(engine)
    bad, good = engine.batch([[], [3]], n=2, max_tokens=2, errors="yield", ordered=True)
    assert isinstance(bad, BatchFailure)
    assert len(good) == 2


def test_coroutines():
    engine = make_engine(n_blocks=8)
    expected = [tokens for tokens, _ in each_alone([3, 4], 1, 3, 9)]

    async def use():
        asynchronous = AsyncEngine(engine)
        found = await asynchronous.generate([3, 4], n=3, max_tokens=9, seed=1)
        assert [r.token_ids for r in found] == expected
        got = [[], [], []]
        async for chunk in asynchronous.stream([3, 4], n=3, max_tokens=9, seed=1):
            got[chunk.index] += chunk.token_ids
        assert got == expected
        async for rs in asynchronous.batch([[3, 4]] * 5, n=3, max_tokens=9, seed=1):
            assert [r.token_ids for r in rs] == expected
        stream = asynchronous.stream([3] * 40, n=3, max_tokens=20)
        await anext(stream)
        await stream.aclose()

    asyncio.run(asyncio.wait_for(use(), 60))
    core_of(engine).change(lambda: None)  # a step may have been under way when the stream was left
    assert_idle(engine)


def test_cancelling_before_the_fork_and_after():
    for n_tokens in (4, 30, 45):
        engine, token = make_engine(prefill_chunk_size=10), CancelToken()

        def hook(runner, spans, poll, n_tokens=n_tokens, token=token):
            if sum(map(sum, runner.steps)) >= n_tokens:
                token.cancel()

        runner_of(engine).hook = hook
        prompt = [3, 4] * 15
        found = engine.generate(prompt, n=3, max_tokens=20, seed=1, ignore_eos=True, cancel_token=token)
        assert {r.finish_reason for r in found} == {"cancelled"}
        assert any(r.token_ids for r in found) == (n_tokens >= 30)
        for i, r in enumerate(found):
            assert r.token_ids == plain_tokens(prompt, drawn(seed=1 + i), 20, ignore_eos=True)[0][: len(r.token_ids)]
        assert_idle(engine)


def test_leaving_a_stream_ends_all():
    engine = make_engine()
    for n_read in (1, 4):
        stream = engine.stream([3, 4], n=3, max_tokens=20, ignore_eos=True)
        for _ in range(n_read):
            next(stream)
        stream.close()
        assert_idle(engine)


def test_a_failing_step_fails_the_call():
    def hook(runner, spans, poll):
        raise RuntimeError("broken")

    engine = make_engine(hook=hook)
    with pytest.raises(RuntimeError, match="broken"):
        engine.generate("ab", n=3)
    assert_idle(engine)


def test_an_error_of_one_fails_the_call_and_nothing_else():
    engine = make_engine()
    forward = runner_of(engine).forward

    def damaged(spans, poll=None):
        rows = forward(spans, poll)
        if len(spans) == 3:
            rows[1] = float("nan")
        return rows

    runner_of(engine).forward = damaged
    with pytest.raises(GenerateError, match="nan"):
        engine.generate([3, 4], n=3, max_tokens=9, seed=1, ignore_eos=True)
    assert_idle(engine)
    assert len(engine.generate([3, 4], n=2, max_tokens=9, seed=1)) == 2


@pytest.mark.parametrize("which", [0, 1])
def test_an_error_of_the_first_token(which):
    """Each draws from the row of the prompt by itself: the first one's failure leaves the others their blocks."""
    engine, made = make_engine(), []
    request = factory_of(engine).request

    def broken(*args, **kwargs):
        made.append(request(*args, **kwargs))
        if len(made) == which + 1:
            made[-1].sampler = None
        return made[-1]

    factory_of(engine).request = broken
    with pytest.raises(AttributeError):
        engine.generate([3, 4], n=3, max_tokens=9, seed=1, ignore_eos=True)
    assert_idle(engine)
    assert {r.finish_reason for r in made} == {"cancelled"}


def test_closing_ends_those_that_wait_for_the_prompt():
    engine = make_engine(prefill_chunk_size=4)

    def hook(runner, spans, poll):
        if len(runner.steps) == 2:
            core_of(engine).shut(lambda: None)

    runner_of(engine).hook = hook
    with pytest.raises(EngineClosedError):
        engine.generate([3] * 30, n=3)


def test_a_deadline_ends_all():
    engine = make_engine(prefill_chunk_size=1)
    runner_of(engine).hook = lambda runner, spans, poll: None
    found = engine.generate([3] * 60, n=3, deadline=1e-6)
    assert [(r.finish_reason, r.token_ids) for r in found] == [("deadline", [])] * 3
    assert_idle(engine)


def test_each_takes_a_place_in_the_queue():
    engine = make_engine(max_queue_size=3)
    with pytest.raises(QueueFullError):
        engine.generate("ab", n=4)
    assert len(engine.generate("ab", n=3, max_tokens=1)) == 3


def test_metrics_count_each():
    engine = make_engine()
    found = engine.generate([3, 4], n=3, max_tokens=1, seed=1, ignore_eos=True)
    assert all(r.timings.time_to_first_token > 0 for r in found)
    engine.generate([3, 4], n=2, max_tokens=5, seed=1, ignore_eos=True)
    m = engine.metrics_snapshot()
    assert m.finished["length"] == 5
    assert (m.generation_tokens, m.prompt_tokens) == (3 + 10, 10)
    assert m.time_to_first_token.count == m.queue_time.count == m.request_latency.count == 5
    assert m.inter_token_latency.count == 8
    assert (m.running, m.waiting) == (0, 0)


@pytest.mark.parametrize("n", [0, -1, 1025, True, 1.5, "2"])
def test_other_numbers_are_refused(n):
    engine = make_engine()
    with pytest.raises(ConfigError, match="n must be"):
        engine.generate("ab", n=n)
    with pytest.raises(ConfigError, match="n must be"):
        engine.stream("ab", n=n)


def test_a_conversation_gives_one_answer():
    with pytest.raises(ConfigError, match="n is not"):
        make_engine().conversation().stream([3, 4], options(n=2))


def test_prompt_logprobs_cost_the_others_no_step():
    engine = make_engine()
    engine.generate([3] * 40, n=3, max_tokens=5, seed=1, ignore_eos=True, prompt_logprobs=0)
    assert runner_of(engine).steps == [[40], [1] * 3, [1] * 3, [1] * 3, [1] * 3]


def test_text_that_no_caller_reads_before_its_end_is_one_chunk():
    with ox.load(num_threads=1) as engine:
        options = read_options(
            "stream", {"max_tokens": 6, "ignore_eos": True, "seed": 1}, engine.context.factory.default_chain
        )
        made = {}
        for whole in (False, True):
            outbox = ResultQueue(1, whole=whole)
            made[whole] = list(chunks(core_of(engine), factory_of(engine).group([5, 6, 7], options, outbox), outbox))
        assert len(made[False]) > 1 == len(made[True])
        (_, one), pieces = made[True][0], [chunk for _, chunk in made[False]]
        assert one.text == "".join(piece.text for piece in pieces)
        assert one.token_ids == [token for piece in pieces for token in piece.token_ids]
        assert one.finish_reason == pieces[-1].finish_reason == "length"
