"""Threads and turns that owners of requests share."""

import asyncio
import gc
import threading
import time
import weakref

import pytest

from oxillama.server.owner_threads import LoopTurns, OwnerThreads

SECONDS = 60


@pytest.fixture
def threads():
    made = OwnerThreads(4, "test")
    yield made
    made.close()


def test_half_of_the_threads_are_left_free_for_owners_that_come(threads):
    release, began = threading.Event(), threading.Semaphore(0)

    def work():
        began.release()
        assert release.wait(SECONDS)

    flood = [threads.submit(work, "ann") for _ in range(50)]
    for _ in range(2):
        assert began.acquire(timeout=SECONDS)
    assert threads.submit(lambda: 7, "bob").result(SECONDS) == 7
    assert sum(one.running() for one in flood) == 2
    release.set()
    for one in flood:
        one.result(SECONDS)


def test_an_owner_has_one_thread_while_another_has_requests_in_other_places():
    n_owners = [2]
    threads = OwnerThreads(4, "test", lambda: n_owners[0])
    most, running, lock = 0, 0, threading.Lock()

    def work():
        nonlocal most, running
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.001)
        with lock:
            running -= 1

    for n, allowed in ((2, 1), (1, 2), (9, 1)):
        n_owners[0], most = n, 0
        for one in [threads.submit(work, "ann") for _ in range(30)]:
            one.result(SECONDS)
        assert most <= allowed
    threads.close()


def test_owners_take_turns():
    threads = OwnerThreads(1, "test")
    release, order = threading.Event(), []
    first = threads.submit(lambda: release.wait(SECONDS), "ann")
    left = [threads.submit(lambda i=i: order.append(f"ann{i}"), "ann") for i in range(20)]
    left += [threads.submit(lambda i=i: order.append(f"bob{i}"), "bob") for i in range(3)]
    release.set()
    for one in [first, *left]:
        one.result(SECONDS)
    assert order[:6] == ["ann0", "bob0", "ann1", "bob1", "ann2", "bob2"]
    assert len(order) == 23
    threads.close()


def test_what_nobody_waits_for_any_more_counts_until_it_ends(threads):
    release = threading.Event()

    async def main():
        for _ in range(9):  # clients that leave
            task = asyncio.ensure_future(asyncio.wrap_future(threads.submit(lambda: release.wait(SECONDS), "ann")))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return await asyncio.wrap_future(threads.submit(lambda: 7, "bob"))

    assert asyncio.run(main()) == 7
    assert threads._running["ann"] <= 2
    release.set()


def test_errors_reach_the_caller(threads):
    def fail():
        raise KeyError("no")

    with pytest.raises(KeyError):
        threads.submit(fail, "ann").result(SECONDS)
    assert threads.submit(lambda: 1, "ann").result(SECONDS) == 1
    threads.close()
    with pytest.raises(RuntimeError):
        threads.submit(lambda: 1, "ann").result(SECONDS)


def test_without_a_thread_work_fails_and_nothing_hangs(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    threads = OwnerThreads(2, "test")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(5):
            with pytest.raises(RuntimeError):
                threads.submit(lambda: 1, "ann").result(SECONDS)
    assert [threads.submit(lambda: 1, "ann").result(SECONDS) for _ in range(5)] == [1] * 5
    threads.close()


def test_what_waits_is_cancelled_at_the_end():
    threads, release = OwnerThreads(2, "test"), threading.Event()
    made = [threads.submit(lambda: release.wait(SECONDS), "ann") for _ in range(4)]
    threads.close()
    release.set()
    assert [one.cancelled() for one in made] == [False, True, True, True]


def test_requests_begin_one_in_each_round_of_the_loop():
    async def main():
        turns, order = LoopTurns(), []

        async def one(owner):
            await turns.take(owner)
            order.append(owner)

        tasks = [asyncio.ensure_future(one("ann")) for _ in range(100)]
        await asyncio.sleep(0)
        tasks.append(asyncio.ensure_future(one("bob")))
        await asyncio.gather(*tasks)
        assert turns._waiting == {}
        await one("ann")
        return order

    order = asyncio.run(main())
    assert order.index("bob") <= 3
    assert len(order) == 102


def test_turns_of_requests_that_left_are_skipped():
    async def main():
        turns = LoopTurns()
        await turns.take("ann")
        tasks = [asyncio.ensure_future(turns.take("ann")) for _ in range(9)]
        await asyncio.sleep(0)
        for task in tasks[:8]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return [task.cancelled() for task in tasks]

    assert asyncio.run(main())[8] is False


def test_turns_outlive_an_event_loop():
    turns = LoopTurns()
    for _ in range(3):
        asyncio.run(turns.take("ann"))


def test_what_the_frames_of_an_error_held_is_freed_in_the_thread(threads):
    """With the errors before it; and no cycle keeps the error itself until a collection."""

    class Held(Exception):
        pass

    seen = []

    def work():
        inner, outer = Held(), Held("told")
        try:
            body = Held()
            seen.extend(map(weakref.ref, (inner, outer, body)))
            raise inner
        except Held:
            raise outer from None

    gc.disable()
    try:
        future = threads.submit(work, "ann")
        error = future.exception(SECONDS)
        assert (str(error), seen[2]()) == ("told", None)
        assert error.__traceback__.tb_frame.f_code.co_name == "work"
        del error, future
        threads.submit(lambda: None, "ann").result(SECONDS)  # the thread holds the last work no more
        assert [one() for one in seen] == [None, None, None]
    finally:
        gc.enable()


def test_work_that_is_done_before_its_caller_goes_on(threads, monkeypatch):
    def wait(failed):
        if threading.current_thread() is threading.main_thread():
            time.sleep(0.1)

    monkeypatch.setattr("oxillama.server.owner_threads._fail", wait)
    assert threads.submit(lambda: 7, "a").result(60) == 7
