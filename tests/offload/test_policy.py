"""Offload policies: valid values, the meaning of a budget, and its change between steps."""

import dataclasses

import pytest

import oxillama as ox
import oxillama.gguf as gguf
from oxillama.config import read_policy
from oxillama.core.loading import shipped_model
from oxillama.errors import ConfigError
from oxillama.offload import MemoryReading, OffloadPolicy
from tests.offload.paged import least_of, open_runner, path_of, rows, tokens_of


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budget": 0}, r"offload.budget must be from 1"),
        ({"budget": 1.5}, r"offload.budget must be an integer"),
        ({"budget": True}, r"offload.budget must be an integer"),
        ({"pinned": [1]}, r"offload.pinned must be patterns of tensor names, not \[1\]"),
        ({"pinned": ""}, r"offload.pinned must be patterns"),
        ({"automatic": 1}, r"offload.automatic must be True or False"),
        ({"reserve": 5}, r"offload.reserve must be left out unless offload.automatic"),
        ({"automatic": True, "reserve": -1}, r"offload.reserve must be from 0"),
        ({"direct": True}, r"offload.direct must be left out where nothing is offloaded"),
        ({"bytes": 5}, r"offload must have fields among budget, pinned, .*, not 'bytes'"),
        ("4G", r"offload must be an OffloadPolicy, a mapping of its fields, or a number of bytes, not '4G'"),
        (True, r"offload must be an OffloadPolicy"),
        (1.5, r"offload must be an OffloadPolicy"),
        (-1, r"offload must be from 1"),
        ([1], r"offload must be an integer"),
    ],
)
def test_bad_policies_are_named(given, message):
    with pytest.raises(ConfigError, match=message):
        ox.EngineConfig(offload=given)


def test_equivalent_policies():
    policy = OffloadPolicy(budget=5000)
    assert ox.EngineConfig(offload=5000).offload == ox.EngineConfig(offload={"budget": 5000}).offload == policy
    assert ox.EngineConfig(offload=policy).offload is policy
    assert read_policy(None) is None
    assert not OffloadPolicy().active
    assert OffloadPolicy(pinned="output.weight").pinned == ("output.weight",)
    assert read_policy(dataclasses.asdict(policy)) == policy


def test_an_empty_policy_offloads_nothing():
    with ox.load(num_threads=1, offload=OffloadPolicy()) as engine:
        assert engine.offload_counts() == {}
        assert engine.metrics_snapshot().offload_budget == 0


@pytest.mark.parametrize("name", ["llama", "mixtral", "mamba", "bert"])
def test_too_small_a_budget_says_the_least_that_works(name):
    path = path_of(name)
    least = least_of(path)
    with pytest.raises(ConfigError, match=rf"offload.budget must be at least {least} bytes .*, not {least - 1}"):
        open_runner(path, OffloadPolicy(budget=least - 1))
    assert rows(open_runner(path, OffloadPolicy(budget=least)), tokens_of(name)).size


def test_patterns_that_fit_nothing_are_named():
    with pytest.raises(ConfigError, match=r"must fit names of matrices \(blk.\*.attn_k.weight, .*\), not 'nothing\*'"):
        open_runner(path_of("llama"), OffloadPolicy(pinned=("output.weight", "nothing*")))


def test_a_model_in_memory_can_not_be_offloaded():
    with open(shipped_model(), "rb") as f:
        data = f.read()
    with pytest.raises(ConfigError, match="offload must be left out for a model that is in memory: give model_path"):
        ox.load(data, offload=1 << 30)


def test_pinned_matrices_stay():
    runner = open_runner(path_of("llama"), OffloadPolicy(pinned=("output.weight", "blk.1.*")))
    stored = runner.pager._survey.stored
    there = {s.matrix.name for s in stored if s.matrix.pager is None}
    assert there >= {s.matrix.name for s in stored if s.matrix.name == "output.weight" or "blk.1." in s.matrix.name}
    assert runner.pager.paged_bytes > 0


def test_direct_reads_bypass_the_page_cache():
    """Past the page cache: equal bits, or a clear error where a file system can't."""
    path, tokens = path_of("mixtral"), tokens_of("mixtral")
    expected = rows(open_runner(path), tokens)
    policy = OffloadPolicy(budget=open_runner(path, OffloadPolicy(budget=1 << 40)).pager.nbytes // 2, direct=True)
    runner = open_runner(path, policy)
    with gguf.open(path) as file:
        source = next(iter(file.tensors.values())).source
        try:
            source.open_direct()
        except ConfigError:
            with pytest.raises(ConfigError, match=r"offload\.direct must be left out: .* past the page cache"):
                rows(runner, tokens)
            return
    assert (rows(runner, tokens) == expected).all()


class Machine:
    """What a probe reads: memory of which the model has a part."""

    def __init__(self, available):
        self.available = available

    def read(self):
        return MemoryReading(1 << 40, self.available, 0.0)


@pytest.mark.parametrize("repack", [True, False])
def test_the_budget_follows_the_available_memory(monkeypatch, repack):
    """Between steps; results and bounds hold at each size, and all of it is in memory again in the end."""
    monkeypatch.setattr("oxillama.offload.pager.PROBE_SECONDS", 0)
    path, tokens = path_of("mixtral"), tokens_of("mixtral")
    expected = rows(open_runner(path), tokens)
    machine = Machine(1 << 39)
    runner = open_runner(path, OffloadPolicy(automatic=True, reserve=0), repack=repack, probe=machine)
    pager = runner.pager
    most, least = pager.nbytes, pager.floor
    assert not pager.paged_bytes
    machine.available = 0
    for _ in range(3):
        pager.resize(max(least, pager.budget // 2))
        assert (rows(runner, tokens, chunk=8) == expected).all()
        assert pager.nbytes <= pager.budget
    monkeypatch.setattr(type(machine), "read", lambda self: MemoryReading(1 << 40, 0, 0.9))
    for _ in range(40):
        assert (rows(runner, tokens[:1]) == expected[:1]).all()
    assert pager.budget == least
    assert pager.nbytes <= least
    monkeypatch.setattr(type(machine), "read", lambda self: MemoryReading(1 << 40, 1 << 39, 0.0))
    assert (rows(runner, tokens, chunk=8) == expected).all()
    assert (pager.budget, pager.nbytes, pager.paged_bytes) == (most, most, 0)
