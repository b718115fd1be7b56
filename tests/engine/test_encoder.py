"""Models that read texts whole: each in one step, and for embeddings alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxillama.errors import ContextOverflowError, GenerateError
from tests.fakes import N_VOCAB, assert_idle, make_engine, runner_of

TEXTS = st.lists(st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=40), min_size=1, max_size=8)


@given(TEXTS, st.sampled_from([1, 3, 20, 512]))
def test_a_text_is_never_divided(texts, budget):
    engine = make_engine(causal=False, prefill_chunk_size=budget, n_blocks=8)
    got = engine.embed(texts)
    assert got.tolist() == make_engine().embed(texts).tolist()
    steps = runner_of(engine).steps
    assert [n for step in steps for n in step] == sorted((len(text) for text in texts), reverse=True)
    assert all(len(step) == 1 or sum(step) <= budget for step in steps)
    assert_idle(engine)


def test_a_step_that_is_given_up_is_done_again_whole():
    engine = make_engine(causal=False, prefill_chunk_size=8, hook=interrupt_once())
    texts = [[3] * 5, [4] * 30, [5] * 2, [6] * 40]
    with pytest.raises(KeyboardInterrupt):
        engine.embed(texts)
    assert_idle(engine)
    assert engine.embed(texts).tolist() == make_engine().embed(texts).tolist()


def interrupt_once():
    left = [None]

    def hook(runner, spans, poll):
        if left:
            left.pop()
            raise KeyboardInterrupt

    return hook


def test_as_long_as_the_context_and_no_longer():
    engine = make_engine(causal=False, context_size=32, prefill_chunk_size=4)
    assert np.isfinite(engine.embed([3] * 32)).all()
    with pytest.raises(ContextOverflowError, match="input has 33 tokens and context_size is 32"):
        engine.embed([3] * 33)


@pytest.mark.parametrize(
    "use",
    [
        lambda e: e.generate("ab"),
        lambda e: e.generate(["ab", "c"]),
        lambda e: e.stream("ab"),
        lambda e: e.chat([{"role": "user", "content": "ab"}]),
        lambda e: e.forward_logits([3, 4]),
        lambda e: e.prefill([3, 4]),
        lambda e: e.forward_prefill([3, 4], 0),
        lambda e: e.forward_decode(3, 0),
        lambda e: e.forward_one(3),
        lambda e: e.conversation(),
    ],
)
def test_it_has_no_next_token(use):
    engine = make_engine(causal=False)
    with pytest.raises(GenerateError, match="architecture fake reads texts whole"):
        use(engine)
    assert engine.position == 0
    assert_idle(engine)
