"""Adapters that are damaged, hostile, or for another model: typed errors, and the engine stays usable."""

import json
import os
import struct

import numpy as np
import pytest

import oxillama as ox
import oxillama.gguf as gguf
from oxillama.core.loading import shipped_model
from oxillama.errors import (
    ConfigError,
    EngineClosedError,
    GGUFError,
    LoadError,
    LoraError,
    MissingKeyError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from tests.lora.files import linear_shapes, random_factors, write_adapter, write_peft, write_safetensors
from tests.lora.loaded import Loaded
from tests.models.references import path_of

LLAMA = path_of("llama")
Q = "blk.0.attn_q.weight"


@pytest.fixture(scope="module")
def engine():
    with ox.load() as engine:
        yield engine


@pytest.fixture(scope="module")
def shapes(engine):
    return linear_shapes(engine.config.model_path or shipped_model())


@pytest.fixture(autouse=True)
def unharmed(engine):
    """Whatever a test does, the engine answers as before, and has no adapters."""
    ids = engine.tokenize("Once upon a time")
    before = engine.forward_logits(ids)
    yield
    assert engine.loras == {}
    assert engine.pushed_loras == []
    assert np.array_equal(engine.forward_logits(ids), before)


def pair(shape, rank=4):
    return random_factors({Q: shape}, rank)[Q]


def written(tmp_path, engine, factors, **options):
    return write_adapter(tmp_path / "adapter.gguf", engine.model_config.arch, factors, **options)


def refused(engine, path, error, match):
    for load in (lambda: engine.load_lora("x", path), lambda: engine.apply_lora(path)):
        with pytest.raises(error, match=match) as found:
            load()
        assert isinstance(found.value, LoadError)


def test_an_adapter_of_another_architecture_is_refused(engine, shapes, tmp_path):
    path = write_adapter(tmp_path / "a.gguf", "gpt2", {Q: pair(shapes[Q])})
    refused(engine, path, LoraError, "for architecture gpt2, the model is")


def test_factors_of_wrong_shapes_are_refused(engine, shapes, tmp_path):
    n_out, n_in = shapes[Q]
    for shape in ((n_out + 1, n_in), (n_out, n_in - 1), (2, n_out, n_in)):
        path = written(tmp_path, engine, {Q: pair(shape)})
        refused(engine, path, LoraError, r"blk\.0\.attn_q\.weight: factors of shapes .* the model's has")


def test_factors_that_dont_fit_each_other(engine, shapes, tmp_path):
    (a, _), (_, b) = pair(shapes[Q], 4), pair(shapes[Q], 5)
    refused(engine, written(tmp_path, engine, {Q: (a, b)}), LoraError, "ranks 4 and 5 differ")


@pytest.mark.parametrize("name", ["blk.99.attn_q.weight", "nonsense.weight", "blk.0.attn_norm.weight", "blk.0.attn_q"])
def test_a_tensor_that_the_model_lacks_is_refused(engine, shapes, tmp_path, name):
    path = written(tmp_path, engine, {Q: pair(shapes[Q]), name: pair(shapes[Q])})
    refused(engine, path, LoraError, f"{name} is no matrix or embedding of this model")


def test_a_missing_alpha_is_refused(engine, shapes, tmp_path):
    path = written(tmp_path, engine, {Q: pair(shapes[Q])}, alpha=None)
    refused(engine, path, MissingKeyError, r"adapter\.lora\.alpha")


@pytest.mark.parametrize("alpha", [float("nan"), float("inf"), 1e30])
def test_an_invalid_alpha_is_refused(engine, shapes, tmp_path, alpha):
    refused(engine, written(tmp_path, engine, {Q: pair(shapes[Q])}, alpha=alpha), LoraError, "alpha.* (nan|inf|2.5)")
    refused(engine, written(tmp_path, engine, {Q: pair(shapes[Q])}, alpha="8"), LoraError, "alpha.*'8'")


@pytest.mark.parametrize("kind", ["gguf", "peft"])
def test_alpha_below_zero_turns_the_change_round(engine, shapes, tmp_path, kind):
    made, said = pair(shapes[Q]), []
    for alpha, scale in ((8, -1.0), (-8, 1.0), (8, 1.0)):
        if kind == "gguf":
            path = written(tmp_path, engine, {Q: made}, alpha=float(alpha))
        else:
            path = peft(tmp_path, shapes, lora_alpha=alpha)
        engine.load_lora("x", path)
        said.append(engine.forward_logits([1, 2, 3], lora=[("x", scale)]).tobytes())
        engine.unload_lora("x")
    assert said[0] == said[1] != said[2]


@pytest.mark.parametrize("rank", [4097, 10**6])
def test_ranks_out_of_range_are_refused(engine, tmp_path, rank):
    a, b = np.zeros((rank, 1), np.float32), np.zeros((1, rank), np.float32)
    refused(engine, written(tmp_path, engine, {Q: (a, b)}), LoraError, rf"rank {rank}; it must lie in 1\.\.4096")


def with_dimension(path, n, value):
    """The file with its n-th tensor dimension of a_q replaced."""
    raw = bytearray(path.read_bytes())
    at = raw.index(b"blk.0.attn_q.weight.lora_a") + len(b"blk.0.attn_q.weight.lora_a") + 4 + 8 * n
    raw[at : at + 8] = struct.pack("<Q", value)
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("value", [0, 10**6, 1 << 62])
def test_dimensions_that_lie(engine, shapes, tmp_path, value):
    path = with_dimension(written(tmp_path, engine, {Q: pair(shapes[Q])}), 1, value)
    refused(engine, path, GGUFError, "lora_a")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("which", [0, 1])
def test_weights_that_are_not_finite(engine, shapes, tmp_path, bad, which):
    factors = pair(shapes[Q])
    factors[which][1, 2] = bad
    refused(engine, written(tmp_path, engine, {Q: factors}), LoraError, r"lora_[ab]: the value at \(1, 2\) is")


def test_a_file_truncated_anywhere_is_refused(engine, shapes, tmp_path):
    raw = written(tmp_path, engine, {Q: pair(shapes[Q])}).read_bytes()
    for n in (*range(1, len(raw) - 40, 211), len(raw) - 40):
        path = tmp_path / "cut.gguf"
        path.write_bytes(raw[:n])
        with pytest.raises(LoadError):
            engine.load_lora("x", path)


def test_a_model_is_no_adapter(engine):
    refused(engine, LLAMA, LoraError, "general.type is 'model'")


def test_an_adapter_is_no_model(engine, shapes, tmp_path):
    with pytest.raises(LoadError):
        ox.load(written(tmp_path, engine, {Q: pair(shapes[Q])}))


def test_other_kinds_of_adapters(engine, shapes, tmp_path):
    factors = {Q: pair(shapes[Q])}
    path = written(tmp_path, engine, factors, metadata={"adapter.type": "control"})
    refused(engine, path, UnsupportedModelError, "adapter.type is 'control'")
    path = written(tmp_path, engine, factors, metadata={"adapter.alora.invocation_tokens": [1, 2]})
    refused(engine, path, UnsupportedModelError, "adapter.alora.invocation_tokens")


def test_a_factor_alone_and_what_is_no_factor(engine, shapes, tmp_path):
    described = {"general.type": "adapter", "general.architecture": engine.model_config.arch, "adapter.type": "lora"}
    described["adapter.lora.alpha"] = 1.0
    a, _ = pair(shapes[Q])
    for tensors, match in (
        ({f"{Q}.lora_a": a}, "lora_a stands alone"),
        ({"blk.0.attn_norm.weight": a[0]}, "is no factor of a change"),
        ({}, "no tensors"),
    ):
        gguf.write_gguf(tmp_path / "x.gguf", described, tensors)
        refused(engine, tmp_path / "x.gguf", LoraError, match)


def test_a_missing_file_is_named(engine, tmp_path):
    refused(engine, tmp_path / "none.gguf", ModelNotFoundError, "there is no such file")
    refused(engine, "nul\0", ModelNotFoundError, "read")


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), 1e7, "1", None, True, 1j])
def test_invalid_scales_are_refused(engine, shapes, tmp_path, scale):
    path = written(tmp_path, engine, {Q: pair(shapes[Q])})
    engine.load_lora("x", path)
    try:
        for use in (
            lambda: engine.generate("a", max_tokens=1, lora=[("x", scale)]),
            lambda: engine.push_lora("x", scale),
            lambda: engine.apply_lora(path, scale),
            lambda: engine.forward_logits([1, 2], lora=[("x", scale)]),
        ):
            with pytest.raises(ConfigError, match="scale must be"):
                use()
    finally:
        engine.unload_lora("x")


@pytest.mark.parametrize(
    "lora", [1, {"x": 1.0}, ("x", 1.0), [1], [("x",)], [("x", 1.0, 2)], [(1, 1.0)], "unknown", ["unknown"]]
)
def test_requests_that_name_none(engine, lora):
    for call in (engine.generate, engine.stream, engine.embed):
        with pytest.raises(ConfigError, match=r"lora.* must be|no adapter is called 'unknown'; loaded: none"):
            list(call("a", lora=lora))  # a stream says it with its first piece


def test_invalid_names_are_refused(engine, shapes, tmp_path):
    path = written(tmp_path, engine, {Q: pair(shapes[Q])})
    engine.load_lora("x", path)
    with pytest.raises(ConfigError, match="'x' is loaded already"):
        engine.load_lora("x", path)
    engine.unload_lora("x")
    for call in (lambda: engine.unload_lora("x"), lambda: engine.push_lora("x")):
        with pytest.raises(ConfigError, match="no adapter is called 'x'"):
            call()
    for name in ("", None, 3):
        with pytest.raises(ConfigError, match="name must be a str"):
            engine.load_lora(name, path)
    with pytest.raises(ConfigError, match="no adapter is pushed"):
        engine.pop_lora()


def test_a_closed_engine_takes_none(shapes, tmp_path):
    engine = ox.load()
    path = written(tmp_path, engine, {Q: pair(shapes[Q])})
    engine.load_lora("x", path)
    engine.close()
    assert engine.loras == {}
    for call in (lambda: engine.load_lora("y", path), lambda: engine.push_lora("x"), lambda: engine.apply_lora(path)):
        with pytest.raises(EngineClosedError):
            call()


# ---- PEFT folders

NAME = "model.layers.0.self_attn.q_proj"


def peft(tmp_path, shapes, extra=None, rank=4, **config):
    a, b = pair(shapes[Q], rank)
    return write_peft(
        tmp_path / "peft", {f"{NAME}.lora_A.weight": a, f"{NAME}.lora_B.weight": b} | (extra or {}), **config
    )


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"peft_type": "LOHA"}, "peft_type is 'LOHA'"),
        ({"use_dora": True}, "use_dora is True"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4'"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"something_new": 1}, "something_new is 1"),
        ({"alpha_pattern": {"(a+)+$": 3}}, "names of modules are supported, no patterns"),
    ],
)
def test_peft_that_is_more_than_lora_is_refused_by_name(engine, shapes, tmp_path, config, match):
    refused(engine, peft(tmp_path, shapes, **config), UnsupportedModelError, match)


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"r": 0}, "r is 0"),
        ({"r": 10**7}, "r is 10000000"),
        ({"r": 5}, "have rank 4, but adapter_config.json says 5"),
        ({"r": "4"}, "r is 4"),
        ({"lora_alpha": None}, "lora_alpha is None"),
        ({"lora_alpha": 0}, "lora_alpha is 0"),
        ({"use_rslora": "yes"}, "use_rslora is yes"),
        ({"rank_pattern": {"q_proj": 0}}, r"rank_pattern\[q_proj\] is 0"),
        ({"rank_pattern": [1]}, "rank_pattern must map"),
    ],
)
def test_invalid_peft_settings_are_refused(engine, shapes, tmp_path, config, match):
    refused(engine, peft(tmp_path, shapes, **config), LoraError, match)


def test_invalid_peft_tensors_are_refused(engine, shapes, tmp_path):
    a, b = pair(shapes[Q])
    for extra, error, match in (
        ({f"{NAME}.lora_magnitude_vector": a}, UnsupportedModelError, "DoRA"),
        ({f"{NAME}.bias": a}, UnsupportedModelError, "no factor of a change"),
        ({"model.layers.0.mlp.up_proj.lora_A.weight": a}, LoraError, "lora_A and lora_B are needed"),
        ({"model.layers.99.self_attn.q_proj.lora_A.weight": a, "model.layers.99.self_attn.q_proj.lora_B.weight": b},
         LoraError, "layers.99"),
        ({"vision_tower.encoder.layers.0.self_attn.q_proj.lora_A.weight": a,
          "vision_tower.encoder.layers.0.self_attn.q_proj.lora_B.weight": b}, LoraError, "vision_tower"),
    ):  # fmt: skip
        refused(engine, peft(tmp_path, shapes, extra), error, match)


def test_a_peft_factor_that_is_there_twice(engine, shapes, tmp_path):
    """With and without the prefix that PEFT gives all names."""
    a, b = pair(shapes[Q])
    folder = peft(tmp_path, shapes)
    names = [f"{prefix}{NAME}.lora_{part}.weight" for part in "AB" for prefix in ("base_model.model.", "")]
    write_safetensors(folder / "adapter_model.safetensors", dict(zip(names, (a, a, b, b), strict=True)))
    refused(engine, folder, LoraError, "are the same factor")


@pytest.mark.parametrize("metadata", [5, ["pt"], {"format": 1}, {"format": None}])
def test_safetensors_metadata_that_are_none(engine, shapes, tmp_path, metadata):
    a, b = pair(shapes[Q])
    folder = peft(tmp_path, shapes)
    tensors = {f"{NAME}.lora_A.weight": a, f"{NAME}.lora_B.weight": b}
    write_safetensors(folder / "adapter_model.safetensors", tensors, metadata)
    refused(engine, folder, LoraError, "__metadata__ must map")


def test_peft_files_that_are_missing(engine, shapes, tmp_path):
    folder = peft(tmp_path, shapes)
    with pytest.raises(LoraError, match="the folder is needed"):
        engine.load_lora("x", folder / "adapter_model.safetensors")
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    refused(engine, folder, ModelNotFoundError, "may run code")
    (folder / "adapter_config.json").unlink()
    refused(engine, folder, ModelNotFoundError, "no adapter_config.json and no adapter_model.safetensors")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], r"x has no adapter_config\.json and no adapter_model\.safetensors, .* PEFT .*: the folder is empty$"),
        (["README.md"], r"x has no adapter_config\.json and no adapter_model\.safetensors, .* adapter holds$"),
        (["adapter_config.json"], r"x has no adapter_model\.safetensors, .* adapter holds$"),
        (["adapter_model.safetensors"], r"x has no adapter_config\.json, .* adapter holds$"),
        (["a.txt", "checkpoint-5/adapter_config.json"], r": give the folder .*x/checkpoint-5$"),
        (["pirate.gguf"], r"; an adapter in GGUF is given as its file: .*x/pirate\.gguf$"),
    ],
)
def test_folder_that_lacks_files_says_which(engine, tmp_path, files, message):
    folder = tmp_path / "x"
    folder.mkdir()
    for name in files:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    refused(engine, folder, ModelNotFoundError, message)


def test_empty_path_of_an_adapter(engine):
    with pytest.raises(ox.ConfigError, match="path is empty: give a GGUF file, or the folder"):
        engine.load_lora("x", "")


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_peft_files_that_never_end(engine, shapes, tmp_path, name):
    folder = peft(tmp_path, shapes)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    refused(engine, folder, LoraError, "not a regular file")
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/zero")
    refused(engine, folder, LoraError, "not a regular file")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"r": NaN}', "[" * 100_000, "\xff"])
def test_peft_configurations_that_are_no_json(engine, shapes, tmp_path, text):
    folder = peft(tmp_path, shapes)
    (folder / "adapter_config.json").write_text(text, "latin-1")
    refused(engine, folder, LoraError, "adapter_config.json")


ENTRY = {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "header",
    [
        {"t": ENTRY | {"data_offsets": [0, 8]}},
        {"t": ENTRY | {"data_offsets": [4, 0]}},
        {"t": ENTRY | {"data_offsets": [-4, 0]}},
        {"t": ENTRY | {"data_offsets": [1 << 63, (1 << 63) + 4]}},
        {"t": ENTRY | {"data_offsets": [4, 8]}},
        {"t": ENTRY | {"data_offsets": [0.0, 4.0]}},
        {"t": ENTRY | {"shape": [1 << 61, 1 << 61]}},
        {"t": ENTRY | {"shape": [1] * 9}},
        {"t": ENTRY | {"shape": "1"}},
        {"t": ENTRY | {"dtype": 7}},
        {"t": ENTRY, "u": ENTRY},
        {"t": {"dtype": "F32"}},
        {"t": []},
        [],
        "t",
    ],
)
def test_safetensors_headers_that_lie(engine, shapes, tmp_path, header):
    folder = peft(tmp_path, shapes)
    raw = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + b"\0" * 4)
    refused(engine, folder, LoraError, "safetensors")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0" * 7,
        b"\xff" * 8,
        b"\0" * 8,
        b"\2\0\0\0\0\0\0\0{}x",
        b"\5\0\0\0\0\0\0\0{{{{{",
        b"\6\0\0\0\0\0\0\0\xff{}   ",
    ],
)
def test_safetensors_that_are_none(engine, shapes, tmp_path, raw):
    folder = peft(tmp_path, shapes)
    (folder / "adapter_model.safetensors").write_bytes(raw)
    refused(engine, folder, LoraError, "safetensors")


def test_safetensors_truncated_anywhere(engine, shapes, tmp_path):
    folder = peft(tmp_path, shapes)
    whole = (folder / "adapter_model.safetensors").read_bytes()
    for n in range(0, len(whole), 997):
        (folder / "adapter_model.safetensors").write_bytes(whole[:n])
        with pytest.raises(LoraError):
            engine.load_lora("x", folder)


def test_safetensors_of_other_types_and_values(engine, shapes, tmp_path):
    a, _ = pair(shapes[Q])
    for dtype, size in (("I32", 4), ("F64", 8), ("F8_E4M3", 1)):
        odd = (dtype, a.shape, b"\0" * (a.size * size))
        refused(engine, peft(tmp_path, shapes, {f"{NAME}.lora_A.weight": odd}), UnsupportedModelError, f"type {dtype}")
    bad = a.copy()
    bad[0, 0] = np.nan
    refused(engine, peft(tmp_path, shapes, {f"{NAME}.lora_A.weight": bad}), LoraError, r"value at \(0, 0\) is nan")
    empty = np.zeros((0, a.shape[1]), np.float32)
    refused(engine, peft(tmp_path, shapes, {f"{NAME}.lora_A.weight": empty}), LoraError, "ranks 0 and 4")


def test_a_key_that_stands_twice(engine, shapes, tmp_path):
    folder = peft(tmp_path, shapes)
    entry = json.dumps(ENTRY)
    raw = f'{{"t": {entry}, "t": {entry}}}'.encode()
    (folder / "adapter_model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + b"\0" * 4)
    refused(engine, folder, LoraError, "a key stands twice")


def test_an_architecture_whose_names_are_unknown(tmp_path, shapes):
    with pytest.raises(UnsupportedModelError, match="PEFT folders for architecture falcon-h1"):
        Loaded(path_of("falcon-h1")).load("x", peft(tmp_path, shapes))
