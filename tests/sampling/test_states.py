"""The state of a request: copied, taken back, saved."""

import json
import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.config import SamplerConfig
from oxillama.errors import ConfigError
from oxillama.kernels.sampling import Candidates
from oxillama.sampling import Sampler
from oxillama.sampling.state import History
from tests.sampling.settings import PROMPTS, WILDER

CHANGES = st.one_of(st.integers(0, 4), st.sampled_from(["pop", "pop", "copy", "look", "look"]))


@settings(max_examples=300)
@given(st.integers(0, 5), st.lists(CHANGES, max_size=40), st.lists(st.integers(0, 4)))
def test_window_counts_its_tokens(size, changes, prompt):
    """Whenever they are looked at: after each token, or after more than the window holds."""
    history, seen = History(size, prompt), list(prompt)
    for change in [*changes, "look"]:
        if change == "look":
            window = seen[-size:] if size else []
            assert history.counts == {t: window.count(t) for t in window}
        elif change == "copy":
            history = history.copy()
        elif change != "pop":
            history.tokens.append(change)
            seen.append(change)
        elif len(seen) > len(prompt):
            history.pop()
            seen.pop()
        assert history.tokens.tolist() == seen


@pytest.mark.parametrize("n_before", [3, 9, 40])
def test_ctrl_c_in_the_middle_of_counting_spoils_no_count(n_before):
    """At each line of it: the next look counts all of them once."""

    def interrupted(history, line):
        def trace(frame, event, arg):
            nonlocal line
            if event == "line" and frame.f_code.co_filename.endswith("sampling/state.py"):
                line -= 1
                if not line:
                    raise KeyboardInterrupt
            return trace

        previous = sys.gettrace()
        sys.settrace(trace)
        try:
            history.counts  # noqa: B018
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(previous)
        return False

    line = 1
    while True:
        history = History(10, range(n_before))
        assert history.counts
        history.tokens.extend(range(5))
        cut = interrupted(history, line)
        assert history.counts == History(10, history.tokens).counts
        if not cut:
            break
        line += 1
    assert line > 10


def run(sampler, rows):
    tokens = []
    for row in rows:
        tokens.append(sampler.sample(row))
        sampler.accept(tokens[-1])
    return tokens


@settings(max_examples=50)
@given(WILDER, PROMPTS, st.integers(0, 9), st.integers(0, 9))
def test_what_was_taken_back_comes_again(config, prompt, noise, kept):
    rows = np.random.default_rng(noise).standard_normal((9, 20)).astype(np.float32)
    sampler = Sampler(config, prompt=prompt)
    run(sampler, rows[:kept])
    there = sampler.state()
    rest = run(sampler, rows[kept:])
    for _ in range(3):
        sampler.sample(rows[0])  # drawn, and not accepted
    sampler.rewind(9 - kept)
    assert sampler.state() == there
    assert run(sampler, rows[kept:]) == rest


STEPS = st.lists(st.sampled_from(["draw", "give", "give", "drop", "mu", "copy", "back", "save"]), max_size=30)


@settings(max_examples=200)
@given(st.sampled_from([{}, {"temperature": 0.0}, {"mirostat": 2}]), STEPS, st.integers(0, 3))
def test_the_generator_and_mu_are_those_of_each_token(settings, steps, n_back):
    """Also where tokens are given, which move neither: what is remembered is what a list of all of them says."""
    row = np.random.default_rng(0).standard_normal(20).astype(np.float32)
    sampler = Sampler(SamplerConfig(seed=7, **settings), prompt=[1, 2])
    marks = [[sampler.memory.rng.state, sampler.memory.mu]]
    for step in steps:
        memory = sampler.memory
        if step == "back":
            n = min(n_back, len(marks) - 1)
            sampler.rewind(n)
            del marks[len(marks) - n :]
            assert [memory.rng.state, memory.mu] == marks[-1]
        elif step == "copy":
            sampler = sampler.copy()
        elif step == "save":
            sampler = Sampler.from_state(sampler.state(), sampler.config)
        elif step == "drop":
            sampler.sample(row)
        elif step == "mu":  # as a stage of the user's may change it
            memory.mu += 0.5
        else:
            sampler.accept(sampler.sample(row) if step == "draw" else 3)
            marks.append([memory.rng.state, memory.mu])
    assert sampler.state()["marks"] == marks
    assert sampler.memory.n_accepted == len(marks) - 1


@settings(max_examples=50)
@given(WILDER, PROMPTS, st.integers(0, 9), st.integers(0, 9))
def test_a_saved_state_goes_on_alike(config, prompt, noise, kept):
    rows = np.random.default_rng(noise).standard_normal((9, 20)).astype(np.float32)
    sampler = Sampler(config, prompt=prompt)
    run(sampler, rows[:kept])
    sampler.sample(rows[0])
    data = json.loads(json.dumps(sampler.state()))
    twins = [Sampler.from_state(data, config), sampler.copy()]
    expected = run(sampler, rows[kept:])
    for other in twins:
        assert run(other, rows[kept:]) == expected
        other.rewind(9)
        assert run(other, rows) == (sampler.rewind(9), run(sampler, rows))[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": None}, "tokens of the saved state"),
        ({"tokens": [1, -2, 3]}, r"tokens of the saved state\[1\]"),
        ({"n_prompt": 9}, "n_prompt of the saved state must be from 0 to 3, not 9"),
        ({"n_prompt": None}, "n_prompt of the saved state"),
        ({"rng": 0}, "generator of the saved state"),
        ({"rng": 1 << 64}, "generator of the saved state"),
        ({"mu": math.nan}, "mu of the saved state"),
        ({"mu": "1"}, "mu of the saved state"),
        ({"marks": [[1, 1.0]]}, "marks of the saved state must be 3 pairs"),
        ({"marks": [[1, 1.0], [1], [1, 1.0]]}, "marks of the saved state"),
        ({"marks": "abc"}, "marks of the saved state"),
    ],
)
def test_damaged_states_are_refused(change, message):
    sampler = Sampler(SamplerConfig(seed=1), prompt=[1])
    sampler.accept(2)
    sampler.accept(3)
    with pytest.raises(ConfigError, match=message):
        Sampler.from_state(sampler.state() | change, sampler.config)
    with pytest.raises(ConfigError, match="data must be"):
        Sampler.from_state([1], sampler.config)


def test_only_accepted_tokens_can_be_taken_back():
    sampler = Sampler(prompt=[1, 2, 3])
    sampler.accept(4)
    with pytest.raises(ConfigError, match="n must be from 0 to 1, not 2"):
        sampler.rewind(2)
    sampler.rewind(1)
    assert sampler.memory.history.tokens.tolist() == [1, 2, 3]


def test_a_copy_goes_on_by_itself():
    rows = np.random.default_rng(0).standard_normal((20, 30)).astype(np.float32)
    config = SamplerConfig(temperature=2.0, seed=5)
    one = Sampler(config)
    for row in rows[:10]:
        one.accept(one.sample(row))
    two = one.copy()

    def go_on(sampler):
        tokens = []
        for row in rows[10:]:
            tokens.append(sampler.sample(row))
            sampler.accept(tokens[-1])
        return tokens

    assert go_on(one) == go_on(two)
    assert one.memory is not two.memory


def test_one_buffer_serves_samplers_in_turn():
    rows = np.random.default_rng(3).standard_normal((12, 30)).astype(np.float32)
    scratch = Candidates()
    shared = [Sampler(SamplerConfig(seed=s), scratch=scratch) for s in (1, 2)]
    alone = [Sampler(SamplerConfig(seed=s)) for s in (1, 2)]
    for row in rows:
        assert [s.sample(row) for s in shared] == [s.sample(row) for s in alone]


@settings(max_examples=50)
@given(WILDER, PROMPTS, PROMPTS, st.integers(0, 9), st.integers(0, 9))
def test_after_a_restart_it_is_as_new(config, before, prompt, noise, n):
    rows = np.random.default_rng(noise).standard_normal((9, 20)).astype(np.float32)
    sampler = Sampler(config, prompt=before)
    run(sampler, rows[:n])
    sampler.sample(rows[0])
    sampler.restart(prompt)
    fresh = Sampler.from_state(Sampler(config, prompt=prompt).state() | {
        name: sampler.state()[name] for name in ("rng", "marks")
    }, config)  # fmt: skip
    assert sampler.state() == fresh.state()
    assert run(sampler, rows) == run(fresh, rows)


def test_a_restart_without_a_seed_draws_other_numbers_if_asked_to():
    sampler = Sampler(SamplerConfig(seed=3), prompt=[1])
    first = sampler.state()
    run(sampler, np.zeros((3, 9), np.float32))
    sampler.restart([1], reseed=True)
    assert sampler.state() == first
    sampler = Sampler(SamplerConfig(), prompt=[1])
    first = sampler.state()
    sampler.restart([1])
    assert sampler.state() == first
    sampler.restart([1], reseed=True)
    assert sampler.state()["rng"] != first["rng"]
    assert sampler.state()["marks"][0][0] == sampler.state()["rng"]
