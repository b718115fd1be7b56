"""Merged files: the same weights as numpy computes, in the requested formats."""

import numpy as np
import pytest

import oxillama as ox
import oxillama.gguf as gguf
from oxillama.cli import main
from tests.lora.files import linear_shapes, merged_file, random_factors, write_adapter, write_peft
from tests.lora.loaded import ALPHA, RANK, SCALE, Loaded, adapter_for
from tests.lora.peft import factors, shape_of, table, tied
from tests.models import naive
from tests.models.references import path_of, tokens_of


def values(path):
    with gguf.open(path) as file:
        return {name: t.dequantize() for name, t in file.tensors.items()}


def types(path):
    with gguf.open(path) as file:
        return {name: t.type for name, t in file.tensors.items()}


@pytest.mark.parametrize("name", ["llama", "qwen2moe", "gpt2", "deepseek2", "deepseek3", "jamba", "phi3"])
def test_float32_is_what_numpy_makes(name, tmp_path):
    path, out = path_of(name), tmp_path / "out.gguf"
    adapter, made = adapter_for(path, tmp_path / "adapter.gguf")
    ox.merge_lora(path, adapter, out, scale=SCALE)
    twin, found = values(merged_file(path, tmp_path / "twin.gguf", (made, SCALE * ALPHA / RANK))), values(out)
    assert list(found) == list(twin)
    for tensor, expected in twin.items():  # scales are float32 by then, which double rounding shows in the last place
        assert np.abs(found[tensor] - expected).max() <= 2e-7 * np.abs(expected).max(), tensor
    tokens = tokens_of(name)
    plain = Loaded(path)
    plain.load("a", adapter)
    ours, theirs = plain.logits(tokens, [("a", SCALE)]), Loaded(out).logits(tokens)
    assert np.abs(ours - theirs).max() <= 6e-6 * np.abs(theirs).max()  # twice what either may be off


@pytest.mark.parametrize("name", ["Q4_K_M", "Q8_0", "BF16"])
def test_quantised_models_keep_their_formats(name, tmp_path):
    """A changed tensor is the quantised sum; what isn't changed stays byte for byte."""
    path, out = path_of(name), tmp_path / "out.gguf"
    shapes = {n: s for n, s in linear_shapes(path).items() if "ffn" in n}
    made = random_factors(shapes, 4)
    with gguf.open(path) as file:
        adapter = write_adapter(tmp_path / "a.gguf", file.metadata.arch, made, alpha=4.0)
    summary = ox.merge_lora(path, adapter, out)
    assert {t for t, _, _ in summary.tensors} == set(made)
    assert types(out) == types(path)
    before = values(path)
    with gguf.open(path) as old, gguf.open(out) as new:
        assert {k: old.metadata.entry(k).raw.tobytes() for k in old.metadata} == {
            k: new.metadata.entry(k).raw.tobytes() for k in new.metadata
        }
        for tensor, t in new.tensors.items():
            if tensor not in made:
                assert np.array_equal(t.data, old.tensors[tensor].data)
                continue
            a, b = made[tensor]
            total = (before[tensor] + b.astype(np.float64) @ a).astype(np.float32)
            assert t.data.tobytes() == gguf.quantize(total, t.type), tensor


def test_another_type(tmp_path):
    path, out = path_of("Q4_K_M"), tmp_path / "out.gguf"
    made = random_factors({"blk.0.ffn_up.weight": shape_of(path, "blk.0.ffn_up.weight")}, 2)
    with gguf.open(path) as file:
        adapter = write_adapter(tmp_path / "a.gguf", file.metadata.arch, made)
    ox.merge_lora(path, adapter, out, type="q8_0")
    assert types(out) == types(path) | {"blk.0.ffn_up.weight": "Q8_0"}
    for type, error in (("Q9", ox.QuantError), ("IQ2_XXS", ox.QuantError)):
        with pytest.raises(error, match=type):
            ox.merge_lora(path, adapter, tmp_path / "none.gguf", type=type)
    assert not (tmp_path / "none.gguf").exists()


def test_one_use_of_a_tied_embedding_gets_a_file_with_both(tmp_path):
    path, out, tokens = path_of("llama-tied-bias"), tmp_path / "out.gguf", tokens_of("llama-tied-bias")
    n_vocab, n_embd = shape_of(path, "token_embd.weight")
    a, b = factors(n_embd, n_vocab, 4)
    folder = write_peft(tmp_path / "peft", table("model.embed_tokens", a, b))
    ox.merge_lora(path, folder, out)
    twin = naive.logits(tied(tmp_path, {"token_embd.weight": 2.0 * (b.astype(np.float64) @ a).T}), tokens)
    assert np.abs(Loaded(out).logits(tokens) - twin).max() <= 3e-6 * np.abs(twin).max()


def test_several_at_once_are_rounded_once(tmp_path):
    path, out = path_of("Q8_0"), tmp_path / "out.gguf"
    name = "blk.0.ffn_up.weight"
    made = [random_factors({name: shape_of(path, name)}, 3, seed) for seed in (1, 2)]
    with gguf.open(path) as file:
        arch = file.metadata.arch
    one, other = (write_adapter(tmp_path / f"{i}.gguf", arch, m, alpha=3.0) for i, m in enumerate(made))
    ox.merge_lora(path, [one, (ox.Lora.load(other), -0.5)], out, scale=0.7)
    total = values(path)[name].astype(np.float64)
    for (a, b), scale in zip((m[name] for m in made), (np.float32(0.7), -0.5), strict=True):
        total += float(scale) * (b.astype(np.float64) @ a)
    with gguf.open(out) as file:
        assert file.tensors[name].data.tobytes() == gguf.quantize(total.astype(np.float32), "Q8_0")


@pytest.mark.parametrize("both", [True, False])
def test_several_of_a_tied_embedding(both, tmp_path):
    """One adapter of what is looked up, and one of both uses: the output that is written has the second alone."""
    path, out, tokens = path_of("llama-tied-bias"), tmp_path / "out.gguf", tokens_of("llama-tied-bias")
    n_vocab, n_embd = shape_of(path, "token_embd.weight")
    lookups = write_peft(tmp_path / "one", table("model.embed_tokens", *factors(n_embd, n_vocab, 4)))
    loaded, wanted = Loaded(path), [("a", 1.0)]
    loaded.load("a", lookups)
    if both:
        made = random_factors({"token_embd.weight": (n_vocab, n_embd)}, 3)
        loaded.load("b", write_adapter(tmp_path / "b.gguf", "llama", made))
        wanted.append(("b", 0.5))
    adapters = [lookups, (tmp_path / "b.gguf", 0.5)][: len(wanted)]
    ox.merge_lora(path, adapters, out)
    ours, theirs = loaded.logits(tokens, wanted), Loaded(out).logits(tokens)
    assert np.abs(ours - theirs).max() <= 6e-6 * np.abs(theirs).max()


@pytest.mark.parametrize("adapters", [[], 3, [3], [("x", 1.0, 2.0)], {"x": 1.0}])
def test_lists_of_adapters_that_are_none(adapters, tmp_path):
    with pytest.raises(ox.ConfigError, match="adapter"):
        ox.merge_lora(path_of("llama"), adapters, tmp_path / "out.gguf")


def test_nothing_that_is_read_is_written_over(tmp_path):
    path, out = path_of("llama"), tmp_path / "out.gguf"
    adapter, _ = adapter_for(path, tmp_path / "adapter.gguf")
    a, b = factors(*shape_of(path, "blk.0.attn_q.weight"), 4)
    module = "model.layers.0.self_attn.q_proj"
    folder = write_peft(tmp_path / "peft", {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b})
    out.symlink_to(adapter)
    for one, place in ((adapter, adapter), (adapter, out), (folder, folder / "adapter_model.safetensors")):
        before = place.read_bytes()
        with pytest.raises(ox.ConfigError, match="is the source itself"):
            ox.merge_lora(path, one, place)
        assert place.read_bytes() == before
    for place in (3, None, b"x", "a\0b"):
        with pytest.raises(ox.ConfigError, match="destination must be the path of a file"):
            ox.merge_lora(path, adapter, place)


def test_a_split_model_becomes_one_file(tmp_path):
    path, expected, out = path_of("llama"), tmp_path / "expected.gguf", tmp_path / "out.gguf"
    adapter, _ = adapter_for(path, tmp_path / "adapter.gguf")
    parts = [tmp_path / f"m-{i + 1:05}-of-00002.gguf" for i in range(2)]
    with gguf.open(path) as file:
        names = list(file.tensors)
        for i, place in enumerate(parts):
            part = gguf.GGUFWriter(place)
            if i == 0:
                part.add_metadata(file.metadata)
            for key, value, kind in (
                ("no", i, "UINT16"),
                ("count", 2, "UINT16"),
                ("tensors.count", len(names), "INT32"),
            ):
                part.add(f"split.{key}", value, kind)
            for name in names[i::2]:
                part.add_tensor(name, file.tensors[name])
            part.write()
    ox.merge_lora(parts[0], adapter, out)
    ox.merge_lora(path, adapter, expected)
    ours, theirs = values(out), values(expected)
    assert set(ours) == set(theirs)
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    with gguf.open(out) as file:
        assert not [key for key in file.metadata if key.startswith("split.")]
    with pytest.raises(ox.ConfigError, match="is the source itself"):
        ox.merge_lora(parts[0], adapter, parts[1])


def test_errors_leave_no_file(tmp_path):
    path, out = path_of("llama"), tmp_path / "out.gguf"
    adapter, _ = adapter_for(path, tmp_path / "adapter.gguf")
    wrong = write_adapter(tmp_path / "wrong.gguf", "gpt2", random_factors({"blk.0.attn_q.weight": (64, 64)}, 2))
    with pytest.raises(ox.LoraError, match="for architecture gpt2"):
        ox.merge_lora(path, wrong, out)
    with pytest.raises(ox.ConfigError, match="scale must be"):
        ox.merge_lora(path, adapter, out, scale=float("nan"))
    copy = tmp_path / "model.gguf"
    copy.write_bytes(path.read_bytes())
    with pytest.raises(ox.ConfigError, match="is the source itself"):
        ox.merge_lora(copy, adapter, copy)
    assert not out.exists()


def test_command_line(tmp_path, capsys):
    path, out = path_of("llama"), tmp_path / "out.gguf"
    adapter, _ = adapter_for(path, tmp_path / "adapter.gguf")
    assert main(["merge-lora", str(path), str(adapter), str(out), "--scale", "0.7", "--type", "F16"]) == 0
    assert "tensors changed" in capsys.readouterr().err
    expected = tmp_path / "expected.gguf"
    ox.merge_lora(path, adapter, expected, scale=0.7, type="F16")
    assert out.read_bytes() == expected.read_bytes()
    ox.merge_lora(path, [adapter, (adapter, -0.5)], expected)
    assert main(["merge-lora", str(path), str(adapter), str(out), "--also", str(adapter), "-0.5"]) == 0
    assert out.read_bytes() == expected.read_bytes()
    assert main(["merge-lora", str(path), str(adapter), str(out), "--also", str(adapter), "half"]) == 2
    assert "--also must have a number" in capsys.readouterr().err
    assert main(["merge-lora", str(path), "", str(out)]) == 2
    assert "ADAPTER is empty" in capsys.readouterr().err


def test_run_with_adapters(tmp_path, capsys):
    from oxillama.core.loading import shipped_model

    shapes = linear_shapes(shipped_model())
    with gguf.open(shipped_model()) as file:
        adapter = write_adapter(tmp_path / "a.gguf", file.metadata.arch, random_factors(shapes, 2), alpha=0.8)
    said = []
    for flags in ([], ["--lora", str(adapter)], ["--lora-scaled", str(adapter), "0.5"]):
        assert main(["run", "Once", "-n", "24", "--temperature", "0", *flags]) == 0
        said.append(capsys.readouterr().out)
    assert len(set(said)) == 3
    assert main(["run", "Once", "--lora-scaled", str(adapter), "half"]) == 2
    assert "--lora-scaled must have a number" in capsys.readouterr().err
