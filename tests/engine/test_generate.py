"""Text out of the engine, on a fake model whose logits are a hash of what its KV blocks really hold."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.config import SamplerConfig
from oxillama.core.results import Completion, Timings
from oxillama.errors import ConfigError, GenerateError
from tests.core.stop_strings import search
from tests.fakes import EOS, assert_idle, drawn, make_engine, runner_of
from tests.plain_loop import CONFIGS, PROMPTS, plain_tokens, text_of


@given(st.lists(st.tuples(PROMPTS, CONFIGS, st.integers(1, 30)), min_size=1, max_size=6), st.sampled_from([1, 3, 16]))
def test_tokens_are_those_of_the_plain_loop(requests, chunk):
    engine = make_engine(prefill_chunk_size=chunk)
    for prompt, config, n in requests:
        r = engine.generate(prompt, max_tokens=n, sampler=config)
        assert (r.token_ids, r.finish_reason) == plain_tokens(prompt, config, n)
        assert r.text == str(r) == text_of(r.token_ids)
        assert r.prompt_tokens == len(prompt)
    assert_idle(engine)


@given(st.lists(PROMPTS, min_size=1, max_size=8), CONFIGS, st.sampled_from([1, 4, 50]), st.integers(4, 9))
def test_a_list_gives_what_each_prompt_gives_alone(prompts, config, chunk, n_blocks):
    engine = make_engine(prefill_chunk_size=chunk, n_blocks=n_blocks)
    together = engine.generate(prompts, max_tokens=12, sampler=config)
    for prompt, r in zip(prompts, together, strict=True):
        assert (r.token_ids, r.finish_reason) == plain_tokens(prompt, config, 12)
    assert_idle(engine)


def test_a_list_shares_steps():
    engine = make_engine()
    engine.generate([[3, 4], [5], [6, 7, 8]], max_tokens=3, ignore_eos=True)
    assert runner_of(engine).steps == [[2, 1, 3], [1, 1, 1], [1, 1, 1]]


def test_nothing_is_computed_for_the_last_token():
    engine = make_engine()
    engine.generate([3, 4], max_tokens=1)
    assert runner_of(engine).steps == [[2]]


@given(st.integers(0, 30), st.lists(st.text("abcdefgh .", min_size=1, max_size=3), max_size=3), st.integers(1, 40))
def test_stop_strings_cut_the_text_of_the_free_run(seed, stops, n):
    engine = make_engine()
    free = engine.generate("the bed", max_tokens=n, seed=seed)
    r = engine.generate("the bed", max_tokens=n, seed=seed, stop=stops)
    text, stopped = search(stops, free.text)
    assert r.text == text
    assert r.finish_reason == ("stop" if stopped else free.finish_reason)
    assert r.token_ids == free.token_ids[: len(r.token_ids)]
    assert_idle(engine)


def test_stop_may_be_one_string():
    engine = make_engine()
    free = engine.generate("the ", max_tokens=30, seed=4).text
    assert engine.generate("the ", max_tokens=30, seed=4, stop=free[3:5]).text == free[: free.index(free[3:5])]


@settings(max_examples=30)
@given(st.integers(0, 50), st.sampled_from([None, "b", "the "]))
def test_chunks_of_a_stream_are_the_completion(seed, stop):
    engine = make_engine()
    whole = engine.generate("a cab", max_tokens=25, seed=seed, stop=stop)
    chunks = list(engine.stream("a cab", max_tokens=25, seed=seed, stop=stop))
    assert "".join(c.text for c in chunks) == whole.text
    assert [t for c in chunks for t in c.token_ids] == whole.token_ids
    assert [c.finish_reason for c in chunks] == [None] * (len(chunks) - 1) + [whole.finish_reason]
    assert all(c.text for c in chunks[:-1])


def test_characters_are_never_split():
    engine = make_engine()
    for seed in range(20):
        chunks = list(engine.stream("a", max_tokens=30, seed=seed, temperature=2.0))
        joined = [t for c in chunks for t in c.token_ids]
        assert "".join(c.text for c in chunks) == text_of(joined)


def test_on_token_gets_the_pieces():
    engine = make_engine()
    pieces = []
    r = engine.generate("ab", max_tokens=20, seed=3, on_token=pieces.append)
    assert "".join(pieces) == r.text
    assert all(pieces)
    found = {0: "", 1: ""}

    def collect(index, piece):
        found[index] += piece

    rs = engine.generate(["ab", "cd"], max_tokens=20, seed=3, on_token=collect)
    assert found == {0: rs[0].text, 1: rs[1].text}
    assert rs[0].text == r.text


def test_max_tokens_is_cut_at_the_end_of_the_context():
    engine = make_engine(context_size=32)
    for n in (None, 1000, 1 << 20):
        r = engine.generate([3] * 20, max_tokens=n, ignore_eos=True)
        assert len(r.token_ids) == 12
        assert r.finish_reason == "length"
    assert len(engine.generate([3] * 31, ignore_eos=True).token_ids) == 1


def test_without_max_tokens_a_small_cache_is_filled():
    engine = make_engine(context_size=64, n_blocks=2)
    assert len(engine.generate([3] * 10, ignore_eos=True).token_ids) == 22


def test_the_end_token_is_in_neither_text_nor_ids():
    engine = make_engine()
    r = next(r for s in range(99) if (r := engine.generate("a", max_tokens=30, seed=s)).finish_reason == "stop")
    assert EOS not in r.token_ids
    longer = engine.generate("a", max_tokens=30, sampler=SamplerConfig(seed=1), ignore_eos=True)
    assert len(longer.token_ids) == 30


def test_seeds():
    engine = make_engine()
    one, two = (engine.generate("a", seed=s, max_tokens=20, ignore_eos=True).token_ids for s in (1, 2))
    assert one == engine.generate("a", seed=1, max_tokens=20, ignore_eos=True).token_ids
    assert one != two
    assert len({tuple(engine.generate("a", max_tokens=20, ignore_eos=True).token_ids) for _ in range(5)}) == 5


def test_single_fields_replace_those_of_a_sampler():
    engine = make_engine()
    base = drawn(temperature=1.5, seed=7, top_p=1.0)
    mixed = engine.generate("a", max_tokens=20, sampler=base, temperature=0.0)
    assert mixed.token_ids == plain_tokens(engine.tokenize("a"), drawn(temperature=0.0, top_p=1.0, seed=7), 20)[0]


def test_timings_add_up():
    engine = make_engine(prefill_chunk_size=4)
    r = engine.generate([3] * 20, max_tokens=10, ignore_eos=True)
    t = r.timings
    assert 0 < t.prefill_seconds <= t.time_to_first_token
    assert t.decode_seconds > 0


def test_completion_is_its_text():
    r = Completion("hi", [1], "stop", 3)
    assert f"{r}" == "hi"
    assert r.timings == Timings()
    assert r.logprobs is None


def test_prompts_may_be_arrays():
    import numpy as np

    engine = make_engine()
    expected = engine.generate([3, 4, 5], max_tokens=5, seed=1)
    assert engine.generate(np.array([3, 4, 5]), max_tokens=5, seed=1).token_ids == expected.token_ids
    assert engine.generate((3, 4, 5), max_tokens=5, seed=1).token_ids == expected.token_ids
    both = engine.generate([np.array([3, 4, 5]), "ab"], max_tokens=5, seed=1)
    assert both[0].token_ids == expected.token_ids


def test_a_damaged_row_fails_its_request_and_no_other():
    def damage(runner, spans, poll):
        runner.broken = {i for i, s in enumerate(spans) if list(s.tokens[:2]) == [9, 9]}

    engine = make_engine(hook=damage)
    runner = runner_of(engine)
    forward = runner.forward

    def nan_for_the_broken(spans, poll=None):
        rows = forward(spans, poll)
        rows[sorted(runner.broken)] = float("nan")
        return rows

    runner.forward = nan_for_the_broken
    good = engine.stream([3, 4], max_tokens=6, seed=1)
    first = next(good)
    with pytest.raises(GenerateError, match="nan"):
        engine.generate([9, 9], max_tokens=4)
    rest = [first, *good]
    assert [t for c in rest for t in c.token_ids] == plain_tokens([3, 4], drawn(seed=1), 6)[0]
    assert_idle(engine)


def test_an_error_of_the_model_ends_its_requests_and_the_engine_goes_on():
    failing = []

    def fail(runner, spans, poll):
        if failing:
            raise RuntimeError("kernel trouble")

    engine = make_engine(hook=fail)
    failing.append(1)
    with pytest.raises(RuntimeError, match="kernel trouble"):
        engine.generate(["a", "b"], max_tokens=4)
    assert_idle(engine)
    failing.clear()
    assert engine.generate([3], max_tokens=4, seed=1).token_ids == plain_tokens([3], drawn(seed=1), 4)[0]


def test_stream_takes_one_prompt():
    with pytest.raises(ConfigError, match="one prompt"):
        make_engine().stream(["a", "b"])
