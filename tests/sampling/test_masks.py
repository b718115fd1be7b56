"""Masks of tokens by the text so far, against a twin that looks at everything."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.config import SamplerConfig
from oxillama.errors import ConfigError, GenerateError
from oxillama.grammar import Grammar, Vocabulary
from oxillama.kernels.sampling import Candidates
from oxillama.sampling import Sampler, SamplerChain
from oxillama.sampling.masks import TokenMasks
from oxillama.sampling.stages import STAGES
from oxillama.sampling.state import SamplerState

N = 9
IDS = st.integers(0, N - 1)
WORDS = st.lists(st.lists(IDS, min_size=1, max_size=4), max_size=4)
ROW = np.linspace(2.0, -1.0, N).astype(np.float32)
PLAIN = SamplerConfig(temperature=1.0, top_k=0, top_p=1.0, seed=3)


def plain_banned(config, text, end_ids):
    """Tokens that may not follow a text, by going through every word and every token."""
    banned = set()
    if config.allowed_token_ids is not None:
        banned |= set(range(N)) - set(config.allowed_token_ids)
    for word in config.bad_words:
        banned |= {t for t in range(N) if [*text, t][-len(word) :] == list(word)}
    return banned | (set(end_ids) if len(text) < config.min_tokens else set())


def masked(config, text, end_ids):
    row = ROW.copy()
    row[list(plain_banned(config, text, end_ids))] = -math.inf
    return row


CONFIGS = st.builds(
    SamplerConfig, temperature=st.just(1.0), top_k=st.sampled_from([0, 3]), top_p=st.just(1.0), seed=st.integers(0, 99),
    allowed_token_ids=st.none() | st.lists(IDS, min_size=1, max_size=8), bad_words=WORDS, min_tokens=st.integers(0, 6),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
)  # fmt: skip


@settings(max_examples=300)
@given(CONFIGS, st.lists(IDS, max_size=4), st.lists(IDS, max_size=2), st.lists(st.integers(0, 3), max_size=9))
def test_texts_are_those_of_rows_without_the_tokens(config, prompt, end_ids, rewinds):
    """Whatever is taken back, copied or saved in between."""
    bare = SamplerConfig(
        temperature=1.0, top_k=config.top_k, top_p=1.0, seed=config.seed, repetition_penalty=config.repetition_penalty
    )
    sampler, plain, text = Sampler(config, prompt=prompt, end_ids=end_ids), Sampler(bare, prompt=prompt), []
    for n in rewinds:
        row = masked(config, text, end_ids)
        if row.max() == -math.inf:
            with pytest.raises(GenerateError, match="no token is left"):
                sampler.sample(ROW)
            return
        expected, found = plain.copy().distribution(row), sampler.copy().distribution(ROW)
        assert (expected.ids.tolist(), expected.probs.tolist()) == (found.ids.tolist(), found.probs.tolist())
        token = sampler.sample(ROW)
        assert token == plain.sample(row)
        for one in (sampler, plain):
            one.accept(token)
        text.append(token)
        sampler = Sampler.from_state(sampler.state(), config, end_ids=end_ids)
        n = min(n, len(text))
        for one in (sampler, plain):
            one.rewind(n)
        del text[len(text) - n :]


def test_a_word_of_the_prompt_is_none_of_the_text():
    config = SamplerConfig(temperature=0.0, bad_words=[[0, 0]])
    assert Sampler(config, prompt=[5, 0]).sample(ROW) == 0
    sampler = Sampler(config)
    for expected in (0, 1, 0, 1):
        assert sampler.sample(ROW) == expected
        sampler.accept(expected)


def test_strings_are_spelt_inside_a_text_and_after_a_space():
    spelt = {"cat": [1, 2], " cat": [3], " ": [4]}
    config = SamplerConfig(bad_words=["cat", " cat", " "])
    masks, seen = TokenMasks(config, spelling=spelt.__getitem__), SamplerState(config, [])
    seen.masks = masks
    for text, left in (([], {0, 1, 2, 5}), ([1], {0, 1, 5}), ([2], {0, 1, 2, 5})):
        seen.history.tokens.extend(text)
        candidates = Candidates()
        candidates.load(np.zeros(6, np.float32))
        STAGES["masks"](candidates, config, seen)
        assert {token for token, logit in candidates.items() if logit > -math.inf} == left


def test_what_is_missing_is_named():
    with pytest.raises(ConfigError, match=r"bad_words\[1\] must be a list of token ids .* give Sampler\(spelling="):
        Sampler(SamplerConfig(bad_words=[[1], "a"]))
    with pytest.raises(ConfigError, match=r"bad_words\[0\] is 'a', which has no tokens"):
        Sampler(SamplerConfig(bad_words=["a"]), spelling=lambda text: [])
    with pytest.raises(ConfigError, match=r"give Sampler\(end_ids=tokenizer.eog_ids\)"):
        Sampler(SamplerConfig(min_tokens=1))
    config = SamplerConfig(allowed_token_ids=[1])
    with pytest.raises(ConfigError, match="allowed_token_ids is set, but this state"):
        SamplerChain.from_config(config).choose(Candidates(), SamplerState(config))


@pytest.mark.parametrize("field", [{"allowed_token_ids": [1]}, {"bad_words": [[1]]}, {"min_tokens": 2}])
def test_a_chain_without_the_stage_is_refused(field):
    (name,) = field
    with pytest.raises(ConfigError, match=f"{name} needs the stage masks"):
        SamplerChain(["temperature", "draw"], SamplerConfig(**field))
    with pytest.raises(ConfigError, match=f"{name} needs the stage masks"):
        SamplerChain.from_config(SamplerConfig()).with_config(SamplerConfig(**field))
    with pytest.raises(GenerateError, match="must come before the stages that cut"):
        Sampler(SamplerChain(["top_k", "masks", "draw"], SamplerConfig(top_k=3, **field)), end_ids=[0]).sample(ROW)
    assert STAGES["masks"] not in SamplerChain.from_config(SamplerConfig()).stages


def test_with_a_grammar_both_hold():
    vocabulary = Vocabulary([b"a", b"b", b"ab", None], [3])
    row = np.array([0.0, 0.0, 9.0, 9.0], np.float32)

    def run(**fields):
        grammar = Grammar.parse('root ::= "a" "b"*').state(vocabulary)
        config, text = SamplerConfig(temperature=0.0, grammar='root ::= "a" "b"*', **fields), []
        sampler = Sampler(config, grammar=grammar, end_ids=[3])
        while len(text) < 5:
            token = sampler.sample(row)
            if token == 3:
                break
            sampler.accept(token)
            text.append(token)
        return text

    assert run() == [2]
    assert run(bad_words=[[2]]) == [0]
    assert run(min_tokens=3) == [2, 1, 1]
    assert run(allowed_token_ids=[0, 1]) == [0, 1, 1, 1, 1]
    with pytest.raises(GenerateError, match="the grammar, allowed_token_ids, bad_words and min_tokens ban them all"):
        run(allowed_token_ids=[0, 3], min_tokens=2)


def test_a_row_is_looked_at_as_far_as_it_goes():
    """An id that no row has is an error, as of `banned_tokens`; one that is merely allowed changes nothing."""
    with pytest.raises(ConfigError, match="tokens of allowed_token_ids, bad_words and min_tokens must be from 0 to 8"):
        Sampler(SamplerConfig(bad_words=[[N]])).sample(ROW)
    assert Sampler(SamplerConfig(temperature=0.0, allowed_token_ids=[4, 1000])).sample(ROW) == 4
