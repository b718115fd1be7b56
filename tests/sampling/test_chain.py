"""Chains: which stages they have, in which order, and how they are built."""

import numpy as np
import pytest

from oxillama.config import SamplerConfig
from oxillama.errors import ConfigError, GenerateError
from oxillama.sampling import Sampler, SamplerChain, stages


def test_chain_leaves_out_idle_stages():
    config = SamplerConfig(temperature=1.0, top_k=0, top_p=1.0, repetition_penalty=1.0)
    # A grammar may come with the request alone, as that of tool calls does.
    assert SamplerChain.from_config(config).stages == (stages.grammar, stages.draw)


def test_a_chain_ends_with_its_first_choice():
    config = SamplerConfig(mirostat=2, repetition_penalty=1.1)
    names = [stage.__name__ for stage in SamplerChain.from_config(config).stages]
    assert names == ["penalties", "grammar", "temperature", "mirostat_v2"]
    assert SamplerChain.from_config(SamplerConfig.greedy()).stages == (stages.grammar, stages.greedy)


def test_order_of_all_stages():
    config = SamplerConfig(
        logit_bias={1: 1}, repetition_penalty=1.1, dry_multiplier=1, top_n_sigma=1, grammar="x", typical_p=0.9,
        min_p=0.1, top_a=0.1, eta_cutoff=0.1, epsilon_cutoff=0.1, xtc_probability=0.1,
    )  # fmt: skip
    assert repr(SamplerChain.from_config(config)) == (
        "<SamplerChain logit_bias → penalties → dry → top_n_sigma → grammar → top_k → typical_p → top_p → min_p → "
        "top_a → eta_cutoff → epsilon_cutoff → xtc → temperature → draw>"
    )


def test_building_a_chain():
    def mine(candidates, config, state):
        return None

    chain = SamplerChain(["top_k", stages.temperature, "draw"])
    assert chain.stages == (stages.top_k, stages.temperature, stages.draw)
    assert chain.insert(mine, before="top_k").stages == (mine, *chain.stages)
    assert chain.insert("min_p", after=stages.top_k).stages == (stages.top_k, stages.min_p, *chain.stages[1:])
    assert chain.without("top_k").stages == chain.stages[1:]
    config = SamplerConfig(seed=3)
    assert chain.with_config(config).config is config
    for wrong in (lambda: chain.without(mine), lambda: chain.insert(mine, before="min_p")):
        with pytest.raises(ConfigError, match="stage must be one of the chain's, top_k, temperature, draw, not"):
            wrong()
    for options in ({}, {"before": "draw", "after": "draw"}):
        with pytest.raises(ConfigError, match="either before or after"):
            chain.insert(mine, **options)


def test_a_list_of_ones_own():
    def ban_odd(candidates, config, state):
        rows.append([i for i, _ in candidates.items()])

    rows = []
    chain = SamplerChain([stages.top_k, ban_odd, stages.greedy], SamplerConfig(top_k=2))
    assert Sampler(chain).sample(np.array([1.0, 3.0, 2.0], np.float32)) == 1
    assert rows == [[1, 2]]


def test_a_chain_must_choose():
    with pytest.raises(GenerateError, match="without choosing"):
        Sampler(SamplerChain([stages.top_k])).sample(np.zeros(3, np.float32))
    with pytest.raises(ConfigError, match="stages"):
        SamplerChain([])
