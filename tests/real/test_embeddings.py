"""Embeddings of real encoders, converted as llama.cpp's converter does it today, against those of transformers.

They are made of weights that packages of the Python registry hold. Of BGE's kind, whose text is
its first token's, no package has weights: MiniLM's, pooled so, stand for it.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import oxillama as ox
from oxillama.core.ranking import pair_ids
from tests.real.converted import minilm, multilingual_e5

DATA = Path(__file__).parents[1] / "data/embeddings"
pytestmark = pytest.mark.real
RECORDED = json.loads((DATA / "recorded.json").read_text(encoding="utf-8"))
VECTORS = np.load(DATA / "recorded.npz")
TEXTS = RECORDED["texts"][1:]  # the first is empty, which embed() refuses
QUERY, DOCUMENT = "how much protein", "about 50 grams per day"


def cosines(engine, expected):
    found = engine.embed(TEXTS).astype(np.float64)
    return (found * expected).sum(axis=1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)


def check_ids(tokenizer, name):
    assert [tokenizer.encode(text) for text in RECORDED["texts"]] == RECORDED[name]
    assert pair_ids(tokenizer, None, QUERY, DOCUMENT) == RECORDED[f"{name}_pair"]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("pooling", "name"), [(1, "minilm_mean"), (2, "minilm_cls")])
def test_minilm(tmp_path, dtype, pooling, name):
    with ox.load(minilm(tmp_path / "minilm.gguf", dtype=dtype, pooling=pooling)) as engine:
        check_ids(engine.tokenizer, "minilm")
        assert cosines(engine, VECTORS[name]).min() > (0.999999 if dtype is np.float32 else 0.99999)


def test_minilm_as_it_was_converted_before(tmp_path):
    """Without keys for what is added, and without a BOS or EOS."""
    names = ("add_bos_token", "add_eos_token", "add_sep_token", "bos_token_id", "eos_token_id", "normalizer.lowercase")
    path = minilm(tmp_path / "minilm.gguf", **dict.fromkeys(names))
    with ox.load(path) as engine:
        check_ids(engine.tokenizer, "minilm")
        assert cosines(engine, VECTORS["minilm_mean"]).min() > 0.999999


def test_multilingual_e5(tmp_path):
    with ox.load(multilingual_e5(tmp_path / "e5.gguf")) as engine:
        check_ids(engine.tokenizer, "e5")
        assert cosines(engine, VECTORS["e5_mean"]).min() > 0.999999
