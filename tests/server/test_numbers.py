"""Embeddings, ranking, scores and tokens: those of the engine."""

import base64
from pathlib import Path

import numpy as np
import pytest

import oxillama as ox
from oxillama.server import create_app
from oxillama.server.fields_numbers import CLASSIFY, DETOKENIZE, EMBEDDINGS, RERANK, SCORE, TOKENIZE
from oxillama.server.routes.embeddings import labelled, probabilities
from tests.models.bert import BERT, HEADS, changed, with_head
from tests.server.client import HI, Client
from tests.server.values import VALUES_OF_JSON

TEXTS = ["a red ball", "a blue ball", "The cat sat."]


@pytest.fixture(scope="module")
def ranker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranker")
    with ox.load(Path(changed(with_head(folder, head=HEADS["output"]), BERT)), num_threads=1) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def ranking(ranker):
    return Client(create_app({"ranker": ranker}))


def test_embeddings(client, engine):
    alone = engine.embed(TEXTS)
    for given in (TEXTS, [engine.tokenize(text) for text in TEXTS]):
        answer = client.post("/v1/embeddings", input=given).json
        assert np.array_equal(np.array([d["embedding"] for d in answer["data"]], np.float32), alone)
        assert [d["index"] for d in answer["data"]] == [0, 1, 2]
        assert answer["usage"]["prompt_tokens"] == sum(len(engine.tokenize(text)) for text in TEXTS)
    (one,) = client.post("/v1/embeddings", input=TEXTS[0], encoding_format="base64", dimensions=8).json["data"]
    found = np.frombuffer(base64.b64decode(one["embedding"]), "<f4")
    assert np.array_equal(found, engine.embed(TEXTS[0], dimensions=8))
    (one,) = client.post("/v1/embeddings", input=engine.tokenize("a"), pooling="last", normalize=False).json["data"]
    assert np.array_equal(np.float32(one["embedding"]), engine.embed("a", pooling="last", normalize=False))


@pytest.mark.parametrize(("fields", "param"), [
    ({"input": []}, "input"), ({"input": ["a", 1]}, "input"), ({"input": ""}, "input"), ({"input": ["a", ""]}, "input"),
    ({"input": "a", "dimensions": 10_000}, "dimensions"), ({"input": "word " * 3000}, "input"),
    ({"input": [99999999]}, "input"),
])  # fmt: skip
def test_embeddings_that_are_refused(client, fields, param):
    answer = client.post("/v1/embeddings", fields)
    assert answer.status == 400
    assert answer.error["param"].partition("[")[0] == param


LONG = "The cat sat on the mat. " * 2000


@pytest.mark.parametrize(("fields", "side"), [
    ({"truncate": True}, "end"), ({"truncate": "END"}, "end"), ({"truncate": "START"}, "start"),
    ({"truncate": True, "truncation_direction": "Left"}, "start"), ({"truncate_prompt_tokens": -1}, "end"),
    ({"truncate_prompt_tokens": -1, "truncation_side": "left"}, "start"),
])  # fmt: skip
def test_texts_are_cut_where_that_is_asked_for(client, engine, fields, side):
    answer = client.post("/v1/embeddings", input=["a", LONG], **fields).json
    found = np.array([d["embedding"] for d in answer["data"]], np.float32)
    assert np.array_equal(found, engine.embed(["a", LONG], truncate=side))
    assert answer["usage"]["prompt_tokens"] == len(engine.tokenize("a")) + engine.context_size


def test_texts_are_cut_to_a_number_of_tokens(client, engine):
    (one,) = client.post("/v1/embeddings", input=LONG, truncate_prompt_tokens=7).json["data"]
    assert np.array_equal(np.float32(one["embedding"]), engine.embed(engine.tokenize(LONG)[:7]))
    for wrong in (0, -2, engine.context_size + 1, True, "7"):
        answer = client.post("/v1/embeddings", input="a", truncate_prompt_tokens=wrong)
        assert (answer.status, answer.error["param"]) == (400, "truncate_prompt_tokens")
    for fields in ({}, {"truncate": False}, {"truncate": "NONE"}):
        assert client.post("/v1/embeddings", input=LONG, **fields).status == 400


def test_rankings_and_scores_of_long_texts(ranking, ranker):
    document = "a ball " * 9000
    (expected,) = ranker.rerank("a ball", [document], truncate="end")
    (found,) = ranking.post("/v1/rerank", query="a ball", documents=[document], truncate=True).json["results"]
    (scored,) = ranking.post("/score", text_1="a ball", text_2=document, truncate=True).json["data"]
    assert found["relevance_score"] == scored["score"] == expected.score
    assert ranking.post("/classify", input=document, truncate="END").status == 200
    for path, fields in (
        ("/v1/rerank", {"query": "a", "documents": [document]}), ("/score", {"text_1": "a", "text_2": document}),
        ("/classify", {"input": document}),
    ):  # fmt: skip
        assert ranking.post(path, **fields).status == 400


def test_answers_say_how_many_texts_were_cut(client, ranking):
    """And nothing where none was."""
    long, said = "a ball " * 9000, {"n_truncated": 2}
    found = client.post("/v1/embeddings", input=[LONG, "a", LONG], truncate=True).json
    assert found["oxillama"] == said
    assert "oxillama" not in client.post("/v1/embeddings", input=["a"], truncate=True).json
    assert client.post("/score", text_1=LONG, text_2=[LONG], truncate="START").json["oxillama"] == said
    for path, fields, short in (
        ("/v1/rerank", {"query": "a", "documents": [long, "a", long]}, {"documents": ["a"]}),
        ("/score", {"text_1": "a", "text_2": [long, "a", long]}, {"text_2": ["a"]}),
        ("/classify", {"input": [long, "a", long]}, {"input": ["a"]}),
    ):
        assert ranking.post(path, **fields, truncate=True).json["oxillama"] == said
        assert "oxillama" not in ranking.post(path, **fields | short, truncate=True).json


def test_ranking(ranking, ranker):
    alone = ranker.rerank("a ball", TEXTS)
    for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        answer = ranking.post(path, query="a ball", documents=[TEXTS[0], {"text": TEXTS[1]}, TEXTS[2]]).json
        assert [(r["index"], r["relevance_score"]) for r in answer["results"]] == [(r.index, r.score) for r in alone]
        n_tokens = answer["usage"]["total_tokens"]
        assert answer["meta"]["tokens"] == {"input_tokens": n_tokens, "output_tokens": 0}
    best = ranking.post("/rerank", query="a ball", documents=TEXTS, top_n=1, return_documents=True).json["results"]
    assert [r["document"]["text"] for r in best] == [TEXTS[alone[0].index]]


def test_ranking_needs_a_classifier(client):
    answer = client.post("/v1/rerank", query="a", documents=["b"])
    assert (answer.status, answer.error["param"]) == (400, "model")


def test_an_encoder_generates_nothing(ranking):
    for path, fields in {"/v1/completions": {"prompt": "a"}, "/v1/chat/completions": {"messages": HI}}.items():
        answer = ranking.post(path, fields)
        assert (answer.status, answer.error["param"], answer.error["code"]) == (400, "model", "unsupported_parameter")
    assert ranking.get("/v1/models").json["data"][0]["oxillama"]["capabilities"] == ["embeddings", "rerank"]


def test_scores_of_pairs(ranking, ranker, client, engine):
    scores = {r.index: r.score for r in ranker.rerank("a ball", TEXTS)}
    for path in ("/score", "/v1/score"):
        answer = ranking.post(path, text_1="a ball", text_2=TEXTS).json
        assert [d["score"] for d in answer["data"]] == [scores[i] for i in range(3)]
    answer = ranking.post("/score", text_1=["a ball"] * 3, text_2=TEXTS).json
    assert [d["score"] for d in answer["data"]] == [scores[i] for i in range(3)]
    assert ranking.post("/score", text_1=["a", "b"], text_2=TEXTS).error["param"] == "text_1"
    (cosine,) = client.post("/score", text_1="a red ball", text_2="a red ball").json["data"]
    assert cosine["score"] == pytest.approx(1.0, abs=1e-6)


def test_labels_of_texts(ranking, ranker, client):
    rows = ranker.embed(TEXTS, pooling="rank").astype(np.float64)
    assert rows.shape[1] == len(ranker.labels) or not ranker.labels
    answer = ranking.post("/classify", input=TEXTS).json
    assert [one["index"] for one in answer["data"]] == [0, 1, 2]
    for one, row in zip(answer["data"], rows, strict=True):
        assert one["num_classes"] == len(one["probs"]) == len(row)
        expected = 1 / (1 + np.exp(-row)) if len(row) == 1 else np.exp(row) / np.exp(row).sum()
        assert one["probs"] == pytest.approx(expected, rel=1e-12)
        best = int(np.argmax(row))
        assert one["label"] == (ranker.labels[best] if ranker.labels else f"LABEL_{best}")
    assert answer["usage"]["prompt_tokens"] == sum(len(ranker.tokenize(text, add_special=True)) for text in TEXTS)
    assert ranking.post("/classify", input=TEXTS[0]).json["data"] == answer["data"][:1]
    assert client.post("/classify", input="a").error["param"] == "model"


@pytest.mark.parametrize(("scores", "are_logits", "expected"), [
    ([0.0], True, [0.5]),
    ([1.0, 1.0, 1.0, 1.0], True, [0.25] * 4),
    ([900.0, 0.0], True, [1.0, 0.0]),
    ([0.75, 0.25], False, [0.75, 0.25]),
])  # fmt: skip
def test_probabilities(scores, are_logits, expected):
    assert probabilities(np.array(scores, np.float32), are_logits).tolist() == expected
    assert labelled(3, np.array(expected), ())["label"] == "LABEL_0"


def test_tokens_and_texts(client, engine):
    answer = client.post("/tokenize", prompt="Once upon", return_token_strs=True).json
    ids = engine.tokenize("Once upon")
    assert (answer["tokens"], answer["count"], answer["max_model_len"]) == (ids, len(ids), engine.context_size)
    assert answer["token_strs"] == [engine.tokenizer.id_to_token(token) for token in ids]
    assert client.post("/tokenize", prompt="Once", add_special_tokens=False).json["tokens"] == engine.tokenize(
        "Once", add_special=False
    )
    assert client.post("/tokenize", messages=HI).json["tokens"] == engine.chat_tokens(HI)
    assert client.post("/detokenize", tokens=ids).json == {"prompt": engine.detokenize(ids)}
    info = client.get("/tokenizer_info").json
    assert info["chat_template"] == engine.tokenizer.chat_template
    assert info["bos_token"] == engine.tokenizer.id_to_token(engine.tokenizer.bos_id)
    for fields in ({}, {"prompt": "a", "messages": HI}):
        assert client.post("/tokenize", fields).error["param"] == "prompt"
    assert client.post("/detokenize", tokens=[99999999]).error["param"] == "tokens[0]"


TABLES = {
    "/v1/embeddings": (EMBEDDINGS, {"input": "a"}),
    "/v1/rerank": (RERANK, {"query": "a", "documents": ["b"]}),
    "/classify": (CLASSIFY, {"input": "a"}),
    "/score": (SCORE, {"text_1": "a", "text_2": "b"}),
    "/tokenize": (TOKENIZE, {"prompt": "a"}),
    "/detokenize": (DETOKENIZE, {"tokens": [5]}),
}


@pytest.mark.parametrize("path", TABLES)
def test_every_value_is_taken_or_refused_by_name(ranking, client, path):
    record, base = TABLES[path]
    for field in record.fields:
        for value in VALUES_OF_JSON.values():
            for one in (client, ranking):
                answer = one.post(path, {**base, field.name: value})
                if answer.status != 200:
                    assert answer.status == 400 or (field.name, answer.status) == ("model", 404), (field, answer.body)
                    named = {field.name, "model", "prompt"}
                    assert answer.error["param"].partition("[")[0].partition(".")[0] in named, (value, answer.error)
