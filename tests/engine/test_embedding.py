"""Embeddings: cut, in few bits, together, and against hidden states of another implementation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oxillama.gguf as gguf
from oxillama.config import EngineConfig
from oxillama.core.embedding import DTYPES, PoolingSettings, in_dtype, pool, result_of
from oxillama.core.loading import EngineParts
from oxillama.core.runner import Runner
from oxillama.engine import Engine
from oxillama.errors import ConfigError, GenerateError
from oxillama.models import load_model
from tests.fakes import N_EMBD, N_VOCAB, FakeTokenizer, make_engine, runner_of
from tests.models.references import path_of

VECTORS = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=20)
POOLINGS = ["mean", "last", "cls", "max", "none"]


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("dimensions", [1, 3, N_EMBD])
def test_the_first_values_are_kept_and_normalised_anew(pooling, dimensions):
    engine = make_engine()
    whole = engine.embed([3, 4, 5], pooling=pooling, normalize=False)
    cut = engine.embed([3, 4, 5], pooling=pooling, normalize=False, dimensions=dimensions)
    assert cut.tolist() == whole[..., :dimensions].tolist()
    normalised = engine.embed([3, 4, 5], pooling=pooling, dimensions=dimensions)
    assert normalised == pytest.approx(cut / np.linalg.norm(cut, axis=-1, keepdims=True), abs=1e-6)


@settings(deadline=None)
@given(VECTORS)
def test_codes_are_within_half_a_step(values):
    x = np.array(values, np.float32)
    codes = in_dtype(x, "int8")
    assert codes.dtype == np.int8
    largest = np.abs(x).max()
    assert not largest or np.abs(codes).max() == 127
    # Half a code, and the float's own rounding on the way.
    step = float(largest) / 127
    assert np.abs(codes * step - x).max() <= step * (0.5 + 1e-5)


@settings(deadline=None)
@given(VECTORS)
def test_bits_are_signs(values):
    x = np.array(values, np.float32)
    packed = in_dtype(x, "binary")
    assert packed.dtype == np.uint8
    assert len(packed) == -(-len(x) // 8)
    bits = [int(packed[i // 8]) >> (7 - i % 8) & 1 for i in range(8 * len(packed))]
    assert bits == [int(v > 0) for v in values] + [0] * (8 * len(packed) - len(x))


@pytest.mark.parametrize("dtype", ["float32", "int8", "binary"])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_vectors_in_few_bits(dtype, pooling):
    engine = make_engine()
    texts = ["ab", [3, 4, 5]]
    plain = [engine.embed(text, pooling=pooling, dimensions=5) for text in texts]
    found = engine.embed(texts, pooling=pooling, dimensions=5, dtype=dtype)
    for vector, wanted in zip(found, plain, strict=True):
        expected = wanted
        if dtype == "int8":
            expected = np.stack(
                [np.rint(127 * (r / np.abs(r).max().astype(np.float64))) for r in np.atleast_2d(wanted)]
            )
        elif dtype == "binary":
            expected = np.packbits(wanted > 0, axis=-1)
        assert vector.dtype == {"float32": np.float32, "int8": np.int8, "binary": np.uint8}[dtype]
        assert vector.tolist() == expected.reshape(vector.shape).tolist()


def test_zero_vectors_stay_zero():
    zero = np.zeros((2, 4), np.float32)
    assert not in_dtype(zero, "int8").any()
    assert not in_dtype(zero, "binary").any()


@pytest.mark.parametrize("pooling", ["mean", "last", "cls", "max", "none"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_damaged_numbers_are_told_rather_than_pooled(pooling, dtype, value):
    """NaN would become a vector of zeros, codes of nothing, or bits that look like any."""
    settings = PoolingSettings(pooling, dtype=dtype)
    with pytest.raises(
        GenerateError, match=rf"1 of the model's \d+ hidden states are {value}: the weights are damaged"
    ):
        result_of(pool([], np.array([[1.0, value, 2.0]], np.float32), settings), 1, settings)


def test_texts_of_like_length_go_together():
    """Whole texts in steps of 16 tokens: short ones don't wait for a step of their own behind a long one."""
    lengths = [1, 15, 2, 14, 3, 13, 8, 8]
    engine = make_engine(causal=False, prefill_chunk_size=16)
    rng = np.random.default_rng(1)
    texts = [rng.integers(0, N_VOCAB, n).tolist() for n in lengths]
    got = engine.embed(texts)
    assert got.tolist() == [make_engine(causal=False).embed(text).tolist() for text in texts]
    assert [n for step in runner_of(engine).steps for n in step] == sorted(lengths, reverse=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dimensions": 0}, "dimensions must be"),
        ({"dimensions": N_EMBD + 1}, "dimensions must be"),
        ({"dimensions": 1.5}, "dimensions must be"),
        ({"dtype": "int4"}, "dtype must be one of float32, int8, binary"),
        ({"dtype": None}, "dtype must be one of"),
        ({"normalize": "yes"}, "normalize must be"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ConfigError, match=message):
        make_engine().embed("a", **options)


def engine_of(name):
    """An engine on a model of another implementation, the recorded numbers, and the output matrix."""
    with gguf.open(path_of(name)) as file:
        model = load_model(file, num_threads=1)
        output = file.tensors.get("output.weight", file.tensors["token_embd.weight"]).dequantize()
    recorded = np.load(path_of(name).with_suffix(".npz"))
    n_blocks = -(-len(recorded["tokens"]) // 16)
    runner = Runner(model, num_threads=1, kv_type="f32", n_blocks=n_blocks)
    parts = EngineParts(runner, FakeTokenizer(), model.spec, 16 * n_blocks, n_blocks)
    return Engine(EngineConfig(kv_type="f32", prefill_chunk_size=11), parts=parts), recorded, output


def pooled(rows, pooling):
    rows = rows.astype(np.float64)
    return {"mean": rows.mean(axis=0), "last": rows[-1], "cls": rows[0], "max": rows.max(axis=0), "none": rows}[pooling]


@pytest.mark.parametrize("name", ["bert", "gemma-embedding", "llama", "qwen3"])
def test_hidden_states_agree_with_recorded_ones(name):
    """Of decoders, logits are recorded: what the output matrix makes of hidden states."""
    engine, recorded, output = engine_of(name)
    tokens = recorded["tokens"].tolist()
    rows = engine.embed(tokens, pooling="none", normalize=False)
    ours = rows[recorded["rows"]]
    if engine.model_config.causal:
        ours = ours.astype(np.float64) @ output.T
    assert np.abs(ours - recorded["logits"]).max() <= 2e-5 * recorded["largest"]
    for pooling in POOLINGS:
        expected = pooled(rows, pooling)
        assert engine.embed(tokens, pooling=pooling, normalize=False) == pytest.approx(expected, rel=1e-6, abs=1e-7)
        cut = expected[..., :7] / np.linalg.norm(expected[..., :7], axis=-1, keepdims=True)
        assert engine.embed(tokens, pooling=pooling, dimensions=7) == pytest.approx(cut, abs=1e-6)
