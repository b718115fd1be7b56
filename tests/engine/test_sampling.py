"""Settings of sampling and processors through the engine, on the shipped model."""

from dataclasses import replace

import numpy as np
import pytest

import oxillama as ox
from oxillama.errors import ConfigError, GenerateError
from tests.fakes import assert_idle

PROMPTS = ["Once upon a time", "The cat", "In the morning, the old man went to the"]
SETTINGS = [
    {"typical_p": 0.7},
    {"top_a": 0.3},
    {"eta_cutoff": 0.01, "epsilon_cutoff": 0.001},
    {"top_n_sigma": 1.5, "min_p": 0.05},
    {"frequency_penalty": 0.5, "presence_penalty": -0.5},
    {"dry_multiplier": 0.8, "dry_sequence_breakers": ["."]},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"mirostat": 1, "mirostat_tau": 3.0},
    {"mirostat": 2, "mirostat_tau": 3.0},
    {"dynatemp_range": 0.5, "dynatemp_exponent": 2.0},
    {"logit_bias": {300: 4.0}, "banned_tokens": [301, 302]},
]


@pytest.fixture(scope="module")
def engine():
    with ox.load(num_threads=1) as engine:
        yield engine
        assert_idle(engine)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_request_does_not_depend_on_its_neighbours(engine, settings):
    options = {"max_tokens": 24, "seed": 7, "ignore_eos": True, **settings}
    alone = [engine.generate(p, **options).token_ids for p in PROMPTS]
    assert [c.token_ids for c in engine.generate(PROMPTS, **options)] == alone
    assert [t for chunk in engine.stream(PROMPTS[1], **options) for t in chunk.token_ids] == alone[1]
    sampler = ox.Sampler(
        replace(engine.sampling_defaults, seed=7, **settings),
        prompt=(ids := engine.tokenize(PROMPTS[2])),
        token_bytes=engine.tokenizer.token_bytes,
    )
    for token in alone[2]:
        assert sampler.sample(engine.forward_logits(ids)[-1]) == token
        sampler.accept(token)
        ids.append(token)


def test_bans_and_biases(engine):
    first = engine.generate("The cat", max_tokens=1, temperature=0).token_ids[0]
    banned = engine.generate("The cat", max_tokens=30, temperature=0, banned_tokens=[first], ignore_eos=True)
    assert first not in banned.token_ids
    forced = engine.generate("The cat", max_tokens=3, logit_bias={first: 1000.0})
    assert forced.token_ids == [first] * 3
    for field in ({"logit_bias": {engine.n_vocab: 1.0}}, {"banned_tokens": [1, engine.n_vocab]}):
        with pytest.raises(
            ConfigError, match=f"must have token ids of this model, from 0 to {engine.n_vocab - 1}, not"
        ):
            engine.generate("a", max_tokens=1, **field)


def test_dry_ends_loops(engine):
    ids = engine.tokenize("The cat sat. ") * 6
    said = {tuple(ids[i : i + 6]) for i in range(len(ids))}

    def repeats(**settings):
        out = engine.generate(ids, max_tokens=20, temperature=0, repetition_penalty=1.0, ignore_eos=True, **settings)
        text = ids + out.token_ids
        return sum(tuple(text[i : i + 6]) in said for i in range(len(ids), len(text) - 5))

    bias = dict.fromkeys(ids, 20.0)  # wants nothing but the same again
    assert repeats(logit_bias=bias, dry_multiplier=1000.0, dry_sequence_breakers=()) == 0


def test_a_chain_of_ones_own(engine):
    chain = ox.SamplerChain(["min_p", "draw"], ox.SamplerConfig(min_p=0.3, seed=3))
    same = {"top_k": 0, "top_p": 1.0, "temperature": 1.0, "repetition_penalty": 1.0, "min_p": 0.3}
    got = engine.generate("The cat", sampler=chain, max_tokens=12).token_ids
    assert got == engine.generate("The cat", max_tokens=12, seed=3, **same).token_ids
    other = engine.generate("The cat", sampler=chain, max_tokens=12, seed=4).token_ids
    assert other == engine.generate("The cat", max_tokens=12, seed=4, **same).token_ids
    with pytest.raises(ConfigError, match="sampler must be of type SamplerConfig or SamplerChain, not dict"):
        engine.generate("a", sampler={"seed": 1})


def test_processors_see_the_tokens_and_change_one_row(engine):
    seen = []

    def only_even(ids, logits):
        seen.append(ids)
        assert (logits.dtype, logits.shape) == (np.float32, (engine.n_vocab,))
        logits[1::2] = -np.inf

    plain = engine.generate("The cat", max_tokens=6, seed=1).token_ids
    streams = [
        engine.stream("The cat", max_tokens=6, seed=1, ignore_eos=True),
        engine.stream("The cat", max_tokens=6, seed=1, ignore_eos=True, logits_processors=[only_even]),
    ]
    found = [[], []]
    for pair in zip(*streams, strict=False):
        for tokens, chunk in zip(found, pair, strict=True):
            tokens += chunk.token_ids
    for tokens, stream in zip(found, streams, strict=True):
        tokens += [t for chunk in stream for t in chunk.token_ids]
    assert found[0][: len(plain)] == plain
    assert all(t % 2 == 0 for t in found[1])
    ids = engine.tokenize("The cat")
    assert seen == [ids + found[1][:i] for i in range(6)]
    chat = engine.chat([{"role": "user", "content": "hi"}], max_tokens=4, logits_processors=[only_even])
    assert all(t % 2 == 0 for t in chat.token_ids)


def test_an_error_of_a_processor_ends_its_request_alone(engine):
    def fail(ids, logits):
        if len(ids) > n_prompt + 2:
            raise LookupError("no more")

    n_prompt = len(engine.tokenize("The cat"))
    other = engine.stream("The cat", max_tokens=8, seed=1, ignore_eos=True)
    first = next(other)
    with pytest.raises(LookupError, match="no more"):
        engine.generate("The cat", max_tokens=8, logits_processors=[fail], ignore_eos=True)
    tokens = first.token_ids + [t for chunk in other for t in chunk.token_ids]
    assert tokens == engine.generate("The cat", max_tokens=8, seed=1, ignore_eos=True).token_ids


@pytest.mark.parametrize(
    ("processors", "error", "message"),
    [
        (5, ConfigError, "logits_processors must be a list of functions, not int"),
        ([None], ConfigError, r"logits_processors\[0\] must be a function"),
        ([lambda ids, logits: logits], ConfigError, "return None"),
        (
            [lambda ids, logits: logits.fill(np.nan)],
            GenerateError,
            r"logits_processors\[0\] made the logit of token 0 nan",
        ),
    ],
)
def test_processors_that_can_not_be(engine, processors, error, message):
    with pytest.raises(error, match=message):
        engine.generate("a", max_tokens=2, logits_processors=processors)
