"""Snapshots of state that was computed with adapters."""

import pytest

import oxillama as ox
from oxillama.core.loading import shipped_model
from oxillama.errors import SnapshotMismatchError
from oxillama.snapshot import snapshot_info
from tests.fakes import sequence_of, session_of
from tests.lora.files import linear_shapes, random_factors, write_adapter
from tests.snapshot.models import same, told

OPTIONS = {"max_tokens": 20, "seed": 1, "repetition_penalty": 1.1, "ignore_eos": True}


@pytest.fixture
def adapters(tmp_path):
    shapes = linear_shapes(shipped_model())
    with ox.gguf.open(shipped_model()) as file:
        arch = file.metadata.arch
    return [write_adapter(tmp_path / f"{i}.gguf", arch, random_factors(shapes, 4, i), alpha=0.4) for i in range(2)]


def test_requests_need_the_same_adapters(adapters):
    with ox.load(num_threads=1) as engine, ox.load(num_threads=2) as other:
        engine.load_lora("a", adapters[0])
        engine.load_lora("b", adapters[1])
        options = OPTIONS | {"lora": [("a", 4.0), ("b", -3.5)]}
        whole = told(engine.stream("The little fox", **options))
        assert whole != told(engine.stream("The little fox", **OPTIONS))
        stream = engine.stream("The little fox", **options)
        first = [next(stream) for _ in range(7)]
        saved = stream.snapshot()
        assert snapshot_info(saved).adapters == tuple(sorted(lora.digest for lora in engine.loras.values()))
        with pytest.raises(SnapshotMismatchError, match=r"uses the adapter [0-9a-f]{16}… \(.*/[01]\.gguf\)"):
            other.resume(saved)
        other.load_lora("one", adapters[1])
        with pytest.raises(SnapshotMismatchError, match=r"/0\.gguf\), which is not loaded"):
            other.resume(saved)
        other.load_lora("another", adapters[0])  # names don't matter
        assert told(first) + told(other.resume(saved)) == whole


def test_a_resumed_session_has_its_adapters(adapters, tmp_path):
    with ox.load(num_threads=1) as engine:
        engine.load_lora("a", adapters[0])
        engine.push_lora("a", 0.5)
        engine.apply_lora(adapters[1], 0.25)
        engine.prefill([1, 2, 3, 4])
        engine.snapshot(tmp_path / "session")
        row = engine.forward_one(5)
        again = ox.Engine.restore(tmp_path / "session")
        assert list(again.loras) == ["a"]
        assert [scale for _, scale in again.pushed_loras] == [0.5, 0.25]
        assert sequence_of(session_of(again)).n_computed == 4
        assert same(again.forward_one(5), row)
        with ox.load() as other, pytest.raises(SnapshotMismatchError, match="uses the adapter"):
            other.resume(tmp_path / "session")
        again.clear_loras()
        again.load_lora("b", adapters[1])
        with pytest.raises(SnapshotMismatchError, match="are other ones here"):
            again.resume(tmp_path / "session")
        adapters[0].rename(tmp_path / "moved")
        with pytest.raises(SnapshotMismatchError, match=r"its adapter .*/0\.gguf is not there any more"):
            ox.Engine.restore(tmp_path / "session")
        assert same(ox.Engine.restore(tmp_path / "session", adapters=[tmp_path / "moved"]).forward_one(5), row)
        (tmp_path / "moved").rename(tmp_path / "kept")
        adapters[0].write_bytes(adapters[1].read_bytes())
        with pytest.raises(SnapshotMismatchError, match=r"the adapter .*/0\.gguf is another one now"):
            ox.Engine.restore(tmp_path / "session")


def test_restore_loads_the_adapters_of_a_request(adapters, tmp_path):
    """It has what the request had computed in its session, and the adapters with which the request goes on."""
    with ox.load(num_threads=1) as engine:
        engine.load_lora("a", adapters[0])
        stream = engine.stream("The little fox", lora=[("a", 3.0)], **OPTIONS)
        first = [next(stream) for _ in range(5)]
        stream.snapshot(tmp_path / "text")
        again = ox.Engine.restore(tmp_path / "text", num_threads=2)
        assert sequence_of(session_of(again)).n_computed == again.position - 1
        assert told(again.resume(tmp_path / "text")) == told(stream)
        session = engine.session(lora=[("a", 3.0)])
        session.prefill(session_of(again).tokens)
        assert same(session.forward_one(9), again.forward_one(9))
        assert len(first) == 5


def test_a_beam_search_needs_the_same_adapters(adapters):
    prompt, settings = "The little fox", {"beam_width": 3, "max_new_tokens": 5}
    with ox.load(num_threads=1) as engine, ox.load(num_threads=2) as other:
        engine.load_lora("a", adapters[0])
        options = {**settings, "lora": [("a", 4.0)]}
        whole = engine.beam_search(prompt, **options)
        assert whole != engine.beam_search(prompt, **settings)
        search = engine.beam_rounds(prompt, **options)
        next(search)
        saved = search.snapshot()
        with pytest.raises(SnapshotMismatchError, match="is not loaded"):
            other.resume(saved)
        other.load_lora("another name", adapters[0])
        assert other.resume(saved).results() == whole == search.results()
