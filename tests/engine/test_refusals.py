"""A bounded queue, also for threads that come together; and what is refused and kept, as the metrics have it."""

import threading

import pytest

import oxillama as ox
from oxillama.core.embedding import logits_request
from oxillama.errors import ConfigError, EngineClosedError, KvCacheFullError, QueueFullError
from oxillama.kernels.attention import kv_bytes
from tests.fakes import assert_idle, core_of, make_engine, runner_of


def test_threads_that_come_together_do_not_exceed_the_queue():
    """Each looks whether there is room, then waits for the other to look too: in vain, if only one may at a time."""
    inside, leave = threading.Event(), threading.Event()

    def hook(runner, spans, poll):
        inside.set()
        assert leave.wait(60)

    engine = make_engine(max_queue_size=1, hook=hook)
    scheduler, both = core_of(engine).scheduler, threading.Barrier(2)
    check, found = scheduler.check_queue, []

    def check_and_wait(*given):
        check(*given)
        try:
            both.wait(0.5)
        except threading.BrokenBarrierError:
            return

    def ask():
        try:
            found.append(engine.generate([4], max_tokens=1))
        except QueueFullError as error:
            found.append(error)

    running = threading.Thread(target=engine.generate, args=([3],), kwargs={"max_tokens": 1})
    running.start()
    assert inside.wait(60)  # from here on nothing leaves the queue
    scheduler.check_queue = check_and_wait
    threads = [threading.Thread(target=ask) for _ in range(2)]
    for t in threads:
        t.start()
    while not found and any(t.is_alive() for t in threads):
        threads[0].join(0.01)
    leave.set()
    for t in (*threads, running):
        t.join(60)
        assert not t.is_alive()
    assert sorted(type(f).__name__ for f in found) == ["Completion", "QueueFullError"]
    assert engine.metrics_snapshot().rejected == {"queue_full": 1, "too_large": 0}
    assert_idle(engine)


def test_refusals_are_counted():
    engine = make_engine(max_queue_size=3, n_blocks=2)
    with pytest.raises(QueueFullError):
        engine.generate([[3]] * 4)
    for prompt in ([3] * 40, [[3], [3] * 40]):
        with pytest.raises(KvCacheFullError):
            engine.generate(prompt, max_tokens=2)
    with pytest.raises(ConfigError):
        engine.generate([3], priority=-1)
    s = engine.metrics_snapshot()
    assert s.rejected == {"queue_full": 4, "too_large": 3}
    assert 'oxillama_requests_rejected_total{reason="queue_full"} 4' in s.prometheus().splitlines()
    assert sum(s.finished.values()) == s.waiting == 0


def test_a_batch_that_tries_again_is_not_refused():
    engine = make_engine(max_queue_size=3, n_blocks=2)
    assert len(list(engine.batch([[3 + i % 7] for i in range(40)], max_tokens=12))) == 40
    assert engine.metrics_snapshot().rejected == {"queue_full": 0, "too_large": 0}


def test_after_close_nothing_is_queued():
    engine = make_engine()
    request = logits_request(engine.context, [3])
    engine.close()
    with pytest.raises(EngineClosedError, match="load the model again"):
        core_of(engine).submit([request])
    assert engine.metrics_snapshot().waiting == 0


# ---- memory


def test_memory_is_that_of_the_engine():
    with ox.load(num_threads=1, kv_budget=1 << 20) as engine:
        engine.generate([3] * 40, max_tokens=1)
        engine.prefill([5] * 20)
        s, parts = engine.metrics_snapshot(), engine.memory_bytes()
        assert isinstance(s, ox.MetricsSnapshot)
        assert (s.weights_bytes, s.kv_bytes, s.recurrent_bytes) == (parts["weights"], parts["kv_cache"], 0)
        assert s.workspace_bytes == parts["workspace"] > 0
        spec = engine.model_config
        block = sum(sum(kv_bytes("f16", 16, x.k_dim, x.v_dim)) * x.n_heads for layer in spec.states for x in layer)
        assert s.kv_bytes == s.kv_blocks * block <= 1 << 20
        assert s.kv_bytes_used == s.kv_blocks_used * block > 0
        assert s.kv_bytes_cached == s.kv_blocks_cached * block > 0
    s = engine.metrics_snapshot()
    assert (s.weights_bytes, s.kv_bytes, s.workspace_bytes) == (0, 0, 0)


def test_memory_is_seen_without_asking():
    """Whoever only scrapes what steps publish sees it as well."""
    engine = make_engine()
    runner_of(engine).memory_bytes = lambda: {"weights": 7, "kv_cache": 64, "workspace": 3}
    engine.metrics_snapshot()
    engine.generate([3], max_tokens=2)
    s = core_of(engine).meter.snapshot()
    assert (s.weights_bytes, s.kv_bytes, s.recurrent_bytes, s.workspace_bytes) == (7, 64, 0, 3)
