"""A draft model on the fake runner, which notices every wrong block, slot or position."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.config import SamplerConfig
from oxillama.drafts.draft import Draft
from oxillama.errors import ConfigError, EngineClosedError, GenerateError, GrammarError
from oxillama.grammar import Grammar, GrammarState, Vocabulary
from oxillama.sampling import Sampler, SamplerChain
from tests.fakes import BOS, EOS, N_VOCAB, PIECES, FakeTokenizer, core_of, drawn
from tests.sampling.settings import WILDER
from tests.speculative.drafting import (
    KINDS,
    PROMPT,
    WARM,
    Recorder,
    Text,
    draft_of,
    guessed,
    idle,
    make_draft,
    plain,
    runner_of,
    twice,
)

GREEDY = SamplerConfig.greedy()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_the_model_itself_as_a_draft_is_always_accepted(kind, k):
    for config in (GREEDY, WARM, drawn(temperature=2.0, top_k=0, top_p=1.0, xtc_probability=0.5, seed=3)):
        draft = draft_of(kind)
        text = Text(PROMPT, config)
        assert guessed(draft, [text], 40, k) == [plain(PROMPT, config, 40)]
        assert text.accepted == text.drafted - text.ended > 0
        assert twice(draft) == 0
        idle(draft)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("noise", [0.5, 2.0, 50.0])
def test_rejected_draft_tokens_change_nothing_and_are_dropped(kind, noise):
    draft = draft_of(kind, noise=noise)
    text = Text(PROMPT, WARM)
    assert guessed(draft, [text], 50, 4) == [plain(PROMPT, WARM, 50)]
    assert text.drafted > text.accepted
    assert noise > 2 or text.accepted > 0
    if not KINDS[kind].get("n_slots"):
        assert twice(draft) == 0
    else:  # a state goes back to before the draft tokens, and the accepted ones are computed again
        assert twice(draft) <= text.drafted
    idle(draft)


@settings(max_examples=60)
@given(
    WILDER,
    st.sampled_from([0.0, 0.3, 1.0, 10.0]),
    st.integers(1, 8),
    st.sampled_from(sorted(KINDS)),
    st.lists(st.lists(st.integers(2, N_VOCAB - 1), min_size=1, max_size=30), min_size=1, max_size=5),
    st.sampled_from([1, 3, 16, 512]),
)
def test_a_batch_of_texts_is_what_each_is_alone(config, noise, k, kind, prompts, chunk):
    draft = draft_of(kind, noise=noise, prefill_chunk_size=chunk)
    options = {"token_bytes": FakeTokenizer().token_bytes}
    texts = [Text(prompt, config, **options) for prompt in prompts]
    assert guessed(draft, texts, 25, k) == [plain(prompt, config, 25, **options) for prompt in prompts]
    if noise == 0.0 and not config.mirostat:
        assert all(text.accepted >= text.drafted - 1 for text in texts)
    idle(draft)


VOCABULARY = Vocabulary([PIECES[i] if i not in (BOS, EOS) else None for i in range(N_VOCAB)], [EOS])


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_draft_tokens_follow_the_grammar(noise):
    grammar = Grammar.parse('root ::= ("ab" | "the " [a-h] "!")+')
    text = Text(PROMPT, WARM, grammar=GrammarState(grammar, VOCABULARY))
    draft = make_draft(noise=noise)
    expected = plain(PROMPT, WARM, 40, grammar=GrammarState(grammar, VOCABULARY))
    assert guessed(draft, [text], 40, 5) == [expected]
    assert noise or text.accepted == text.drafted - text.ended
    said = b"".join(PIECES[t] for t in expected)
    assert said[:2] in (b"ab", b"th")


# ---- what is computed


def test_each_round_computes_only_new_tokens():
    """Accepted draft tokens are computed already: the other known tokens, then one token after another."""
    draft, text = make_draft(noise=2.0), Text(PROMPT, drawn(temperature=1.3, seed=7, banned_tokens=[EOS]))
    steps, n_new = runner_of(draft).steps, len(PROMPT)
    for _ in range(8):
        del steps[:]
        (proposal,) = draft.propose([text.task(4)])
        assert steps == [[n_new], [1], [1], [1]]
        accepted = text.accepted
        text.step(proposal.tokens)
        # After four right ones: the last of them, which was drawn but not computed, and the one that follows.
        n_new = 1 + (text.accepted - accepted == 4)
    assert 0 < text.accepted < text.drafted
    assert twice(draft) == 0


def test_rounds_are_batched():
    draft = make_draft()
    texts = [Text([BOS, 3 + i], drawn(seed=i, banned_tokens=[EOS])) for i in range(5)]
    draft.propose([text.task(3) for text in texts])
    assert runner_of(draft).steps == [[2] * 5, [1] * 5, [1] * 5]


def test_valid_draft_tokens_are_not_drafted_again():
    """One of five draft tokens is used, as when the engine has room for no more."""
    draft, text = make_draft(), Text(PROMPT, WARM)
    (first,) = draft.propose([text.task(5)])
    text.step(first.tokens[:1])
    n = draft.n_computed
    (second,) = draft.propose([text.task(3)])
    assert second.tokens == first.tokens[2:5]
    assert draft.n_computed == n
    (third,) = draft.propose([text.task(5)])
    assert third.tokens[:3] == second.tokens
    assert draft.n_computed == n + 2
    text.step(third.tokens)
    assert text.accepted == 6
    assert twice(draft) == 0


def test_draft_tokens_of_another_generator_state_are_drafted_again():
    draft, text = make_draft(), Text(PROMPT, drawn(temperature=3.0, top_k=0, top_p=1.0, seed=1))
    (first,) = draft.propose([text.task(6)])
    text.sampler = Sampler(drawn(temperature=3.0, top_k=0, top_p=1.0, seed=2), prompt=PROMPT)
    (second,) = draft.propose([text.task(6)])
    assert first.tokens != second.tokens
    text.step(second.tokens)
    assert text.accepted == 6


def test_a_long_new_prompt_is_computed_a_part_at_a_time():
    draft = make_draft(context_size=2000, prefill_chunk_size=100)
    old, new = Text(PROMPT, GREEDY), Text([5] * 1300, GREEDY)
    sizes = []
    for _ in range(4):
        n = draft.n_computed
        proposals = draft.propose([old.task(2), new.task(2)])
        sizes.append((draft.n_computed - n, len(proposals[0].tokens), len(proposals[1].tokens)))
        old.step(proposals[0].tokens)
    assert [(a, b) for _, a, b in sizes] == [(2, 0), (2, 0), (2, 2), (2, 2)]
    assert all(n <= 700 for n, _, _ in sizes)
    assert twice(draft) == 0
    alone = Text([4] * 1500, GREEDY)
    assert len(draft.propose([alone.task(2)])[0].tokens) == 2  # no other sequence waits


def test_common_prefixes_are_computed_once_under_one_cache_key():
    same = [BOS, *range(2, 18), *range(2, 18)]
    for keys, n in ((("a", "a"), 1), (("a", "b"), 2), ((None, None), 2)):
        draft = make_draft()
        one, other = Text([*same, 3], GREEDY), Text([*same, 4], GREEDY)
        draft.propose([one.task(1, cache_key=keys[0])])
        draft.propose([other.task(1, cache_key=keys[1])])
        assert runner_of(draft).computed.count(tuple(same[:32])) == n


# ---- room


@pytest.mark.parametrize("kind", KINDS)
def test_unused_sequences_are_evicted(kind):
    sizes = {"attention": {"n_blocks": 4}, "recurrent": {"n_slots": 4}, "hybrid": {"n_blocks": 5, "n_slots": 5},
             "windows": {"windows": (6, 20)}, "both": {"n_blocks": 5, "windows": (6, 20)}}  # fmt: skip
    draft = draft_of(kind, context_size=48, **sizes[kind])
    texts = [Text([BOS, *range(2, 17), 2 + i], WARM) for i in range(6)]
    for _ in range(3):
        for text in texts:
            (proposal,) = draft.propose([text.task(3)])
            assert len(proposal.tokens) == 3 or EOS in proposal.tokens
            if not text.ended:
                text.step(proposal.tokens)
    assert 0 < len(core_of(draft).sequences) < 6
    for text in texts:
        draft.forget(text.key)
    idle(draft)


def test_the_most_recently_used_sequence_stays():
    draft = make_draft(n_blocks=4)
    texts = [Text([BOS, *range(2, 18), 2, 3 + i], WARM) for i in range(3)]  # two blocks each
    for i in (0, 1, 0, 2):
        draft.propose([texts[i].task(1)])
    assert core_of(draft).sequences.find(texts[1].key) is None
    n = draft.n_computed
    draft.propose([texts[0].task(1)])
    assert draft.n_computed == n  # the draft tokens are still valid


def test_a_batch_beyond_the_room_drafts_for_some():
    draft = make_draft(n_blocks=4, context_size=60)
    texts = [Text([BOS, *range(2, 18), 2, 3 + i], WARM) for i in range(6)]
    expected = [plain(t.tokens, WARM, 20) for t in texts]
    proposals = draft.propose([t.task(3) for t in texts])
    assert 0 < sum(bool(p.tokens) for p in proposals) < 6
    assert guessed(draft, texts, 20, 3) == expected
    idle(draft)


def test_no_draft_token_is_beyond_the_drafts_context():
    draft = make_draft(context_size=20)
    text = Text([BOS] + [4] * 15, GREEDY)
    assert guessed(draft, [text], 20, 4) == [plain([BOS] + [4] * 15, GREEDY, 20)]
    # 20 places hold 19 tokens and one that is drawn after 20.
    text = Text([BOS] + [4] * 17, GREEDY)
    assert [len(p.tokens) for p in draft.propose([text.task(9)])] == [3]
    text = Text([BOS] + [4] * 20, GREEDY)
    assert [p.tokens for p in draft.propose([text.task(9)])] == [[]]


def test_an_end_token_is_drafted_and_nothing_after_it():
    class Ending(Recorder):
        def row(self, past):
            return np.where(np.arange(N_VOCAB) == (EOS if len(past) == 9 else 5), 9, 0).astype(np.float32)

    draft, text = make_draft(runner=Ending), Text(PROMPT, GREEDY)
    assert draft.propose([text.task(8)])[0].tokens == [5, 5, 5, EOS]
    assert draft.propose([text.task(8)])[0].tokens == [5, 5, 5, EOS]


# ---- functions of the user's own


def test_processors_and_stages_see_no_draft_tokens():
    seen = []

    def mine(candidates, config, state):
        seen.append(len(state.history.tokens))

    chain = SamplerChain.from_config(WARM).insert(mine, before="draw")
    text = Text(PROMPT, chain, processors=[lambda ids, logits: seen.append(len(ids))])
    guessed(make_draft(), [text], 12, 4)
    n = len(PROMPT)
    assert seen == [i for i in range(n, n + len(seen) // 2) for _ in range(2)]


def test_a_dead_end_ends_the_draft():
    """The grammar wants what no token spells; the model's own draw will say so."""
    grammar = Grammar.parse('root ::= "ab" "cd" "Z"')
    text = Text(PROMPT, WARM, grammar=GrammarState(grammar, VOCABULARY))
    draft = make_draft()
    (proposal,) = draft.propose([text.task(8)])
    assert b"".join(PIECES[t] for t in proposal.tokens) == b"abcd"
    again = draft.propose([text.task(8)])
    assert again == [proposal]
    text.step(proposal.tokens[:-1])  # and one more
    with pytest.raises(GrammarError, match="no token of the vocabulary can go on"):
        text.step()
    draft.forget(text.key)
    idle(draft)


# ---- distributions


@pytest.mark.parametrize("config", [WARM, drawn(temperature=1.0, xtc_probability=0.5, seed=3), GREEDY])
def test_with_probs_each_token_is_drawn_from_its_own_distribution(config):
    draft, text = make_draft(noise=1.0), Text(PROMPT, config)
    before = text.sampler.state()
    (first,) = draft.propose([text.task(5, with_probs=True)])
    assert text.sampler.state() == before
    assert len(first.probs) == len(first.tokens) > 0
    for i, (token, q) in enumerate(zip(first.tokens, first.probs, strict=True)):
        past = [*PROMPT, *first.tokens[:i]]
        sampler = Sampler(config, prompt=past)
        if not config.xtc_probability:
            alone = sampler.distribution(runner_of(draft).row(past))
            assert (alone.ids.tolist(), alone.probs.tolist()) == (q.ids.tolist(), q.probs.tolist())
        assert q.probability(token) > 0
    (again,) = draft.propose([text.task(5, with_probs=True)])
    assert again.tokens == first.tokens  # the same place of the same generator


def test_drafts_with_probs_don_t_use_the_requests_generator():
    config = SamplerConfig(temperature=1.0, top_k=0, top_p=1.0, repetition_penalty=1.0)
    own, theirs = [], []
    for seed in range(200):
        text = Text(PROMPT, SamplerConfig(**{**_plain_fields(config), "seed": seed + 1}))
        draft = make_draft()
        own.append(draft.propose([text.task(1)])[0].tokens)
        theirs.append(draft.propose([text.task(1, with_probs=True)])[0].tokens)
    agree = sum(a == b for a, b in zip(own, theirs, strict=True)) / 200
    p = Sampler(config).distribution(runner_of(draft).row(PROMPT)).probs
    assert abs(agree - float((p * p).sum())) < 0.15


def _plain_fields(config):
    return {"temperature": config.temperature, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}


def test_draft_tokens_with_and_without_probs_don_t_mix():
    draft, text = make_draft(), Text(PROMPT, WARM)
    (match,) = draft.propose([text.task(4)])
    (random,) = draft.propose([text.task(4, with_probs=True)])
    assert len(random.probs) == len(random.tokens)
    assert draft.propose([text.task(4)])[0] == match
    guessed(draft, [text], 10, 4)
    idle(draft)


# ---- errors and ends


def test_a_draft_model_implements_the_protocol():
    assert isinstance(make_draft(), Draft)


def test_another_vocabulary_is_refused_by_its_first_difference():
    draft = make_draft()

    class Other(FakeTokenizer):
        def token_bytes(self, token):
            return b"?" if token >= 9 else PIECES[token]

    class Shorter(FakeTokenizer):
        n_vocab = 12

    class Special(FakeTokenizer):
        def is_special(self, token):
            return token in (BOS, EOS, 5)

    def target(tokenizer):
        return type("Target", (), {"tokenizer": tokenizer, "n_vocab": N_VOCAB, "context_size": 64})

    with pytest.raises(ConfigError, match=r"token 9 is b'h' for the draft and b'\?' for the model"):
        draft.bind(target(Other()))
    with pytest.raises(ConfigError, match=r"token 12 is b'!' for the draft and beyond the last of 12 for the model"):
        draft.bind(target(Shorter()))
    with pytest.raises(ConfigError, match="token 5 is b'd' for the draft and the special token b'd' for the model"):
        draft.bind(target(Special()))
    draft.bind(target(FakeTokenizer()))


@pytest.mark.parametrize("more", [-3, 5])
def test_rows_of_another_length_than_the_models_are_made_to_fit(more):
    """Files pad their matrices by different numbers of rows, which stand for no token."""

    class Padded(FakeTokenizer):
        n_vocab = N_VOCAB

    draft = make_draft()
    target = type("Target", (), {"tokenizer": Padded(), "n_vocab": N_VOCAB + more, "context_size": 64})
    draft.bind(target)
    bias = {N_VOCAB + more - 1: 0.5}
    text = Text(PROMPT, drawn(temperature=5.0, top_k=0, top_p=1.0, logit_bias=bias, seed=1))
    (proposal,) = draft.propose([text.task(30)])
    assert len(proposal.tokens) > 5 or EOS in proposal.tokens
    assert all(token < min(N_VOCAB, N_VOCAB + more) for token in proposal.tokens)
    text.tokens.append(N_VOCAB + 4)  # an id that the draft has no row for
    assert draft.propose([text.task(3)])[0].tokens == []


def test_a_model_that_fails_forgets_its_texts_and_leaves_samplers_as_they_were():
    draft, text = make_draft(), Text(PROMPT, WARM)
    guessed_before = draft.propose([text.task(2)])
    runner = runner_of(draft)
    before = text.sampler.state()

    def fail(runner, spans, poll):
        raise MemoryError("no")

    text.step(guessed_before[0].tokens)
    before = text.sampler.state()
    runner.hook = fail
    with pytest.raises(MemoryError):
        draft.propose([text.task(4)])
    assert text.sampler.state() == before
    idle(draft)
    runner.hook = None
    assert guessed(draft, [text], 30, 4) == [plain(PROMPT, WARM, 30)]
    assert text.accepted == text.drafted - text.ended
    idle(draft)


def test_damaged_logits_raise():
    class Broken(Recorder):
        def row(self, past):
            return np.full(N_VOCAB, np.nan, np.float32)

    draft, text = make_draft(runner=Broken), Text(PROMPT, WARM)
    before = text.sampler.state()
    with pytest.raises(GenerateError, match="in the draft model: the model's logit of token 0 is nan"):
        draft.propose([text.task(4)])
    assert text.sampler.state() == before
    idle(draft, 1)


def test_a_stopped_proposal_returns_the_tokens_so_far():
    draft, text = make_draft(), Text(PROMPT, WARM)
    asked = []

    def stopped():
        asked.append(1)
        return len(asked) > 3

    (proposal,) = draft.propose([text.task(8)], stopped)
    assert len(proposal.tokens) == 3
    text.step(proposal.tokens)
    assert guessed(draft, [text], 30, 4) == [plain(PROMPT, WARM, 30)]
    assert text.accepted == text.drafted - text.ended
    assert twice(draft) == 0


def test_a_closed_draft_model_raises():
    draft = make_draft()
    text = Text(PROMPT, WARM)
    with draft:
        draft.propose([text.task(1)])
    assert draft.closed
    draft.close()
    draft.forget(text.key)
    with pytest.raises(EngineClosedError, match="the draft model is closed"):
        draft.propose([text.task(1)])
    with pytest.raises(EngineClosedError):
        draft.bind(type("Target", (), {"tokenizer": FakeTokenizer(), "n_vocab": N_VOCAB}))
    with pytest.raises(EngineClosedError), draft:
        pass
    assert draft.memory_bytes() == {}
    assert "closed" in repr(draft)


def test_threads_share_one_draft():
    draft = make_draft(context_size=64, n_blocks=40)
    expected = [plain([BOS, 3 + i], drawn(seed=i), 30) for i in range(6)]
    found, errors = [None] * 6, []

    def run(i):
        try:
            (found[i],) = guessed(draft, [Text([BOS, 3 + i], drawn(seed=i))], 30, 4)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert errors == []
    assert found == expected
    idle(draft)


def test_a_turn_comes_between_proposals():
    model, seen = make_draft(), []
    model.post(lambda: seen.append(1))
    assert (model.turn(lambda: [*seen, 2]), seen) == ([1, 2], [1])
    model.close()
    with pytest.raises(EngineClosedError):
        model.turn(lambda: seen)
