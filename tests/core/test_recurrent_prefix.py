"""Recurrent and hybrid models begin prompts with states that earlier ones left: which, and that they are right."""

from tests.core.counted import KINDS, generate
from tests.fakes import assert_idle, core_of, drawn, make_engine, runner_of
from tests.plain_loop import plain_tokens


@KINDS
def test_a_prompt_begins_with_the_last_state_that_its_beginning_left(blocks):
    engine = make_engine(context_size=300, n_slots=8, **blocks)
    system = [3 + i % 7 for i in range(50)]
    assert generate(engine, [*system, 4]) == 51
    assert generate(engine, [*system, 4]) == 3  # the state after three blocks of sixteen
    assert generate(engine, [*system, 4, 5, 6]) == 5
    prefix = core_of(engine).scheduler.prefix
    assert (prefix.hit_tokens, prefix.miss_tokens) == (96, 51 + 3 + 5)
    assert generate(engine, [*system, 4], cache_prompt=False) == 51
    assert generate(engine, [*system, 4], cache_salt="x") == 51
    assert_idle(engine)


@KINDS
def test_where_prompts_part_the_second_one_leaves_a_state_for_the_third(blocks):
    engine = make_engine(context_size=300, n_slots=8, **blocks)
    system = [3 + i % 7 for i in range(70)]
    tails = [[8 + i] * 40 for i in range(3)]
    assert [generate(engine, system + tail) for tail in tails] == [110, 110, 110 - 64]
    assert_idle(engine)


@KINDS
def test_steps_of_a_long_prompt_end_with_blocks_and_leave_states(blocks):
    engine = make_engine(context_size=300, n_slots=12, prefill_chunk_size=40, **blocks)
    prompt = [3 + i % 7 for i in range(140)]
    generate(engine, prompt)
    assert runner_of(engine).steps[:5] == [[32], [32], [32], [32], [12]]
    assert generate(engine, [*prompt[:100], 9]) == 5
    assert_idle(engine)


@KINDS
def test_a_long_prompt_leaves_the_states_of_others(blocks):
    engine = make_engine(context_size=300, n_slots=5, n_blocks=blocks.get("n_blocks", 90), prefill_chunk_size=16)
    first = [4] * 40
    generate(engine, first)
    generate(engine, [5] * 200)
    assert generate(engine, first) == 8
    assert_idle(engine)


@KINDS
def test_states_in_the_tree_make_room_for_those_who_run(blocks):
    engine = make_engine(n_slots=6, **blocks)
    for i in range(5):
        generate(engine, [3 + i] * 40)
    assert core_of(engine).pool.slots.n_kept == 4
    runner_of(engine).steps.clear()
    engine.generate([[9, 3 + i] for i in range(3)], max_tokens=4, seed=1, ignore_eos=True)
    assert max(len(step) for step in runner_of(engine).steps) == 3
    assert core_of(engine).pool.slots.n_kept == 0
    assert_idle(engine)


@KINDS
def test_many_begin_with_one_state(blocks):
    engine = make_engine(context_size=120, n_slots=9, n_blocks=blocks.get("n_blocks", 40))
    system = [3 + i % 7 for i in range(50)]
    generate(engine, system)
    runner_of(engine).steps.clear()
    prompts = [[*system, 4 + i] for i in range(4)]
    got = engine.generate(prompts, max_tokens=20, seed=1, ignore_eos=True)
    assert runner_of(engine).steps[0] == [3] * 4
    for completion, prompt in zip(got, prompts, strict=True):
        assert completion.token_ids == plain_tokens(prompt, drawn(seed=1), 20, ignore_eos=True)[0]
    assert_idle(engine)


@KINDS
def test_who_waits_for_a_beginning_gets_its_state(blocks):
    engine = make_engine(context_size=300, n_slots=8, **blocks)
    system = [3 + i % 7 for i in range(150)]
    prompts = [system + [8 + i] * 90 for i in range(2)]
    runner_of(engine).steps.clear()
    got = engine.generate(prompts, max_tokens=3, seed=1, ignore_eos=True)
    assert sum(sum(step) for step in runner_of(engine).steps) == 240 + (240 - 144) + 4
    for completion, prompt in zip(got, prompts, strict=True):
        assert completion.token_ids == plain_tokens(prompt, drawn(seed=1), 3, ignore_eos=True)[0]
