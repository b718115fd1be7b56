"""T5: buckets of distances, what files may say otherwise, and what they may not."""

import math

import numpy as np
import pytest

import oxillama.gguf as gguf
from oxillama.errors import LoadError, MissingTensorError, UnsupportedModelError
from oxillama.models import load_model
from oxillama.models.t5 import MAX_DISTANCE, buckets_of_distances
from tests.models import naive
from tests.models.naive import t5
from tests.models.references import load, logits, path_of, rewritten, tokens_of
from tests.models.tiny import Shape, tiny

BUCKETS = "t5encoder.attention.relative_buckets_count"


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize("n", [4, 7, 20, 32, 64, 255])
def test_buckets_are_those_of_the_publication(n, both_ways):
    distances = range(-MAX_DISTANCE, MAX_DISTANCE + 1)
    assert buckets_of_distances(n, both_ways=both_ways).tolist() == [t5.bucket(d, n, both_ways) for d in distances]


def test_buckets_of_the_published_models():
    """16 of either side: the 8 nearest distances, and ranges that grow by the root of two."""
    found = buckets_of_distances(32, both_ways=True)[MAX_DISTANCE:]
    edges = [math.ceil(8 * 2 ** (i / 2)) for i in range(8)]
    assert np.flatnonzero(np.diff(found, prepend=-1)).tolist() == [*range(8), *edges]
    assert found[[1, 7, 8, 90, 91, 128]].tolist() == [17, 23, 24, 30, 31, 31]


def test_texts_longer_than_the_largest_distance(tmp_path):
    path = tiny("t5encoder", tmp_path, Shape(context=700))
    tokens = np.random.default_rng(4).integers(0, 131, 600).tolist()
    expected = naive.logits(path, tokens)
    assert np.abs(logits(path, tokens) - expected).max() <= 2e-5 * np.abs(expected).max()


def test_biases_of_a_layer_of_its_own_count(tmp_path):
    """UMT5 has them in each layer, T5 in the first alone: both are read by what the file has."""
    path, tokens = path_of("t5encoder"), tokens_of("t5encoder")
    own = rewritten(path, tmp_path, tensors={"enc.blk.2.attn_rel_b.weight": np.ones((32, 4), np.float32)})
    expected = naive.logits(own, tokens)
    assert np.abs(logits(own, tokens) - expected).max() <= 2e-5 * np.abs(expected).max()
    assert np.abs(logits(path, tokens) - expected).max() > 0.01 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("keys", "error", "match"),
    [
        ({BUCKETS: None}, LoadError, BUCKETS),
        ({BUCKETS: 3}, LoadError, f"{BUCKETS}' is 3"),
        ({BUCKETS: 256}, LoadError, f"{BUCKETS}' is 256"),
        ({BUCKETS: 16}, LoadError, r"enc\.blk\.0\.attn_rel_b\.weight has shape \(32, 4\)"),
        ({"t5encoder.block_count": 4}, MissingTensorError, r"enc\.blk\.3"),
        ({"t5encoder.block_count": 2}, UnsupportedModelError, r"no use for enc\.blk\.2"),
        ({"t5encoder.attention.head_count": [4, 2, 4]}, UnsupportedModelError, "differ between layers of t5encoder"),
        ({"t5encoder.attention.causal": True}, UnsupportedModelError, "causal is True"),
        ({"t5encoder.attention.scale": 0.5}, UnsupportedModelError, "attention.scale is 0.5"),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path, keys, error, match):
    with pytest.raises(error, match=match):
        load(rewritten(path_of("t5encoder"), tmp_path, keys))


def without(path, tmp_path, *names):
    with gguf.open(path) as file:
        tensors = {t.name: np.array(t.dequantize()) for t in file.tensors.values() if t.name not in names}
        gguf.write_gguf(tmp_path / "without.gguf", dict(file.metadata), tensors)
    return tmp_path / "without.gguf"


def test_missing_tensors_are_named(tmp_path):
    first = "enc.blk.0.attn_rel_b.weight"
    with pytest.raises(MissingTensorError, match=first):
        load(without(path_of("t5encoder"), tmp_path, first))
    gate = "enc.blk.1.ffn_gate.weight"
    with pytest.raises(MissingTensorError, match=gate):
        load(without(path_of("t5encoder"), tmp_path, gate))


def test_biases_stay_as_they_are_where_matrices_are_quantised(tmp_path):
    gguf.quantize_file(path_of("t5encoder"), tmp_path / "q8.gguf", "Q8_0")
    with gguf.open(tmp_path / "q8.gguf") as file:
        assert file.tensors["enc.blk.0.attn_rel_b.weight"].type == "F32"
        assert file.tensors["enc.blk.0.attn_q.weight"].type == "Q8_0"
        load_model(file)
