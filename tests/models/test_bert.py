"""Random encoders of odd shapes against the numpy twin."""

import numpy as np
import pytest

import oxillama.gguf as gguf
from oxillama.core.runner import Runner
from oxillama.errors import ConfigError, GenerateError, LoadError, MissingTensorError, UnsupportedModelError
from oxillama.gguf.recoding import quantize_file
from oxillama.kernels.batch import Span
from oxillama.models import load_model
from tests.models import naive
from tests.models.bert import TABLE, keys_of, tensors_of, written

TOKENS = np.random.default_rng(0).integers(0, 50, 70).tolist()


def small(tmp_path, arch="bert", change=lambda keys, tensors: None):
    keys, tensors = keys_of(arch, 3, 36, 40), tensors_of(arch, 36, 40)
    change(keys, tensors)
    return written(tmp_path, keys, tensors)


def runner_of(path, *, overrides=None, threads=2, repack=True):
    with gguf.open(path, overrides=overrides) as file:
        model = load_model(file, num_threads=threads, repack=repack)
    return Runner(model, num_threads=threads, kv_type="f32", n_blocks=12)


def agree(got, expected):
    assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("arch", ["bert", "nomic-bert"])
@pytest.mark.parametrize(("heads", "n_embd", "n_ff", "layers"), [(3, 36, 40, 2), (1, 20, 28, 1), (7, 70, 33, 4)])
def test_hidden_states(tmp_path, arch, heads, n_embd, n_ff, layers):
    path = written(tmp_path, keys_of(arch, heads, n_embd, n_ff, layers), tensors_of(arch, n_embd, n_ff, layers))
    for n in (1, 17, 70):
        agree(runner_of(path).hidden([Span(TOKENS[:n], 0, TABLE)]), naive.logits(path, TOKENS[:n]))


@pytest.mark.parametrize("arch", ["bert", "nomic-bert"])
def test_batches_threads_and_repacking_give_equal_bits(tmp_path, arch):
    path = small(tmp_path, arch)
    prompts = [TOKENS[:40], TOKENS[40:49], TOKENS[49:]]
    alone = [runner_of(path, threads=1).hidden([Span(p, 0, TABLE)]).copy() for p in prompts]
    for threads, repack in ((2, True), (3, False)):
        runner = runner_of(path, threads=threads, repack=repack)
        spans = [Span(p, 0, [3 * i, 3 * i + 1, 3 * i + 2]) for i, p in enumerate(prompts)]
        for _ in range(2):  # what the first pass left behind is not seen by the second
            assert (runner.hidden(spans) == np.concatenate(alone)).all()


def test_a_part_of_a_sequence_is_refused(tmp_path):
    runner = runner_of(small(tmp_path))
    with pytest.raises(ConfigError, match="bert takes sequences whole, from position 0 on"):
        runner.hidden([Span([1, 2], 0, [5]), Span([1, 2], 4, [6])])


def test_there_are_no_scores(tmp_path):
    with pytest.raises(GenerateError, match="bert has no scores over the vocabulary"):
        runner_of(small(tmp_path)).forward([Span([1, 2], 0, [5])])


def test_memory_for_keys_and_values_is_that_of_one_layer(tmp_path):
    one, four = (
        runner_of(written(tmp_path, keys_of("bert", 3, 36, 40, n), tensors_of("bert", 36, 40, n))) for n in (1, 4)
    )
    assert one.memory_bytes()["kv_cache"] == four.memory_bytes()["kv_cache"] > 0


def test_quantised(tmp_path):
    source = written(tmp_path, keys_of("bert", 4, 64, 96), tensors_of("bert", 64, 96))
    target = tmp_path / "quantised.gguf"
    quantize_file(source, target, "Q8_0")
    expected = naive.logits(target, TOKENS)
    got = runner_of(target).hidden([Span(TOKENS, 0, TABLE)]).copy()
    assert np.linalg.norm(got - expected) < 0.02 * np.linalg.norm(expected)
    assert (runner_of(target, repack=False).hidden([Span(TOKENS, 0, TABLE)]) == got).all()


def test_epsilon_counts(tmp_path):
    path = small(tmp_path)
    first, second = (
        runner_of(path, overrides={"bert.attention.layer_norm_epsilon": e}).hidden([Span(TOKENS, 0, TABLE)])
        for e in (1e-12, 0.5)
    )
    assert np.abs(first - second).max() > 1e-2


def test_one_kind_of_segment_and_none(tmp_path):
    def one(keys, tensors):
        keys["tokenizer.ggml.token_type_count"] = 1
        tensors["token_types.weight"] = tensors["token_types.weight"][:1]

    def none(keys, tensors):
        one(keys, tensors)
        tensors["token_types.weight"][:] = 0

    def without(keys, tensors):
        keys["tokenizer.ggml.token_type_count"] = 0
        del tensors["token_types.weight"]

    def unsaid(keys, tensors):
        one(keys, tensors)
        del keys["tokenizer.ggml.token_type_count"]

    span = [Span(TOKENS, 0, TABLE)]
    plain, single, alone, zero, gone = (
        runner_of(small(tmp_path, "bert", change)).hidden(span).copy()
        for change in (lambda keys, tensors: None, one, unsaid, none, without)
    )
    assert (plain == single).all()
    assert (plain == alone).all()
    assert (zero == gone).all()
    assert np.abs(plain - gone).max() > 1e-2


@pytest.mark.parametrize(
    ("key", "value", "error", "message"),
    [
        ("bert.attention.causal", True, UnsupportedModelError, r"bert\.attention\.causal is True"),
        ("bert.attention.head_count", 5, LoadError, r"head_count is 5, which does not divide embedding_length 36"),
        ("bert.attention.head_count", 0, LoadError, r"bert\.attention\.head_count"),
        ("bert.attention.head_count_kv", 2, LoadError, r"head_count_kv is 2, which does not divide head_count 3"),
        ("bert.context_length", 81, LoadError, r"position_embd\.weight has shape \(80, 36\).*\(81, 36\)"),
        ("bert.attention.layer_norm_epsilon", -1.0, LoadError, "layer_norm_epsilon"),
        ("tokenizer.ggml.token_type_count", 3, LoadError, r"token_types\.weight has shape \(2, 36\).*\(3, 36\)"),
        ("tokenizer.ggml.token_type_count", 10**9, LoadError, "token_type_count"),
    ],
)
def test_bad_hyper_parameters(tmp_path, key, value, error, message):
    with gguf.open(small(tmp_path), overrides={key: value}) as file, pytest.raises(error, match=message):
        load_model(file)


@pytest.mark.parametrize(
    "name", ["token_types.weight", "position_embd.weight", "token_embd_norm.bias", "blk.1.attn_k.bias",
             "blk.0.layer_output_norm.weight", "blk.1.ffn_down.bias"]
)  # fmt: skip
def test_missing_tensor(tmp_path, name):
    path = small(tmp_path, change=lambda keys, tensors: tensors.pop(name))
    with gguf.open(path) as file, pytest.raises(MissingTensorError, match=f"{name} is missing"):
        load_model(file)
