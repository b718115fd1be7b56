"""Texts that are cut to the context: as the ids of the whole text, cut between its special tokens."""

import numpy as np
import pytest

import oxillama as ox
from oxillama.core.prompts import cut_ids, cut_text
from oxillama.core.ranking import pair_ids
from oxillama.errors import ConfigError, ContextOverflowError
from tests.models.bert import BERT, DOCUMENTS, HEADS, QUERY, changed, with_head

LONG = "The cat sat on the mat, and a dog came by to see what the birds were up to. " * 400


@pytest.fixture(scope="module")
def engine():
    with ox.load(num_threads=1, context_size=64) as engine:
        yield engine


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    with ox.load(changed(with_head(folder, head=HEADS["output"]), BERT), num_threads=1, context_size=16) as engine:
        yield engine


class Counted:
    """A tokenizer that notes the lengths of the texts that it encodes."""

    def __init__(self, tokenizer):
        self._tokenizer, self.n_special, self.lengths = tokenizer, tokenizer.n_special, []

    def encode(self, text):
        self.lengths.append(len(text))
        return self._tokenizer.encode(text)


def whole_cut(ids, size, side, before, after):
    """The naive twin: what is between the special tokens, cut."""
    middle = ids[before : len(ids) - after]
    room = size - before - after
    kept = middle if len(middle) <= room else middle[:room] if side == "end" else middle[len(middle) - room :]
    return ids[:before] + kept + ids[len(ids) - after :]


@pytest.mark.parametrize("side", ["end", "start"])
@pytest.mark.parametrize(("before", "after"), [(0, 0), (1, 0), (0, 1), (1, 1), (1, 2)])
def test_ids_are_cut_between_the_special_ones(side, before, after):
    ids = list(range(10, 30))
    for size in range(before + after + 1, 25):
        found = cut_ids(ids, size, side, before, after)
        assert found == whole_cut(ids, size, side, before, after)
        assert len(found) == min(size, len(ids))
    for size in range(before + after + 1):
        with pytest.raises(ContextOverflowError, match="leave no room"):
            cut_ids(ids, size, side, before, after)


@pytest.mark.parametrize("side", ["end", "start"])
def test_a_part_of_a_long_text_is_tokenised_as_the_whole(engine, encoder, side):
    for tokenizer, text in ((engine.tokenizer, LONG), (encoder.tokenizer, "a b c d e " * 4000)):
        before, after = tokenizer.n_special
        expected = whole_cut(tokenizer.encode(text), 48, side, before, after)
        counted = Counted(tokenizer)
        assert cut_text(counted, text, 48, side) == (expected, True)
        assert side == "start" or max(counted.lengths) < len(text) / 10
        assert cut_text(tokenizer, "a b", 48, side) == (tokenizer.encode("a b"), False)


@pytest.mark.parametrize("side", ["end", "start"])
def test_digits_keep_the_groups_that_they_have_in_the_whole(engine, side):
    tokenizer = engine.tokenizer
    for text in ("1234567890" * 400, "12345678901" * 400 + "7"):
        expected = whole_cut(tokenizer.encode(text), 48, side, *tokenizer.n_special)
        assert cut_text(tokenizer, text, 48, side) == (expected, True)


def test_special_tokens_are_counted(engine, encoder):
    for tokenizer in (engine.tokenizer, encoder.tokenizer):
        before, after = tokenizer.n_special
        plain, ids = tokenizer.encode("a b", add_special=False), tokenizer.encode("a b")
        assert ids[before : len(ids) - after] == plain
        assert len(ids) - len(plain) == before + after


@pytest.mark.parametrize("side", ["end", "start"])
def test_embeddings_of_long_texts(engine, side):
    ids = engine.tokenize(LONG)
    expected = engine.embed(whole_cut(ids, 64, side, *engine.tokenizer.n_special))
    assert np.array_equal(engine.embed(LONG, truncate=side), expected)
    assert np.array_equal(engine.embed(ids, truncate=side), engine.embed(ids[:64] if side == "end" else ids[-64:]))
    both = engine.embed(["short", LONG], truncate=side)
    assert np.array_equal(both, np.stack([engine.embed("short"), expected]))


def test_texts_are_not_cut_unasked(engine, encoder):
    for call in (
        lambda **options: engine.embed(LONG, **options),
        lambda **options: encoder.rerank(QUERY, ["a b " * 40], **options),
    ):
        for options in ({}, {"truncate": False}, {"truncate": None}):
            with pytest.raises(ContextOverflowError, match="context_size"):
                call(**options)
        for wrong in (True, 1, "left", "END", ["end"]):
            with pytest.raises(ConfigError, match='truncate must be "end", "start" or False, not '):
                call(truncate=wrong)


@pytest.mark.parametrize("side", ["end", "start"])
def test_documents_are_cut_beside_their_query(encoder, side):
    document = " ".join("abcdefgh" * 5)
    around = len(pair_ids(encoder.tokenizer, None, QUERY, ""))
    inner = encoder.tokenizer.encode(document, add_special=False)
    kept = inner[: 16 - around] if side == "end" else inner[len(inner) - (16 - around) :]
    short = encoder.tokenizer.decode(kept)
    assert len(pair_ids(encoder.tokenizer, None, QUERY, short)) == 16
    (found,) = encoder.rerank(QUERY, [document], truncate=side)
    (expected,) = encoder.rerank(QUERY, [short])
    assert found.scores.tolist() == expected.scores.tolist()
    assert encoder.rerank(QUERY, DOCUMENTS, truncate=side) == encoder.rerank(QUERY, DOCUMENTS)


@pytest.mark.parametrize("side", ["end", "start"])
def test_documents_are_cut_within_a_template(encoder, side):
    template = "a {query} b {document} c"
    for document in (" ".join("abcdefgh" * n) for n in range(1, 9)):
        (found,) = encoder.rerank("a b", [document], template=template, truncate=side)
        parts = [document[:n] if side == "end" else document[len(document) - n :] for n in range(len(document) + 1)]
        fitting = [p for p in parts if len(pair_ids(encoder.tokenizer, template, "a b", p)) <= 16]
        scores = {p: encoder.rerank("a b", [p], template=template)[0].score for p in fitting}
        assert found.score in [score for part, score in scores.items() if len(part) >= len(fitting[-1]) - 4]


def test_a_query_that_leaves_no_room(encoder):
    with pytest.raises(ContextOverflowError, match=r"query has .* no document fits"):
        encoder.rerank("a b " * 10, ["a"], truncate="end")
