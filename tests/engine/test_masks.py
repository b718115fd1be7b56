"""Options that say which tokens may come and which end a text: the plain loop's texts, however they are served."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oxillama as ox
from oxillama.config import SamplerConfig
from oxillama.drafts.draft import Proposal
from oxillama.engine.async_engine import AsyncEngine
from oxillama.errors import ConfigError, GenerateError, SnapshotDamagedError
from oxillama.sampling import Sampler
from oxillama.snapshot.format.writer import packed
from tests.fakes import EOS, N_VOCAB, PIECES, assert_idle, logits_of, make_engine
from tests.plain_loop import PROMPTS, text_of
from tests.snapshot.contents import placed_state, unpacked
from tests.snapshot.models import load, tokens_of

LETTERS = st.integers(2, N_VOCAB - 1)
ASKED = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.0, 1.0]), "seed": st.integers(0, 99), "repetition_penalty": st.just(1.1)},
    optional={
        "allowed_token_ids": st.lists(LETTERS, min_size=3, max_size=9).map(lambda ids: [*ids, EOS]),
        "bad_words": st.lists(st.lists(LETTERS, min_size=1, max_size=3), max_size=3),
        "min_tokens": st.integers(0, 12),
        "stop_token_ids": st.lists(LETTERS, max_size=3),
        "include_stop": st.booleans(),
        "ignore_eos": st.booleans(),
    },
)


def plain(prompt, asked, max_tokens, **draws):
    """(tokens, finish reason, stop reason) by a loop over rows without the tokens that may not come."""
    asked = dict(asked)
    stops, kept = asked.pop("stop_token_ids", []), asked.pop("include_stop", False)
    ends = {*([] if asked.pop("ignore_eos", False) else [EOS]), *stops}
    fields = {name: asked.pop(name, None) for name in ("allowed_token_ids", "bad_words", "min_tokens")}
    sampler, tokens = Sampler(SamplerConfig(**asked), prompt=prompt), []
    while len(tokens) < max_tokens:
        row = logits_of([*prompt, *tokens])
        for token in range(N_VOCAB):
            bad = any([*tokens, token][-len(word) :] == word for word in fields["bad_words"] or [])
            early = token in ends and len(tokens) < (fields["min_tokens"] or 0)
            if bad or early or token not in (fields["allowed_token_ids"] or range(N_VOCAB)):
                row[token] = float("-inf")
        token = sampler.sample(row)
        if token in ends and not (kept and token in stops):
            return tokens, "stop", token
        sampler.accept(token)
        tokens.append(token)
        if token in ends:
            return tokens, "stop", token
    return tokens, "length", None


class Wild:
    """Drafts tokens that mostly are not to come, ends among them."""

    def bind(self, target):
        pass

    def propose(self, tasks):
        return [Proposal([(len(task.tokens) + i) % N_VOCAB for i in range(task.n)]) for task in tasks]

    def forget(self, key):
        pass


@given(
    st.lists(PROMPTS, min_size=1, max_size=3), ASKED, st.sampled_from([1, 3, 16]), st.integers(4, 9),
    st.sampled_from([{}, {"draft": "lookup"}, {"draft": Wild(), "adaptive": False}]),
)  # fmt: skip
def test_texts_are_those_of_the_plain_loop(prompts, asked, chunk, n_blocks, draft):
    engine = make_engine(prefill_chunk_size=chunk, n_blocks=n_blocks)
    try:
        expected = [plain(prompt, asked, 14) for prompt in prompts]
    except GenerateError:
        with pytest.raises(GenerateError, match="no token is left"):
            engine.generate(prompts, max_tokens=14, **asked, **draft)
        assert_idle(engine)
        return
    found = engine.generate(prompts, max_tokens=14, logprobs=0, **asked, **draft)
    assert [(r.token_ids, r.finish_reason, r.stop_reason) for r in found] == expected
    for r in found:
        assert r.text == text_of(r.token_ids)
        assert [t.token_id for t in r.logprobs] == r.token_ids
        in_text = asked.get("include_stop") and r.stop_reason in asked.get("stop_token_ids", [])
        assert (r.end is not None) == (r.finish_reason == "stop" and not in_text)
    assert_idle(engine)


ALL = {
    "bad_words": ["ab", "the ", [5, 6]], "min_tokens": 6, "stop_token_ids": [9, 12], "include_stop": True,
    "allowed_token_ids": [EOS, *range(2, 15)], "seed": 5, "temperature": 1.5,
}  # fmt: skip


def test_streams_batches_and_coroutines_give_the_same():
    engine = make_engine(prefill_chunk_size=4)
    whole = engine.generate("the cab", max_tokens=20, **ALL)
    assert 6 <= len(whole.token_ids) < 20
    assert whole.token_ids[-1] == whole.stop_reason
    chunks = list(engine.stream("the cab", max_tokens=20, **ALL))
    assert [t for c in chunks for t in c.token_ids] == whole.token_ids
    assert "".join(c.text for c in chunks) == whole.text
    assert chunks[-1].stop_reason == whole.stop_reason
    assert list(engine.batch(["the cab"], max_tokens=20, **ALL)) == [whole]

    async def use():
        return await AsyncEngine(engine).generate("the cab", max_tokens=20, **ALL)

    assert asyncio.run(use()) == whole
    several = engine.generate("the cab", n=3, max_tokens=20, **ALL)
    alone = [engine.generate("the cab", max_tokens=20, **{**ALL, "seed": 5 + i}) for i in range(3)]
    assert [r.token_ids for r in several] == [r.token_ids for r in alone]


def test_words_are_meant_inside_a_text_and_after_a_space():
    with ox.load(num_threads=1) as engine:
        asked = {"max_tokens": 40, "temperature": 0.0}
        text = engine.generate("Once upon a time", **asked).text
        first, second = text.split()[3:5]
        without = engine.generate("Once upon a time", bad_words=[first, f" {second}"], **asked).text
        assert not {first, second} & set(without.replace(".", "").split())


def test_a_draft_model_draws_by_them():
    """Draft tokens are drawn by the request's own masks, so that nearly as many are accepted, and change nothing."""
    with ox.load(num_threads=1) as engine, ox.DraftModel(ox.shipped_draft(), num_threads=1) as draft:
        asked = {"max_tokens": 60, "seed": 2, "bad_words": ["a", "the", "was"], "min_tokens": 50, "stop": "."}
        plain = engine.generate("Once upon a time", **asked)
        found = engine.generate("Once upon a time", draft=draft, adaptive=False, **asked)
        assert found == plain
        assert found.speculation.accepted > 10
        assert not {"a", "the", "was"} & set(found.text.split())


@pytest.mark.parametrize("seed", range(12))
def test_rejected_draft_tokens_leave_the_masks(seed):
    engine = make_engine()
    r = engine.generate(
        "the cab", max_tokens=20, draft=Wild(), acceptance="rejection", **{**ALL, "seed": seed, "ignore_eos": True}
    )
    stops = [i for i, token in enumerate(r.token_ids) if token in (9, 12)]
    assert stops == ([len(r.token_ids) - 1] if r.finish_reason == "stop" else [])
    assert 6 <= len(r.token_ids) == (20 if r.finish_reason == "length" else len(r.token_ids))
    assert set(r.token_ids) <= {*ALL["allowed_token_ids"]}
    assert not any(r.token_ids[i : i + 2] == [5, 6] for i in range(20))
    assert PIECES.index(b"ab") not in r.token_ids
    assert_idle(engine)


# ---- how long a text is at least


def test_until_then_no_stop_string_and_no_criterion_ends_it():
    engine, asked = make_engine(), {"max_tokens": 20, "seed": 1, "allowed_token_ids": [2, 3, 4]}
    free = engine.generate("the bed", **asked)
    pieces = [PIECES[t].decode("utf-8", "replace") for t in free.token_ids]
    stop = free.text[:1]
    n = next(i for i, piece in enumerate(pieces) if i >= 6 and stop in piece)
    found = engine.generate("the bed", stop=stop, min_tokens=6, **asked)
    assert (len(found.token_ids), found.stop_reason) == (n + 1, stop)
    assert found.text == "".join(pieces[:n]) + pieces[n][: pieces[n].index(stop)]
    asked_at = []

    def criterion(ids, logits):
        asked_at.append(len(ids) - free.prompt_tokens)
        return True

    found = engine.generate("the bed", stopping_criteria=criterion, min_tokens=6, **asked)
    assert (found.token_ids, asked_at) == (free.token_ids[:6], [6])


@pytest.mark.parametrize("n", [1, 5, 19, 20])
def test_it_is_at_least_that_long(n):
    engine = make_engine()
    likely = {"logit_bias": {EOS: 50.0}}
    assert engine.generate("ab", max_tokens=20, **likely).token_ids == []
    assert len(engine.generate("ab", max_tokens=20, min_tokens=n, **likely).token_ids) == n


def test_what_stays_of_the_end():
    engine, asked = make_engine(), {"max_tokens": 20, "ignore_eos": True, "seed": 1, "logprobs": 0}
    free = engine.generate("the bed", **asked)
    stop = free.text[3:5]
    cut, kept = (engine.generate("the bed", stop=stop, include_stop=keep, **asked) for keep in (False, True))
    assert (cut.text + stop, cut.token_ids, cut.stop_reason) == (kept.text, kept.token_ids, kept.stop_reason)
    chunks = list(engine.stream("the bed", stop=stop, include_stop=True, **asked))
    assert "".join(c.text for c in chunks) == kept.text
    token = free.token_ids[4]
    at = free.token_ids.index(token)
    cut, kept = (
        engine.generate("the bed", stop_token_ids=[token], include_stop=keep, **asked) for keep in (False, True)
    )
    assert (cut.token_ids, cut.end.token_id, cut.stop_reason) == (free.token_ids[:at], token, token)
    assert (kept.token_ids, kept.end, kept.stop_reason) == (free.token_ids[: at + 1], None, token)
    assert kept.logprobs == [*cut.logprobs, cut.end] == free.logprobs[: at + 1]


def test_end_tokens_of_the_model_are_never_a_part_of_the_text():
    found = make_engine().generate("ab", logit_bias={EOS: 50.0}, include_stop=True, logprobs=0)
    assert (found.text, found.token_ids, found.stop_reason, found.end.token_id) == ("", [], EOS, EOS)


# ---- with a grammar, sessions, beams


def test_with_a_grammar_both_hold():
    engine = make_engine()
    asked = {"grammar": 'root ::= "a" [bc]*', "max_tokens": 12, "seed": 2}
    text = engine.generate("cab", min_tokens=12, bad_words=["b", "ab"], **asked).text
    assert set(text) <= set("abc")
    assert len(text) >= 12
    assert "b" not in text
    with pytest.raises(GenerateError, match="the grammar, allowed_token_ids, bad_words and min_tokens ban them all"):
        engine.generate("cab", choices=["ab"], min_tokens=5, max_tokens=9)
    assert_idle(engine)


def test_sessions_draw_by_them_and_resume_with_them():
    with load("llama") as engine, load("llama") as other:
        tokens = tokens_of(engine, 20)
        chain = {"temperature": 1.0, "seed": 1, "bad_words": ["ab", [3]], "allowed_token_ids": list(range(40))}
        engine.prefill(tokens)
        drawn, saved = [], None
        for i in range(12):
            token = engine.sample(**(chain if not i else {}))
            drawn.append(token)
            engine.forward_one(token)
            saved = engine.snapshot_bytes() if i == 5 else saved
        assert max(drawn) < 40
        with other.resume(saved) as session:
            again = []
            for _ in range(6):
                again.append(session.sample())
                session.forward_one(again[-1])
        assert again == drawn[6:]


def test_one_beam_is_greedy_generation():
    engine = make_engine()
    asked = {name: value for name, value in ALL.items() if name not in ("seed", "temperature", "include_stop")}
    (beam,) = engine.beam_search("the cab", beam_width=1, max_new_tokens=20, **asked)
    greedy = engine.generate("the cab", max_tokens=20, temperature=0.0, repetition_penalty=1.0, **asked)
    assert (beam.token_ids, beam.finish_reason) == (greedy.token_ids, greedy.finish_reason)
    for found in engine.beam_search("the cab", beam_width=4, max_new_tokens=20, **asked):
        assert len(found.token_ids) >= 6
        assert not {9, 12} & set(found.token_ids)
        assert "ab" not in [PIECES[t].decode() for t in found.token_ids]
    with pytest.raises(ConfigError, match=r"include_stop is not for beam_search\(\)"):
        engine.beam_search("ab", include_stop=True)
    with pytest.raises(ConfigError, match="min_tokens must be at most max_new_tokens, 4, not 5"):
        engine.beam_search("ab", max_new_tokens=4, min_tokens=5)
    assert_idle(engine)


def test_beams_are_saved_with_them():
    with load("llama") as engine, load("llama") as other:
        asked = {"beam_width": 3, "max_new_tokens": 9, "min_tokens": 4, "stop_token_ids": [5, 9], "bad_words": ["ab"]}
        whole = engine.beam_search(tokens_of(engine, 12), **asked)
        rounds = engine.beam_rounds(tokens_of(engine, 12), **asked)
        for _ in range(3):
            next(rounds)
        assert other.resume(rounds.snapshot_bytes()).results() == rounds.results() == whole


# ---- snapshots


def told(chunks):
    return [(c.text, c.token_ids, c.finish_reason, c.stop_reason, c.logprobs, c.end) for c in chunks]


@pytest.mark.parametrize("stop", ["zz", None])
@pytest.mark.parametrize("draft", [None, "lookup"])
def test_snapshots_go_on_with_them_at_every_token(draft, stop):
    with load("llama") as engine, load("llama", kv_block_size=32) as other:
        prompt = tokens_of(engine, 20)
        asked = {
            "max_tokens": 14, "seed": 3, "temperature": 1.2, "logprobs": 1, "bad_words": ["a", [7, 8]], "min_tokens": 5,
            "allowed_token_ids": list(range(2, 60)), "draft": draft, "stop": stop,
        }  # fmt: skip
        asked |= {"stop_token_ids": [10, 20, 30, 40, 50], "include_stop": True}
        last = engine.generate(prompt, **asked).stop_reason
        assert last is not None
        whole = list(engine.stream(prompt, **asked))
        assert whole[-1].stop_reason == last
        for k in range(len(whole) + 1):
            stream = engine.stream(prompt, **asked)
            first = [next(stream) for _ in range(k)]
            saved = stream.snapshot_bytes()
            stream.close()
            assert told([*first, *other.resume(other.resume(saved).snapshot_bytes())]) == told(whole), k


def test_an_end_that_was_not_read_is_saved_with_its_token():
    with load("llama") as engine:
        prompt = tokens_of(engine, 20)
        asked = {"max_tokens": 9, "temperature": 0.0, "logprobs": 1}
        last = engine.generate(prompt, **asked).token_ids[4]
        stream = engine.stream(prompt, stop_token_ids=[last], include_stop=True, **asked)
        next(stream)
        engine.generate(prompt, max_tokens=9)  # which takes the steps of both
        data = stream.snapshot_bytes()
        assert told(engine.resume(data)) == told(stream)
        saved = unpacked(data)
        for name, value in (("include_stop", False), ("stop_token_ids", [-1]), ("stop_token_ids", [last + 1])):
            with pytest.raises(SnapshotDamagedError):
                list(engine.resume(packed(placed_state(saved, ("text", name), value))))


def test_without_them_nothing_of_them_is_saved():
    with load("llama") as engine:
        state = unpacked(engine.stream(tokens_of(engine, 20), max_tokens=4, seed=1).snapshot_bytes()).state
    names = {"stop_token_ids", "include_stop", "allowed_token_ids", "bad_words", "min_tokens"}
    assert not names & {*state["text"], *state["sampler"]["config"]}
    assert "masks" not in state["sampler"]["stages"]


# ---- bad input


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"stop_token_ids": 5}, "stop_token_ids must be a list of token ids, not 5"),
        ({"stop_token_ids": [N_VOCAB]}, f"stop_token_ids must have token ids of this model, .* not {N_VOCAB}"),
        ({"stop_token_ids": [3, -1]}, r"stop_token_ids\[1\]"),
        ({"include_stop": 1}, "include_stop must be"),
        ({"allowed_token_ids": []}, "allowed_token_ids must hold at least one token id"),
        ({"allowed_token_ids": [N_VOCAB]}, "allowed_token_ids must have token ids of this model"),
        ({"bad_words": "abc"}, "bad_words must be a list of strings"),
        ({"bad_words": ["a", ""]}, r"bad_words\[1\] must have 1 to 256 characters"),
        ({"bad_words": [[N_VOCAB]]}, "bad_words must have token ids of this model"),
        ({"min_tokens": -1}, "min_tokens must be"),
        ({"min_tokens": 9}, "min_tokens must be at most max_tokens, 8, not 9"),
    ],
)
def test_bad_values_are_named(given, message):
    engine = make_engine()
    with pytest.raises(ConfigError, match=message):
        engine.generate("ab", max_tokens=8, **given)
    assert_idle(engine)
