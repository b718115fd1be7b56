"""Rejection sampling in the engine: the distribution of whole texts, computed by trying every drawn number."""

from fractions import Fraction as F

import numpy as np
import pytest

from oxillama.config import SamplerConfig
from oxillama.core import draft_options as speculation
from oxillama.drafts.draft import Proposal
from oxillama.errors import ConfigError, GenerateError
from oxillama.sampling import Distribution, Sampler, state
from tests import fakes
from tests.fakes import BOS, EOS, N_VOCAB, assert_idle, logits_of, make_engine
from tests.sampling.wrong_rejections import MUTANTS, Tables
from tests.speculative.drafting import by_hand, make_draft
from tests.speculative.laws import exact_law

PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}
# Tokens of the tables, the last of which ends the text; after the prompt the first comes for certain.
IDS = (2, 3, EOS)
PROMPT = [BOS, 7]


class Replayed:
    """A request's generator: each of its numbers is a new one of the script, and the same again after a rewind."""

    def __init__(self, script):
        self.script, self.log, self.state, self.moved = script, [], 0, True

    def uniform(self):
        if self.state == len(self.log):
            self.log.append(self.script.uniform())
        self.state, self.moved = self.state + 1, True
        return self.log[self.state - 1]


class TableDraft:
    """Draws draft tokens from a table, with a generator of its own."""

    def __init__(self, tables):
        self.tables, self.script = tables, None

    def bind(self, target):
        pass

    def forget(self, key):
        pass

    def propose(self, tasks):
        return [self.guess(task) for task in tasks]

    def guess(self, task):
        assert task.with_probs
        tokens, probs = [], []
        while len(tokens) < task.n and EOS not in tokens:
            last = tokens[-1] if tokens else task.tokens[-1]
            q = by_id(self.tables.draft[IDS.index(last)])
            probs.append(q)
            tokens.append(q.draw(self.script.uniform()))
        return Proposal(tokens, probs)


def by_id(weights):
    pairs = sorted((token, w) for token, w in zip(IDS, weights, strict=True) if w)
    probs = np.array([w for _, w in pairs], np.float64)
    return Distribution(np.array([token for token, _ in pairs], np.int32), probs / probs.sum())


def rows_of(tables):
    """The model of a table: logits by the last token."""

    def row(tokens):
        logits = np.full(N_VOCAB, -np.inf, np.float32)
        if tokens[-1] not in IDS[:-1]:  # a prompt, or what follows an end
            logits[IDS[0]] = 0.0
            return logits
        weights = tables.model[IDS.index(tokens[-1])]
        for token, w in zip(IDS, weights, strict=True):
            if w:
                logits[token] = np.log(w)
        return logits

    return row


def true_law(tables, n):
    """Of n tokens after the first, or fewer before an end."""
    law = {(IDS[0],): F(1)}
    for _ in range(n):
        after = {}
        for text, mass in law.items():
            if text[-1] == EOS:
                after[text] = after.get(text, 0) + mass
                continue
            for token, w in zip(IDS, tables.model[IDS.index(text[-1])], strict=True):
                if w:
                    after[(*text, token)] = mass * F(w, tables.parts)
        law = after
    return {tuple(t for t in text if t != EOS): mass for text, mass in law.items()}


TABLES = [
    # (weights in parts, draft tokens at a time)
    (Tables(4, {0: [1, 2, 1], 1: [2, 1, 1]}, {0: [2, 1, 1], 1: [1, 2, 1]}), 1),
    (Tables(4, {0: [2, 1, 1], 1: [1, 2, 1]}, {0: [4, 0, 0], 1: [0, 4, 0]}), 1),
    (Tables(2, {0: [1, 1, 0], 1: [0, 1, 1]}, {0: [1, 0, 1], 1: [1, 1, 0]}), 2),
    (Tables(2, {0: [1, 1, 0], 1: [1, 1, 0]}, {0: [1, 1, 0], 1: [1, 0, 1]}), 2),
]


def law_of(monkeypatch, tables, k):
    monkeypatch.setattr(fakes, "logits_of", rows_of(tables))
    engine, draft = make_engine(), TableDraft(tables)
    config = SamplerConfig(seed=1, **PLAIN)

    def run(script):
        draft.script = script
        monkeypatch.setattr(state, "XorShift64", lambda seed: Replayed(script))
        found = engine.generate(
            PROMPT, max_tokens=k + 2, sampler=config, draft=draft, num_speculative=k, acceptance="rejection"
        )
        return tuple(found.token_ids)

    # The first token is certain, but drawn: its number makes no difference.
    return exact_law(run, tables.parts)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("which", range(len(TABLES)))
def test_texts_follow_the_models_law_exactly(which, monkeypatch):
    tables, k = TABLES[which]
    assert law_of(monkeypatch, tables, k) == true_law(tables, k + 1)


SERVED = {name: wrong for name, wrong in MUTANTS.items() if wrong[0] != "chosen"} | {
    f"{name}, in the engine": wrong for name, wrong in MUTANTS.items() if wrong[0] == "chosen"
}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("mutant", SERVED)
def test_the_law_of_a_wrong_rule_is_another(mutant, monkeypatch):
    name, wrong = SERVED[mutant]
    module = speculation if name == "chosen" else __import__("oxillama.sampling.rejection", fromlist=[name])
    monkeypatch.setattr(module, name, wrong)
    assert any(law_of(monkeypatch, tables, k) != true_law(tables, k + 1) for tables, k in TABLES)


@pytest.mark.long
def test_drawn_end_tokens_can_t_be_left_out(monkeypatch):
    """With acceptance="match" they can be left out; with rejection the distribution would be another."""
    from oxillama.core import draft_scheduler as drafting

    def without_ends(request, speculation, proposal):
        return drafting._possible(request, proposal.tokens)

    monkeypatch.setattr(drafting, "_valid_tokens", without_ends)
    assert any(law_of(monkeypatch, tables, k) != true_law(tables, k + 1) for tables, k in TABLES)


# ---- with a draft model


@pytest.mark.sweep(3)
@pytest.mark.parametrize("noise", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("k", [1, 3, 6])
def test_the_engine_agrees_with_rejection_sampling_by_hand(noise, k):
    prompt = [BOS, 4, 5, 6]
    for seed in range(8):
        config = SamplerConfig(temperature=1.5, seed=seed, xtc_probability=0.3 * (seed % 2), xtc_threshold=0.1)
        with make_draft(noise=noise) as draft:
            engine = make_engine()
            options = {"sampler": config, "draft": draft, "num_speculative": k, "acceptance": "rejection"}
            found = engine.generate(prompt, max_tokens=20, **options)
            assert found.token_ids == by_hand(prompt, config, 20, k, noise)
            again = engine.generate(prompt, max_tokens=20, **options)
            assert again.token_ids == found.token_ids
            if not noise and not config.xtc_probability:
                assert found.speculation.accepted >= found.speculation.drafted - 1  # all but an end
            assert_idle(engine)


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_completions_of_one_prompt_are_those_that_each_seed_has_alone(noise):
    """Sequences that wait for another's prompt get draft tokens as soon as it is computed."""
    with make_draft(noise=noise) as draft:
        engine = make_engine()
        options = {"max_tokens": 20, "temperature": 1.5, "draft": draft, "acceptance": "rejection"}
        found = engine.generate([BOS, 4, 5, 6], n=4, seed=3, **options)
        alone = [engine.generate([BOS, 4, 5, 6], seed=3 + i, **options) for i in range(4)]
        assert [c.token_ids for c in found] == [c.token_ids for c in alone]


@pytest.mark.long
def test_two_tokens_of_many_seeds_are_distributed_as_the_model_says():
    """A bound of four standard deviations for each of the likelier pairs, with fixed seeds."""
    prompt, n = [BOS, 4, 5, 6], 1500
    config = SamplerConfig(temperature=1.0, top_k=3, top_p=1.0, repetition_penalty=1.0, banned_tokens=[EOS])
    engine, draft = make_engine(context_size=32), make_draft(noise=1.0)
    outcomes = {}
    for seed in range(n):
        found = engine.generate(
            prompt, max_tokens=3, sampler=config, seed=seed, draft=draft, num_speculative=2, acceptance="rejection"
        )
        key = tuple(found.token_ids)
        outcomes[key] = outcomes.get(key, 0) + 1

    def law(tokens):
        d = Sampler(config, prompt=tokens).distribution(logits_of(tokens))
        return list(zip(d.ids.tolist(), d.probs.tolist(), strict=True))

    for a, pa in law(prompt):
        for b, pb in law([*prompt, a]):
            for c, pc in law([*prompt, a, b]):
                p = pa * pb * pc
                assert abs(outcomes.get((a, b, c), 0) - n * p) <= 4 * (n * p * (1 - p)) ** 0.5 + 1


# ---- what is refused


class Bad(TableDraft):
    def __init__(self, proposal):
        super().__init__(TABLES[0][0])
        self.proposal = proposal

    def guess(self, task):
        return self.proposal


def test_invalid_probabilities_end_the_request_alone():
    engine = make_engine()
    for bad in (
        Proposal([2], [by_id([0, 1, 1])]),
        Proposal([2], [{2: 1.0}]),
        Proposal([2], [Distribution(np.array([2], np.int32), np.array([0.5]))]),
    ):
        with pytest.raises(GenerateError, match=r"a draft's probs\[0\]"):
            engine.generate(PROMPT, max_tokens=5, seed=1, draft=Bad(bad), acceptance="rejection", ignore_eos=True)
        assert_idle(engine)
    assert len(engine.generate(PROMPT, max_tokens=5, seed=1, ignore_eos=True).token_ids) == 5


def test_mirostat_is_refused():
    engine = make_engine()
    with pytest.raises(ConfigError, match="and mirostat has none that is known"):
        engine.generate(PROMPT, mirostat=2, draft="lookup", acceptance="rejection")
    with pytest.raises(ConfigError, match="acceptance must be one of match, rejection"):
        engine.generate(PROMPT, draft="lookup", acceptance="typical")


def test_draft_tokens_that_were_not_drawn_keep_the_distribution():
    """Prompt lookup has no distribution: its draft token counts as the only possible one."""
    prompt, n = [BOS, 4, 5, 6, 4, 5], 1000
    config = SamplerConfig(temperature=1.0, top_k=3, top_p=1.0, repetition_penalty=1.0, banned_tokens=[EOS])
    engine = make_engine(context_size=32)
    counts = np.zeros(N_VOCAB)
    for seed in range(n):
        found = engine.generate(
            [*prompt, 6], max_tokens=2, sampler=config, seed=seed, draft="lookup", num_speculative=4,
            acceptance="rejection",
        )  # fmt: skip
        counts[found.token_ids[0]] += 1
    d = Sampler(config, prompt=[*prompt, 6]).distribution(logits_of([*prompt, 6]))
    for token, p in zip(d.ids.tolist(), d.probs.tolist(), strict=True):
        assert abs(counts[token] - n * p) <= 4 * (n * p * (1 - p)) ** 0.5 + 1
