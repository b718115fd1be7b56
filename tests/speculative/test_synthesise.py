"""Drafts synthesised from their target: layers without effect can be left out, and formats become smaller."""

import numpy as np
import pytest

import oxillama as ox
import oxillama.gguf as gguf
from oxillama.core.runner import Runner
from oxillama.errors import ConfigError, GGUFError, ModelNotFoundError, QuantError, UnsupportedModelError
from oxillama.kernels.batch import Span
from oxillama.models import architectures, load_model
from oxillama.models.registry import find_architecture, read_model_spec
from oxillama.speculative.synthesise import spread, synthesise_draft, with_choosers
from tests.models.tiny import RECIPES, Shape, tiny

DEEP = Shape(
    n_layers=8, n_embd=40, n_heads=4, n_kv_heads=2, head_dim=10, window=5, n_experts=3, n_used=3, n_groups=3, d_conv=3
)
BIG = Shape(n_layers=2, n_heads=4, n_kv_heads=2, head_dim=64, n_embd=256, n_ff=512)
TOKENS = np.random.default_rng(5).integers(0, 131, 30).tolist()
# What adds to the stream of activations; all zeros, the layer is no more than its input.
WRITERS = (
    "attn_output.", "attn_out.", "ffn_down.", "ffn_down_exps.", "ffn_down_shexp.", "ssm_out.", "shortconv.out_proj.",
    "time_mix_output.", "channel_mix_value.",
)  # fmt: skip
GENERATING = [
    n
    for n, r in RECIPES.items()
    if r.arch in architectures() and find_architecture(r.arch).traits.causal and r.arch != "t5"  # the last test
]
BY_DEPTH = ("baichuan", "baichuan-13b")  # which tells what layers compute
BY_INDEX = ("minimax-01", "minimax-01-mixed", "hrm_text")  # likewise, with the number of layers
IN_COMMON = ("gemma4-e4b", "gemma3n")  # layers share keys and values, and one table has the embeddings of all


def logits(source):
    with gguf.open(source) as file:
        model = load_model(file)
    runner = Runner(model, num_threads=1, kv_type="f32", n_blocks=2, n_slots=1)
    return runner.forward([Span(TOKENS, 0, [0, 1], "all", (-1, 0))]).copy()


def without(path, dropped):
    """A copy of the file in which these layers add nothing."""
    idle = path.with_name(f"idle-{path.name}")
    with gguf.open(path) as file:
        tensors = {}
        for name, info in file.tensors.items():
            layer = int(name.split(".")[1]) if name.startswith("blk.") else -1
            adds = layer in dropped and any(f".{part}" in name for part in WRITERS)
            scales = layer in dropped and name.endswith(".layer_output_scale.weight")
            tensors[name] = np.full(info.shape, scales, np.float32) if adds or scales else info
        gguf.write_gguf(idle, file.metadata, tensors)
    return idle


@pytest.mark.sweep(19)
@pytest.mark.parametrize("name", [name for name in GENERATING if name not in IN_COMMON + BY_DEPTH + BY_INDEX])
@pytest.mark.parametrize("n_kept", [1, 5, 7])
def test_a_layer_that_adds_nothing_can_be_left_out(name, n_kept, tmp_path):
    path = tiny(name, tmp_path, DEEP)
    with gguf.open(path) as file:
        spec = read_model_spec(file)
    kept = spread(spec.n_layers, n_kept, lambda i: True)
    try:
        draft = synthesise_draft(path, None, kept)
    except UnsupportedModelError:
        # An architecture that counts layers to know what they do takes others.
        rule = find_architecture(spec.arch).traits.rotates
        if rule == "windows":  # without any window, all layers rotate
            kept = (1, *kept[1:])
            draft = synthesise_draft(path, None, kept)
        else:
            assert callable(rule)
            draft, kept = synthesise_draft(path, None, n_kept), spread(spec.n_layers, n_kept, rule)
            kept = with_choosers(spec, kept)
    idle = without(path, set(range(spec.n_layers)) - set(kept))
    assert np.array_equal(logits(draft), logits(idle))
    assert not np.array_equal(logits(draft), logits(path))


@pytest.mark.parametrize("name", BY_DEPTH)
def test_layers_of_models_known_by_their_depth_stay_together(name, tmp_path):
    path = tiny(name, tmp_path, BIG)
    with pytest.raises(UnsupportedModelError, match=r"baichuan\.block_count is 5"):
        synthesise_draft(path, None, 5)
    with gguf.open(synthesise_draft(path, "Q4_0")) as file:
        assert read_model_spec(file).n_layers in (32, 40)


@pytest.mark.parametrize("name", BY_INDEX)
def test_layers_whose_index_tells_what_they_compute_stay_together(name, tmp_path):
    with pytest.raises(UnsupportedModelError, match="depends on its index and the number of layers"):
        synthesise_draft(tiny(name, tmp_path, DEEP), None, 5)
    path = tiny(name, tmp_path, BIG)
    with gguf.open(path) as file, gguf.open(synthesise_draft(path, "Q4_0")) as draft:
        assert read_model_spec(draft).n_layers == read_model_spec(file).n_layers


def test_the_layer_whose_values_all_others_read_stays(tmp_path):
    path = tiny("rwkv7", tmp_path, DEEP)
    with pytest.raises(UnsupportedModelError, match="mix their values with those of the first: keep layer 0"):
        synthesise_draft(path, None, [1, 2, 5])
    with gguf.open(synthesise_draft(path, None, [0, 5])) as file:
        assert read_model_spec(file).n_layers == 2


def test_layers_stay_with_those_that_choose_their_keys(tmp_path):
    """Layers 1, 4 and 7 attend to what the one before has chosen."""
    path = tiny("glm-dsa", tmp_path, DEEP)
    with pytest.raises(UnsupportedModelError, match=r"layer 4 .* attends to the keys that layer 3 chooses: keep that"):
        synthesise_draft(path, None, [0, 1, 4])
    with gguf.open(path) as file:
        spec = read_model_spec(file)
    assert with_choosers(spec, (0, 1, 4, 7)) == (0, 1, 3, 6)
    with gguf.open(synthesise_draft(path, None, [0, 3, 4])) as file:
        assert [len(kept) for kept in read_model_spec(file).states] == [2, 2, 1]


@pytest.mark.parametrize("name", IN_COMMON)
def test_layers_with_parts_in_common_stay_together(name, tmp_path):
    path = tiny(name, tmp_path, DEEP)
    with pytest.raises(UnsupportedModelError, match=r"embeddings side by side in per_layer_token_embd\.weight"):
        synthesise_draft(path, None, 5)
    with gguf.open(synthesise_draft(tiny(name, tmp_path, BIG), "Q4_0")) as file:
        assert read_model_spec(file).n_layers == BIG.n_layers


@pytest.mark.parametrize("name", ["llama", "mamba"])
def test_an_engine_loads_a_synthesised_draft(name, tmp_path):
    path = tiny(name, tmp_path, DEEP)
    with gguf.open(synthesise_draft(path, None, 3)) as file:
        assert read_model_spec(file).n_layers == 3
        assert {n.split(".")[1] for n in file.tensors if n.startswith("blk.")} == {"0", "1", "2"}


@pytest.mark.parametrize("n", [1, 2, 3, 8, 30])
def test_layers_are_spread_and_of_their_kind(n):
    for n_kept in range(1, n + 1):
        even = spread(n, n_kept, lambda i: True)
        assert even[0] == 0
        assert len(set(even)) == n_kept
        assert even == tuple(sorted(even))
        assert n_kept == 1 or even[-1] == n - 1
        gaps = np.diff(even)
        assert n_kept == 1 or max(gaps) - min(gaps) <= 1
        fourths = spread(n, n_kept, lambda i: i % 4 == 3)
        assert len(set(fourths)) == n_kept
        assert fourths == tuple(sorted(fourths))
        assert all((new % 4 == 3) == (old % 4 == 3) for new, old in enumerate(fourths))


def test_formats_become_smaller_and_never_larger(tmp_path):
    path = tiny("llama", tmp_path, BIG)
    with gguf.open(synthesise_draft(path)) as file:
        types = {name: t.type for name, t in file.tensors.items()}
        assert file.metadata.get_int("general.file_type") == 10
        assert file.metadata.get_str("general.name").endswith("(draft)")
    assert types["blk.0.attn_q.weight"] == "Q2_K"
    assert types["blk.0.attn_norm.weight"] == "F32"
    small = synthesise_draft(path, "Q2_K")
    with gguf.open(synthesise_draft(small, "Q8_0", 1)) as file:
        assert {name: t.type for name, t in file.tensors.items()}.items() <= types.items()


def test_a_synthesised_draft_equals_the_quantised_file(tmp_path):
    path, made = tiny("llama", tmp_path, BIG), tmp_path / "made.gguf"
    gguf.quantize_file(path, made, "Q4_K_M")
    with gguf.open(made) as file, gguf.open(synthesise_draft(path, "Q4_K")) as draft:
        assert list(file.tensors) == list(draft.tensors)
        for name, info in file.tensors.items():
            assert info.type == draft.tensors[name].type
            assert np.array_equal(info.data, draft.tensors[name].data)


def test_an_engines_draft_is_written_to_a_file(tmp_path):
    with ox.load(num_threads=1) as engine:
        path = ox.synthesise_draft(engine, layers=2, destination=tmp_path / "draft.gguf")
        with ox.load(path, num_threads=1) as draft:
            assert draft.model_config.n_layers == 2
            assert draft.tokenize("Once upon a time") == engine.tokenize("Once upon a time")
        assert path.read_bytes() == ox.synthesise_draft(engine, layers=[0, 3])
    stretched = ox.load(overrides={"llama.context_length": 2048}, num_threads=1)
    with gguf.open(synthesise_draft(stretched)) as file:
        assert file.metadata.get_int("llama.context_length") == 2048


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"type": None}, ConfigError, "would have .* bytes of weights, its target has"),
        ({"type": "F32"}, ConfigError, "give a type of fewer bits, or fewer layers"),
        ({"type": "Q9"}, QuantError, "unknown file type 'Q9'"),
        ({"type": 2}, QuantError, "unknown file type 2"),
        ({"layers": 0}, ConfigError, "layers must be"),
        ({"layers": 4}, ConfigError, "layers must be"),
        ({"layers": True}, ConfigError, "layers must be a number of layers or a list"),
        ({"layers": "01"}, ConfigError, "layers must be a number of layers or a list"),
        ({"layers": []}, ConfigError, "rising order, at least one"),
        ({"layers": [1, 0]}, ConfigError, "rising order"),
        ({"layers": [1, 1]}, ConfigError, "rising order"),
        ({"layers": [0, 3]}, ConfigError, r"layers\[1\] must be"),
        ({"layers": [0.0]}, ConfigError, r"layers\[0\] must be"),
        ({"num_threads": 0}, ConfigError, "num_threads must be .*from 1 to 1024"),
    ],
)
def test_bad_arguments(options, error, message, tmp_path):
    path = tiny("llama", tmp_path)
    with pytest.raises(error, match=message):
        synthesise_draft(path, **options)


def test_bad_targets(tmp_path):
    path = tiny("llama", tmp_path)
    with pytest.raises(ConfigError, match="is the source itself"):
        synthesise_draft(path, layers=1, destination=path)
    with pytest.raises(ModelNotFoundError, match="no such file"):
        synthesise_draft(tmp_path / "none.gguf")
    with pytest.raises(GGUFError):
        synthesise_draft(b"GGUF")
    with pytest.raises(ConfigError, match="a path or bytes are needed"):
        synthesise_draft(3)
    with pytest.raises(UnsupportedModelError, match="architecture bert makes embeddings"):
        synthesise_draft(tiny("bert", tmp_path))


def test_layers_that_cannot_be_left_out_are_named(tmp_path):
    path = tiny("smollm3", tmp_path, DEEP)
    with pytest.raises(UnsupportedModelError, match=r"architecture smollm3 computes layers \[1, 3\] in another way"):
        synthesise_draft(path, None, [1, 3])


def test_an_engine_whose_file_changed(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(synthesise_draft(ox.load(num_threads=1), None, 3))
    engine = ox.load(path.read_bytes(), num_threads=1)
    assert len(synthesise_draft(engine, None, 1)) < path.stat().st_size
    engine = ox.load(path, num_threads=1)
    path.unlink()
    path.write_bytes(synthesise_draft(ox.load(num_threads=1), None, 2))
    with pytest.raises(ConfigError, match="not the one that its model_path holds"):
        synthesise_draft(engine, None, 1)


@pytest.mark.parametrize("layers", [None, 1, [0]])
def test_there_is_no_draft_of_what_reads_prompts_with_an_encoder(layers, tmp_path):
    with pytest.raises(
        UnsupportedModelError, match="architecture t5 reads prompts with an encoder, which a draft model"
    ):
        synthesise_draft(tiny("t5", tmp_path), layers=layers)
