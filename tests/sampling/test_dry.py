"""DRY against its definition, and breakers that tokens divide anyhow."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxillama.config import SamplerConfig
from oxillama.kernels.repeats import repeat_lengths
from oxillama.sampling import Sampler
from oxillama.sampling.dry import Breaks
from tests.sampling import twin

TOKENS = st.lists(st.integers(0, 3), max_size=40)


@given(TOKENS, st.integers(0, 40), st.integers(1, 5))
def test_repetitions(tokens, limit, least):
    found = repeat_lengths(np.array(tokens, np.int32), limit, least)
    # A multiplier of 1 and a base of 2: the penalty tells the length.
    expected = twin.dry(tokens, limit, least, 1.0, 2.0)
    assert {t: 2.0 ** (n - least) for t, n in found.items()} == expected


def test_long_texts_of_one_token():
    n = 100_000
    assert repeat_lengths(np.zeros(n, np.int32), n, 2) == {0: n - 1}


TEXTS = [b"a", b"b", b"ab", b"ba", b"", b"aab", b"x"]
BREAKERS = st.lists(st.sampled_from(["a", "b", "ab", "ba", "abb", "xa", "bab"]), max_size=3)


def breaks_by_text(tokens, breakers):
    """Positions of tokens that contain the last byte of a breaker, by looking at the whole text."""
    ends = set()
    text, owner = b"", []
    for i, token in enumerate(tokens):
        text += TEXTS[token]
        owner += [i] * len(TEXTS[token])
    for breaker in breakers:
        b = breaker.encode()
        ends |= {owner[at + len(b) - 1] for at in range(len(text)) if text.startswith(b, at)}
    return sorted(ends)


@given(st.lists(st.integers(0, 6), max_size=12), st.integers(0, 12), BREAKERS, st.integers(0, 12))
def test_breakers_in_text(tokens, n_prompt, breakers, n_cut):
    config = SamplerConfig(dry_multiplier=1, dry_sequence_breakers=breakers)
    breaks = Breaks(config, TEXTS.__getitem__)
    n_prompt = min(n_prompt, len(tokens))
    breaks.start(tokens[:n_prompt], None)
    for end in range(n_prompt + 1, len(tokens) + 1):
        breaks.push(tokens[:end])
    expected = breaks_by_text(tokens, breakers)
    assert breaks.last[-1:] == expected[-1:]
    n_left = max(n_prompt, len(tokens) - n_cut)
    breaks.cut(n_left)
    assert breaks.last[-1:] == [at for at in expected if at < n_left][-1:]
    assert [t for t in range(7) if breaks.is_breaker(t)] == [t for t in range(7) if breaks_by_text([t], breakers)]


def row_after(tokens, **settings):
    """What each of five tokens, of equal logits before, has lost."""
    config = SamplerConfig(dry_multiplier=1.0, dry_base=2.0, repetition_penalty=1.0, **settings)
    sampler = Sampler(config, prompt=tokens, token_bytes=[b"a", b"b", b"c", b"\n", b"e\n"].__getitem__)
    sampler.scratch.load(np.zeros(5, np.float32))
    for stage in sampler.chain.stages[:1]:
        assert stage(sampler.scratch, config, sampler.memory) is None
    return [-x for _, x in sampler.scratch.items()]


@pytest.mark.parametrize(
    ("tokens", "settings", "lost"),
    [
        ([0, 1, 2, 0, 1], {}, [0, 0, 1, 0, 0]),
        ([0, 1, 2, 0, 1, 2, 0, 1], {}, [0, 0, 8, 0, 0]),
        ([0, 1, 2, 0, 1], {"dry_allowed_length": 1}, [0, 0, 2, 0, 0]),
        ([0, 1, 2, 0, 1], {"dry_allowed_length": 3}, [0, 0, 0, 0, 0]),
        ([0, 1, 2, 0, 1], {"dry_window": 4}, [0, 0, 0, 0, 0]),
        # The repetition goes on after the break only.
        ([0, 3, 1, 2, 0, 3, 1], {}, [0, 0, 0, 0, 0]),
        ([0, 3, 1, 2, 0, 3, 1], {"dry_allowed_length": 1}, [0, 0, 1, 0, 0]),
        # What contains a breaker is never penalised.
        ([0, 1, 4, 0, 1], {}, [0, 0, 0, 0, 0]),
        ([0, 1, 4, 0, 1], {"dry_sequence_breakers": ()}, [0, 0, 0, 0, 1]),
        ([0, 1, 4, 0, 1], {"dry_sequence_breakers": [[4]]}, [0, 0, 0, 0, 0]),
        ([0, 1, 2, 0, 1], {"dry_sequence_breakers": [[0, 1]]}, [0, 0, 0, 0, 0]),
        ([0, 1, 2, 9, 9, 0, 1], {"dry_sequence_breakers": ()}, [0, 0, 1, 0, 0]),
    ],
)
def test_penalties(tokens, settings, lost):
    assert row_after(tokens, **settings) == lost


def test_huge_penalties_stay_finite():
    lost = row_after([0] * 3000, dry_sequence_breakers=())
    assert lost[0] == pytest.approx(1e30, rel=1)
    assert lost[1:] == [0, 0, 0, 0]
