"""Every architecture's files with one thing wrong: refused by name, fast and before anything large is allocated."""

import re
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

import oxillama.gguf as gguf
from oxillama.core.runner import Runner
from oxillama.errors import LoadError, MissingTensorError, UnsupportedModelError
from oxillama.gguf.entries import make_entry
from oxillama.gguf.metadata import Metadata
from oxillama.kernels.batch import Span
from oxillama.models import architectures, load_model
from tests.models.references import forward_of, passes
from tests.models.tiny import RECIPES, Shape, tiny

SHAPE = Shape(
    n_layers=3, n_embd=24, n_heads=4, n_kv_heads=2, head_dim=8, n_ff=40, n_vocab=16, context=32, n_experts=4,
    n_ssm_heads=4, ssm_dim=6, n_state=4, rank=12,
)  # fmt: skip
RECIPE_OF = {recipe.arch: name for name, recipe in reversed(RECIPES.items()) if recipe.arch in architectures()}
NUMBERS = (0, 1, 3, 10**9, 2**63 - 1, -1)
# Tensors that say themselves how many rows there are.
MEASURES = ("token_embd.weight", "token_types.weight", "blk.0.laurel_l.weight")
NONSENSE = (float("nan"), float("inf"), "x", [1, 2, 3, 4, 5], [])


@pytest.fixture(scope="module", params=sorted(RECIPE_OF))
def file(request, tmp_path_factory):
    path = tiny(RECIPE_OF[request.param], tmp_path_factory.mktemp(request.param), SHAPE)
    with gguf.open(path) as opened:
        yield opened


def own_keys(file):
    return [key for key in file.metadata if not key.startswith(("general.", "tokenizer."))]


def edited(file, key, value):
    """The file with another value, or, for None, without one."""
    entries = {name: file.metadata.entry(name) for name in file.metadata if name != key}
    if value is not None:
        entries[key] = make_entry(key, value, None)
    return SimpleNamespace(metadata=Metadata(entries), tensors=file.tensors)


def with_tensors(file, tensors):
    return SimpleNamespace(metadata=file.metadata, tensors=tensors)


def refusal(file):
    """The error's text; "" if the file loads, and then it must run: what it says may be unusual and make sense."""
    try:
        model = load_model(file, repack=False)
    except LoadError as e:
        return str(e)
    if sum(shape.n_values for layer in model.spec.states for shape in layer if hasattr(shape, "n_values")) < 1 << 20:
        runner = Runner(model, num_threads=1, kv_type="f32", kv_block_size=16, n_blocks=2, n_slots=1)
        forward = forward_of(runner)
        for tokens, start, want, n in passes(model.spec, [1, 2, 3], 3):
            rows = forward([Span(tokens, start, [0, 1], want, (-1, 0) if not start else None, n_source=n)])
            assert len(rows) == len(tokens) * (want == "all")
    return ""


def is_named(file, text):
    """A key, or a tensor that has another shape, that nothing asks for, or that would then be needed."""
    named = (*own_keys(file), *file.tensors)
    return any(name in text for name in named) or re.search(r"tensor (?:enc\.|dec\.)?blk\S+ is missing", text)


def test_as_it_is(file):
    assert refusal(file) == ""


@pytest.mark.sweep(10)
def test_numbers_that_can_not_be(file):
    """Refused with the key, or with the tensor that has another shape; or there is nothing wrong with the number."""
    for key in own_keys(file):
        for value in NUMBERS:
            text = refusal(edited(file, key, value))
            assert not text or is_named(file, text), (key, value, text)


def test_nonsense_is_refused_with_its_key(file):
    for key in own_keys(file):
        for value in NONSENSE:
            text = refusal(edited(file, key, value))
            assert not text or key in text or "no use for" in text, (key, value, text)


def test_sizes_that_can_not_be_allocate_nothing(file):
    for key in own_keys(file):
        if isinstance(file.metadata[key], int):
            tracemalloc.start()
            refusal(edited(file, key, 1 << 24))
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 8 << 20, (key, peak)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("recipe", ["mixtral", "granitehybrid"])
def test_long_arrays_are_measured_before_they_are_read(tmp_path, recipe):
    names = ("attention.head_count", "attention.head_count_kv", "attention.sliding_window_pattern", "block_count",
             "feed_forward_length", "expert_feed_forward_length", "rope.dimension_sections")  # fmt: skip
    with gguf.open(tiny(recipe, tmp_path, SHAPE)) as file:
        entries = {key: file.metadata.entry(key) for key in file.metadata}
        for long in (make_entry("long", [1] * 1_000_000, None), make_entry("long", [True] * 1_000_000, None)):
            for name in names:
                metadata = Metadata(entries | {f"{file.metadata.arch}.{name}": long})
                other = SimpleNamespace(metadata=metadata, tensors=file.tensors)
                tracemalloc.start()
                text = refusal(other)
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                assert peak < 4 << 20, (name, peak)
                assert len(text) < 1000


def test_keys_that_are_missing(file):
    """Named; or what stands for them doesn't go with other keys or with the tensors."""
    for key in own_keys(file):
        text = refusal(edited(file, key, None))
        assert "no key" not in text or key in text, (key, text)
        assert not text or is_named(file, text), (key, text)


@pytest.mark.sweep(12)
def test_tensors_that_are_missing(file):
    """Named, unless the model is whole without it."""
    for name in file.tensors:
        rest = {other: info for other, info in file.tensors.items() if other != name}
        text = refusal(with_tensors(file, rest))
        assert not text or name in text or name.rsplit(".", 1)[0] in text or "no use for" in text, (name, text)


@pytest.mark.parametrize(
    ("recipe", "tensor"),
    [
        ("gpt-oss", "blk.1.ffn_up_exps.bias"),
        ("gpt-oss", "blk.1.ffn_gate_inp.bias"),
        ("phi2", "output.bias"),
        ("mamba2", "blk.2.ssm_norm.weight"),
        ("mamba2", "blk.0.ssm_conv1d.bias"),
        ("deepseek3", "blk.2.exp_probs_b.bias"),
        ("llama-biased", "blk.1.attn_k.bias"),
        ("command-r-plus", "blk.0.attn_q_norm.weight"),
        ("falcon-h1-normed", "blk.0.ssm_norm.weight"),
        ("phi3-longrope", "rope_factors_long.weight"),
        ("phi3-longrope", "rope_factors_short.weight"),
        ("jamba", "blk.0.ssm_dt_norm.weight"),
    ],
)
def test_what_a_model_may_lack_is_not_lost_from_one_layer(tmp_path, recipe, tensor):
    with gguf.open(tiny(recipe, tmp_path, SHAPE)) as file:
        tensors = {name: info for name, info in file.tensors.items() if name != tensor}
        with pytest.raises(MissingTensorError, match=f"tensor {tensor} is missing"):
            load_model(with_tensors(file, tensors), repack=False)


@pytest.mark.sweep(20)
def test_tensors_of_another_shape(file, tmp_path):
    """One row more: the message has both shapes."""
    arrays = {info.name: np.array(info.dequantize()) for info in file.tensors.values()}
    checked = [name for name in arrays if name not in MEASURES]
    for name in checked[:: max(1, len(checked) // 8)]:
        longer = np.concatenate([arrays[name], arrays[name][:1]])
        gguf.write_gguf(tmp_path / "longer.gguf", dict(file.metadata), arrays | {name: longer})
        with gguf.open(tmp_path / "longer.gguf") as other, pytest.raises(LoadError) as caught:
            load_model(other, repack=False)
        assert name in str(caught.value)
        assert str(longer.shape[0]) in str(caught.value)


def test_tensors_that_nothing_uses(file):
    info = next(iter(file.tensors.values()))
    for name in ("blk.0.mystery.weight", "blk.99.attn_norm.weight", "mystery.bias"):
        with pytest.raises(UnsupportedModelError, match=name):
            load_model(with_tensors(file, dict(file.tensors) | {name: info}), repack=False)
