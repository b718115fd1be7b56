"""What the references don't reach, against the numpy twin: windows, every rotary scaling, biases of all layers."""

import gc
import sys

import numpy as np
import pytest

import oxillama.gguf as gguf
from oxillama.errors import ConfigError
from oxillama.kernels.batch import Batch, Span
from oxillama.kernels.rows import Workspace
from tests.models import naive
from tests.models.compared import TOKENS, agree, ours, runner_of
from tests.models.references import path_of

LONG = np.linspace(1, 5, 8).astype(np.float32)
SHORT = np.linspace(1, 1.5, 8).astype(np.float32)


def with_tensors(tmp_path, name, tensors, metadata=None):
    with gguf.open(path_of(name)) as file:
        merged = {t.name: np.array(t.dequantize()) for t in file.tensors.values()} | tensors
        gguf.write_gguf(tmp_path / "model.gguf", dict(file.metadata) | (metadata or {}), merged)
    return tmp_path / "model.gguf"


def test_plain():
    agree(ours(path_of("llama")), naive.logits(path_of("llama"), TOKENS))


@pytest.mark.parametrize("window", [1, 5, 64, 70])
def test_sliding_window(window):
    got = ours(path_of("llama"), {"llama.attention.sliding_window": window})
    agree(got, naive.logits(path_of("llama"), TOKENS, window=window))


@pytest.mark.parametrize("n_rot", [2, 8])
def test_partial_rotation(n_rot):
    got = ours(path_of("llama"), {"llama.rope.dimension_count": n_rot})
    agree(got, naive.logits(path_of("llama"), TOKENS, n_rot=n_rot))


@pytest.mark.parametrize(("context_size", "factors"), [(129, LONG), (256, LONG), (128, SHORT), (16, SHORT)])
def test_longrope_takes_the_factors_of_the_context_in_use(tmp_path, context_size, factors):
    path = with_tensors(
        tmp_path,
        "llama",
        {"rope_factors_long.weight": LONG, "rope_factors_short.weight": SHORT},
        {
            "llama.rope.scaling.type": "longrope",
            "llama.rope.scaling.original_context_length": 128,
            "llama.rope.scaling.attn_factor": 1.19,
        },
    )
    agree(ours(path, context_size=context_size), naive.logits(path, TOKENS, factors=factors, magnitude=1.19))


@pytest.mark.parametrize(
    ("overrides", "factors", "magnitude"),
    [
        ({"rope.scale_linear": 4.0}, 4.0, 1.0),
        ({"rope.scaling.factor": 4.0}, 4.0, 1.0),  # a factor without a type is linear
        ({"rope.scaling.factor": 0.0}, 1.0, 1.0),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, 1.0, 1.0),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 2.0, "rope.scaling.attn_factor": 1.3}, 2.0, 1.3),
        ({"rope.scaling.attn_factor": 0.7}, 1.0, 0.7),
    ],
)
def test_linear_scaling(overrides, factors, magnitude):
    got = ours(path_of("llama"), {f"llama.{k}": v for k, v in overrides.items()})
    agree(got, naive.logits(path_of("llama"), TOKENS, factors=factors, magnitude=magnitude))


@pytest.mark.parametrize(
    ("factor", "attn_factor", "original", "ext_factor"), [(8.0, 1.0, 32, 1.0), (4.0, 1.2, 64, 0.5)]
)
def test_yarn(factor, attn_factor, original, ext_factor):
    """Peng et al. 2023: a ramp over dimensions between those that turn beta_fast and beta_slow times."""
    n, base = 16, 10000.0
    i = np.arange(n // 2)
    low = max(0, np.floor(n * np.log(original / (32 * 2 * np.pi)) / (2 * np.log(base))))
    high = min(n - 1, np.ceil(n * np.log(original / (1 * 2 * np.pi)) / (2 * np.log(base))))
    keep = ext_factor * (1 - np.clip((i - low) / max(0.001, high - low), 0, 1))
    plain = base ** (-2 * i / n)
    keys = {
        "type": "yarn",
        "factor": factor,
        "attn_factor": attn_factor,
        "original_context_length": original,
        "yarn_ext_factor": ext_factor,
    }
    expected = naive.logits(
        path_of("llama"),
        TOKENS,
        frequencies=plain / factor * (1 - keep) + plain * keep,
        magnitude=attn_factor * (1 + 0.1 * np.log(factor)),
    )
    agree(ours(path_of("llama"), {f"llama.rope.scaling.{k}": v for k, v in keys.items()}), expected)


def test_biases_of_every_layer(tmp_path):
    rng = np.random.default_rng(1)
    widths = {"attn_q": 64, "attn_k": 32, "attn_v": 32, "attn_output": 64, "ffn_gate": 96, "ffn_up": 96, "ffn_down": 64}
    biases = {
        f"blk.{layer}.{name}.bias": rng.standard_normal(n).astype(np.float32)
        for layer in range(3)
        for name, n in widths.items()
    }
    path = with_tensors(tmp_path, "llama", biases)
    agree(ours(path), naive.logits(path, TOKENS))


def test_epsilon_counts():
    """Large enough that it can't be mistaken for another, in the norms of heads as well."""
    overrides = {"llama.attention.layer_norm_rms_epsilon": 0.5}
    got = ours(path_of("llama"), overrides)
    assert np.abs(got - ours(path_of("llama"))).max() > 1e-2
    first, second = (ours(path_of("qwen3"), {"qwen3.attention.layer_norm_rms_epsilon": e}) for e in (1e-6, 0.5))
    assert np.abs(first - second).max() > 1e-2


def test_hidden_states_are_what_logits_are_made_of():
    runner = runner_of(path_of("llama"))
    span = Span(TOKENS[:40], 0, [3, 1, 2], "all")
    hidden = runner.hidden([span]).astype(np.float64)
    with gguf.open(path_of("llama")) as file:
        output = file.tensors["output.weight"].dequantize().astype(np.float64)
    agree(runner.forward([span]), hidden @ output.T)


def test_poll_is_called_between_layers_and_may_give_up():
    runner = runner_of(path_of("llama"))
    span = Span(TOKENS[:40], 0, [3, 1, 2], "all")
    expected = runner.forward([span]).copy()
    calls = []

    def give_up():
        calls.append(None)
        if len(calls) == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        runner.forward([span], give_up)
    assert len(calls) == 2
    assert (runner.forward([span], lambda: calls.append(None)) == expected).all()
    assert len(calls) == 2 + 3


def test_memory_is_told_as_it_is():
    runner = runner_of(path_of("llama"))
    slabs = [slab for (slab,) in runner.arrays.layers]
    assert runner.memory_bytes()["kv_cache"] == sum(s.k.nbytes + s.v.nbytes for s in slabs)
    assert runner.memory_bytes()["recurrent_state"] == 0
    runner.forward([Span(TOKENS, 0, list(range(20)), "all")])
    held = runner.memory_bytes()
    for _ in range(3):
        runner.forward([Span(TOKENS, 0, list(range(20)), "all")])
    assert runner.memory_bytes() == held


def test_workspace_serves_layer_after_layer():
    """The memory of one layer is that of the next: it doesn't grow with their number."""
    few, many = (runner_of(path_of("llama"), None) for _ in range(2))
    few.model.layers, few.arrays.layers = few.model.layers[:1], few.arrays.layers[:1]
    for runner in (few, many):
        runner.forward([Span(TOKENS, 0, list(range(20)), "none"), Span([5], 0, [19], "last")])
    assert few.memory_bytes()["workspace"] == many.memory_bytes()["workspace"]


def test_unknown_want_is_refused():
    with pytest.raises(ConfigError, match="want must be 'last', 'likeliest', 'all' or 'none', not 'lsat'"):
        runner_of(path_of("llama")).forward([Span([5], 0, [0], "lsat")])


@pytest.mark.parametrize(("want", "n_rows"), [("all", 5), ("last", 1), ("none", 0)])
def test_a_batch_is_gone_when_its_step_is(want, n_rows):
    """Reference counts alone free it: nothing is left for the garbage collector, token after token."""
    workspace = Workspace(1)
    before = sys.getrefcount(workspace)
    gc.disable()
    try:
        batch = Batch([Span(TOKENS[:5], 0, [0], want)], workspace)
        assert batch.outputs.n_rows == len(batch.output_rows) == n_rows
        del batch
        assert sys.getrefcount(workspace) == before
    finally:
        gc.enable()
