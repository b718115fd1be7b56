"""Layers with a window give blocks back: what is computed never depends on it, and small pools are enough."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.core.embedding import embedding_requests, logits_request
from oxillama.core.options import CacheKey, read_options
from oxillama.core.request import ResultQueue
from oxillama.errors import KvCacheFullError
from oxillama.layer_state import first_read
from oxillama.scheduling.block_manager import Windows, n_alive
from tests.core.counted import generate
from tests.fakes import (
    N_VOCAB,
    assert_idle,
    core_of,
    drawn,
    factory_of,
    logits_of,
    make_engine,
    runner_of,
    sequence_of,
    session_of,
)
from tests.plain_loop import plain_tokens

TOKENS = st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=90)
KINDS = pytest.mark.parametrize(
    "others", [{"n_blocks": 0}, {"n_blocks": 60}, {"n_blocks": 60, "n_slots": 6}], ids=["windows", "both", "hybrid"]
)
PROMPT = [3 + i % 7 for i in range(250)]
LONG = {"max_tokens": 200, "ignore_eos": True, "seed": 1}


# ---- counts


@given(st.integers(1, 300), st.sampled_from([16, 32, 64, 128]), st.integers(1, 600), st.integers(0, 3000))
def test_no_more_blocks_are_alive_than_counted(window, size, n, n_computed):
    first, end = first_read(n_computed, window) // size, -(-(n_computed + n) // size)
    assert end - first <= n_alive(window, size, n)
    worst = max(-(-(i + n) // size) - first_read(i, window) // size for i in range(window, window + 2 * max(64, size)))
    assert worst == n_alive(window, size, n) or n % size


@given(st.integers(1, 300), st.sampled_from([16, 64]), st.integers(1, 600), st.integers(1, 60), st.integers(0, 3000))
def test_who_may_run_has_blocks_for_each_step(window, size, max_chunk, n_blocks, n_computed):
    windows = Windows(n_blocks, window, size, max_chunk)
    n_tokens = n_computed + 1000
    if windows.n_needed(n_tokens) > n_blocks:
        return
    n = windows.chunk(max_chunk, n_tokens)
    assert 1 <= n <= max_chunk
    end = -(-min(n_computed + n, n_tokens) // size)
    assert windows.first(n_computed) * size <= max(0, n_computed + 1 - window)
    assert end <= windows.reach(n_computed) <= windows.first(n_computed) + n_blocks


# ---- what is computed


@KINDS
@settings(max_examples=40)
@given(
    calls=st.lists(
        st.one_of(
            st.tuples(st.just("at"), TOKENS, st.floats(0, 1)),
            st.tuples(st.just("append"), TOKENS),
            st.tuples(st.just("truncate"), st.floats(0, 1)),
            st.tuples(st.just("generate"), TOKENS),
        ),
        max_size=12,
    ),
    chunk=st.sampled_from([1, 5, 64, 512]),
    n_windowed=st.integers(8, 14),
)
def test_a_session_sees_exactly_its_tokens(others, calls, chunk, n_windowed):
    engine = make_engine(context_size=600, prefill_chunk_size=chunk, windows=(n_windowed, 40), **others)
    tokens = []
    for call, *args in calls:
        if call == "truncate":
            tokens = tokens[: round(args[0] * len(tokens))]
            engine.truncate(len(tokens))
        elif call == "generate":
            want = plain_tokens(args[0], drawn(seed=1), 3)[0]
            assert engine.generate(args[0], max_tokens=3, seed=1).token_ids == want
        elif len(tokens) + len(args[0]) <= 600:
            n = round(args[1] * len(tokens)) if call == "at" else len(tokens)
            tokens = tokens[:n] + args[0]
            assert engine.forward_prefill(args[0], n).tolist() == logits_of(tokens).tolist()
        assert_idle(engine)
    engine.reset()
    assert_idle(engine)


@KINDS
def test_together_as_alone_in_a_pool_of_storms(others):
    engine = make_engine(context_size=300, prefill_chunk_size=30, windows=(17, 40), **others)
    prompts = [PROMPT[i : i + 60 + 9 * i] for i in range(9)]
    got = engine.generate(prompts, max_tokens=80, seed=1, ignore_eos=True)
    for completion, prompt in zip(got, prompts, strict=True):
        assert completion.token_ids == plain_tokens(prompt, drawn(seed=1), 80, ignore_eos=True)[0]
    assert core_of(engine).scheduler.n_preempted > 0 or core_of(engine).pool.n_slots
    assert_idle(engine)


# ---- room


def test_a_long_prompt_runs_in_a_small_pool():
    engine = make_engine(context_size=6000, n_blocks=0, windows=(9, 40), prefill_chunk_size=512)
    prompt = PROMPT * 12
    assert generate(engine, prompt) == 3000
    assert max(max(step) for step in runner_of(engine).steps) == 9 * 16 - 40 - 64 + 2
    assert_idle(engine)


def test_blocks_are_given_back_as_it_goes():
    engine = make_engine(context_size=600, n_blocks=40, windows=(40, 40), prefill_chunk_size=64)
    engine.prefill(PROMPT)
    full, windowed = sequence_of(session_of(engine)).tables
    assert len(full) == len(windowed) == 16
    assert windowed[:12] == [-1] * 12  # 250 + 1 - 40 tokens, down to whole tiles of 64
    assert min(windowed[12:]) >= 0
    assert core_of(engine).pool.windowed.n_available == 40 - 4
    engine.reset()
    assert core_of(engine).pool.windowed.n_available == 40


def test_what_can_never_run_is_refused():
    engine = make_engine(context_size=600, n_blocks=0, windows=(6, 40))
    assert len(engine.generate(PROMPT[:90], max_tokens=None, seed=1, ignore_eos=True).token_ids) == 6
    with pytest.raises(KvCacheFullError, match=r"100 tokens.* 7 windowed KV blocks of 16 tokens.* are 6 in all"):
        engine.prefill(PROMPT[:100])
    assert_idle(engine)


# ---- going back, and beginnings that others left


@KINDS
def test_going_back_beyond_the_window_computes_again(others):
    engine = make_engine(context_size=600, windows=(40, 40), prefix_cache=False, **others)
    engine.prefill(PROMPT)
    engine.truncate(240)
    runner_of(engine).steps.clear()
    assert engine.forward_one(5).tolist() == logits_of([*PROMPT[:240], 5]).tolist()
    assert sum(map(sum, runner_of(engine).steps)) == (241 if core_of(engine).pool.n_slots else 1)
    engine.truncate(100)
    assert engine.forward_one(5).tolist() == logits_of([*PROMPT[:100], 5]).tolist()
    assert_idle(engine)


@KINDS
def test_a_beginning_is_found_with_its_window(others):
    engine = make_engine(context_size=600, windows=(60, 40), **others)
    assert generate(engine, PROMPT) == 250
    assert generate(engine, PROMPT) == 10
    if not core_of(engine).pool.n_slots:
        assert generate(engine, PROMPT[:100]) == 4
    assert_idle(engine)


def test_without_the_end_of_its_window_a_beginning_is_none():
    engine = make_engine(context_size=600, n_blocks=99, windows=(16, 40), prefill_chunk_size=64)
    generate(engine, PROMPT)
    generate(engine, PROMPT[::-1])
    prefix = core_of(engine).scheduler.prefix
    assert len(prefix.match(CacheKey((), engine.config.kv_type, None), PROMPT, 250)) == 15
    assert generate(engine, PROMPT[:200]) == 200  # whose window was passed and needed by others
    assert_idle(engine)


def test_what_a_sequence_has_passed_goes_before_what_others_left():
    engine = make_engine(context_size=600, n_blocks=99, windows=(14, 40), prefill_chunk_size=32)
    generate(engine, PROMPT[:40])
    generate(engine, PROMPT[::-1])
    assert generate(engine, PROMPT[:40]) == 8
    assert_idle(engine)


@pytest.mark.sweep(4)
@KINDS
@pytest.mark.parametrize("pooling", ["mean", "last", "cls", "max", "none"])
def test_what_takes_its_rows_as_they_come_may_be_sent_back(others, pooling):
    """It needs blocks again after it gave some back, and others may have them by then."""
    engine = make_engine(context_size=400, windows=(8, 20), prefill_chunk_size=8, **others)
    core, ids = core_of(engine), [3 + i * i % 11 for i in range(300)]
    first, other = [
        factory_of(engine).request(
            [5 + i] * 9, read_options("generate", LONG, engine.context.factory.default_chain), ResultQueue(1)
        )
        for i in range(2)
    ]
    logits = logits_request(engine.context, ids)
    (embedding,), _, results = embedding_requests(engine.context, ids, pooling, {"normalize": False})
    ticket = core.submit([first, logits, other, embedding])
    sent_back = set()
    for _ in range(5000):  # they could send back each other for ever
        core.step()
        sent_back |= {s.handle for s in core.scheduler.waiting if s.preempted}
    assert ticket.alive
    assert not core.scheduler.live
    assert {logits, embedding} <= sent_back
    alone = make_engine(context_size=400, n_blocks=30)
    assert logits.out.tolist() == alone.forward_logits(ids).tolist()
    assert results().tolist() == alone.embed(ids, pooling=pooling, normalize=False).tolist()
    assert_idle(engine)


def test_metrics_count_the_bytes_of_each_kind_of_block():
    engine = make_engine(context_size=600, n_blocks=40, windows=(40, 40), prefill_chunk_size=64)
    engine.prefill(PROMPT)
    s = engine.metrics_snapshot()
    assert (s.kv_blocks, s.kv_blocks_used, s.kv_blocks_cached) == (80, 16 + 4, s.kv_blocks_cached)
    assert s.kv_bytes_used == 16 * 100 + 4 * 10
    assert s.kv_bytes_cached == 10 * s.kv_blocks_cached > 0  # what windows have passed
