"""`Session.sample`: what a loop of one's own draws is what `generate` gives, wherever the session goes."""

import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oxillama as ox
from oxillama.errors import ConfigError, GenerateError, GrammarError, SnapshotError, SnapshotMismatchError
from oxillama.sampling import Sampler, SamplerChain
from tests.fakes import EOS, N_VOCAB, PENALISED, factory_of, logits_of, make_engine
from tests.plain_loop import PROMPTS
from tests.snapshot.models import load, tokens_of
from tests.speculative.drafting import CHAINS, GRAMMARS

SCHEMA = {"type": "object", "properties": {"a": {"enum": ["b", "cab"]}}, "required": ["a"]}


def drawn(session, n, **options):
    """Up to n tokens by a loop of one's own; it ends before an end token."""
    found = []
    while len(found) < n:
        token = session.sample(**options)
        if token == EOS:
            break
        found.append(token)
        session.forward_one(token)
    return found


@given(PROMPTS, st.sampled_from(CHAINS), st.sampled_from(GRAMMARS), st.integers(0, 9), st.booleans(),
       st.sampled_from([1, 64]))  # fmt: skip
def test_a_loop_gives_what_generate_gives(prompt, chain, grammar, seed, repeated, chunk):
    engine = make_engine(prefill_chunk_size=chunk)
    asked = {"seed": seed, "grammar": grammar, **chain}
    session = engine.session()
    session.prefill(prompt)
    first = session.sample(**asked)
    found = [] if first == EOS else [first]
    if found:
        session.forward_one(first)
        found += drawn(session, 11, **(asked if repeated else {}))
    assert found == engine.generate(prompt, max_tokens=12, **asked).token_ids


@pytest.mark.parametrize(
    "options",
    [{"json_schema": SCHEMA}, {"regex": "[a-d]{3,9}!"}, {"choices": ["a", "bed", "cab"]}, {"dry_multiplier": 0.8},
     {"sampler": SamplerChain(["min_p", "temperature", "draw"], ox.SamplerConfig(min_p=0.1))}],
)  # fmt: skip
def test_of_the_shipped_model(options):
    with ox.load(num_threads=1) as engine:
        prompt = engine.tokenize("The fox said: ")
        engine.prefill(prompt)
        found = []
        while len(found) < 30:
            token = engine.sample(seed=5, **options)
            if engine.is_eos(token):
                break
            found.append(token)
            engine.forward_one(token)
        assert found == engine.generate(prompt, max_tokens=30, seed=5, **options).token_ids


# ---- wherever the session goes

MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("draw"), st.just(0)),
        st.tuples(st.just("draw and append"), st.just(0)),
        st.tuples(st.just("append"), st.integers(2, N_VOCAB - 1)),
        st.tuples(st.just("truncate"), st.floats(0, 1)),
        st.tuples(st.just("put"), st.floats(0, 1)),
        st.tuples(st.just("fork"), st.just(0)),
    ),
    max_size=25,
)
CONFIGS = [replace(PENALISED, seed=7, **chain) for chain in CHAINS if chain.get("temperature") != 0.0]


class Twin:
    """Keeps a copy of the sampler for each place of the last text, as it was before anything was drawn there."""

    def __init__(self, config, prompt):
        self.config, self.tokens, self.text = config, list(prompt), None
        self.lowest = None

    def append(self, token, at):
        if at < len(self.tokens):
            self.lowest = at if self.lowest is None else min(at, self.lowest)
        self.tokens[at:] = [token]

    def draw(self):
        if self.text is not None and self.lowest is not None and self.lowest < self.n_prompt:
            self.text = None
        if self.text is None:
            self.text, self.n_prompt = list(self.tokens), len(self.tokens)
            self.now = Sampler(self.config, prompt=self.tokens)
            self.copies = [self.now.copy()]
        elif self.lowest is not None:
            n = next((i for i, (a, b) in enumerate(zip(self.text, self.tokens, strict=False)) if a != b), None)
            n = min(len(self.text), len(self.tokens)) if n is None else n
            del self.text[n:], self.copies[n - self.n_prompt + 1 :]
            self.now = self.copies[-1].copy()
        self.lowest = None
        for token in self.tokens[len(self.text) :]:
            self.now.accept(token)
            self.copies.append(self.now.copy())
            self.text.append(token)
        return self.now.sample(logits_of(self.tokens))


@given(st.lists(st.integers(2, 14), min_size=1, max_size=6), MOVES, st.sampled_from(CONFIGS))
def test_against_a_sampler_that_is_copied_at_each_place(prompt, moves, config):
    session, twin = make_engine(context_size=128).session(), Twin(config, prompt)
    session.prefill(prompt)
    for move, value in moves:
        n = session.position
        if move.startswith("draw"):
            token = session.sample(config)
            assert token == twin.draw()
            if move == "draw and append":
                session.forward_one(token)
                twin.append(token, n)
        elif move == "fork":
            session = session.fork()
        else:
            at = int(value * n) if isinstance(value, float) else n
            token = {"append": value, "put": 5, "truncate": session.tokens[min(at, n - 1)]}[move]
            if move == "truncate":  # and its last token once more, for its logits
                session.truncate(at := min(at, n - 1) + 1)
                at -= 1
            session.forward_decode(token, at)
            twin.append(token, at)
        assert session.tokens == twin.tokens


def test_each_call_draws_anew():
    session = make_engine().session()
    session.prefill([3, 4])
    sampler = Sampler(ox.SamplerConfig(seed=1), prompt=[3, 4])
    row = logits_of([3, 4])
    assert [session.sample(seed=1) for _ in range(9)] == [sampler.sample(row) for _ in range(9)]
    assert session.tokens == [3, 4]


@pytest.mark.parametrize("back", ["reset", "truncate"])
def test_it_begins_anew_where_its_text_began(back):
    session = make_engine().session()
    options = {"temperature": 2.0, "banned_tokens": [EOS], "top_k": 0, "top_p": 1.0}

    def text(**options):
        if back == "reset":
            session.reset()
        else:
            session.truncate(min(1, session.position))
        session.forward_prefill([3, 4, 5], 0)
        return drawn(session, 20, **options)

    assert text(seed=3, **options) == text() == text(seed=3, **options)
    assert text(**options) != text()  # without a seed


def test_a_fork_goes_on_alone():
    session = make_engine().session()
    session.prefill([3, 4, 5])
    drawn(session, 4, seed=2)
    session.sample()
    twin, third = session.fork(), session.fork()
    expected = drawn(session, 6)
    assert drawn(twin, 6) == expected
    session.reset()
    assert drawn(third, 6) == expected


def test_other_settings_begin_here():
    engine = make_engine()
    session = engine.session()
    session.prefill([3, 4, 5])
    begun = drawn(session, 4, seed=2)
    prompt = session.tokens
    found = drawn(session, 9, seed=2, grammar='root ::= "ab" [a-d]+')
    assert found == engine.generate(prompt, max_tokens=9, seed=2, grammar='root ::= "ab" [a-d]+').token_ids
    session.truncate(len(prompt) - len(begun))
    session.sampler = None
    session.forward_decode(5, 2)
    assert drawn(session, 4, seed=2) == begun


def test_functions_made_for_each_call_go_on():
    engine = make_engine()

    def ban(ids, logits):
        logits[ids[-1]] = -np.inf

    session = engine.session()
    session.prefill([3, 4, 5])
    found = []
    for _ in range(9):
        token = session.sample(seed=4, logits_processors=[lambda ids, logits: ban(ids, logits)])
        if token == EOS:
            break
        found.append(token)
        session.forward_one(token)
    assert found == engine.generate([3, 4, 5], max_tokens=9, seed=4, logits_processors=[ban]).token_ids


def test_a_sampler_of_ones_own():
    session = make_engine().session()
    session.prefill([3, 4, 5])
    own = Sampler(replace(PENALISED, seed=4))
    found = [session.sample(own)]
    assert session.sampler is own
    session.forward_one(found[0])
    found += drawn(session, 5)
    other = session.fork()
    other.sampler = None
    other.forward_prefill([3, 4, 5], 0)
    assert drawn(other, 6, seed=4) == found
    with pytest.raises(ConfigError, match="sampler is a Sampler, which has its settings: give it alone"):
        session.sample(own, temperature=1.0)
    stranger = Sampler(ox.SamplerConfig(seed=4), prompt=[9])
    stranger.accept(8)
    with pytest.raises(ConfigError, match=r"session\.sampler has accepted other tokens than the session"):
        session.sample(stranger)


# ---- what can go wrong


def test_a_token_that_the_grammar_does_not_allow():
    session = make_engine().session()
    session.prefill([3])
    session.sample(grammar='root ::= "ab" [a-d]+')
    session.forward_one(9)
    for _ in range(2):
        with pytest.raises(GrammarError, match="can't come here"):
            session.sample()
    session.truncate(1)
    session.forward_decode(3, 0)
    assert session.sample(grammar='root ::= "ab" [a-d]+') in (2, 13)  # "a" or "ab"


def test_without_logits():
    session = make_engine().session()
    with pytest.raises(GenerateError, match=r"no logits to draw from: prefill\(\) it"):
        session.sample()
    session.prefill([3, 4, 5])
    session.truncate(2)
    with pytest.raises(GenerateError, match=r"forward_decode\(\)"):
        session.sample()
    session.close()
    with pytest.raises(GenerateError, match="the session is closed"):
        session.sample()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"temperatur": 1.0}, TypeError, r"sample\(\) got an .* 'temperatur'; did you mean 'temperature'"),
        ({"max_tokens": 3}, TypeError, r"sample\(\) got .* 'max_tokens'; it draws one token: generate\(\) takes that"),
        ({"stop": ["\n"]}, TypeError, r"sample\(\) got an .* 'stop'; it draws one token: generate\(\) takes that"),
        ({"n": 2}, TypeError, r"sample\(\) got an .* 'n'; it draws one token: generate\(\) takes that"),
        ({"temperature": -1.0}, ConfigError, "temperature"),
        ({"sampler": "greedy"}, ConfigError, "sampler must be"),
        ({"logits_processors": 3}, ConfigError, "logits_processors must be a list of functions"),
        ({"logit_bias": {99: 1.0}}, ConfigError, "token ids of this model"),
        ({"grammar": "root ::= ("}, GrammarError, "root"),
    ],
)
def test_settings_that_can_not_be(options, error, message):
    session = make_engine().session()
    session.prefill([3])
    expected = session.fork().sample(seed=1)
    with pytest.raises(error, match=message):
        session.sample(**options)
    assert session.sample(seed=1) == expected


def test_what_is_no_sampler():
    session = make_engine().session()
    with pytest.raises(ConfigError, match="sampler must be of type Sampler, not dict"):
        session.sampler = {}


def test_one_thread_at_a_time():
    session = make_engine().session()
    session.prefill([3])
    inside, outside = threading.Event(), threading.Event()

    def wait(ids, logits):
        inside.set()
        outside.wait(60)

    thread = threading.Thread(target=lambda: session.sample(logits_processors=[wait]))
    thread.start()
    inside.wait(60)
    with pytest.raises(GenerateError, match="in use by another thread"):
        session.sample()
    outside.set()
    thread.join()


# ---- snapshots


@pytest.mark.parametrize(
    "options",
    [{"seed": 3}, {}, {"seed": 4, "mirostat": 2}, {"seed": 5, "grammar": 'root ::= [a-z ]+ "."'},
     {"seed": 6, "dry_multiplier": 0.8, "dry_allowed_length": 1}],
)  # fmt: skip
def test_a_snapshot_keeps_the_sampler_at_every_moment(options):
    with load("llama") as engine, load("llama", num_threads=2) as other:
        session = engine.session()
        session.prefill(tokens_of(engine, 20, seed=3))
        saved = []
        for i in range(6):
            token = session.sample(**(options if not i else {}))
            saved.append((session.snapshot_bytes(), [token]))  # drawn, and not appended yet
            session.forward_one(token)
            saved.append((session.snapshot_bytes(), []))
        tokens = session.tokens
        last = [session.sample() for _ in range(2)]
        for data, ahead in saved:
            with other.resume(data) as resumed:
                for token in [*ahead, None]:
                    if token is not None:
                        resumed.forward_one(token)
                while resumed.position < len(tokens):
                    resumed.forward_one(resumed.sample())
                assert resumed.tokens == tokens
                assert [resumed.sample() for _ in range(2)] == last
                resumed.truncate(23)
                resumed.forward_decode(tokens[22], 22)
                assert resumed.sample() == tokens[23]


def test_a_snapshot_without_a_sampler_says_nothing_of_one():
    with load("llama") as engine:
        session = engine.session()
        session.prefill(tokens_of(engine, 20))
        before = session.snapshot_bytes()
        session.sample(seed=1)
        assert session.snapshot_bytes() != before
        session.sampler = None
        assert session.snapshot_bytes() == before
        assert b'"follows"' not in before


def test_a_snapshot_wants_functions_again():
    def ban(ids, logits):
        logits[ids[-1]] = -np.inf

    def chain():
        return SamplerChain([stage, "temperature", "draw"], ox.SamplerConfig(seed=3))

    def stage(candidates, config, state):
        return None

    with load("llama") as engine:
        session = engine.session()
        session.prefill(tokens_of(engine, 20))
        session.forward_one(session.sample(chain(), logits_processors=[ban]))
        data, expected = session.snapshot_bytes(), [session.sample() for _ in range(5)]
        with pytest.raises(SnapshotMismatchError, match="made with 1 logits_processors, functions that no file"):
            engine.resume(data, sampler=chain())
        with pytest.raises(SnapshotMismatchError, match="give sampler=, a SamplerChain of the same stages"):
            engine.resume(data, logits_processors=[ban])
        resumed = engine.resume(data, sampler=chain(), logits_processors=[ban])
        assert [resumed.sample() for _ in range(5)] == expected
        session.sampler = None
        with pytest.raises(ConfigError, match="its session had no sampler: give none"):
            engine.resume(session.snapshot_bytes(), sampler=chain())
        with pytest.raises(ConfigError, match="stopping_criteria and draft are for requests for text"):
            engine.resume(data, draft="lookup")


def test_a_grammar_that_is_no_setting_is_not_lost_silently():
    with load("llama") as engine:
        session = engine.session()
        session.prefill(tokens_of(engine, 20))
        grammar = factory_of(engine).plain_sampler(SamplerChain.from_config(ox.SamplerConfig(grammar='root ::= "ab"')))
        session.sample(Sampler(ox.SamplerConfig(), grammar=grammar.memory.grammar))
        with pytest.raises(SnapshotError, match="the sampler's grammar can't be saved: give it as a setting"):
            session.snapshot_bytes()
