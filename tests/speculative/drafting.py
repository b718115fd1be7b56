"""Draft models on the fake runner, and a plain loop that verifies draft tokens as the engine does, in a few lines."""

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np

from oxillama.config import EngineConfig
from oxillama.core.loading import EngineParts
from oxillama.drafts.draft import DraftTask
from oxillama.sampling import Sampler
from oxillama.sampling.rejection import chosen
from oxillama.speculative.draft_model import DraftModel
from tests import fakes
from tests.fakes import BOS, EOS, N_VOCAB, FakeRunner, FakeTokenizer, core_of, drawn, logits_of

KEYS = itertools.count(1 << 40)
PROMPT = [BOS, 4, 5, 6, 7, 8]
WARM = drawn(temperature=1.3, seed=7)
# Blocks, slots, blocks of windows with how far these see.
KINDS = {
    "attention": {},
    "recurrent": {"n_blocks": 0, "n_slots": 20},
    "hybrid": {"n_slots": 20},
    "windows": {"n_blocks": 0, "windows": (20, 20)},
    "both": {"windows": (20, 20)},
}
CHAINS = [
    {"temperature": 0.0},
    {},
    {"temperature": 1.5, "top_k": 0, "top_p": 1.0},
    {"min_p": 0.1, "typical_p": 0.9, "temperature": 1.2},
    {"mirostat": 1},
    {"mirostat": 2, "mirostat_tau": 3.0},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05, "dry_multiplier": 0.8, "dry_sequence_breakers": ()},
    {"frequency_penalty": 0.7, "presence_penalty": 0.3, "repetition_penalty_window": 5},
    {"dynatemp_range": 0.4, "logit_bias": {3: 2.0}, "banned_tokens": [4]},
]
GRAMMARS = [None, None, 'root ::= [a-h]+ " " [a-c]* "!"?', 'root ::= ("ab " | "the the " | [a-d]{3})*']


class Recorder(FakeRunner):
    """Remembers every beginning of a text that it computed; with noise, it is a model of its own."""

    noise = 0.0

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.computed = []

    def forward(self, spans, poll=None):
        rows = []
        for s, past in list(self.histories(spans, poll)):
            self.computed += [tuple(past[: i + 1]) for i in range(s.start, len(past))]
            first = {"last": len(past) - 1, "likeliest": len(past) - 1, "none": len(past)}[s.want]
            rows += [self.row(past[: i + 1]) for i in range(first, len(past))]
        return np.array(rows, np.float32).reshape(len(rows), N_VOCAB)

    def row(self, past):
        return logits_of(past) + np.float32(self.noise) * fakes.noise(past, 9, N_VOCAB)


def make_draft(
    *, noise=0.0, context_size=64, n_blocks=None, n_slots=0, windows=(0, 0), runner=Recorder, causal=True, **fields
):
    """A draft model that agrees with the fake model, but for noise."""
    config = EngineConfig(**fields)
    size = config.kv_block_size
    n_blocks = n_blocks if n_blocks is not None else 4 * -(-context_size // size)
    made = runner(n_blocks, size, None, n_slots, *windows)
    made.noise = noise
    spec = SimpleNamespace(
        arch="fake", name="draft", n_vocab=N_VOCAB, causal=causal, denoises=False, decoder_start=None
    )
    parts = EngineParts(made, FakeTokenizer(), spec, context_size, n_blocks, n_slots, "mean", {}, *windows)
    draft = DraftModel(parts=parts, **fields)
    core_of(draft).scheduler.debug = True
    return draft


def runner_of(draft):
    return core_of(draft).runner


def twice(draft):
    """What was computed more than once."""
    computed = runner_of(draft).computed
    return len(computed) - len(set(computed))


def idle(draft, n_texts=0):
    """Nothing runs; without texts, nothing but the prefix cache has anything."""
    scheduler = core_of(draft).scheduler
    scheduler.check_invariants([])
    assert scheduler.live == {}
    assert scheduler.running == list(scheduler.waiting) == []
    assert len(core_of(draft).sequences) == n_texts
    if not n_texts:
        for pool in (scheduler.pool.blocks, scheduler.pool.windowed, scheduler.pool.slots):
            assert pool.n_available == pool.n


class Text:
    """A request: the model's tokens after a prompt, verified one by one. `row_of`: the model's logits."""

    def __init__(self, prompt, config, row_of=logits_of, **options):
        self.key = next(KEYS)
        self.tokens = list(prompt)
        self.n_prompt = len(self.tokens)
        self.sampler = Sampler(config, prompt=prompt, **options)
        self.row_of = row_of
        self.drafted = self.accepted = 0
        self.ended = False

    @property
    def output(self):
        return self.tokens[self.n_prompt :]

    def task(self, n, **options):
        return DraftTask(self.key, self.tokens, n, self.sampler, **options)

    def step(self, guesses=()):
        """One round: tokens up to the first that was not drafted."""
        self.drafted += len(guesses)
        for guess in [*guesses, None]:
            token = self.sampler.sample(self.row_of(self.tokens))
            if token == EOS:
                self.ended = True
                return
            self.sampler.accept(token)
            self.tokens.append(token)
            self.accepted += token == guess
            if token != guess:
                return


def plain(prompt, config, n, **options):
    text = Text(prompt, config, **options)
    while len(text.output) < n and not text.ended:
        text.step()
    return text.output


def guessed(draft, texts, n, k):
    """Texts up to n tokens each, all that go on in one batch."""
    while left := [t for t in texts if len(t.output) < n and not t.ended]:
        before = [t.sampler.state() for t in left]
        proposals = draft.propose([t.task(k) for t in left])
        assert [t.sampler.state() for t in left] == before
        for text, proposal in zip(left, proposals, strict=True):
            assert len(proposal.tokens) <= k
            assert proposal.probs is None
            text.step(proposal.tokens)
    for text in texts:
        draft.forget(text.key)
    return [t.output[:n] for t in texts]


def draft_of(kind, **options):
    return make_draft(**KINDS[kind] | options)


def same(found, expected):
    """Equal in all but seconds, and what speculation did."""
    plain = {"timings": None, "speculation": None}
    return dataclasses.replace(found, **plain) == dataclasses.replace(expected, **plain)


def by_hand(prompt, config, n, k, noise):
    """The same text as the engine's, draft token by draft token; without draft tokens, the sampler samples."""
    draft, sampler, tokens = make_draft(noise=noise), Sampler(config, prompt=prompt), list(prompt)
    limit, guesses, probs = len(prompt) + n, [], []
    while True:
        for guess, q in itertools.zip_longest([*guesses, None], probs):
            row = logits_of(tokens)
            if guesses:
                token = chosen(sampler.distribution(row), guess, q, sampler.memory.rng.uniform)
            else:
                token = sampler.sample(row)
            if token == EOS:
                return tokens[len(prompt) :]
            sampler.accept(token)
            tokens.append(token)
            if len(tokens) == limit:
                return tokens[len(prompt) :]
            if token != guess:
                break
        guesses, probs = draft.propose([DraftTask(1, tokens, k, sampler, True)])[0]
