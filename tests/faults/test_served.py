"""The quick part of `python -m tests.faults interrupts raised`."""

import signal

import pytest

import oxillama as ox
from tests.faults import interrupts, raised, served

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")


@pytest.fixture(scope="module")
def engine():
    with ox.load(num_threads=1, context_size=256, kv_budget=1 << 22) as engine:
        yield engine


@pytest.mark.sweep(2)
@pytest.mark.parametrize("role", interrupts.ROLES)
@pytest.mark.parametrize("name", ["generate", "beams", "session", "half a stream", "batch"])
def test_ctrl_c_leaves_nothing_behind(engine, name, role):
    n, losses = interrupts.sweep(engine, name, lambda i: served.CALLS[name](engine), role, 60, numbers=1)
    assert losses == []
    assert n > 5


def test_what_is_left_behind_would_be_seen(engine):
    kept = []

    def careless(i):
        kept.append(engine.session())
        return kept[-1].prefill([3, 4, 5, 6]).tobytes()

    _, losses = interrupts.sweep(engine, "careless", careless, interrupts.ROLES[0], 3, numbers=1)
    assert any("KV block" in loss for loss in losses)


@pytest.mark.sweep(9)
@pytest.mark.parametrize("kind", raised.KINDS)
@pytest.mark.parametrize("name", served.CALLS)
def test_an_error_at_some_calls(name, kind):
    """Others for each kind of error, and for what layers keep."""
    number = raised.KINDS.index(kind)
    layers = list(served.KINDS)[(number + list(served.CALLS).index(name)) % len(served.KINDS)]
    n, losses = raised.sweep(served.scene(name, layers), kind, 40 + 97 * number, 1201)
    assert losses == []
    assert n > 0


def test_an_error_that_spoils_something_would_be_seen(monkeypatch):
    """Blocks that stay allocated."""
    scene = served.scene("generate", "plain")
    monkeypatch.setattr("oxillama.scheduling.block_manager.BlockManager.reset", lambda blocks: None)
    assert any(raised.planted_at(scene, MemoryError, n)[1] for n in range(350, 1500, 40))
