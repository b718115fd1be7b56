"""Logits of every supported architecture against two independent implementations, in every way of serving them."""

import numpy as np
import pytest

import oxillama.gguf as gguf
from oxillama.core.runner import Runner
from oxillama.kernels.batch import Span
from oxillama.models import all_architectures, load_model
from oxillama.models.registry import UNVERIFIED
from tests.models import naive
from tests.models.references import DATA, MODELS, QUANTIZED, logits, path_of, tokens_of

# Models whose states carry a near tie of two experts, here at the first position, on to all that follow. What their
# weights lose is therefore left out: they are compared with the twin that has the same weights.
CARRIED = {"kimi-linear"}


@pytest.mark.parametrize("name", MODELS)
def test_logits_agree_with_transformers(name):
    reference = np.load(DATA / "models" / f"{name}.npz")
    ours = logits(path_of(name), reference["tokens"].tolist())[reference["rows"]]
    assert np.abs(ours - reference["logits"]).max() <= 2e-5 * reference["largest"]


def test_every_verified_architecture_has_a_reference():
    """Architectures that the table of supported models calls verified are verified here."""
    named = set()
    for name in MODELS:
        with gguf.open(path_of(name)) as file:
            named.add(file.metadata.arch)
    assert named == {a.name for a in all_architectures().values() if a.verified != UNVERIFIED}


@pytest.mark.sweep(34)
@pytest.mark.parametrize("name", MODELS)
def test_eight_bits_keep_the_tokens(tmp_path, name):
    """Of the first 16 positions, or a Kullback-Leibler divergence below 0.001; encoders' hidden states to 2.5 %.

    The median over positions: a near tie of two experts turns single positions over, and does so too where only weights
    are rounded and all sums are exact.
    """
    gguf.quantize_file(path_of(name), tmp_path / "Q8_0.gguf", "Q8_0")
    with gguf.open(path_of(name)) as file:
        encoder = file.metadata.arch in naive.ENCODERS
    tokens = tokens_of(name)
    eight = logits(tmp_path / "Q8_0.gguf", tokens).astype(np.float64)
    exact = naive.logits(tmp_path / "Q8_0.gguf", tokens) if name in CARRIED else logits(path_of(name), tokens)
    exact = exact.astype(np.float64)
    if encoder:
        assert np.median(np.linalg.norm(eight - exact, axis=1) / np.linalg.norm(exact, axis=1)) <= 0.025
        return
    p, q = (x - np.logaddexp.reduce(x, axis=-1, keepdims=True) for x in (exact, eight))
    same = (p.argmax(-1) == q.argmax(-1))[:16].all()
    assert same or np.median((np.exp(p) * (p - q)).sum(-1)) < 1e-3


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantised_logits_are_as_near_as_llama_cpp(name):
    reference = np.load(DATA / "quantized" / f"{name}.npz")
    exact = reference["exact"]
    error = np.linalg.norm(logits(path_of(name), reference["tokens"].tolist()) - exact) / np.linalg.norm(exact)
    assert error <= 1.1 * reference["llamacpp_error"]


@pytest.mark.sweep(53)
@pytest.mark.parametrize("kv_type", ["f32", "f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("name", MODELS + QUANTIZED)
def test_chunks_threads_and_repacking_give_equal_bits(name, kv_type):
    tokens = tokens_of(name)
    whole = logits(path_of(name), tokens, kv_type=kv_type, threads=1)
    for chunk, threads, repack, block in ((1, 2, True, 16), (7, 3, True, 32), (16, 1, False, 64), (64, 2, False, 128)):
        other = logits(
            path_of(name), tokens, kv_type=kv_type, chunk=chunk, threads=threads, repack=repack, kv_block_size=block
        )
        assert (other == whole).all(), (chunk, threads, repack, block)


@pytest.mark.parametrize("name", ["llama", "qwen3moe", "Q4_K_M"])
def test_sequences_in_one_batch_give_equal_bits(name):
    """Three sequences of different lengths, one prefilling while others decode, against each one alone."""
    rng = np.random.default_rng(1)
    prompts = [rng.integers(3, 380, n).tolist() for n in (40, 9, 23)]
    alone = [logits(path_of(name), p) for p in prompts]
    with gguf.open(path_of(name)) as file:
        model = load_model(file, num_threads=2)
    runner = Runner(model, num_threads=2, kv_type="f32", n_blocks=9)
    tables = [[0, 3, 6], [8], [1, 4]]
    done = [0, 0, 0]
    for step in ((13, 9, 0), (1, 0, 20), (26, 0, 1), (0, 0, 2)):
        spans = [Span(prompts[i][done[i] : done[i] + n], done[i], tables[i], "all") for i, n in enumerate(step) if n]
        rows = runner.forward(spans)
        for i, n in enumerate(step):
            assert (rows[:n] == alone[i][done[i] : done[i] + n]).all()
            rows = rows[n:]
            done[i] += n
    assert done == [40, 9, 23]


def test_only_wanted_rows_are_returned():
    tokens = list(range(5, 25))
    everything = logits(path_of("llama"), tokens)
    with gguf.open(path_of("llama")) as file:
        runner = Runner(load_model(file), num_threads=1, kv_type="f32", n_blocks=4)
    assert runner.forward([Span(tokens[:10], 0, [0], "none"), Span(tokens, 0, [1, 2], "last")]).shape == (1, 384)
    last = runner.forward([Span(tokens[10:], 10, [0, 3], "last"), Span(tokens, 0, [1, 2], "last")])
    assert (last == everything[-1]).all()


@pytest.mark.parametrize("name", ["llama", "qwen2moe", "Q5_K_M"])
def test_what_is_asked_for_changes_no_bit(name):
    """Random spans, each asked for all, the last or none of its rows, against everything asked for."""
    rng = np.random.default_rng(2)
    with gguf.open(path_of(name)) as file:
        model = load_model(file, num_threads=2)
    full, some = (Runner(model, num_threads=2, kv_type="f16", n_blocks=12) for _ in range(2))
    tables = [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    done = [0, 0, 0]
    for _ in range(8):
        sizes = rng.integers(1, 9, 3)
        parts = [(rng.integers(3, 380, n).tolist(), done[i], tables[i]) for i, n in enumerate(sizes)]
        wants = rng.choice(["all", "last", "none"], 3).tolist()
        everything = full.forward([Span(*part, "all") for part in parts])
        rows, first = [], 0
        for want, n in zip(wants, sizes, strict=True):
            rows += {"all": range(first, first + n), "last": [first + n - 1], "none": []}[want]
            first += n
        got = some.forward([Span(*part, want) for part, want in zip(parts, wants, strict=True)])
        assert got.shape == (len(rows), 384)
        assert (got == everything[rows]).all()
        done = [d + n for d, n in zip(done, sizes, strict=True)]
