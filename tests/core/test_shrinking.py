"""Memory of what nobody uses goes back to the system, and no result changes."""

import pytest

from oxillama.errors import ConfigError, EngineClosedError
from tests.fakes import assert_idle, core_of, drawn, logits_of, make_engine
from tests.plain_loop import plain_tokens

PROMPT = [3 + i % 7 for i in range(100)]
KINDS = pytest.mark.parametrize(
    "kept",
    [{}, {"n_blocks": 0, "n_slots": 9}, {"n_slots": 9}, {"windows": (30, 20)}, {"n_blocks": 0, "windows": (30, 20)}],
    ids=["attention", "recurrent", "hybrid", "windows too", "windows"],
)


@KINDS
def test_what_is_in_use_stays_and_all_else_goes(kept):
    engine = make_engine(context_size=200, **kept)
    pool = core_of(engine).pool
    engine.prefill(PROMPT[:50])
    assert engine.generate(PROMPT, max_tokens=3, seed=1, ignore_eos=True).token_ids
    held = pool.blocks.n_kept * 100 + pool.windowed.n_kept * 10 + pool.slots.n_kept
    assert engine.prefix_cache_bytes() == held > 0
    stream = engine.stream(PROMPT, max_tokens=5, seed=1, ignore_eos=True)
    got = list(next(stream).token_ids)
    in_use = [
        sum(users > (i in p._idle) for i, users in enumerate(p.users)) for p in (pool.blocks, pool.windowed, pool.slots)
    ]
    free = [p.n - n for p, n in zip((pool.blocks, pool.windowed, pool.slots), in_use, strict=True)]
    assert engine.shrink_to_fit() == free[0] * 100 + free[1] * 10 + free[2]
    got += [t for chunk in stream for t in chunk.token_ids]
    assert got == plain_tokens(PROMPT, drawn(seed=1), 5, ignore_eos=True)[0]
    assert engine.forward_one(5).tolist() == logits_of([*PROMPT[:50], 5]).tolist()
    engine.reset()
    engine.shrink_to_fit()
    assert engine.prefix_cache_bytes() == 0
    assert engine.generate(PROMPT, max_tokens=5, seed=1, ignore_eos=True).token_ids == got
    assert_idle(engine)


@KINDS
def test_the_least_recently_used_goes_until_little_enough_is_kept(kept):
    engine = make_engine(context_size=200, **kept)
    first, second = PROMPT, [9, *PROMPT]
    for prompt in (first, second):
        engine.generate(prompt, max_tokens=3, ignore_eos=True)
    held = engine.prefix_cache_bytes()
    engine.shrink_to_fit(held)
    assert engine.prefix_cache_bytes() == held
    engine.shrink_to_fit(held * 2 // 3)
    assert held // 3 < engine.prefix_cache_bytes() <= held * 2 // 3
    core_of(engine).scheduler.prefix.check_invariants()
    later, earlier = (engine.generate(p, max_tokens=1, ignore_eos=True).cached_tokens for p in (second, first))
    assert later > 80
    assert earlier < later or "windows" in kept  # windows move on, and leave little of either
    with pytest.raises(ConfigError, match="keep_bytes"):
        engine.shrink_to_fit(-1)
    assert_idle(engine)


def test_a_closed_engine_has_nothing_to_give():
    engine = make_engine()
    engine.close()
    assert engine.prefix_cache_bytes() == 0
    with pytest.raises(EngineClosedError):
        engine.shrink_to_fit()
