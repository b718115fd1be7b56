"""What samplers refuse, and how they say so."""

import numpy as np
import pytest

from oxillama.config import SamplerConfig
from oxillama.errors import ConfigError
from oxillama.sampling import Sampler, SamplerChain, stages


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Sampler({"temperature": 1}), "config"),
        (lambda: Sampler(0.7), "config"),
        (lambda: SamplerChain.from_config(None), "config"),
        (lambda: SamplerChain([stages.greedy], {"seed": 1}), "config"),
        (lambda: SamplerChain([stages.greedy, "drow"]), r"stages\[1\]"),
        (lambda: SamplerChain(stages.greedy), "stages"),
        (lambda: Sampler(prompt="abc"), "prompt"),
        (lambda: Sampler(prompt=5), "prompt"),
        (lambda: Sampler(prompt=[3, -1]), r"prompt\[1\]"),
        (lambda: Sampler(prompt=[3.0]), r"prompt\[0\]"),
        (lambda: Sampler(scratch=[]), "scratch"),
        (lambda: Sampler(processors=7), "logits_processors"),
        (lambda: Sampler(processors=[print, 7]), r"logits_processors\[1\]"),
        (lambda: Sampler(SamplerConfig(dry_multiplier=1)), "dry_sequence_breakers"),
    ],
)
def test_arguments_of_a_wrong_kind(make, name):
    with pytest.raises(ConfigError, match=rf"^{name} must "):
        make()


@pytest.mark.parametrize(
    "logits",
    [
        [0.1, 0.2],
        None,
        "ab",
        np.zeros(4),
        np.zeros(4, np.float16),
        np.zeros(4, ">f4"),
        np.zeros(4, np.int32),
        np.zeros((1, 4), np.float32),
        np.float32(1),
        np.array(1, np.float32),
    ],
)
def test_logits_of_a_wrong_kind(logits):
    with pytest.raises(ConfigError, match=r"^logits must be a float32 array of one dimension, not "):
        Sampler().sample(logits)


def test_every_second_logit_of_a_row():
    row = np.array([0, 9, 1, 9, 5, 9], np.float32)
    assert Sampler(SamplerConfig.greedy()).sample(row[::2]) == 2


@pytest.mark.parametrize("token", [-1, 1.0, "a", None, True, 1 << 31])
def test_accepting_what_is_no_token(token):
    sampler = Sampler()
    with pytest.raises(ConfigError, match=r"^token must be"):
        sampler.accept(token)
    sampler.accept(np.int32(3))
    assert sampler.memory.history.tokens.tolist() == [3]
