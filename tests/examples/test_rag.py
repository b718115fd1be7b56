"""Retrieval: the nearest passages by cosine, ranked by a classifier's scores or by likelihood, and an answer."""

import numpy as np
import pytest

import oxillama as ox
from oxillama.examples import rag
from tests.models.bert import BERT, HEADS, changed, with_head


def test_the_nearest_passages_are_those_of_the_highest_cosine(engine):
    texts = ["A red ball.", "A cow on a farm.", "The little fox ran.", "A blue ball."]
    vectors = [engine.embed(text, pooling="mean").astype(np.float64) for text in [*texts, "A green ball."]]
    *units, question = (v / np.linalg.norm(v) for v in vectors)
    wanted = sorted(range(4), key=lambda i: -float(units[i] @ question))
    assert rag.Index(engine, texts).nearest("A green ball.", 3) == [texts[i] for i in wanted[:3]]


def test_without_a_reranker_texts_are_ranked_by_how_likely_they_make_the_question(engine):
    question = "The fox"
    ids = engine.tokenize(f"\nQuestion: {question}", add_special=False)

    def score(text):
        prompt = [*engine.tokenize(text), *ids]
        logits = engine.forward_logits(prompt).astype(np.float64)
        rows = logits[-len(ids) - 1 : -1]
        return np.mean(
            [row[i] - np.log(np.exp(row - row.max()).sum()) - row.max() for row, i in zip(rows, ids, strict=True)]
        )

    assert rag.by_likelihood(engine, question, rag.SAMPLE) == sorted(rag.SAMPLE, key=score, reverse=True)


def test_a_reranker_has_the_last_word(tmp_path):
    path = changed(with_head(tmp_path, head=HEADS["output"]), BERT)
    with ox.load(path) as ranker:
        found = rag.by_ranker(ranker, "a toy", rag.SAMPLE)
        assert found == [rag.SAMPLE[document.index] for document in ranker.rerank("a toy", rag.SAMPLE)]


def test_paragraphs_are_joined_up_to_the_limit():
    text = "one\n\ntwo\n\n\n\n" + "x" * 600 + "\n\nthree"
    assert rag.passages(text) == ["one\ntwo", "x" * 600, "three"]
    assert rag.passages("  \n\n ") == []


def test_it_answers_from_files(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("A guarantee of two years.\n\n" + "A chair. " * 80)
    rag.main(["How long?", str(tmp_path / "a.txt")])
    lines = capsys.readouterr().out.splitlines()
    assert {"- A guarantee of two years.", "- " + ("A chair. " * 80).strip()} == set(lines[:2])
    assert lines[2].strip()


@pytest.mark.parametrize(("content", "said"), [(b" \n\n ", "no text in these files"), (b"\xff", "is no text")])
def test_files_without_text_are_not_answered_from_the_sample(tmp_path, content, said):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(ox.ConfigError, match=said):
        rag.main(["How long?", str(tmp_path / "a.txt")])
