"""Recurrent and hybrid models: whatever runs, fails or is taken back, each state is that of its tokens and no other."""

from collections import deque
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.core.runner import StepAbandoned
from oxillama.errors import ConfigError, KvCacheFullError
from oxillama.scheduling.pools import SequencePool
from oxillama.scheduling.scheduler import Scheduler
from tests.core.counted import KINDS, rows
from tests.fakes import (
    N_VOCAB,
    assert_idle,
    core_of,
    drawn,
    logits_of,
    make_engine,
    options,
    runner_of,
    sequence_of,
    session_of,
    slots_of,
)
from tests.plain_loop import plain_tokens

TOKENS = st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=20)


def say(talk, prompt, **given):
    return [t for c in talk.stream(prompt, options(ignore_eos=True, **given)) for t in c.token_ids]


@KINDS
@given(
    calls=st.lists(
        st.one_of(
            st.tuples(st.just("append"), TOKENS),
            st.tuples(st.just("at"), TOKENS, st.floats(0, 1)),
            st.tuples(st.just("one"), st.integers(0, N_VOCAB - 1)),
            st.tuples(st.just("truncate"), st.floats(0, 1)),
            st.tuples(st.just("generate"), TOKENS),
            st.tuples(st.just("fail"), TOKENS, st.integers(0, 3)),
        ),
        max_size=14,
    ),
    chunk=st.sampled_from([1, 5, 64]),
    n_slots=st.integers(2, 9),
)
def test_a_session_sees_exactly_its_tokens(blocks, calls, chunk, n_slots):
    engine = make_engine(context_size=300, prefill_chunk_size=chunk, n_slots=n_slots, **blocks)
    tokens = []
    for call, *args in calls:
        if call == "truncate":
            n = round(args[0] * len(tokens))
            engine.truncate(n)
            tokens = tokens[:n]
        elif call == "generate":
            assert (
                engine.generate(args[0], max_tokens=3, seed=1).token_ids == plain_tokens(args[0], drawn(seed=1), 3)[0]
            )
        elif call == "fail":
            fail_after(engine, args[1])
            with suppress(ZeroDivisionError):
                engine.prefill(args[0])
                tokens = tokens + args[0]
            runner_of(engine).hook = None
        else:
            n = round(args[1] * len(tokens)) if call == "at" else len(tokens)
            new = [args[0]] if call == "one" else args[0]
            tokens = tokens[:n] + new
            row = engine.forward_decode(args[0], n) if call == "one" else engine.forward_prefill(new, n)
            assert row.tolist() == logits_of(tokens).tolist()
        assert engine.position == len(tokens)
        assert_idle(engine)
    engine.reset()
    assert slots_of(sequence_of(session_of(engine))) == set()
    assert_idle(engine)


def fail_after(engine, n):
    """From the step after n more on, the model fails."""
    left = [n]

    def hook(runner, spans, poll):
        left[0] -= 1
        if left[0] < 0:
            raise ZeroDivisionError

    runner_of(engine).hook = hook


@KINDS
@given(
    turns=st.lists(st.tuples(TOKENS, st.integers(1, 10), st.floats(0, 1)), min_size=1, max_size=5),
    chunk=st.sampled_from([3, 64]),
    n_slots=st.integers(2, 9),
)
def test_a_dialogue_gives_what_whole_prompts_give(blocks, turns, chunk, n_slots):
    engine = make_engine(context_size=300, prefill_chunk_size=chunk, n_slots=n_slots, **blocks)
    talk = engine.conversation()
    history = []
    for new, n, kept in turns:
        history = history[: round(kept * len(history))] + new  # an edited history, unless all is kept
        got = [t for c in talk.stream(history, options(max_tokens=n, seed=1)) for t in c.token_ids]
        assert got == engine.generate(history, max_tokens=n, seed=1).token_ids
        history += got
    talk.reset()
    assert_idle(engine)


@KINDS
@settings(max_examples=60)
@given(
    jobs=st.lists(st.tuples(TOKENS, st.integers(1, 12), st.integers(0, 25)), min_size=1, max_size=8),
    turns=st.lists(TOKENS, max_size=4),
    abandoned=st.lists(st.booleans(), max_size=40),
    chunk=st.sampled_from([1, 4, 64]),
    n_slots=st.integers(2, 12),
)
def test_any_schedule_gives_what_each_gives_alone(blocks, jobs, turns, abandoned, chunk, n_slots):
    """Streams that begin, are left, and share steps with a dialogue and a session; steps are given up at random."""
    give_up = deque(abandoned)

    def hook(runner, spans, poll):
        if give_up and give_up.popleft():
            raise StepAbandoned

    engine = make_engine(context_size=120, prefill_chunk_size=chunk, n_slots=n_slots, hook=hook, **blocks)
    talk, said, session = engine.conversation(), [], []
    running = []
    for i, (prompt, n, leave) in enumerate(jobs):
        stream = engine.stream(prompt, max_tokens=n, seed=i, ignore_eos=True)
        running.append((stream, prompt, n, i, leave, []))
    turns = deque(turns)
    for step in range(40):
        for job in list(running):
            stream, prompt, n, seed, leave, got = job
            chunk_ = next(stream, None) if step < leave else None
            if chunk_ is not None:
                got += chunk_.token_ids
                continue
            stream.close()
            running.remove(job)
            want = plain_tokens(prompt, drawn(seed=seed), n, ignore_eos=True)[0]
            assert got == (want if step < leave else want[: len(got)])
        if turns:
            new = turns.popleft()
            session += new
            assert engine.prefill(new).tolist() == logits_of(session).tolist()
            said += new
            got = say(talk, said, max_tokens=3, seed=1)
            assert got == plain_tokens(said, drawn(seed=1), 3, ignore_eos=True)[0]
            said += got
    talk.close()
    assert_idle(engine)


@KINDS
def test_embeddings_and_logits_of_all_positions(blocks):
    engine = make_engine(prefill_chunk_size=3, n_slots=4, **blocks)
    plain = make_engine()
    ids = [3, 4, 5, 6, 7, 8, 9, 3]
    assert engine.forward_logits(ids).tolist() == plain.forward_logits(ids).tolist()
    assert engine.embed([ids, ids[:2]]).tolist() == plain.embed([ids, ids[:2]]).tolist()
    assert_idle(engine)


@KINDS
def test_going_on_computes_only_what_is_new(blocks):
    engine = make_engine(n_slots=6, prefix_cache=False, **blocks)
    engine.prefill([3] * 20)
    runner_of(engine).steps.clear()
    engine.prefill([4, 5])
    engine.forward_one(6)
    assert runner_of(engine).steps == [[2], [1]]


@KINDS
def test_a_token_is_tried_again_from_a_checkpoint(blocks):
    engine = make_engine(n_slots=6, **blocks)
    engine.prefill([3] * 20)
    for token in (4, 5, 6):
        runner_of(engine).steps.clear()
        assert engine.forward_decode(token, 20).tolist() == logits_of([3] * 20 + [token]).tolist()
        assert runner_of(engine).steps == [[1]]


@KINDS
def test_truncating_goes_to_the_last_checkpoint_and_computes_the_rest_again(blocks):
    engine = make_engine(n_slots=6, prefix_cache=False, **blocks)
    engine.prefill([3] * 20)
    engine.prefill([4] * 10)
    engine.truncate(25)
    runner_of(engine).steps.clear()
    assert engine.forward_one(7).tolist() == logits_of([3] * 20 + [4] * 5 + [7]).tolist()
    assert runner_of(engine).steps == [[6]]
    engine.truncate(19)
    runner_of(engine).steps.clear()
    assert engine.forward_one(7).tolist() == logits_of([3] * 19 + [7]).tolist()
    assert runner_of(engine).steps == [[20]]


@KINDS
def test_another_answer_to_the_same_prompt_computes_one_token_of_it(blocks):
    engine = make_engine(n_slots=8, **blocks)
    talk = engine.conversation()
    for seed in (1, 2, 3):
        runner_of(engine).steps.clear()
        answer = [
            t for c in talk.stream([3] * 30, options(max_tokens=4, seed=seed, ignore_eos=True)) for t in c.token_ids
        ]
        assert answer == plain_tokens([3] * 30, drawn(seed=seed), 4, ignore_eos=True)[0]
        assert rows(runner_of(engine).steps) == (30 if seed == 1 else 1) + 3
    runner_of(engine).steps.clear()
    list(talk.stream([3] * 30 + answer + [5], options(max_tokens=1)))
    assert rows(runner_of(engine).steps) == 2  # the last token of the answer was drawn but not computed


def test_kept_states_make_room_for_those_who_run_and_are_computed_again():
    engine = make_engine(n_blocks=0, n_slots=4)
    talks = [engine.conversation() for _ in range(6)]
    for talk in talks:
        say(talk, [3] * 10, max_tokens=3, seed=1)
    engine.prefill([4] * 9)
    assert sum(talk.n_computed > 0 for talk in talks) >= 1
    for talk in talks:
        got = [
            t for c in talk.stream([3] * 10 + [5], options(max_tokens=3, seed=1, ignore_eos=True)) for t in c.token_ids
        ]
        assert got == plain_tokens([3] * 10 + [5], drawn(seed=1), 3, ignore_eos=True)[0]
    assert engine.forward_one(5).tolist() == logits_of([4] * 9 + [5]).tolist()
    for talk in talks:
        talk.close()
    assert_idle(engine)


def test_checkpoints_go_before_states():
    engine = make_engine(n_blocks=0, n_slots=8)
    for i in range(9):
        engine.forward_one(3 + i)
    assert len(slots_of(sequence_of(session_of(engine)))) == 4
    runner_of(engine).steps.clear()
    engine.generate([[3], [4], [5]], max_tokens=4, seed=1, ignore_eos=True)
    assert max(len(step) for step in runner_of(engine).steps) == 3
    runner_of(engine).steps.clear()
    assert engine.forward_one(5).tolist() == logits_of([*range(3, 12), 5]).tolist()
    assert runner_of(engine).steps == [[1]]


def test_who_finds_no_slot_waits():
    engine = make_engine(n_blocks=0, n_slots=4)
    prompts = [[3 + i] * 5 for i in range(7)]
    got = engine.generate(prompts, max_tokens=5, seed=1, ignore_eos=True)
    assert max(len(step) for step in runner_of(engine).steps) == 2
    for completion, prompt in zip(got, prompts, strict=True):
        assert completion.token_ids == plain_tokens(prompt, drawn(seed=1), 5, ignore_eos=True)[0]
    assert_idle(engine)


def test_a_context_of_a_million_needs_no_blocks():
    engine = make_engine(context_size=1 << 20, n_blocks=0, n_slots=2)
    assert len(engine.generate([3], max_tokens=600, seed=1, ignore_eos=True).token_ids) == 600
    assert engine.generate([3], seed=1).finish_reason == "stop"
    assert core_of(engine).pool.n_blocks == 0


def test_a_hybrid_needs_blocks_too():
    engine = make_engine(n_blocks=2, n_slots=6)
    with pytest.raises(KvCacheFullError, match=r"40 tokens.* 3 KV blocks"):
        engine.prefill([3] * 40)
    assert_idle(engine)


def test_one_slot_is_not_enough():
    with pytest.raises(ConfigError, match="at least 2 slots"):
        Scheduler(SequencePool(0, 1), 16, 512)
