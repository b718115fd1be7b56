"""Grammars and a user's own processors in a sampler."""

import math

import numpy as np
import pytest

from oxillama.config import SamplerConfig
from oxillama.errors import ConfigError, GenerateError, GrammarError
from oxillama.grammar import Grammar, Vocabulary
from oxillama.sampling import Sampler

GBNF = 'root ::= "a" ("b" | "c" "a")'


def test_a_copy_follows_the_grammar_on_its_own():
    vocabulary = Vocabulary([b"a", b"b", b"c", None], [3])
    state = Grammar.parse(GBNF).state(vocabulary)
    sampler = Sampler(SamplerConfig(temperature=0.0, repetition_penalty=1.0, grammar="..."), grammar=state)
    row = np.array([0.0, 1.0, 2.0, 3.0], np.float32)
    assert sampler.sample(row) == 0
    sampler.accept(0)
    twin = sampler.copy()
    assert [sampler.sample(row), twin.sample(row)] == [2, 2]
    sampler.accept(2)
    twin.accept(1)
    assert [sampler.sample(row), twin.sample(row)] == [0, 3]
    with pytest.raises(GrammarError, match="can't come here"):
        twin.accept(0)
    with pytest.raises(GrammarError, match="can't come here"):
        sampler.accept(2)
    again = Sampler.from_state(sampler.state(), sampler.config, grammar=Grammar.parse(GBNF).state(vocabulary))
    again.rewind(1)
    sampler.rewind(1)
    assert [again.sample(row), sampler.sample(row)] == [2, 2]
    with pytest.raises(GrammarError, match="can't come here"):
        Sampler.from_state(
            twin.state() | {"tokens": [1, 1]}, twin.config, grammar=Grammar.parse(GBNF).state(vocabulary)
        )


def test_processors_work_on_a_copy_in_turn():
    def double(ids, logits):
        seen.append((ids, logits.tolist()))
        logits *= 2
        ids.clear()

    def ban(ids, logits):
        seen.append((list(ids), logits.tolist()))
        logits[2] = -np.inf

    seen = []
    row = np.array([1.0, 2.0, 3.0], np.float32)
    sampler = Sampler(SamplerConfig.greedy(), prompt=[7, 8], processors=[double, ban])
    assert sampler.sample(row) == 1
    assert seen == [([], [1, 2, 3]), ([7, 8], [2, 4, 6])]
    assert row.tolist() == [1, 2, 3]
    sampler.accept(1)
    sampler.sample(row)
    assert seen[3][0] == [7, 8, 1]
    assert sampler.copy().sample(row) == 1


def keep_all(ids, logits):
    kept.append(logits)


kept = []


def test_a_processor_may_keep_what_it_gets():
    sampler = Sampler(SamplerConfig.greedy(), processors=[keep_all])
    for n in (3, 100000, 5):
        sampler.sample(np.arange(n, dtype=np.float32))
    assert [int(row[-1]) for row in kept] == [2, 99999, 4]


def writing(value):
    def processor(ids, logits):
        logits[1:] = value

    return processor


@pytest.mark.parametrize(
    ("processor", "error", "message"),
    [
        (lambda ids, logits: logits, ConfigError, "in place and return None, not float32 of shape"),
        (lambda ids, logits: 0, ConfigError, "in place and return None, not int"),
        (writing(math.nan), GenerateError, "made the logit of token 1 nan"),
        (writing(math.inf), GenerateError, "made the logit of token 1 inf"),
        (lambda ids, logits: logits.fill(-math.inf), GenerateError, "left no token"),
    ],
)
def test_processors_that_misbehave_are_named(processor, error, message):
    sampler = Sampler(processors=[writing(0.0), processor])
    with pytest.raises(error, match=rf"^logits_processors\[1\] .*{message}"):
        sampler.sample(np.zeros(3, np.float32))
