"""Weights that are read from a packed file, panels as they are multiplied by: the same bits, within a budget."""

import os
import sys
from pathlib import Path

import pytest

import oxillama as ox
import oxillama.gguf as gguf
from oxillama.errors import ConfigError, ModelFileError, PackedFileError
from oxillama.kernels._table import writable_formats
from oxillama.models.packed import pack_model
from oxillama.offload import OffloadPolicy
from tests.models.packed.packing import open_runner
from tests.offload.paged import NAMES, path_of, rows, tokens_of
from tests.offload.paged import open_runner as open_plain


@pytest.mark.sweep(6)
@pytest.mark.parametrize("name", NAMES)
def test_every_architecture_gives_the_same_bits(name):
    """In the least memory that works, in about half of what it takes, and with some pinned; in chunks and whole."""
    path, tokens = path_of(name), tokens_of(name)
    expected = rows(open_plain(path), tokens)
    whole = open_runner(path, policy=OffloadPolicy(budget=1 << 40)).pager
    most, least = whole.nbytes, whole.least
    assert whole.counts()["faults"] == 0
    for policy, threads, chunk in (
        (OffloadPolicy(budget=least), 1, 7),
        (OffloadPolicy(budget=(most + least) // 2), 2, None),
        (OffloadPolicy(pinned="*1.*"), 3, 1),
        (OffloadPolicy(budget=1 << 40), 2, None),
    ):
        runner = open_runner(path, policy=policy, threads=threads)
        assert runner.pager.nbytes <= (policy.budget or most)
        for _ in range(2):  # the second time, other pages are there
            assert (rows(runner, tokens, chunk=chunk) == expected).all()
        assert (runner.pager.counts()["faults"] > 0) == (policy.budget != 1 << 40)


@pytest.mark.sweep(7)
@pytest.mark.parametrize("type", [*writable_formats(), "Q4_K_M"])
def test_every_format_gives_the_same_bits(tmp_path, type):
    path = tmp_path / "model.gguf"
    gguf.quantize_file(path_of("mixtral"), path, type, allow_requantize=True)
    expected = rows(open_plain(path), tokens_of("mixtral"))
    least = open_runner(path, policy=OffloadPolicy(budget=1 << 40)).pager.least
    for budget in (least, 2 * least):
        assert (rows(open_runner(path, policy=OffloadPolicy(budget=budget)), tokens_of("mixtral")) == expected).all()


def test_reads_past_the_page_cache_give_the_same_bits():
    path, tokens = path_of("mixtral"), tokens_of("mixtral")
    expected = rows(open_plain(path), tokens)
    try:
        runner = open_runner(path, policy=OffloadPolicy(budget=1 << 20, direct=True))
    except ConfigError as error:
        pytest.skip(str(error))
    assert (rows(runner, tokens) == expected).all()
    counts = runner.pager.counts()
    assert counts["direct_bytes"] > 0


def test_a_budget_that_changes_keeps_the_bits():
    path, tokens = path_of("llama"), tokens_of("llama")
    expected = rows(open_plain(path), tokens)
    runner = open_runner(path, policy=OffloadPolicy(budget=1 << 40))
    for budget in (runner.pager.floor, 1 << 40, runner.pager.floor):
        runner.pager.resize(budget)
        assert (rows(runner, tokens) == expected).all()


@pytest.fixture
def packed(tmp_path):
    return pack_model(ox.core.loading.shipped_model(), tmp_path / "model.oxpack", 2)


def test_an_engine_reads_from_a_file_that_is_named(packed):
    with ox.load(num_threads=2) as engine:
        expected = engine.generate("Once upon a time", max_tokens=12, temperature=0).token_ids
    budget = packed.stat().st_size // 3
    with ox.load(num_threads=2, packed=packed, offload=budget) as engine:
        assert engine.generate("Once upon a time", max_tokens=12, temperature=0).token_ids == expected
        assert engine.memory_bytes()["weights"] <= budget
        assert engine.offload_counts()["bytes"] > 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists what is mapped")
def test_nothing_of_the_file_stays_mapped(packed):
    def is_mapped():
        return str(packed) in Path("/proc/self/maps").read_text()

    with ox.load(num_threads=1, packed=packed, offload=packed.stat().st_size // 3) as engine:
        assert not is_mapped()
        engine.generate("Once", max_tokens=2)
    with ox.load(num_threads=1, packed=packed):
        assert is_mapped()


def test_adapters_are_applied_on_top(adapters, packed):
    logits = []
    for options in ({}, {"packed": packed, "offload": packed.stat().st_size // 3}):
        with ox.load(num_threads=2, **options) as engine:
            engine.apply_lora(adapters[0])
            logits.append(engine.forward_logits(list(range(1, 20))).copy())
    assert (logits[0] == logits[1]).all()


@pytest.mark.parametrize("change", [lambda path: os.truncate(path, 5000), lambda path: path.write_bytes(b"")])
def test_a_packed_file_that_is_cut_off_meanwhile_is_a_typed_error(packed, change):
    with ox.load(num_threads=2, packed=packed, offload=packed.stat().st_size // 3) as engine:
        engine.generate("Once", max_tokens=2)
        change(packed)
        for _ in range(2):
            with pytest.raises(ModelFileError, match=r"model\.oxpack: the file had \d+ bytes .* has \d+ now"):
                engine.generate("Once upon a time", max_tokens=4)


def test_a_damaged_file_is_refused_before_anything_is_read_from_it(packed):
    data = bytearray(packed.read_bytes())
    data[len(data) // 2] ^= 1
    packed.write_bytes(data)
    with pytest.raises(PackedFileError, match=r"the checksum of .* is wrong"):
        ox.load(packed=packed, offload=1 << 20)


def test_a_damaged_file_of_the_cache_is_made_again():
    with ox.load(num_threads=1, packed=True, offload=1 << 21) as engine:
        expected = engine.generate("Once", max_tokens=4, temperature=0).token_ids
    from oxillama.models.packed import Cache

    (file,) = Cache.default().files()
    os.truncate(file.path, file.n_bytes // 2)
    with ox.load(num_threads=1, packed=True, offload=1 << 21) as engine:
        assert engine.generate("Once", max_tokens=4, temperature=0).token_ids == expected
    assert Cache.default().files()[0].n_bytes == file.n_bytes
