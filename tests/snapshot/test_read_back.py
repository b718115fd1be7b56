"""Read-back of written snapshots: the part of `python -m tests.snapshot.read_back` that takes seconds."""

import pytest

import oxillama as ox
from oxillama.errors import SnapshotFileError
from oxillama.snapshot import snapshot_info
from oxillama.snapshot.format import reader as saved
from tests.fakes import core_of, sequence_of, session_of, snapshots_of
from tests.snapshot.models import same, tokens_of
from tests.snapshot.read_back import KINDS, Walk, check, lengths, opened, requests

# Two of other windows, and of layers that share keys and values, beside them.
WINDOWED = ("gemma2", "gemma3", "gpt-oss", "cohere2", "exaone4", "mimo2", "gemma4-e4b")
FEW = (1, 16, 20, 33, 60, 79, 80, 170, 200)


@pytest.mark.parametrize("name", WINDOWED)
def test_the_test_models_have_windowed_blocks(name):
    with opened(name) as engine:
        assert core_of(engine).scheduler.blocks.windows.window == (17 if name == "mimo2" else 16)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", [*WINDOWED, "llama", "jamba"])
def test_incremental_saves_of_every_pair_of_lengths_read_back(name, tmp_path):
    with opened(name) as engine:
        n = len(FEW)
        assert lengths(engine, tmp_path, FEW) == n * (n + 1) // 2


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", KINDS)
def test_random_walks_and_requests_read_back(name, tmp_path):
    with opened(name) as engine:
        Walk(engine, tmp_path, 1).run(20)
        (tmp_path / "text").mkdir()
        requests(engine, tmp_path / "text", 1)


def test_other_block_sizes_read_back(tmp_path):
    """A chain that engines with blocks of several sizes have written, some of which keep more of a window."""
    tokens = None
    for i, (size, n) in enumerate(((16, 70), (64, 90), (16, 130), (32, 150), (64, 200), (16, 201))):
        with opened("gemma3", kv_block_size=size) as engine:
            tokens = tokens or tokens_of(engine, 249)
            engine.prefill(tokens[:n])
            engine.snapshot(tmp_path / f"{i}", base=tmp_path / f"{i - 1}" if i else None)
            check(engine, tmp_path / f"{i}", tokens[:n], n)


@pytest.fixture(scope="module")
def engine():
    with opened("llama") as engine:
        yield engine


def chain(engine, folder, n):
    engine.reset()
    for i in range(n):
        engine.prefill(tokens_of(engine, 20, seed=i))
        engine.snapshot(folder / f"{i}", base=folder / f"{i - 1}" if i else None)


def test_a_file_of_the_chain_of_bases_is_not_replaced(engine, tmp_path):
    chain(engine, tmp_path, 3)
    before = (tmp_path / "0").read_bytes()
    (tmp_path / "link").symlink_to("0")
    for name in ("0", "1", "link"):
        with pytest.raises(ox.ConfigError, match=f"path '.*{name}' is a file that base '.*/2' needs: give a name"):
            engine.snapshot(tmp_path / name, base=tmp_path / "2")
    assert (tmp_path / "0").read_bytes() == before
    engine.snapshot(tmp_path / "2")  # which nothing needs
    engine.snapshot(tmp_path / "1", base=tmp_path / "2")
    check(engine, tmp_path / "1", session_of(engine).tokens, 60)


def test_a_base_with_a_missing_base_is_refused(engine, tmp_path):
    chain(engine, tmp_path, 2)
    (tmp_path / "0").rename(tmp_path / "kept")
    with pytest.raises(SnapshotFileError, match=r"/0'.* can't be read"):
        engine.snapshot(tmp_path / "2", base=tmp_path / "1")
    assert not (tmp_path / "2").exists()


def test_a_chain_is_not_longer_than_can_be_read(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(saved, "MAX_CHAIN", 3)
    monkeypatch.setattr("oxillama.snapshot.capture.MAX_CHAIN", 3)
    chain(engine, tmp_path, 6)
    assert [snapshot_info(tmp_path / f"{i}").base for i in range(6)] == [None, "0", "1", "2", None, "4"]
    for i in range(6):
        with engine.resume(tmp_path / f"{i}") as session:
            assert sequence_of(session).n_computed == 20 * (i + 1)


def test_a_base_of_other_arithmetic_is_not_used(engine, tmp_path, monkeypatch):
    chain(engine, tmp_path, 1)
    monkeypatch.setattr(snapshots_of(engine), "arithmetic", "bf16 amx")
    engine.snapshot(tmp_path / "1", base=tmp_path / "0")
    assert snapshot_info(tmp_path / "1").base is None


def test_unknown_tokens_are_no_common_prefix(tmp_path):
    """Of files of version 1, which don't tell them: another session's keys and values are not taken for these."""
    with opened("llama", kv_type="f32") as engine:
        rows = []
        for i in range(2):
            engine.reset()
            engine.prefill(tokens_of(engine, 50, seed=i))
            rows.append(engine.forward_one(5))
            engine.truncate(50)
            engine.snapshot(tmp_path / f"old{i}", format=1)
            old = without_tokens((tmp_path / f"old{i}").read_bytes())
            with engine.resume(old) as session:
                session.snapshot(tmp_path / f"{i}", base=tmp_path / "0" if i else None)
        for i, row in enumerate(rows):
            with engine.resume(tmp_path / f"{i}") as session:
                assert same(session.forward_one(5), row)


def without_tokens(data):
    from oxillama.snapshot.format.v1 import EngineV1

    v = EngineV1.decode(data)
    v.tokens = []
    return v.encode()
