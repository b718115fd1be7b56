"""The garbage collector of Python while a server runs."""

import gc
import time

import pytest

import oxillama as ox
from oxillama.server import ServerConfig
from oxillama.server.collector import FULL_AFTER, FULL_WHEN_IDLE, IDLE, ServerCollector
from oxillama.server.models import Models, ServedModel
from tests.server.client import serving

SECONDS = 60


def until(call):
    end = time.monotonic() + SECONDS
    while not call():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_models_are_no_part_of_collections_while_a_server_runs(engine):
    gc.unfreeze()
    before = gc.get_threshold()
    with serving({"tiny": engine}):
        until(lambda: gc.get_freeze_count() > 10_000)
        assert gc.get_threshold() == (*before[:2], FULL_AFTER)
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
    gc.freeze()  # as the other tests have it
    n_frozen = gc.get_freeze_count()
    with serving({"tiny": engine}):
        pass
    assert gc.get_freeze_count() > n_frozen // 2


class Cycle:
    def __init__(self):
        self.own = self


def test_a_model_that_leaves_is_looked_for(monkeypatch):
    models = Models([ServedModel("tiny", load=lambda: ox.load(num_threads=1))], ServerConfig())
    model, calls = models.first, []
    for name in ("freeze", "unfreeze", "collect"):
        monkeypatch.setattr(gc, name, lambda name=name: calls.append(name))
    collector = ServerCollector(models)
    collector.look()
    assert calls == []
    model.state = "loading"
    model.engine = Cycle()
    collector.look()
    assert calls == []
    model.state = "ready"
    collector.look()
    collector.look()
    assert calls == ["freeze"]
    model.engine, model.state = None, "idle"
    collector.look()
    assert calls == ["freeze", "unfreeze", "collect", "freeze"]


@pytest.mark.parametrize("third", [10, 5000])
def test_a_threshold_that_is_higher_stays(third, monkeypatch):
    before = gc.get_threshold()
    gc.set_threshold(*before[:2], third)
    try:
        collector = ServerCollector(Models([ServedModel("tiny")], ServerConfig()))
        collector.begin()
        assert gc.get_threshold() == (*before[:2], max(third, FULL_AFTER))
        collector.end()
        assert gc.get_threshold() == (*before[:2], third)
    finally:
        gc.set_threshold(*before)


def test_full_collections_come_when_there_are_no_requests(monkeypatch):
    calls = []
    collector = ServerCollector(Models([ServedModel("tiny", load=lambda: None)], ServerConfig()))
    monkeypatch.setattr(gc, "collect", lambda: calls.append(1))
    monkeypatch.setattr(gc, "get_count", lambda: (0, 0, FULL_WHEN_IDLE))
    for _ in range(IDLE - 1):
        collector.look()
    collector.look(busy=True)
    for _ in range(IDLE - 1):
        collector.look()
    assert calls == []
    collector.look()
    assert calls == [1]
    monkeypatch.setattr(gc, "get_count", lambda: (700, 10, FULL_WHEN_IDLE - 1))
    collector.look()
    assert calls == [1]
