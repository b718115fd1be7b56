"""Prompt lookup against a search by hand, and its cost for a further token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oxillama as ox
from oxillama.drafts.draft import DraftTask, Target
from oxillama.drafts.prompt_lookup import MAX_NGRAM, NgramIndex, PromptLookup
from oxillama.errors import ConfigError
from oxillama.sampling import Sampler
from tests.fakes import FakeTokenizer, make_engine

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=60)
TARGET = Target(FakeTokenizer(), FakeTokenizer.n_vocab, 100)


def searched(tokens, n, least, most, texts):
    """By hand: the longest run of last tokens that something followed before; where it came last."""
    for size in range(min(most, len(tokens)), least - 1, -1):
        run = tokens[-size:]
        for text in (tokens, *reversed(texts)):
            ends = [end for end in range(size, len(text)) if text[end - size : end] == run]
            if ends:
                found = text[ends[-1] : ends[-1] + n]
                while text is tokens and len(found) < n:
                    found.append((tokens + found)[ends[-1] + len(found)])
                return found
    return []


def task(tokens, n, key=1):
    return DraftTask(key, tokens, n, Sampler())


@given(TEXTS, st.lists(TEXTS, max_size=3), st.integers(1, 9), st.integers(1, 3), st.integers(0, 3), st.data())
def test_lookups_agree_with_a_search_by_hand(tokens, texts, n, least, more, data):
    lookup = PromptLookup(least + more, least, texts=texts)
    lookup.bind(TARGET)
    growing = []
    while len(growing) < len(tokens):
        growing += tokens[len(growing) : len(growing) + data.draw(st.integers(1, 9))]
        (found,) = lookup.propose([task(growing, n)])
        assert found.probs is None
        assert found.tokens == searched(growing, n, least, least + more, texts)


def test_a_repeating_text_is_continued():
    lookup = PromptLookup()
    assert lookup.propose([task([9, 1, 2, 3, 1, 2, 3, 1, 2], 8)])[0].tokens == [3, 1, 2, 3, 1, 2, 3, 1]
    assert lookup.propose([task([5, 5, 5], 4, key=2)])[0].tokens == [5, 5, 5, 5]


def test_each_text_has_its_own_index_until_forget():
    lookup = PromptLookup(2, 1)
    a, b = [1, 2, 3, 1], [1, 5, 1]
    assert [p.tokens for p in lookup.propose([task(a, 2, 1), task(b, 1, 2)])] == [[2, 3], [5]]
    lookup.forget(1)
    lookup.forget(1)
    lookup.forget(77)
    assert list(lookup._own) == [2]
    assert lookup.propose([task(a, 1, 1)])[0].tokens == [2]


class Counting(list):
    """Counts how many of its places are read."""

    n_read = 0

    def __getitem__(self, place):
        self.n_read += len(range(*place.indices(len(self)))) if isinstance(place, slice) else 1
        return super().__getitem__(place)


def test_a_token_more_costs_the_same_in_a_long_text():
    costs = []
    for n in (50, 5000):
        tokens = Counting(i * i % 1009 for i in range(n))
        lookup = PromptLookup()
        lookup.propose([task(tokens, 4)])
        before = tokens.n_read
        for _ in range(10):
            tokens.append(3)
            lookup.propose([task(tokens, 4)])
        costs.append(tokens.n_read - before)
    assert costs[0] <= costs[1] <= costs[0] + 60  # one finds a little more to copy
    assert costs[1] < 500


def test_another_text_under_the_same_key_is_read_anew():
    lookup = PromptLookup(2, 1)
    assert lookup.propose([task([1, 2, 1], 1)])[0].tokens == [2]
    assert lookup.propose([task([1, 3, 1], 1)])[0].tokens == [3]
    tokens = [1, 2, 9, 9, 9, 1]
    lookup.propose([task(tokens, 1)])
    tokens[:] = [1, 4, 1]
    assert lookup.propose([task(tokens, 1)])[0].tokens == [4]


def test_an_index_reads_only_new_tokens():
    tokens = [1, 2, 3]
    index = NgramIndex(tokens, 1, 2)
    index.read()
    tokens += [1, 2]
    assert index.find((1,)) == 1
    assert index.find((2, 3)) is None  # nothing had followed it
    index.read()
    assert index.find((2, 3)) == 3
    assert index.find((1,)) == 4


def test_texts_are_tokenised_by_bind():
    engine = make_engine()
    lookup = PromptLookup(2, 1, texts=["abc. def"])
    lookup.bind(Target(engine.tokenizer, engine.n_vocab, engine.context_size))
    ids = engine.tokenize("abc. def", add_special=False)
    assert lookup.propose([task([7, ids[0]], 9)])[0].tokens == ids[1:]
    lookup.bind(Target(engine.tokenizer, engine.n_vocab, engine.context_size))
    with pytest.raises(ConfigError, match="another engine's tokens"):
        make_engine().generate("ab", draft=lookup)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_ngram": 0}, "max_ngram must be from 2 to 16, not 0"),
        ({"max_ngram": 1}, "max_ngram must be from 2"),
        ({"max_ngram": MAX_NGRAM + 1}, "max_ngram"),
        ({"min_ngram": 0}, "min_ngram must be from 1"),
        ({"min_ngram": True}, "min_ngram must be an integer"),
        ({"texts": "abc"}, "texts must be a list of texts"),
        ({"texts": 5}, "texts must be a list of texts"),
        ({"texts": [[1, -1]]}, r"texts\[0\]\[1\]"),
        ({"texts": ["a", None]}, r"texts\[1\] must be token ids"),
    ],
)
def test_bad_settings(wrong, message):
    with pytest.raises(ConfigError, match=message):
        PromptLookup(**wrong)


def test_on_the_shipped_model_a_text_is_copied_in_fewer_steps():
    with ox.load(num_threads=1) as engine:
        wanted = {"max_tokens": 40, "temperature": 0.0, "repetition_penalty": 1.0, "ignore_eos": True}
        ids = engine.tokenize("Once upon a time there was a fox.")
        plain = engine.generate(ids, **wanted)
        lookup = PromptLookup(texts=[ids + plain.token_ids])
        got = engine.generate(ids, **wanted, draft=lookup, num_speculative=8, adaptive=False)
        assert got.token_ids == plain.token_ids
        assert got.speculation.accepted > 30
        assert got.speculation.rounds < 10
