"""What sparse models and encoders of 2026 have otherwise: served in every way, and refused where a file contradicts."""

import numpy as np
import pytest

import oxillama.gguf as gguf
from oxillama.core.runner import Runner
from oxillama.errors import LoadError, MissingTensorError, UnsupportedModelError
from oxillama.kernels.batch import Span
from oxillama.kv_cache.arrays import slot_bytes
from oxillama.models import load_model
from tests.models import naive
from tests.models.references import load, logits, rewritten
from tests.models.tiny import Shape, tiny

TOKENS = np.random.default_rng(7).integers(0, 131, 40).tolist()


@pytest.mark.parametrize(
    "name",
    ["afmoe", "laguna", "cohere2moe", "mistral4", "step35", "mimo2", "smallthinker-21b", "muse-glimmer",
     "nemotron_h_moe-latent", "gemma4", "gemma4-e4b", "gemma4-moe",
     "qwen3next", "qwen35moe", "nanbeige", "llama4-short", "gemma3n"],
)  # fmt: skip
def test_what_is_asked_for_changes_no_bit(tmp_path, name):
    """Two sequences in spans of random lengths, asked for all, the last or none of their rows, against all rows."""
    rng = np.random.default_rng(3)
    with gguf.open(tiny(name, tmp_path, Shape(n_layers=4, n_heads=4, n_kv_heads=2))) as file:
        model = load_model(file, num_threads=2)
    n_slots = 4 if slot_bytes(model.spec.states) else 0
    full, some = (
        Runner(model, num_threads=2, kv_type="f16", kv_block_size=16, n_blocks=8, n_slots=n_slots) for _ in range(2)
    )
    tables, done = [[0, 3, 6], [1, 4, 7]], [0, 0]
    for step in range(6):
        sizes = rng.integers(1, 8, 2)
        wants = rng.choice(["all", "last", "none"], 2).tolist()
        slots = [((2 * i + (step - 1) % 2) if step else -1, 2 * i + step % 2) if n_slots else None for i in range(2)]
        parts = [(rng.integers(0, 131, n).tolist(), done[i], tables[i]) for i, n in enumerate(sizes)]
        everything = full.forward([Span(*part, "all", slot) for part, slot in zip(parts, slots, strict=True)]).copy()
        rows, first = [], 0
        for want, n in zip(wants, sizes, strict=True):
            rows += {"all": range(first, first + n), "last": [first + n - 1], "none": []}[want]
            first += n
        got = some.forward([Span(*part, want, slot) for part, want, slot in zip(parts, wants, slots, strict=True)])
        assert (got == everything[rows]).all()
        done = [d + int(n) for d, n in zip(done, sizes, strict=True)]


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("qwen3moe", "swiglu_clamp_exp", [0.5, 0.5, 0.5]),
        ("qwen3moe", "attention.value_scale", 0.7),
        ("qwen3moe", "rope.dimension_count_swa", 8),
        ("qwen3moe", "moe_latent_size", 8),
        ("eurobert", "hidden_activation", "gelu"),
        ("modern-bert", "hidden_activation", "swish"),
        ("afmoe", "rope.freq_base_swa", 500.0),
        ("exaone-moe", "rope.freq_base_swa", 500.0),
    ],
)
def test_keys_that_would_change_the_result_are_refused(tmp_path, name, key, value):
    path = rewritten(tiny(name, tmp_path), tmp_path, {f"{name}.{key}": value})
    with pytest.raises(UnsupportedModelError, match=rf"{name}\.{key} is "):
        load(path)


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("mimo2", "attention.sliding_window_pattern", [0, 2, 1], "has a value 2; only 0 and 1"),
        ("mimo2", "attention.sliding_window_pattern", [0, 1], "has 2 values for 3 layers"),
        ("step35", "swiglu_clamp_exp", [0.0, -1.0, 0.0], "swiglu_clamp_exp is -1.0; it must lie in 0"),
        ("step35", "swiglu_clamp_shexp", [0.0, float("nan"), 0.0], "swiglu_clamp_shexp is nan"),
        ("step35", "swiglu_clamp_exp", [0.0, 1.0], "has 2 values for 3 layers"),
        ("step35", "rope.dimension_count", 6, "dimension_count is 6; half of it is rotated in pairs"),
        ("laguna", "rope.dimension_count_swa", 7, "dimension_count_swa is 7: rotated dimensions come in pairs"),
        ("nemotron_h_moe", "moe_latent_size", 1 << 40, "moe_latent_size"),
    ],
)
def test_numbers_that_can_not_be(tmp_path, name, key, value, message):
    with pytest.raises(LoadError, match=message):
        load(rewritten(tiny(name, tmp_path), tmp_path, {f"{name}.{key}": value}))


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("afmoe", "blk.1.attn_gate.weight"),
        ("step35", "blk.2.attn_gate.weight"),
        ("smallthinker", "blk.1.ffn_gate_inp.weight"),
        ("mistral4", "blk.0.ffn_gate_up_exps.weight"),
        ("hy_v3", "blk.2.exp_probs_b"),
        ("modern-bert", "blk.1.attn_norm.weight"),
        ("nemotron_h_moe-latent", "blk.1.ffn_latent_up.weight"),
    ],
)
def test_what_can_not_be_missing(tmp_path, name, tensor):
    with gguf.open(tiny(name, tmp_path)) as file:
        rest = {t.name: t.dequantize() for t in file.tensors.values() if t.name != tensor}
        gguf.write_gguf(tmp_path / "less.gguf", dict(file.metadata), rest)
    with pytest.raises(MissingTensorError, match=tensor):
        load(tmp_path / "less.gguf")


def test_step_without_gates(tmp_path):
    """Its configuration may switch them off."""
    with gguf.open(tiny("step35", tmp_path)) as file:
        rest = {t.name: t.dequantize() for t in file.tensors.values() if "attn_gate" not in t.name}
        gguf.write_gguf(tmp_path / "less.gguf", dict(file.metadata), rest)
    expected = naive.logits(tmp_path / "less.gguf", TOKENS)
    assert np.abs(logits(tmp_path / "less.gguf", TOKENS) - expected).max() <= 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("afmoe", {"afmoe.attention.sliding_window_pattern": [False, True, True]}),
        ("laguna", {"laguna.attention.sliding_window_pattern": 2}),
        ("cohere2moe", {"cohere2moe.attention.sliding_window_pattern": None}),
        ("smallthinker", {"smallthinker.expert_gating_func": 1}),
        ("mistral4", {"mistral4.expert_weights_norm": False}),
    ],
)
def test_keys_that_change_what_a_family_computes(tmp_path, name, keys):
    path = rewritten(tiny(name, tmp_path), tmp_path, keys)
    expected = naive.logits(path, TOKENS)
    assert np.abs(logits(path, TOKENS) - expected).max() <= 2e-5 * np.abs(expected).max()


def test_window_of_smallthinker(tmp_path):
    """It is 4096 tokens, whatever files say of windows."""
    path = tiny("smallthinker-21b", tmp_path)
    smaller = rewritten(path, tmp_path, {"smallthinker.attention.sliding_window": 3})
    assert [layer.window for layer in load(smaller).spec.layers] == [0, 4096, 4096]
    assert (logits(smaller, TOKENS) == logits(path, TOKENS)).all()


@pytest.mark.parametrize("name", ["hy_v3", "step35", "bailingmoe2"])
def test_layers_that_guess_further_ahead_are_left_out(tmp_path, name):
    path = tiny(name, tmp_path)
    with gguf.open(path) as file:
        keys = {f"{name}.block_count": 4, f"{name}.nextn_predict_layers": 1}
        for key in file.metadata:
            values = file.metadata[key]
            if isinstance(values, gguf.GGUFArray):
                keys[key] = [*values, values[-1]]
        extra = {
            t.name.replace("blk.2.", "blk.3."): np.array(t.dequantize()) + 1
            for t in file.tensors.values()
            if t.name.startswith("blk.2.")
        }
    extra["blk.3.nextn.eh_proj.weight"] = np.zeros((64, 128), np.float32)
    longer = rewritten(path, tmp_path, keys, extra)
    assert (logits(longer, TOKENS) == logits(path, TOKENS)).all()
