"""T5: buckets of distances, what files may say otherwise, and what they may not."""

import math

import numpy as np
import pytest

import oxillama.gguf as gguf
from oxillama.core.runner import Runner
from oxillama.errors import ConfigError, LoadError, MissingTensorError, UnsupportedModelError
from oxillama.kernels.batch import Span
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


def test_biases_that_t5_has_for_other_texts_have_no_use(tmp_path):
    """The first checkpoints of 2020 have them; their authors' code doesn't read them, and neither do others."""
    path, tokens = path_of("t5"), tokens_of("t5")
    more = {"dec.blk.0.cross_attn_rel_b.weight": np.ones((32, 4), np.float32)}
    assert (logits(rewritten(path, tmp_path, tensors=more), tokens) == logits(path, tokens)).all()


def test_a_decoder_of_its_own_length(tmp_path):
    """As long as the encoder, where metadata don't say."""
    path = rewritten(path_of("umt5"), tmp_path, {"t5.decoder_block_count": None})
    assert (logits(path, tokens_of("umt5")) == logits(path_of("umt5"), tokens_of("umt5"))).all()


@pytest.mark.parametrize(
    ("keys", "error", "match"),
    [
        ({"t5.decoder_start_token_id": None}, LoadError, "t5.decoder_start_token_id"),
        ({"t5.decoder_start_token_id": 81}, LoadError, "t5.decoder_start_token_id' is 81; .*at most 80"),
        ({"t5.decoder_block_count": 0}, LoadError, "t5.decoder_block_count' is 0"),
        ({"t5.decoder_block_count": 4}, MissingTensorError, r"dec\.blk\.3"),
        ({"t5.decoder_block_count": 2}, UnsupportedModelError, r"no use for dec\.blk\.2"),
        ({"t5.block_count": 2}, UnsupportedModelError, r"no use for .*enc\.blk\.2"),
        ({"t5.attention.key_length": 8}, LoadError, r"enc\.blk\.0\.attn_q\.weight has shape"),
    ],
)
def test_bad_files_of_both_parts_are_refused_by_name(tmp_path, keys, error, match):
    with pytest.raises(error, match=match):
        load(rewritten(path_of("t5"), tmp_path, keys))


SPANS = {
    "no prompt": [Span([1, 2], 0, [0])],
    "a part of a prompt": [Span([1, 2], 0, [0], "none", n_source=3)],
    "a prompt and more": [Span([1] * 17, 0, [0, 1], "none", n_source=3)],
    "tokens inside the prompt's blocks": [Span([1, 2], 3, [0], n_source=3)],
    "tokens after no prompt": [Span([1, 2], 3, [0])],
    "states of some": [Span([1, 2], 0, [0], "all", n_source=2), Span([1], 16, [1, 2], n_source=2)],
    "the last state": [Span([1, 2], 0, [0], "last", n_source=2)],
    "states of what fills a block": [Span([1, 2, 0], 0, [0], "all", n_source=2)],
}


@pytest.mark.parametrize("case", SPANS)
def test_spans_that_an_encoder_and_a_decoder_have_no_place_for(case):
    runner = Runner(load(path_of("t5")), num_threads=1, n_blocks=3)
    with pytest.raises(ConfigError, match=r"takes a prompt whole|hidden states of an encoder"):
        runner.forward(SPANS[case])


def test_prompts_and_texts_in_one_pass():
    """Some of which are read while others are written; and what is wanted changes no bit."""
    tokens = tokens_of("t5-flan")
    expected = logits(path_of("t5-flan"), tokens)
    runner = Runner(load(path_of("t5-flan")), num_threads=2, kv_type="f32", n_blocks=20)
    prompt, text = tokens[:72] + [0] * 8, tokens[72:]
    first, second = list(range(9)), list(range(9, 18))
    assert len(runner.forward([Span(prompt, 0, first, "none", n_source=72)])) == 0
    rows = runner.forward([Span(text[:5], 80, first, "all", n_source=72), Span(prompt, 0, second, "none", n_source=72)])
    assert (rows == expected[:5]).all()
    spans = [Span(text[:7], 80, second, "last", n_source=72), Span(text[5:20], 85, first, "all", n_source=72)]
    assert (runner.forward(spans) == expected[[6, *range(5, 20)]]).all()
    spans = [Span(text[7:], 87, second, "none", n_source=72), Span(text[20:], 100, first, "last", n_source=72)]
    assert (runner.forward(spans) == expected[[23]]).all()


def test_biases_stay_as_they_are_where_matrices_are_quantised(tmp_path):
    gguf.quantize_file(path_of("t5encoder"), tmp_path / "q8.gguf", "Q8_0")
    with gguf.open(tmp_path / "q8.gguf") as file:
        assert file.tensors["enc.blk.0.attn_rel_b.weight"].type == "F32"
        assert file.tensors["enc.blk.0.attn_q.weight"].type == "Q8_0"
        load_model(file)
