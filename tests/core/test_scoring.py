"""Scores of continuations and perplexities: those of the logits of each position, whatever is cached or runs beside."""

import asyncio
import math
import threading

import numpy as np
import pytest

import oxillama as ox
from oxillama.core.scoring import TOGETHER, summed, windows
from tests.engine.serving import NAMES, engine_of
from tests.fakes import assert_idle
from tests.models.bert import BERT, changed
from tests.models.tiny import tiny

PROMPT = "Once upon a time, there was a little girl named"
TEXTS = [" Lily", " Tom and his dog", " a", " xyz went to the", " Lily and her friend"]
LONG = "The cat sat on the mat, and a dog came by to see what the birds were up to. " * 12


@pytest.fixture(scope="module")
def engine():
    with ox.load(num_threads=1, context_size=256) as engine:
        yield engine


@pytest.fixture(params=NAMES)
def small(request):
    with engine_of(request.param, 40, 12, 40) as engine:
        yield engine


def log_softmax(rows):
    rows = rows.astype(np.float64)
    return rows - np.logaddexp.reduce(rows, axis=1, keepdims=True)


def expected(engine, given, ids):
    """Log-probabilities of ids behind others, by the logits of every position, and whether all are the likeliest."""
    rows = engine.forward_logits(given + ids)[len(given) - 1 : -1]
    found = log_softmax(rows)
    return [row[token] for row, token in zip(found, ids, strict=True)], (rows.argmax(1) == ids).all()


def continuation(engine, text):
    return engine.tokenizer.encode(text, add_special=False, continuation=True)


def test_scores_are_those_of_the_logits(engine):
    given = engine.tokenize(PROMPT)
    best = [int(engine.forward_logits(given)[-1].argmax())]
    found = engine.score(PROMPT, [*TEXTS, engine.detokenize(best)])
    for one, text in zip(found, TEXTS, strict=False):
        ids = continuation(engine, text)
        wanted, greedy = expected(engine, given, ids)
        assert one.tokens == tuple(ids)
        assert one.logprobs == pytest.approx(wanted, abs=1e-9)
        assert one.greedy == greedy
        assert one.logprob == math.fsum(one.logprobs)
        assert one.to_dict()["logprob"] == one.logprob
    assert found[-1].greedy
    assert [one.index for one in found] == list(range(len(found)))
    assert_idle(engine)


def test_scores_are_the_same_bits_however_they_are_asked_for(engine):
    given = engine.tokenize(PROMPT)
    together = engine.score(PROMPT, TEXTS)
    alone = [engine.score(given, [continuation(engine, text)])[0] for text in TEXTS]
    assert [one.logprobs for one in together] == [one.logprobs for one in alone]
    many = engine.score(PROMPT, TEXTS * (2 * TOGETHER // len(TEXTS) + 1))  # in parts, and with all of it cached
    assert [one.logprobs for one in many] == [one.logprobs for one in together] * (len(many) // len(TEXTS))
    with ox.load(num_threads=1, context_size=256) as fresh:
        assert fresh.score(PROMPT, TEXTS) == together
    prompted = engine.generate(PROMPT + TEXTS[3], max_tokens=0, prompt_logprobs=0).prompt_logprobs
    assert [one.logprob for one in prompted[len(given) :]] == list(together[3].logprobs)


def test_scores_of_each_kind_of_state(small):
    given, texts = [5, 6, 7, 8, 9, 10, 11], [[1], [2, 3, 4], [9] * 40, [2, 3, 4]]
    for _ in range(2):  # the second time with the prompt, and what was scored, in the prefix cache
        for ids, one in zip(texts, small.score(given, texts), strict=True):
            wanted, greedy = expected(small, given, ids)
            assert one.logprobs == pytest.approx(wanted, abs=1e-9)
            assert one.greedy == greedy
    assert_idle(small)


@pytest.mark.parametrize("name", ["llama", "jamba", "gemma2"])
def test_scores_beside_texts_that_take_the_blocks(name):
    """The cache holds less than all of them together: some lose their blocks, and are computed again."""
    given, texts = [3 + i % 20 for i in range(35)], [[3 + i, 5, 7] * 12 for i in range(12)]
    with engine_of(name, 12, 6, 12) as engine:
        alone = [engine.score(given, [ids])[0].logprobs for ids in texts]
        engine.shrink_to_fit()
        beside = threading.Thread(target=lambda: list(engine.batch([[i + 3] * 30 for i in range(8)], max_tokens=60)))
        beside.start()
        found = [[one.logprobs for one in engine.score(given, texts)] for _ in range(3)]
        beside.join()
        assert found == [alone] * 3
        assert engine.metrics_snapshot().preemptions > 0


@pytest.mark.parametrize(
    ("prompt", "texts", "error", "said"),
    [
        ("", ["a"], ox.ConfigError, "prompt is empty"),
        ("a", [], ox.ConfigError, "continuations is empty"),
        ("a", "text", ox.ConfigError, "continuations must be a list of texts"),
        ("a", ["b", ""], ox.ConfigError, r"continuations\[1\] is empty"),
        (["a", "b"], ["c"], ox.ConfigError, "one prompt"),
        ("a", ["b", "word " * 400], ox.ContextOverflowError, r"continuations\[1\] has"),
        ("word " * 400, ["b"], ox.ContextOverflowError, "prompt has"),
        ("a", [[1 << 30]], ox.TokenizerError, r"continuations\[0\]\[0\]"),
    ],
)
def test_scores_that_are_refused(engine, prompt, texts, error, said):
    with pytest.raises(error, match=said):
        engine.score(prompt, texts)
    with pytest.raises(TypeError, match="score"):
        engine.score("a", ["b"], temperature=1)
    assert_idle(engine)


def test_an_encoder_scores_nothing(tmp_path):
    with ox.load(changed(tiny("bert", tmp_path), BERT), num_threads=1) as engine:
        for call in (lambda: engine.score([1], [[2]]), lambda: engine.perplexity([1, 2])):
            with pytest.raises(ox.GenerateError):
                call()


def naive_windows(begin, ids, room, stride):
    """For each token, the window that scores it: the first that holds it behind another token."""
    starts, start = [], 0
    while True:
        starts.append(start)
        if start + room >= len(ids):
            break
        start += stride
    for i in range(len(ids)):
        for start in starts:
            before = begin + ids[start:i]
            if start <= i < start + room and before and (start == 0 or i >= previous_end(starts, start, room)):
                yield before, ids[i]
                break


def previous_end(starts, start, room):
    return starts[starts.index(start) - 1] + room


@pytest.mark.parametrize("begin", [[], [99]])
@pytest.mark.parametrize(("room", "stride"), [(8, 8), (8, 3), (8, 1), (5, 4), (40, 40), (3, 2)])
@pytest.mark.parametrize("n", [2, 7, 8, 9, 30])
def test_windows_against_the_naive_twin(begin, room, stride, n):
    ids, found = list(range(n)), []
    for tokens, n_given in windows(begin, ids, room, stride):
        assert len(tokens) <= len(begin) + room
        assert n_given < len(tokens)
        found += [(tokens[:i], tokens[i]) for i in range(n_given, len(tokens))]
    assert found == list(naive_windows(begin, ids, room, stride))


@pytest.mark.parametrize("options", [{}, {"window": 64}, {"window": 64, "stride": 16}, {"stride": 100}])
def test_perplexities_are_those_of_the_logits(engine, options):
    ids = engine.tokenizer.encode(LONG, add_special=False)
    begin = engine.tokenize(LONG)[: engine.tokenizer.n_special[0]]
    room = options.get("window", 256) - len(begin)
    logprobs = []
    for tokens, n_given in windows(begin, ids, room, options.get("stride", room)):
        logprobs += expected(engine, tokens[:n_given], tokens[n_given:])[0]
    found = engine.perplexity(LONG, **options)
    assert found.n_tokens == len(logprobs)
    assert found.mean == pytest.approx(-np.mean(logprobs), rel=1e-9)
    assert found.value == pytest.approx(np.exp(-np.mean(logprobs)), rel=1e-9)
    assert found.error == pytest.approx(found.value * np.std(logprobs, ddof=1) / np.sqrt(len(logprobs)), rel=1e-6)
    assert engine.perplexity(LONG, **options) == found
    assert_idle(engine)


def test_perplexity_of_one_token():
    assert summed([-2.0]).to_dict() == {"value": math.exp(2), "error": 0.0, "mean": 2.0, "n_tokens": 1}
    assert summed([-800.0, -900.0]).value == math.inf


def test_perplexities_that_are_refused(engine):
    for text, options, said in (
        ("", {}, "text is empty"), ([5], {}, "no token that another one stands before"),
        ("a b", {"window": 257}, "window must be"),
        ("a b", {"window": 8, "stride": 9}, "stride must be"), ("a b", {"stride": 0}, "stride must be"),
        (["a", "b"], {}, "one prompt"),
    ):  # fmt: skip
        with pytest.raises(ox.ConfigError, match=said):
            engine.perplexity(text, **options)


def test_coroutines_get_the_same(engine):
    async def scored():
        mine = ox.AsyncEngine(engine)
        long = mine.perplexity(LONG, window=64, stride=16)
        return await asyncio.gather(mine.score(PROMPT, TEXTS), long, mine.score(PROMPT, TEXTS * 30))

    found, perplexity, many = asyncio.run(scored())
    assert found == engine.score(PROMPT, TEXTS)
    assert [one.logprobs for one in many] == [one.logprobs for one in found] * 30
    assert perplexity == engine.perplexity(LONG, window=64, stride=16)
    assert_idle(engine)


def test_parts_are_no_more_than_may_wait():
    with ox.load(num_threads=1, context_size=256, max_queue_size=3) as small, ox.load(num_threads=1) as other:
        assert small.score(PROMPT, TEXTS) == other.score(PROMPT, TEXTS)
        assert small.perplexity(LONG, window=64) == other.perplexity(LONG, window=64)
