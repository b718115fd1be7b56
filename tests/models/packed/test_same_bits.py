"""Packed weights give the bits of repacked ones, and no process has a copy of them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

import oxillama as ox
import oxillama.gguf as gguf
from oxillama.gguf.formats import format_by_name
from oxillama.kernels._table import kernel_formats, usable_tiers, writable_formats
from oxillama.kernels.matrix import Matrix
from oxillama.models.packed.layout import PANEL_LAYOUT
from tests.models.packed.packing import open_runner, packed_files
from tests.offload.paged import NAMES, path_of, rows, tokens_of
from tests.offload.paged import open_runner as open_plain


@pytest.mark.sweep(8)
@pytest.mark.parametrize("name", NAMES)
def test_every_architecture_gives_the_same_bits(name):
    """When the file is made, and when it is found."""
    path, tokens = path_of(name), tokens_of(name)
    expected = rows(open_plain(path), tokens)
    for _ in range(2):
        runner = open_runner(path)
        assert (rows(runner, tokens) == expected).all()
        assert (rows(runner, tokens, chunk=5) == expected).all()
        assert runner.model.n_weight_bytes == 0
    assert len(packed_files()) == 1


@pytest.mark.sweep(7)
@pytest.mark.parametrize("type", [*writable_formats(), "Q4_K_M"])
@pytest.mark.parametrize("name", ["granitehybrid", "mixtral"])
def test_every_format_gives_the_same_bits(tmp_path, name, type):
    path = tmp_path / "model.gguf"
    gguf.quantize_file(path_of(name), path, type, allow_requantize=True)
    assert (rows(open_runner(path), tokens_of(name)) == rows(open_plain(path), tokens_of(name))).all()


def test_a_model_in_memory_gives_the_same_bits():
    path, tokens = path_of("llama"), tokens_of("llama")
    expected = rows(open_plain(path), tokens)
    for source in (path.read_bytes(), path):
        assert (rows(open_runner(source), tokens) == expected).all()
    assert len(packed_files()) == 1


def test_adapters_are_applied_on_top(adapters):
    prompt = list(range(1, 20))
    logits = []
    for packed in (False, True):
        with ox.load(num_threads=2, packed=packed) as engine:
            plain = engine.forward_logits(prompt).copy()
            engine.apply_lora(adapters[0])
            logits.append((plain, engine.forward_logits(prompt).copy()))
            assert (engine.memory_bytes()["weights"] == 0) == packed
    assert (logits[0][0] == logits[1][0]).all()
    assert (logits[0][1] == logits[1][1]).all()
    assert (logits[0][0] != logits[0][1]).any()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps")
def test_weights_are_mapped_and_nothing_of_them_is_private():
    with ox.load(packed=True) as engine:
        engine.generate("Once", max_tokens=4)
        found = {}
        for line in Path("/proc/self/smaps").read_text().splitlines():
            words = line.split()
            if "-" in words[0] and not words[0].endswith(":"):
                mapped = line.endswith(".oxpack")
            elif mapped and words[-1] == "kB":
                found[words[0]] = found.get(words[0], 0) + int(words[1])
        assert found["Rss:"] > 100
        assert found["Private_Dirty:"] == found["Anonymous:"] == 0


@pytest.mark.long
def test_all_tiers_write_the_same_file(tmp_path):
    path = tmp_path / "model.gguf"
    gguf.quantize_file(path_of("mixtral"), path, "Q4_K_M", allow_requantize=True)
    for tier in usable_tiers():
        command = [sys.executable, "-m", "oxillama", "pack", str(path), str(tmp_path / tier)]
        subprocess.run(command, check=True, env=os.environ | {"OXILLAMA_TIER": tier}, stdout=subprocess.DEVNULL)
    assert len({(tmp_path / tier).read_bytes() for tier in usable_tiers()}) == 1


# BLAKE3 of the panels of seeded bytes in each format. Files that were packed before hold panels of the old layout: if
# one of these changes, PANEL_LAYOUT must be raised, or such files would be multiplied by as if they were of the new.
PANELS = {
    "F32": "edbb14d78fd9", "F16": "c6bf909b0c15", "BF16": "7addae174b17", "Q4_0": "5269690cc49e",
    "Q4_1": "bd829eaad2e9", "Q5_0": "021929eae657", "Q5_1": "3b26c509016d", "Q8_0": "a947113936e4",
    "Q4_K": "cf487a2a5f7e", "Q5_K": "b9884d972036", "Q6_K": "32e374efb862", "Q8_1": "11ebd31a7252",
    "Q2_K": "a31a9fe92c1b", "Q3_K": "6f0ae78b3177", "Q8_K": "5ede36beac90", "IQ2_XXS": "0a165dce0f86",
    "IQ2_XS": "3439a60a1c34", "IQ3_XXS": "571944e709f3", "IQ1_S": "86d6e9288c73", "IQ4_NL": "5269690cc49e",
    "IQ3_S": "1df5ba9ccaf2", "IQ2_S": "6428f3d3ab0e", "IQ4_XS": "247e981397a9", "IQ1_M": "d88233681f77",
    "TQ1_0": "113ea24b9bfe", "TQ2_0": "e11b8ed74e2a", "MXFP4": "9c3576bd3e54", "NVFP4": "a812206211ec",
    "Q1_0": "22a959319a75", "Q2_0": "e9cf50c820c0",
}  # fmt: skip


@pytest.mark.parametrize("type", kernel_formats())
def test_the_layout_of_panels_has_a_number(type):
    data = np.random.default_rng(7).integers(0, 256, format_by_name(type).nbytes(20 * 512), np.uint8)
    w = Matrix(data, type, (20, 512))
    assert (PANEL_LAYOUT, blake3(bytes(w.panels)).hexdigest()[:12]) == (1, PANELS[type])
