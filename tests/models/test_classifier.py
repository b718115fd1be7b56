"""Heads of rerankers and classifiers, against the numpy twin; what doesn't fit is refused by name."""

import numpy as np
import pytest

import oxillama.gguf as gguf
from oxillama.core.runner import Runner
from oxillama.errors import LoadError, UnsupportedModelError
from oxillama.kernels.batch import Span
from oxillama.models import load_model
from tests.models import naive
from tests.models.bert import HEADS, SEP, TABLE, with_head
from tests.models.naive import encoder
from tests.models.references import path_of
from tests.models.tiny import tiny

PAIR = [2, 17, 9, 30, SEP, 8, 44, SEP]


def loaded(path):
    with gguf.open(path) as file:
        return load_model(file)


def hidden(model, *texts):
    runner = Runner(model, num_threads=1, kv_type="f32", n_blocks=16)
    return runner.hidden([Span(text, 0, [b + 5 * i for b in TABLE], "all") for i, text in enumerate(texts)]).copy()


@pytest.mark.parametrize("arch", ["bert", "nomic-bert"])
@pytest.mark.parametrize("head", HEADS)
def test_scores_of_a_pair(tmp_path, arch, head):
    path = with_head(tmp_path, arch, HEADS[head])
    model = loaded(path)
    rows = hidden(model, PAIR)
    expected = naive.logits(path, PAIR)
    assert np.abs(rows - expected).max() <= 2e-5 * np.abs(expected).max()
    twin = naive.File(path)
    scores = model.classifier.scores(rows[0])
    assert scores.dtype == np.float32
    # One rounding of the result, and what the hidden state is off.
    assert scores == pytest.approx(encoder.classify(twin, expected), abs=1e-4)
    assert scores == pytest.approx(encoder.classify(twin, rows.astype(np.float64)), rel=1e-6)


@pytest.mark.parametrize("name", ["bert-pairs", "roberta-ranker"])
def test_scores_agree_with_transformers(name):
    recorded, model = np.load(path_of(name).with_suffix(".npz")), loaded(path_of(name))
    scores = model.classifier.scores(hidden(model, recorded["tokens"].tolist())[0])
    assert np.abs(scores - recorded["scores"]).max() <= 2e-5 * recorded["largest"]
    assert model.classifier.labels == (("contradiction", "entailment", "neutral") if name == "bert-pairs" else ())


def test_the_second_text_has_a_type_of_its_own_in_models_of_pairs_alone(tmp_path):
    of_pairs = hidden(loaded(with_head(tmp_path)), PAIR)
    no_head = with_head(tmp_path, head={})
    of_one = hidden(loaded(no_head), PAIR)
    assert not np.array_equal(of_pairs, of_one)
    assert np.abs(of_one - naive.logits(no_head, PAIR)).max() <= 2e-5 * np.abs(of_one).max()
    single = PAIR[:5]
    assert np.array_equal(hidden(loaded(with_head(tmp_path)), single), hidden(loaded(no_head), single))


def test_pairs_beside_one_another(tmp_path):
    model = loaded(with_head(tmp_path))
    texts = [PAIR, [2, 5, SEP], [2, SEP, 8, 8, 8, SEP], [7], [2, 4, SEP, 6, SEP, 9]]
    assert np.array_equal(hidden(model, *texts[:3]), np.concatenate([hidden(model, text) for text in texts[:3]]))
    assert np.array_equal(hidden(model, *texts[3:]), np.concatenate([hidden(model, text) for text in texts[3:]]))


def test_labels(tmp_path):
    assert loaded(with_head(tmp_path)).classifier.labels == ()
    path = with_head(tmp_path, **{"classifier.output_labels": ["no", "maybe", "yes"]})
    assert loaded(path).classifier.labels == ("no", "maybe", "yes")
    with pytest.raises(LoadError, match="names 2 labels, but the classifier has 3 outputs"):
        loaded(with_head(tmp_path, **{"classifier.output_labels": ["no", "yes"]}))
    with pytest.raises(LoadError, match=r"classifier\.output_labels"):
        loaded(with_head(tmp_path, **{"classifier.output_labels": [1, 2, 3]}))


def test_probabilities_of_two_answers(tmp_path):
    """A decoder's head has two rows of the output matrix, and reads the last token."""
    plain = tiny("qwen3", tmp_path)
    with gguf.open(plain) as file:
        output = file.tensors["output.weight"].dequantize()
        tensors = dict(file.tensors) | {"cls.output.weight": output[[7, 4]]}
        gguf.write_gguf(tmp_path / "ranker.gguf", file.metadata, tensors)
    model, tokens = loaded(tmp_path / "ranker.gguf"), [5, 6, 100, 30]
    runner = Runner(model, num_threads=1, kv_type="f32", n_blocks=2)
    last = runner.hidden([Span(tokens, 0, [0, 1], "all")])[-1].copy()
    scores = model.classifier.scores(last)
    yes, no = np.exp(naive.logits(plain, tokens)[-1, [7, 4]])
    assert scores == pytest.approx([yes / (yes + no), no / (yes + no)], rel=1e-4)
    assert not model.classifier.of_first


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ({"cls.weight": (37,)}, r"cls\.weight has 37 values; rows of 36 are needed"),
        ({"cls.weight": (4, 36), "cls.output.weight": (1, 36)}, r"cls\.output\.weight has 36 values.*|has shape"),
        ({"cls.weight": (5, 36), "cls.output.weight": (2, 36)}, r"cls\.output\.weight has 72 values; rows of 5"),
        ({"cls.weight": (4, 36), "cls.bias": (5,)}, r"cls\.bias has shape \(5,\)"),
    ],
)
def test_shapes_that_do_not_fit(tmp_path, head, message):
    with pytest.raises(LoadError, match=message):
        loaded(with_head(tmp_path, head=head))


def test_a_head_that_is_not_known_to_be_computed_is_refused(tmp_path):
    with gguf.open(tiny("llama", tmp_path)) as file:
        tensors = dict(file.tensors) | {"cls.output.weight": np.zeros((2, 64), np.float32)}
        gguf.write_gguf(tmp_path / "head.gguf", file.metadata, tensors)
    with pytest.raises(UnsupportedModelError, match=r"no use for cls\.output\.weight"):
        loaded(tmp_path / "head.gguf")
    with pytest.raises(UnsupportedModelError, match=r"no use for cls\.bias"):
        loaded(with_head(tmp_path, head={"cls.bias": (4,)}))
