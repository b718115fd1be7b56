"""Results with any draft and any call equal those without drafts."""

import asyncio
import dataclasses
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.drafts.draft import SpecStats
from oxillama.drafts.prompt_lookup import PromptLookup
from oxillama.engine.async_engine import AsyncEngine
from tests.fakes import EOS, assert_idle, make_engine, runner_of
from tests.speculative.drafting import CHAINS, GRAMMARS, same
from tests.speculative.drafts import Oracle

PROMPTS = st.lists(st.integers(2, 14), min_size=1, max_size=40)


def texts(prompts, found):
    return [[*prompt, *one.token_ids] for prompt, one in zip(prompts, found, strict=True)]


@settings(max_examples=150)
@given(
    prompts=st.lists(PROMPTS, min_size=1, max_size=8),
    chain=st.sampled_from(CHAINS),
    grammar=st.sampled_from(GRAMMARS),
    k=st.integers(0, 8),
    every=st.integers(0, 6),
    salt=st.integers(0, 5),
    kind=st.sampled_from(["blocks", "slots", "windows", "all"]),
    room=st.sampled_from([24, 60]),
    chunk=st.sampled_from([1, 5, 64]),
    seed=st.integers(0, 9),
    stop=st.sampled_from([None, None, ["ab"], ["a", "he "]]),
    more=st.sampled_from([{}, {}, {"logprobs": 2}, {"prompt_logprobs": 1}, {"ignore_eos": True}]),
    adaptive=st.booleans(),
    named=st.sampled_from([(), ("lookup",), ("grammar", "lookup")]),
)
def test_drafts_change_no_result(
    prompts, chain, grammar, k, every, salt, kind, room, chunk, seed, stop, more, adaptive, named
):
    shape = {
        "blocks": {"n_blocks": room},
        "slots": {"n_blocks": 0, "n_slots": 12},
        "windows": {"n_blocks": 0, "windows": (room, 20)},
        "all": {"n_blocks": room, "n_slots": 12, "windows": (room, 20)},
    }[kind]
    wanted = {"max_tokens": 30, "seed": seed, "stop": stop, **chain, **more}
    if grammar is not None:
        wanted["grammar"] = grammar
    plain = make_engine(context_size=96, prefill_chunk_size=chunk, n_blocks=200)
    expected = plain.generate(prompts, **wanted)
    engine = make_engine(context_size=96, prefill_chunk_size=chunk, **shape)
    oracle = Oracle(texts(prompts, expected), every, salt)
    found = engine.generate(prompts, **wanted, draft=[*named, oracle], num_speculative=k, adaptive=adaptive)
    assert all(map(same, found, expected))
    assert_idle(engine)
    for one in found:
        s = one.speculation
        assert 0 <= s.accepted <= s.drafted <= k * s.rounds
        assert s.bonus <= s.rounds <= len(one.token_ids)
    if len({tuple(p) for p in prompts}) == len(prompts):
        assert sorted(oracle.forgotten) == sorted({key for call in oracle.calls for key, _, _ in call})


@pytest.mark.parametrize("k", [1, 3, 8])
def test_max_tokens_is_exact_and_nothing_is_computed_beyond_it(k):
    prompt = [3, 4, 5]
    for n in range(1, 14):
        engine = make_engine()
        whole = engine.generate(prompt, max_tokens=40, seed=1, ignore_eos=True).token_ids
        runner_of(engine).steps.clear()
        got = engine.generate(
            prompt, max_tokens=n, seed=1, ignore_eos=True, cache_prompt=False,
            draft=Oracle([prompt + whole]), num_speculative=k, adaptive=False,
        )  # fmt: skip
        assert (got.token_ids, got.finish_reason) == (whole[:n], "length")
        # The prompt, and every token but the last: each once.
        assert sum(sum(spans) for spans in runner_of(engine).steps) == len(prompt) + n - 1
        assert len(runner_of(engine).steps) == 1 + -(-(n - 1) // (k + 1))


def test_an_end_token_in_the_middle_of_the_draft():
    """The model ends the text where the draft goes on, and a draft that knows of the end is not asked to go beyond."""
    engine = make_engine(context_size=200)
    answers = [(seed, engine.generate([5, 6], seed=seed, max_tokens=60)) for seed in range(30)]
    seed, expected = next((s, r) for s, r in answers if r.finish_reason == "stop" and len(r.token_ids) > 4)
    for beyond in ([EOS, 3, 3, 3], [3, 4, 5, 6, 7, 8, 9], []):
        oracle = Oracle([[5, 6, *expected.token_ids, *beyond]])
        got = engine.generate([5, 6], seed=seed, max_tokens=60, draft=oracle, num_speculative=8, adaptive=False)
        assert same(got, expected)
        assert got.speculation.accepted <= len(expected.token_ids)
    assert_idle(engine)


def test_a_stop_string_in_the_middle_of_the_draft():
    engine = make_engine(context_size=200)
    free = engine.generate([5, 6], seed=4, max_tokens=60, ignore_eos=True)
    for i in range(1, 20):
        wanted = {"seed": 4, "max_tokens": 60, "ignore_eos": True, "stop": [free.text[i : i + 3]]}
        expected = engine.generate([5, 6], **wanted)
        got = engine.generate(
            [5, 6], **wanted, draft=Oracle([[5, 6, *free.token_ids]]), num_speculative=8, adaptive=False
        )
        assert same(got, expected)


def test_drafts_of_several_completions_and_chunks():
    engine = make_engine(n_blocks=40)
    wanted = {"seed": 3, "max_tokens": 20, "n": 5, "logprobs": 1}
    expected = engine.generate([[4, 5], [6, 7, 8]], **wanted)
    every = [[*p, *one.token_ids] for p, some in zip([[4, 5], [6, 7, 8]], expected, strict=True) for one in some]
    guessing = {"draft": [Oracle(every, 5), "lookup"], "num_speculative": 6, "adaptive": False}
    got = engine.generate([[4, 5], [6, 7, 8]], **wanted, **guessing)
    assert all(
        same(a, b) for some, others in zip(got, expected, strict=True) for a, b in zip(some, others, strict=True)
    )
    pieces = list(engine.stream([4, 5], **wanted, **guessing))
    for i, one in enumerate(expected[0]):
        assert [t for c in pieces if c.index == i for t in c.token_ids] == one.token_ids
    assert_idle(engine)


def test_drafts_in_batches_and_coroutines():
    engine = make_engine(n_blocks=40)
    prompts = [[3 + i, 4] for i in range(6)]
    expected = engine.generate(prompts, seed=2, max_tokens=15)
    guessing = {"draft": Oracle(texts(prompts, expected), 4), "num_speculative": 5, "adaptive": False}
    assert all(map(same, engine.batch(prompts, seed=2, max_tokens=15, **guessing), expected))

    async def together():
        return await AsyncEngine(engine).generate(prompts, seed=2, max_tokens=15, **guessing)

    assert all(map(same, asyncio.run(together()), expected))
    assert engine.metrics_snapshot().spec_accepted > 0


def test_an_accepted_draft_saves_steps_and_is_counted():
    engine = make_engine(context_size=200)
    whole = engine.generate([3], max_tokens=41, seed=1, ignore_eos=True).token_ids
    runner_of(engine).steps.clear()
    got = engine.generate(
        [3], max_tokens=41, seed=1, ignore_eos=True, draft=Oracle([[3, *whole]]), num_speculative=7, adaptive=False
    )
    assert got.token_ids == whole
    assert runner_of(engine).steps == [[1]] + [[8]] * 5
    s = got.speculation
    assert (s.rounds, s.drafted, s.accepted, s.rejected, s.bonus) == (5, 35, 35, 0, 5)
    assert (s.acceptance_rate, s.n1_fallbacks, s.off) == (1.0, 0, "")
    assert s.elapsed > s.draft_seconds > 0.0
    snapshot = engine.metrics_snapshot()
    assert (snapshot.spec_rounds, snapshot.spec_drafted, snapshot.spec_accepted) == (5, 35, 35)
    assert snapshot.generation_tokens == 82
    assert snapshot.prefill_tokens == 2  # draft tokens don't count as prompts
    assert engine.generate([3], max_tokens=2).speculation is None


def test_a_recurrent_state_is_computed_again_after_a_rejection():
    engine = make_engine(context_size=200, n_blocks=0, n_slots=8)
    whole = engine.generate([3], max_tokens=20, seed=1, ignore_eos=True).token_ids
    runner_of(engine).steps.clear()
    got = engine.generate(
        [3], max_tokens=20, seed=1, ignore_eos=True, cache_prompt=False,
        draft=Oracle([[3, *whole]], 5), num_speculative=4, adaptive=False,
    )  # fmt: skip
    assert got.token_ids == whole
    again = sum(
        a[0] > 1 and b[0] <= a[0] for a, b in zip(runner_of(engine).steps, runner_of(engine).steps[1:], strict=False)
    )
    assert 0 < got.speculation.n1_fallbacks <= again
    assert got.speculation.n1_fallbacks == got.speculation.rounds - got.speculation.bonus


def test_a_draft_is_called_once_a_step_for_all_requests():
    engine = make_engine(n_blocks=40)
    prompts = [[3 + i, 4] for i in range(5)]
    expected = engine.generate(prompts, seed=2, max_tokens=12, ignore_eos=True)
    oracle = Oracle(texts(prompts, expected))
    engine.generate(prompts, seed=2, max_tokens=12, ignore_eos=True, draft=oracle, num_speculative=3, adaptive=False)
    assert max(len(call) for call in oracle.calls) == 5
    assert all(len({key for key, _, _ in call}) == len(call) for call in oracle.calls)
    assert len(oracle.bound) == 1
    assert oracle.bound[0].tokenizer is engine.tokenizer


def test_the_first_draft_of_a_list_with_a_proposal_counts():
    engine = make_engine()
    whole = [3, *engine.generate([3], max_tokens=20, seed=1, ignore_eos=True).token_ids]
    first, second = Oracle([whole], stops=2), Oracle([whole])
    engine.generate(
        [3], max_tokens=20, seed=1, ignore_eos=True, draft=[first, second], num_speculative=2, adaptive=False
    )
    assert {n % 2 for call in second.calls for _, n, _ in call} == {0}
    assert {n % 2 for call in first.calls for _, n, _ in call} == {0, 1}


def test_drafts_from_many_threads():
    engine = make_engine(n_blocks=60)
    prompts = [[3 + i, 4] for i in range(6)]
    expected = engine.generate(prompts, seed=2, max_tokens=30)
    oracle = Oracle(texts(prompts, expected), 6)
    found = [None] * 6

    def ask(i):
        draft = [oracle, PromptLookup()] if i % 2 else None
        more = {"num_speculative": i, "adaptive": False} if draft else {}
        found[i] = engine.generate(prompts[i], seed=2, max_tokens=30, draft=draft, **more)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(map(same, [dataclasses.replace(one, index=i) for i, one in enumerate(found)], expected))
    assert_idle(engine)
    assert sum((one.speculation or SpecStats()).accepted for one in found) > 0
