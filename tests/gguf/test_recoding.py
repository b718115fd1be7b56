"""Quantising a file: what is in the result, and that nothing is left of one that fails."""

import logging
from pathlib import Path

import numpy as np
import pytest

import oxillama as ox
import oxillama.gguf as gguf
from oxillama.core.loading import shipped_model
from oxillama.errors import ConfigError, ModelNotFoundError, QuantError
from oxillama.gguf import recoding

MODELS = Path(__file__).parents[1] / "data" / "models"
LLAMA = MODELS / "llama.gguf"


def formats(path):
    with gguf.open(path) as file:
        return {name: t.type for name, t in file.tensors.items()}


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.gguf"


def test_tensors_and_metadata_of_the_result(out):
    summary = gguf.quantize_file(LLAMA, out, "Q8_0", num_threads=2)
    with gguf.open(LLAMA) as before, gguf.open(out) as after:
        assert list(after.tensors) == list(before.tensors)
        for plan in summary.tensors:
            ours, source = after.tensors[plan.name], before.tensors[plan.name]
            assert (ours.type, ours.shape) == (plan.after, source.shape)
            assert ours.data.tobytes() == gguf.quantize(source.dequantize(), plan.after)
        assert after.metadata["general.file_type"] == 7
        assert after.metadata["general.quantization_version"] == 2
        rest = {k: before.metadata.entry(k).raw.tobytes() for k in before.metadata if k != "general.file_type"}
        assert {k: after.metadata.entry(k).raw.tobytes() for k in rest} == rest
        assert summary.bytes_after == sum(t.nbytes for t in after.tensors.values())
        assert summary.bytes_before == sum(t.nbytes for t in before.tensors.values())


def test_parts_and_threads_make_no_difference(out, tmp_path, monkeypatch):
    gguf.quantize_file(LLAMA, out, "Q4_0", num_threads=1)
    monkeypatch.setattr(recoding, "PIECE_BYTES", 1000)
    gguf.quantize_file(LLAMA, tmp_path / "parts.gguf", "Q4_0", num_threads=3)
    assert (tmp_path / "parts.gguf").read_bytes() == out.read_bytes()


@pytest.mark.parametrize("model", ["mixtral", "qwen3", "llama-tied-bias"])
@pytest.mark.parametrize("type", ["Q4_K_M", "Q5_1", "IQ4_XS", "MXFP4", "TQ2_0"])
def test_the_engine_runs_what_comes_out(out, model, type):
    gguf.quantize_file(MODELS / f"{model}.gguf", out, type)
    with ox.load(out, num_threads=1) as engine:
        logits = engine.forward_logits([1, 5, 9])
    assert np.isfinite(logits).all()


def test_the_shipped_model_still_tells_the_same_story(out):
    """A few bits less change its logits by a few percent: with 8 bits the likeliest tokens stay."""
    gguf.quantize_file(shipped_model(), out, "Q8_0", allow_requantize=True)
    with ox.load(out, num_threads=1) as ours, ox.load(num_threads=1) as theirs:
        ids = theirs.tokenize("Once upon a time there was a little")
        a, b = ours.forward_logits(ids), theirs.forward_logits(ids)
        assert np.linalg.norm(a - b) < 0.05 * np.linalg.norm(b)
        assert ours.generate("Once upon a time", max_tokens=20, temperature=0).text


def test_quantised_files_are_not_converted_by_accident(out, tmp_path):
    gguf.quantize_file(LLAMA, out, "Q8_0")
    again = tmp_path / "again.gguf"
    with pytest.raises(QuantError, match=r"is quantised already \(Q8_0\), as are .*allow_requantize"):
        gguf.quantize_file(out, again, "Q4_0")
    with pytest.raises(QuantError, match=r"^\S+ is quantised already \(Q8_0\): start from"):
        gguf.quantize_file(out, again, "Q8_0", tensor_types={r"blk\.0\.attn_q": "Q4_0"})
    assert not again.exists()
    gguf.quantize_file(out, again, "Q8_0")  # nothing would change
    assert formats(again) == formats(out)
    gguf.quantize_file(out, again, "Q4_0", allow_requantize=True)
    assert "Q4_0" in formats(again).values()


@pytest.mark.parametrize("type", ["Q8_0", "Q4_K_M", "Q4_0", "F16", "BF16"])
def test_float32_of_anything_loses_nothing_and_asks_nothing(out, tmp_path, type):
    whole, again = tmp_path / "whole.gguf", tmp_path / "again.gguf"
    gguf.quantize_file(LLAMA, out, type)
    gguf.quantize_file(out, whole, "F32")
    assert set(formats(whole).values()) == {"F32"}
    with gguf.open(out) as before, gguf.open(whole) as after:
        for name, tensor in before.tensors.items():
            assert np.array_equal(tensor.dequantize(), after.tensors[name].dequantize())
    if type.startswith("Q"):
        with pytest.raises(QuantError, match="accept the loss"):
            gguf.quantize_file(out, again, "F16")  # rounds what was rounded once


def test_a_dry_run_writes_nothing_and_tells_the_same(out):
    planned = gguf.quantize_file(LLAMA, out, "Q4_K_M", dry_run=True)
    assert not out.exists()
    assert gguf.quantize_file(LLAMA, out, "Q4_K_M") == planned
    assert {p.name: p.after for p in planned.tensors} == formats(out)


def test_fallbacks_are_logged_and_returned(out, caplog):
    with caplog.at_level(logging.WARNING, "oxillama"):
        summary = gguf.quantize_file(LLAMA, out, "Q4_K_M", dry_run=True)
    assert summary.fallbacks
    assert caplog.messages == [f"{p.name} becomes {p.after}: {p.fallback}" for p in summary.fallbacks]


def test_a_split_model_becomes_one_file(out, tmp_path):
    with gguf.open(LLAMA) as file:
        names = list(file.tensors)
        for i in range(2):
            part = gguf.GGUFWriter(tmp_path / f"m-{i + 1:05}-of-00002.gguf")
            if i == 0:
                part.add_metadata(file.metadata)
            part.add("split.no", i, "UINT16")
            part.add("split.count", 2, "UINT16")
            part.add("split.tensors.count", len(names), "INT32")
            for name in names[i::2]:
                part.add_tensor(name, file.tensors[name])
            part.write()
    gguf.quantize_file(tmp_path / "m-00001-of-00002.gguf", out, "Q4_0")
    with gguf.open(out) as after:
        assert sorted(after.tensors) == sorted(names)
        assert not [k for k in after.metadata if k.startswith("split.")]


def test_the_source_is_not_written_over(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(LLAMA.read_bytes())
    link = tmp_path / "link.gguf"
    link.symlink_to(path)
    for destination in (path, link):
        with pytest.raises(ConfigError, match="is the source itself"):
            gguf.quantize_file(path, destination, "Q8_0")
    assert path.read_bytes() == LLAMA.read_bytes()


class Full(Exception):
    pass


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device"), Full()])
def test_nothing_is_left_of_a_file_that_was_interrupted(out, error):
    out.write_bytes(b"before")

    def stop(done, total):
        assert 0 < done <= total
        if done > total // 2:
            raise error

    with pytest.raises(error if isinstance(error, type) else type(error)):
        gguf.quantize_file(LLAMA, out, "Q4_0", progress=stop)
    assert out.read_bytes() == b"before"
    assert list(out.parent.iterdir()) == [out]


def test_a_tensor_with_values_that_are_no_numbers_is_named(out, tmp_path):
    bad = tmp_path / "bad.gguf"
    weights = np.ones((4, 256), np.float32)
    weights[2, 7] = np.nan
    gguf.write_gguf(bad, {"general.architecture": "llama"}, {"blk.0.attn_q.weight": weights})
    with pytest.raises(QuantError, match=r"blk\.0\.attn_q\.weight: NaN or infinity can't be quantised to Q4_K"):
        gguf.quantize_file(bad, out, "Q4_K_M")
    assert list(tmp_path.iterdir()) == [bad]


def test_progress_ends_with_everything_done(out):
    seen = []
    summary = gguf.quantize_file(LLAMA, out, "Q8_0", progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert {total for _, total in seen} == {summary.bytes_before}
    assert seen[-1][0] == summary.bytes_before


def test_bad_arguments_are_named(out, tmp_path):
    with pytest.raises(QuantError, match="unknown file type 'Q4_X'"):
        gguf.quantize_file(LLAMA, out, "Q4_X")
    with pytest.raises(ModelNotFoundError, match="there is no such file"):
        gguf.quantize_file(tmp_path / "none.gguf", out, "Q8_0")
    with pytest.raises(ConfigError, match="no folder"):
        gguf.quantize_file(LLAMA, tmp_path / "none" / "out.gguf", "Q8_0")
    for bad in (0, "2", 5000):
        with pytest.raises(ConfigError, match=r"num_threads must be .*from 1 to 1024"):
            gguf.quantize_file(LLAMA, out, "Q8_0", num_threads=bad)
