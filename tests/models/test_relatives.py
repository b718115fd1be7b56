"""What single relatives do that their tiny models and references don't show."""

import numpy as np
import pytest

import oxillama.gguf as gguf
from oxillama.core.runner import Runner
from oxillama.errors import ConfigError, GenerateError, LoadError, UnsupportedModelError
from oxillama.kernels.batch import Span
from oxillama.models.registry import refused_architectures
from tests.models import naive
from tests.models.references import TOKENS, load, logits, path_of, rewritten
from tests.models.tiny import Shape, tiny


@pytest.mark.parametrize("name", ["grok", "deepseek4", "qwen4exp", "plamo2", "rwkv6", "eagle3", "clip"])
def test_what_is_not_computed_is_refused_with_its_reason(tmp_path, name):
    path = rewritten(tiny("llama", tmp_path), tmp_path, {"general.architecture": name})
    with pytest.raises(UnsupportedModelError) as caught:
        load(path)
    assert str(caught.value) == f"architecture '{name}' is not supported: {refused_architectures()[name]}"


def test_old_minicpm_has_the_scales_that_new_files_say(tmp_path):
    path = tiny("minicpm-old", tmp_path)
    n_embd = 48
    scales = {"embedding_scale": 12.0, "residual_scale": 1.4 / 3**0.5, "logit_scale": n_embd / 256}
    said = rewritten(path, tmp_path, {f"minicpm.{k}": v for k, v in scales.items()})
    a, b = logits(path, TOKENS), logits(said, TOKENS)
    assert np.abs(a - b).max() <= 1e-5 * np.abs(a).max()  # metadata are of 32 bits


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("gemma2", {"gemma2.attn_logit_softcapping": None, "gemma2.final_logit_softcapping": None}),
        ("granite", {"granite.rope.scaling.finetuned": False}),
        ("granitemoe", {"granitemoe.rope.scaling.finetuned": False}),
    ],
)
def test_keys_that_change_what_a_family_computes(tmp_path, name, keys):
    """The caps that all Gemma 2 have, in the first files without a key; Granite without rotation."""
    path = rewritten(tiny(name, tmp_path), tmp_path, keys)
    expected = naive.logits(path, TOKENS)
    assert np.abs(logits(path, TOKENS) - expected).max() <= 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        # Granite 4 without experts: its one network is what was the shared expert, with that width.
        ("granite", {"granite.feed_forward_length": 40, "granite.expert_shared_feed_forward_length": 96}),
        # DeepSeek-V3, of which transformers' configuration has no name for the sigmoid.
        ("deepseek3", {"deepseek2.expert_gating_func": None}),
    ],
)
def test_what_files_leave_unsaid(tmp_path, name, keys):
    path = tiny(name, tmp_path)
    assert (logits(rewritten(path, tmp_path, keys), TOKENS) == logits(path, TOKENS)).all()


@pytest.mark.parametrize("name", ["glm4moe", "deepseek2", "exaone4"])
def test_layers_that_guess_further_ahead_are_left_out(tmp_path, name):
    path = tiny(name, tmp_path)
    with gguf.open(path) as file:
        extra = {
            t.name.replace("blk.2.", "blk.3."): np.array(t.dequantize()) + 1
            for t in file.tensors.values()
            if t.name.startswith("blk.2.")
        }
    extra["blk.3.nextn.eh_proj.weight"] = np.zeros((48, 96), np.float32)
    keys = {f"{name}.block_count": 4, f"{name}.nextn_predict_layers": 1}
    if name == "exaone4":
        keys["exaone4.attention.sliding_window_pattern"] = [True, True, True, False]
    longer = rewritten(path, tmp_path, keys, extra)
    assert (logits(longer, TOKENS) == logits(path, TOKENS)).all()
    with pytest.raises(LoadError, match="nextn_predict_layers' is 4"):
        load(rewritten(path, tmp_path, keys | {f"{name}.nextn_predict_layers": 4}, extra))
    with pytest.raises(UnsupportedModelError, match=r"no use for blk\.3\.nextn\.eh_proj"):
        load(rewritten(path, tmp_path, keys | {f"{name}.nextn_predict_layers": 0}, extra))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("alpha_p", None, r"xielu\.alpha_p"),
        ("eps", 1e-6, r"xielu\.eps"),
        ("eps", [-1e-6, -1e-6, 0.5], r"xielu\.eps is 0\.5; it must lie in -10000\.\.0"),
        ("beta", [0.5, 0.5], r"xielu\.beta has 2 values for 3 layers"),
        ("alpha_n", [0.5, 0.5, float("nan")], r"xielu\.alpha_n is nan"),
    ],
)
def test_activations_that_cannot_be(tmp_path, name, value, message):
    with pytest.raises(LoadError, match=message):
        load(rewritten(tiny("apertus", tmp_path), tmp_path, {f"xielu.{name}": value}))


def test_an_apertus_with_experts_is_refused(tmp_path):
    keys = {"apertus.expert_count": 4, "apertus.expert_used_count": 2}
    with pytest.raises(UnsupportedModelError, match=r"apertus\.expert_count must be 0"):
        load(rewritten(tiny("apertus", tmp_path), tmp_path, keys))


def test_one_activation_for_all_layers(tmp_path):
    once = rewritten(tiny("apertus", tmp_path), tmp_path, {"xielu.beta": 0.4, "xielu.alpha_p": 0.3})
    listed = {"xielu.beta": [0.4] * 3, "xielu.alpha_p": [0.3] * 3}
    found = logits(once, TOKENS)
    assert (logits(rewritten(tiny("apertus", tmp_path), tmp_path, listed), TOKENS) == found).all()


def test_widths_of_qwen_are_of_two(tmp_path):
    with pytest.raises(LoadError, match=r"qwen\.feed_forward_length is 97"):
        load(rewritten(tiny("qwen", tmp_path), tmp_path, {"qwen.feed_forward_length": 97}))


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("llama", "attention.temperature_scale", 0.1),
        ("qwen3", "rope.dimension_sections", [3, 3, 2, 0]),
        ("kimi-linear", "kda.safe_gate", True),
        ("rwkv7", "token_shift_count", 1),
        ("rwkv7", "rescale_every_n_layers", 6),
    ],
)
def test_keys_of_relatives_mean_nothing_to_others(tmp_path, name, key, value):
    with pytest.raises(UnsupportedModelError, match=rf"{name}\.{key} is "):
        load(rewritten(tiny(name, tmp_path), tmp_path, {f"{name}.{key}": value}))


class TestEmbeddingGemma:
    """`dense_2` and `dense_3`, which stand after pooling, may as well be taken token by token."""

    def hidden(self, path):
        runner = Runner(load(path), num_threads=2, kv_type="f32", n_blocks=4)
        return runner.hidden([Span(TOKENS, 0, [0, 1, 2], "all")]).copy()

    def test_projections(self, tmp_path):
        path = tiny("gemma-embedding", tmp_path, Shape())
        plain = self.hidden(path)
        rng = np.random.default_rng(1)
        up, down = (rng.standard_normal(dims).astype(np.float32) for dims in ((96, 64), (64, 96)))
        keys = {"gemma-embedding.dense_2_feat_in": 64, "gemma-embedding.dense_2_feat_out": 96,
                "gemma-embedding.dense_3_feat_in": 96, "gemma-embedding.dense_3_feat_out": 64}  # fmt: skip
        projected = rewritten(path, tmp_path, keys, {"dense_2.weight": up, "dense_3.weight": down})
        expected = plain.astype(np.float64).mean(0) @ up.T @ down.T
        assert np.abs(self.hidden(projected).mean(0) - expected).max() <= 1e-5 * np.abs(expected).max()
        with pytest.raises(LoadError, match=r"dense_3\.weight is missing"):
            load(rewritten(path, tmp_path, keys, {"dense_2.weight": up}))

    def test_a_part_of_a_text_is_refused(self, tmp_path):
        runner = Runner(load(tiny("gemma-embedding", tmp_path)), num_threads=2, kv_type="f32", n_blocks=4)
        with pytest.raises(ConfigError, match="takes sequences whole"):
            runner.hidden([Span(TOKENS, 5, [0, 1, 2], "all")])
        with pytest.raises(GenerateError, match="no scores over the vocabulary"):
            runner.forward([Span(TOKENS, 0, [0, 1, 2], "all")])

    def test_reads_as_the_reference(self):
        assert load(path_of("gemma-embedding")).spec.window == 9


@pytest.mark.parametrize("value", [0.0, None])
def test_mpt_without_alibi_is_refused(tmp_path, value):
    path = rewritten(tiny("mpt", tmp_path), tmp_path, {"mpt.attention.max_alibi_bias": value})
    with pytest.raises(UnsupportedModelError, match=r"mpt\.attention\.max_alibi_bias is 0 or missing"):
        load(path)


def test_steepness_of_alibi_is_refused_where_it_has_no_use(tmp_path):
    path = rewritten(tiny("bloom", tmp_path), tmp_path, {"bloom.attention.max_alibi_bias": 16.0})
    with pytest.raises(UnsupportedModelError, match=r"bloom\.attention\.max_alibi_bias is 16"):
        load(path)
