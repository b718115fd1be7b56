"""Headers of snapshots: read, parsed and hashed once, in every way to use a snapshot."""

from collections import Counter
from contextlib import closing
from itertools import pairwise

import pytest

import oxillama as ox
from oxillama.snapshot import snapshot_info
from oxillama.snapshot.format import reader, source, v1
from tests.snapshot.models import path_of

PROMPT = "once upon a time there was"


class Counts:
    """What was done to each snapshot of a file or bundle, by its label."""

    def __init__(self, patch):
        self.hashed, self.parsed, self.decoded, self.ranges = Counter(), Counter(), Counter(), {}

        def counted(counter, function, at):
            def call(*args):
                counter[args[at]] += 1
                return function(*args)

            return call

        patch.setattr(reader, "read_head", counted(self.hashed, reader.read_head, 2))
        patch.setattr(reader, "_parsed", counted(self.parsed, reader._parsed, 1))
        for kind in (v1.EngineV1, v1.SpeculativeV1):
            patch.setattr(kind, "decode", counted(self.decoded, kind.decode, 1))
        for kind in (source.FileSource, source.MemorySource):
            patch.setattr(kind, "read", self.reading(kind.read))

    def reading(self, read):
        def call(own, offset, n):
            self.ranges.setdefault(own.label, []).append((offset, offset + n))
            return read(own, offset, n)

        return call

    def check(self, n):
        """n snapshots of version 2 were used: none of their bytes was read twice."""
        assert len(self.hashed) == n
        assert set(self.hashed.values()) | set(self.parsed.values()) == {1}
        assert self.hashed == self.parsed
        for label in self.hashed:
            ranges = sorted(self.ranges[label])
            assert all(end <= start for (_, end), (start, _) in pairwise(ranges)), (label, ranges)


@pytest.fixture(scope="module")
def engine():
    with ox.load(num_threads=1) as engine:
        yield engine


@pytest.fixture
def session(engine, tmp_path):
    engine.reset()
    engine.prefill(engine.tokenize(PROMPT))
    engine.snapshot(tmp_path / "session")
    return tmp_path / "session"


@pytest.fixture(params=[1, 3], ids=["text", "texts"])
def stream(engine, request, tmp_path):
    with closing(engine.stream(PROMPT, max_tokens=8, n=request.param, seed=1)) as chunks:
        next(chunks)
        chunks.snapshot(tmp_path / "stream")
    return tmp_path / "stream", 1 if request.param == 1 else 1 + request.param


def test_a_session(engine, session, monkeypatch):
    counts = Counts(monkeypatch)
    snapshot_info(session)
    counts.check(1)
    counts = Counts(monkeypatch)
    engine.resume(session)
    counts.check(1)
    counts = Counts(monkeypatch)
    with ox.Engine.restore(session):
        counts.check(1)


def test_texts(engine, stream, monkeypatch):
    place, n = stream
    counts = Counts(monkeypatch)
    engine.resume(place).close()
    counts.check(n)
    counts = Counts(monkeypatch)
    with ox.Engine.restore(place):
        counts.check(min(n, 2))  # of several completions, the first
    counts = Counts(monkeypatch)
    snapshot_info(place)
    counts.check(min(n, 2))


def test_speculative_engines(engine, stream, monkeypatch, tmp_path):
    place, n = stream
    engine.reset()
    with ox.DraftModel(engine) as draft, ox.SpeculativeEngine(engine, draft) as spec:
        engine.prefill(engine.tokenize(PROMPT))
        spec.snapshot(tmp_path / "both")
        counts = Counts(monkeypatch)
        spec.resume(place).close()
        counts.check(n)
    counts = Counts(monkeypatch)
    with ox.SpeculativeEngine.restore(tmp_path / "both"):
        counts.check(3)  # the file, the target, the draft
    counts = Counts(monkeypatch)
    assert snapshot_info(tmp_path / "both").kind == "speculative"
    counts.check(2)


def test_version_1_is_decoded_once(monkeypatch, tmp_path):
    with (
        ox.load(path_of("llama"), kv_type="f32", num_threads=1) as engine,
        ox.DraftModel(engine) as draft,
        ox.SpeculativeEngine(engine, draft) as spec,
    ):
        engine.prefill([3, 4, 5, 6])
        engine.snapshot(tmp_path / "one", format=1)
        spec.snapshot(tmp_path / "both", format=1)
    counts = Counts(monkeypatch)
    snapshot_info(tmp_path / "one")
    assert sum(counts.decoded.values()) == 1
    counts = Counts(monkeypatch)
    with ox.Engine.restore(tmp_path / "one"):
        assert sum(counts.decoded.values()) == 1
    counts = Counts(monkeypatch)
    with ox.SpeculativeEngine.restore(tmp_path / "both"):
        assert sum(counts.decoded.values()) == 3
