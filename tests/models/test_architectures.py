"""Every architecture in shapes that no reference has, against its numpy twin, and against itself in chunks."""

import re

import numpy as np
import pytest

import oxillama.gguf as gguf
from oxillama.core.runner import Runner
from oxillama.kernels.batch import Span
from oxillama.models import architectures, find_architecture, load_model
from tests.models import naive
from tests.models.references import MODELS, forward_of, passes, path_of
from tests.models.tiny import RECIPES, Shape, tiny

BLOCK, N_TOKENS = 16, 45  # more than any window
SHAPES = {
    "one_kv_head": Shape(),
    "odd": Shape(n_embd=35, head_dim=14, n_ff=83, window=2, rank=17, n_ssm_heads=2, ssm_dim=7, n_state=5, d_conv=2),
    "deep": Shape(
        n_layers=8, n_embd=40, n_heads=4, n_kv_heads=2, head_dim=10, window=17, n_experts=3, n_used=3, n_groups=3,
        d_conv=3, n_chosen=29,
    ),
    "each_its_own": Shape(
        n_layers=2, n_embd=72, n_heads=5, n_kv_heads=5, head_dim=24, n_ff=72, window=1, n_experts=7, n_used=1,
        n_ssm_heads=4, ssm_dim=20, n_groups=1, n_state=16, n_chosen=1,
    ),
}  # fmt: skip
# Rows of whole blocks of 32; all experts are used and all keys chosen, so that no near tie between two decides.
IN_BLOCKS = Shape(
    n_layers=2, n_heads=4, n_kv_heads=2, head_dim=32, n_embd=128, n_ff=160, n_experts=4, n_used=4, rank=32,
    n_ssm_heads=8, ssm_dim=32, n_groups=1, n_chosen=N_TOKENS,
)  # fmt: skip
NAMES = [name for name, recipe in RECIPES.items() if recipe.arch in architectures()]


def tokens_of(seed):
    return np.random.default_rng(seed).integers(0, 131, N_TOKENS).tolist()


def ours(path, tokens, chunk=N_TOKENS):
    """Logits of every position, the prompt taken in chunks, each from the state that the one before has left."""
    with gguf.open(path) as file:
        model = load_model(file, num_threads=2)
    n_blocks = -(-N_TOKENS // BLOCK) + 1
    runner = Runner(model, num_threads=2, kv_type="f32", kv_block_size=BLOCK, n_blocks=n_blocks, n_slots=2)
    parts, slots = [], (-1, 0)
    for part, start, want, n in passes(model.spec, tokens, chunk, BLOCK):
        spans = [Span(part, start, list(range(n_blocks)), want, slots, n_source=n)]
        parts.append(forward_of(runner)(spans).copy())
        slots = (slots[1], 1 - slots[1])
    return np.concatenate(parts)


def test_every_architecture_has_a_recipe_and_a_twin():
    assert set(architectures()) <= {recipe.arch for recipe in RECIPES.values()}
    assert set(architectures()) <= set(naive.ARCHITECTURES)


@pytest.mark.parametrize("name", sorted(set(MODELS) & set(RECIPES)))
def test_recipes_write_what_the_converter_writes(tmp_path, name):
    """Tensors by kind with their number of dimensions; no key that converted files don't have, but for scalings."""
    (theirs, their_keys), (made, keys) = contents(path_of(name)), contents(tiny(name, tmp_path))
    assert made == theirs
    assert {key for key in keys if ".rope.scaling." not in key} <= their_keys


def contents(path):
    with gguf.open(path) as file:
        return {re.sub(r"\bblk\.\d+", "", t.name): len(t.shape) for t in file.tensors.values()}, set(file.metadata)


@pytest.mark.sweep(40)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_logits_agree_with_the_twin(tmp_path, name, shape):
    path, tokens = tiny(name, tmp_path, SHAPES[shape], seed=1), tokens_of(1)
    expected = naive.logits(path, tokens)
    assert np.abs(ours(path, tokens) - expected).max() <= 2e-5 * np.abs(expected).max()


@pytest.mark.sweep(25)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [name for name in NAMES if find_architecture(RECIPES[name].arch).traits.causal])
def test_chunks_give_equal_bits(tmp_path, name, shape):
    path, tokens = tiny(name, tmp_path, SHAPES[shape]), tokens_of(0)
    whole = ours(path, tokens)
    for chunk in (1, 7, 16):
        assert (ours(path, tokens, chunk) == whole).all(), chunk


@pytest.mark.sweep(10)
@pytest.mark.parametrize("name", NAMES)
def test_eight_bits_keep_the_tokens(tmp_path, name):
    """The most likely token of the first positions, or a Kullback-Leibler divergence below 0.001.

    From the twin with the same weights: what is rounded on the way is ours, what the weights lost is the format's.
    """
    path, tokens = tiny(name, tmp_path, IN_BLOCKS), tokens_of(0)
    gguf.quantize_file(path, tmp_path / "Q8_0.gguf", "Q8_0")
    expected, exact = naive.logits(tmp_path / "Q8_0.gguf", tokens), naive.logits(path, tokens)
    got = ours(tmp_path / "Q8_0.gguf", tokens).astype(np.float64)
    assert divergence(exact, got) < 3e-3
    same = (got.argmax(-1) == expected.argmax(-1))[:16].all()
    assert same or divergence(expected, got) < 1e-3


def divergence(expected, got):
    """Kullback-Leibler, mean over positions."""
    p, q = (x - np.logaddexp.reduce(x, axis=-1, keepdims=True) for x in (expected, got))
    return (np.exp(p) * (p - q)).sum(-1).mean()
