"""Functions that end a text, and prompts that stand before it, however they are served."""

import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oxillama as ox
from oxillama.engine.async_engine import AsyncEngine
from oxillama.engine.speculative_engine import SpeculativeEngine
from oxillama.errors import ConfigError, SnapshotMismatchError
from tests.fakes import EOS, N_VOCAB, assert_idle, logits_of, make_engine, options
from tests.plain_loop import CONFIGS, PROMPTS, plain_tokens
from tests.snapshot.models import load, tokens_of, told
from tests.speculative.drafts import Oracle


class Every:
    """Ends texts whose ids add up to a multiple of n, and remembers what it was asked."""

    def __init__(self, n):
        self.n = n
        self.asked = []

    def __call__(self, ids, logits):
        self.asked.append((list(ids), logits.tolist()))
        ids.clear()
        return sum(self.asked[-1][0]) % self.n == 0


def plain(prompt, config, max_tokens, n):
    """Tokens, reason and calls, by cutting the text that is generated without."""
    tokens, reason = plain_tokens(prompt, config, max_tokens)
    asked = []
    for i in range(1, len(tokens) + 1):
        so_far = [*prompt, *tokens[:i]]
        asked.append((so_far, logits_of(so_far[:-1]).tolist()))
        if sum(so_far) % n == 0:
            return tokens[:i], "stop", asked
    return tokens, reason, asked


@given(PROMPTS, CONFIGS, st.integers(1, 20), st.integers(1, 20), st.integers(0, 5), st.sampled_from([1, 64]))
def test_they_are_asked_after_each_token_with_and_without_guesses(prompt, config, max_tokens, n, every, chunk):
    tokens, reason, asked = plain(prompt, config, max_tokens, n)
    engine = make_engine(prefill_chunk_size=chunk)
    for draft in ({}, {"draft": Oracle([[*prompt, *tokens, 5, 6, 7, 8]], every), "adaptive": False}):
        end = Every(n)
        r = engine.generate(prompt, max_tokens=max_tokens, sampler=config, stopping_criteria=[end], **draft)
        assert (r.token_ids, r.finish_reason, end.asked) == (tokens, reason, asked)
        assert r.stop_reason == (EOS if reason == "stop" and r.token_ids == plain_tokens(prompt, config, max_tokens)[0]
                                 and (not tokens or sum([*prompt, *tokens]) % n) else None)  # fmt: skip
    assert_idle(engine)


@given(st.lists(PROMPTS, min_size=1, max_size=5), CONFIGS, st.integers(2, 20), st.integers(4, 9))
def test_every_way_to_ask_gives_the_same(prompts, config, n, n_blocks):
    engine = make_engine(n_blocks=n_blocks)
    asked = {"max_tokens": 12, "sampler": config, "stopping_criteria": Every(n)}
    expected = [plain(prompt, config, 12, n)[:2] for prompt in prompts]

    def ended(found):
        return [(r.token_ids, r.finish_reason) for r in found]

    def of_chunks(chunks):
        return [t for c in chunks for t in c.token_ids], chunks[-1].finish_reason

    async def use():
        many = AsyncEngine(engine)
        streams = [many.stream(prompt, **asked) for prompt in prompts]
        batch = [r async for r in many.batch(prompts, **asked)]
        return await many.generate(prompts, **asked), batch, [[c async for c in stream] for stream in streams]

    awaited, batched, streamed = asyncio.run(use())
    assert ended(engine.generate(prompts, **asked)) == expected
    assert [of_chunks(list(engine.stream(prompt, **asked))) for prompt in prompts] == expected
    assert ended(engine.batch(prompts, **asked)) == ended(awaited) == ended(batched) == expected
    assert list(map(of_chunks, streamed)) == expected
    with SpeculativeEngine(engine, "lookup") as spec:
        assert ended(spec.generate(prompts, **asked)) == expected


def test_each_of_several_completions_is_asked_for():
    engine, config = make_engine(), ox.SamplerConfig(seed=3, temperature=1.0)
    found = engine.generate([5, 6, 7], n=4, max_tokens=15, sampler=config, stopping_criteria=Every(4))
    alone = [plain([5, 6, 7], ox.SamplerConfig(seed=3 + i, temperature=1.0), 15, 4)[:2] for i in range(4)]
    assert [(r.token_ids, r.finish_reason) for r in found] == alone


def test_text_that_was_held_back_is_shown():
    engine = make_engine()
    asked = {"seed": 1, "ignore_eos": True}
    free = engine.generate([5, 6, 7], max_tokens=3, **asked).text
    held = free[1:] + "\0"  # never complete
    r = engine.generate([5, 6, 7], stop=held, stopping_criteria=lambda ids, _: len(ids) == 6, **asked)
    assert (r.text, len(r.token_ids), r.finish_reason, r.stop_reason) == (free, 3, "stop", None)


def test_the_logits_are_no_place_to_write():
    def write(ids, logits):
        logits[0] = 1.0
        return False

    with pytest.raises(ValueError, match="read-only"):
        make_engine().generate([5], stopping_criteria=write)


def test_the_logits_may_be_kept():
    kept = []

    def keep(ids, row):
        kept.append((ids, row))
        return False

    r = make_engine().generate([5], max_tokens=5, ignore_eos=True, stopping_criteria=keep)
    assert [ids for ids, _ in kept] == [[5, *r.token_ids[: i + 1]] for i in range(5)]
    for ids, row in kept:
        assert row.dtype == np.float32
        assert row.shape == (N_VOCAB,)
        assert row.tolist() == logits_of(ids[:-1]).tolist()


def test_the_first_that_is_true_ends_the_text():
    first, second = Every(1), Every(1)
    make_engine().generate([5], stopping_criteria=(first, second))
    assert (len(first.asked), second.asked) == (1, [])
    r = make_engine().generate([5], ignore_eos=True, stopping_criteria=[lambda i, _: np.bool_(False), Every(1)])
    assert len(r.token_ids) == 1


def test_an_error_ends_its_request_alone():
    def fail(ids, logits):
        if len(ids) == 6:
            raise KeyError("no such thing")
        return False

    engine = make_engine()
    outcomes = list(engine.batch([[5], [5] * 3, [5] * 20], max_tokens=4, ignore_eos=True, stopping_criteria=fail,
                                 errors="yield"))  # fmt: skip
    assert [type(o) for o in outcomes] == [ox.Completion, ox.BatchFailure, ox.Completion]
    assert repr(outcomes[1].error) == "KeyError('no such thing')"
    assert_idle(engine)


@pytest.mark.parametrize(
    ("criteria", "message"),
    [
        ("stop", "must be a function or a list of them, not str"),
        ({}, "must be a function or a list of them, not dict"),
        (3, "must be a function or a list of them, not int"),
        ([len, 3], r"stopping_criteria\[1\] must be a function \(ids, logits\), not 3"),
        (lambda ids, logits: None, r"stopping_criteria\[0\] must return True or False, not None"),
        ([lambda ids, logits: False, lambda ids, logits: 1], r"\[1\] must return True or False, not 1"),
    ],
)
def test_what_is_no_criterion_is_named(criteria, message):
    with pytest.raises(ConfigError, match=message):
        make_engine().generate([5], stopping_criteria=criteria)


def test_snapshots_want_them_again():
    with load("llama") as engine:
        tokens = tokens_of(engine, 10)
        asked = {"max_tokens": 30, "seed": 4}
        expected = list(engine.stream(tokens, stopping_criteria=lambda ids, _: len(ids) == 22, **asked))
        stream = engine.stream(tokens, stopping_criteria=lambda ids, _: len(ids) == 22, **asked)
        read = [next(stream) for _ in range(3)]
        data = stream.snapshot_bytes()
        with pytest.raises(SnapshotMismatchError, match="made with 1 stopping_criteria, functions that no file"):
            engine.resume(data)
        rest = list(engine.resume(data, stopping_criteria=[lambda ids, _: len(ids) == 22]))
        plain = engine.stream(tokens, **asked)
        next(plain)
        with pytest.raises(SnapshotMismatchError, match="made with 0 stopping_criteria"):
            engine.resume(plain.snapshot_bytes(), stopping_criteria=lambda ids, _: True)

        async def resume():
            many = AsyncEngine(engine)
            return [c async for c in await many.resume(data, stopping_criteria=lambda ids, _: len(ids) == 22)]

        assert told(asyncio.run(resume())) == told(rest)
    assert told(read + rest) == told(expected)
    assert rest[-1].finish_reason == "stop"
    assert sum(len(c.token_ids) for c in expected) == 12


def test_a_conversation_asks_them():
    talk = make_engine().conversation()
    chunks = list(talk.stream([3, 4], options(ignore_eos=True, stopping_criteria=lambda ids, _: len(ids) == 7)))
    assert (len(talk.tokens), chunks[-1].finish_reason) == (7, "stop")


@pytest.mark.parametrize("name", ["stopping_criteria", "echo"])
def test_beam_search_has_no_use_for_them(name):
    with pytest.raises(ConfigError, match=f"{name} is not for beam_search"):
        make_engine().beam_search([5], **{name: True})


# ---- echo


@given(st.lists(st.text("abcdefgh .!", min_size=1, max_size=20), min_size=1, max_size=4), CONFIGS, st.booleans(),
       st.none() | st.integers(1, 3))  # fmt: skip
def test_the_prompt_stands_before_the_text(prompts, config, as_ids, n):
    """And nothing else changes: tokens, stop strings, log-probabilities."""
    engine = make_engine()
    given = [engine.tokenize(prompt) for prompt in prompts] if as_ids else prompts
    asked = {"max_tokens": 9, "sampler": config, "logprobs": 0, "stop": ["ab", "e."], "n": n}

    def flat(found):
        return [r for some in found for r in (some if n else [some])]

    expected = []
    repeated = [prompt for prompt in prompts for _ in range(n or 1)]
    for prompt, r in zip(repeated, flat(engine.generate(given, **asked)), strict=True):
        expected.append((prompt + r.text, r.token_ids, r.finish_reason, r.stop_reason, r.logprobs))

    async def use():
        return flat(await AsyncEngine(engine).generate(given, echo=True, **asked))

    for found in (
        flat(engine.generate(given, echo=True, **asked)),
        flat(engine.batch(given, echo=True, **asked)),
        flat(engine.generate(given, echo=True, draft="lookup", **asked)),
        asyncio.run(use()),
    ):
        assert [(r.text, r.token_ids, r.finish_reason, r.stop_reason, r.logprobs) for r in found] == expected
    pieces = dict.fromkeys(range(n or 1), "")
    for chunk in engine.stream(given[0], echo=True, **asked):
        assert pieces[chunk.index] or chunk.text.startswith(prompts[0])
        pieces[chunk.index] += chunk.text
    assert list(pieces.values()) == [text for text, *_ in expected[: n or 1]]


def test_the_first_piece_has_the_prompt():
    heard = []
    r = make_engine().generate("the bed", max_tokens=5, ignore_eos=True, echo=True, on_token=heard.append)
    assert heard[0].startswith("the bed")
    assert "".join(heard) == r.text


def test_a_text_that_never_began_is_its_prompt():
    token = ox.CancelToken()
    token.cancel()
    r = make_engine().generate("the bed", echo=True, cancel_token=token)
    assert (r.text, r.finish_reason) == ("the bed", "cancelled")


@pytest.mark.parametrize("n_read", [0, 2])
def test_a_snapshot_keeps_the_prompt_that_is_to_be_shown(n_read):
    with load("llama") as engine:
        tokens = tokens_of(engine, 10)
        asked = {"max_tokens": 8, "seed": 1, "echo": True}
        expected = engine.generate(tokens, **asked).text
        assert expected.startswith(engine.tokenizer.decode(tokens))
        stream = engine.stream(tokens, **asked)
        read = [next(stream) for _ in range(n_read)]
        data = stream.snapshot_bytes()
        assert "".join(c.text for c in [*read, *engine.resume(data)]) == expected


def test_where_it_has_no_place():
    engine = make_engine()
    with pytest.raises(ConfigError, match="echo is not for chat"):
        engine.chat([{"role": "user", "content": "a"}], chat_template="{{ messages[0].content }}", echo=True)
    with pytest.raises(ConfigError, match="echo is not for a conversation"):
        engine.conversation().stream([3], options(echo=True))
    with pytest.raises(ConfigError, match="echo and tool_use are both given"):
        engine.generate("ab", echo=True, tool_use=ox.ToolUse("hermes"))
    with pytest.raises(ConfigError, match="echo must be True or False, not 'yes'"):
        engine.generate("ab", echo="yes")
