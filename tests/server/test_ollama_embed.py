"""Embeddings of Ollama's API: lists, what is cut off of long texts, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

import oxillama as ox
from oxillama.server import ServerConfig, create_app
from oxillama.server.routes.ollama_embed import fitting_ids
from tests.server.client import Client

MODELS = Path(__file__).parents[1] / "data" / "models"
EMBED, OLDER = "/api/embed", "/api/embeddings"
SAID = "x-oxillama-left-out"


@pytest.fixture(scope="module")
def bert():
    with ox.load(MODELS / "bert.gguf", num_threads=1) as loaded:
        yield loaded


def embed(client, given, **fields):
    return client.post(EMBED, {"model": "tiny", "input": given, **fields})


def vectors(answer):
    """The embeddings of an answer: nine digits give a float32 back."""
    return np.array(answer.json["embeddings"], np.float64).astype(np.float32).tolist()


def test_embeddings_are_those_of_the_engine(client, engine):
    texts = ["a cat", "The dog sat on a mat.", "a"]
    answer = embed(client, texts)
    assert vectors(answer) == engine.embed(texts).tolist()
    answer = answer.json
    del answer["embeddings"]
    assert answer.pop("prompt_eval_count") == sum(len(engine.tokenize(text)) for text in texts)
    assert answer.pop("total_duration") >= answer.pop("load_duration") >= 0
    assert answer == {"model": "tiny"}
    assert vectors(embed(client, "a cat")) == engine.embed(["a cat"]).tolist()
    older = client.post(OLDER, model="tiny", prompt="a cat")
    assert list(older.json) == ["embedding"]
    assert np.float32(older.json["embedding"]).tolist() == engine.embed(["a cat"])[0].tolist()


@pytest.mark.parametrize("fields", [{"input": []}, {"input": ""}, {}, {"input": None}])
def test_nothing_to_embed_loads_the_model(client, fields):
    answer = client.post(EMBED, {"model": "tiny", **fields}).json
    assert (answer["embeddings"], answer["prompt_eval_count"]) == ([], 0)
    assert client.post(OLDER, model="tiny", prompt="").json == {"embedding": []}


def test_an_empty_text_among_others(client, engine):
    found = vectors(embed(client, ["a", ""]))
    assert found == [engine.embed(["a"])[0].tolist(), engine.embed([[engine.tokenizer.bos_id]])[0].tolist()]


def test_dimensions(client, engine):
    for n in (8, 256):
        found = vectors(embed(client, ["a cat", "b"], dimensions=n))
        assert found == engine.embed(["a cat", "b"], dimensions=n).tolist()
    assert vectors(embed(client, "a cat", dimensions=0)) == engine.embed(["a cat"]).tolist()
    refused = embed(client, "a cat", dimensions=257)
    assert (refused.status, refused.error) == (400, "dimensions must be at most 256, which the model has, not 257")


def test_long_texts_are_cut(client, engine):
    long = "A cat sat on a mat. " * 900
    ids = engine.tokenize(long)
    answer = embed(client, [long, "b"])
    assert vectors(answer) == [v.tolist() for v in engine.embed([ids[:1024], engine.tokenize("b")])]
    assert answer.json["prompt_eval_count"] == 1024 + len(engine.tokenize("b"))
    assert answer.headers[SAID] == "input[0]"
    answer = embed(client, long, options={"num_ctx": 16})
    assert vectors(answer) == engine.embed([ids[:16]]).tolist()
    assert answer.headers[SAID] == "input"
    older = client.post(OLDER, model="tiny", prompt=long)
    assert np.float32(older.json["embedding"]).tolist() == engine.embed([ids[:1024]])[0].tolist()
    assert older.headers[SAID] == "prompt"
    strict = embed(Client(create_app({"tiny": engine}, ServerConfig(strict=True))), ["b", long])
    assert (strict.status, strict.error) == (400, "input[1] is not supported: it has more than 1024 tokens")
    refused = embed(client, ["b", long], truncate=False)
    assert refused.status == 400
    assert "maximum context length" in refused.error
    short = embed(client, "A cat sat on a mat.", truncate=False, options={"num_ctx": 4})
    assert (short.status, short.error) == (400, "input: the input length exceeds the context length")
    assert embed(client, "A cat sat.", truncate=False).status == 200


def test_what_closes_a_text_stays_with_it(bert):
    """[CLS] and [SEP] frame the part that is kept."""
    text = "the cat sat on the mat " * 400
    whole, tokenizer = bert.tokenize(text), bert.tokenizer
    frame = tokenizer.encode("")
    assert len(frame) == 2
    cut = []
    for size in (8, 64):
        assert fitting_ids(bert, f"of {size}", text, size, True, cut.append) == [*whole[: size - 1], frame[1]]
    assert fitting_ids(bert, "input", "the cat", 64, True, cut.append) == bert.tokenize("the cat")
    assert cut == ["of 8", "of 64"]
    client = Client(create_app({"tiny": bert}, ServerConfig()))
    limit = bert.context_size
    alone = bert.embed([[*whole[: limit - 1], frame[1]]])
    assert vectors(embed(client, text)) == alone.tolist()


@pytest.mark.parametrize(("fields", "said"), [
    ({"input": 5}, "input must be"), ({"input": ["a", 5]}, "input[1] must be a string"),
    ({"input": [[1, 2]]}, "input[0] must be a string"),
    ({"truncate": 1}, "truncate must be"), ({"dimensions": -1}, "dimensions must be"),
    ({"options": {"num_ctx": "x"}}, "options.num_ctx must be"),
])  # fmt: skip
def test_what_is_refused(client, fields, said):
    answer = client.post(EMBED, {"model": "tiny", "input": "a", **fields})
    assert (answer.status, answer.error.startswith(said)) == (400, True), answer.error


@pytest.mark.parametrize("path", [EMBED, OLDER])
def test_models_that_are_not_there(client, path):
    answer = client.post(path, model="all-minilm", input="a", prompt="a")
    assert (answer.status, answer.error) == (404, "model 'all-minilm' not found")
    assert client.post(path, input="a", prompt="a").error == "model is required"


def test_wishes_are_left_out_and_said(client):
    answer = embed(client, "a", options={"num_ctx": 4096, "num_gpu": 1}, keep_alive="5m")
    assert answer.status == 200
    assert answer.headers[SAID] == "options.num_gpu, keep_alive, options.num_ctx"
