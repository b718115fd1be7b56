"""The gate: turns of keys, the queue's end, and places that are given up."""

import asyncio

import pytest

from oxillama.server.auth import Key
from oxillama.server.errors import ApiError
from oxillama.server.limits import Gate

ANN, BOB = Key("ann"), Key("bob")


def test_keys_take_turns():
    async def main():
        gate, order, hold = Gate(1, 100, 10), [], asyncio.Event()

        async def one(key, name):
            async with gate.enter(key):
                if name == "first":
                    await hold.wait()
                order.append(name)

        tasks = [asyncio.ensure_future(one(ANN, "first"))]
        await asyncio.sleep(0)
        for i in range(4):
            tasks.append(asyncio.ensure_future(one(ANN, f"ann{i}")))
        tasks.append(asyncio.ensure_future(one(BOB, "bob0")))
        await asyncio.sleep(0)
        assert (gate.running, gate.waiting) == (1, 5)
        hold.set()
        await asyncio.gather(*tasks)
        assert (gate.running, gate.waiting) == (0, 0)
        return order

    assert asyncio.run(main()) == ["first", "ann0", "bob0", "ann1", "ann2", "ann3"]


def test_the_queue_ends():
    async def main():
        gate, hold = Gate(1, 4, 10), asyncio.Event()

        async def one(key):
            async with gate.enter(key):
                await hold.wait()

        tasks = [asyncio.ensure_future(one(ANN))]
        await asyncio.sleep(0)
        tasks.append(asyncio.ensure_future(one(BOB)))
        for _ in range(2):
            tasks.append(asyncio.ensure_future(one(ANN)))
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as raised:
            gate.enter(ANN)  # half of the queue is its
        assert (raised.value.status, raised.value.code) == (429, "queue_full")
        assert 1 <= int(raised.value.headers["Retry-After"]) <= 60
        tasks.append(asyncio.ensure_future(one(BOB)))
        await asyncio.sleep(0)
        with pytest.raises(ApiError):
            gate.enter(BOB)  # all of it is taken
        hold.set()
        await asyncio.gather(*tasks)
        assert (gate.running, gate.waiting) == (0, 0)

    asyncio.run(main())


def test_requests_of_a_key_at_a_time():
    async def main():
        gate, key = Gate(9, 9, 10), Key("ann", max_concurrent=1)
        async with gate.enter(key):
            with pytest.raises(ApiError) as raised:
                gate.enter(key)
            assert raised.value.code == "rate_limited"
        async with gate.enter(key):
            pass

    asyncio.run(main())


def test_waiting_too_long():
    async def main():
        gate = Gate(1, 9, 0.02)
        async with gate.enter(ANN):
            with pytest.raises(ApiError) as raised:
                async with gate.enter(BOB):
                    pass
            assert (raised.value.status, raised.value.code) == (503, "queue_timeout")
            assert gate.waiting == 0
        assert gate.running == 0

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(40))
def test_cancelled_requests_leave_nothing(seed):
    """At every moment: before their turn, as it comes, and during it."""

    async def main():
        gate = Gate(2, 100, 10)

        async def one(i):
            async with gate.enter(ANN if i % 3 else BOB):
                for _ in range(i % 4):
                    await asyncio.sleep(0)

        tasks = [asyncio.ensure_future(one(i)) for i in range(12)]
        for turn in range(30):
            tasks[(seed * 7 + turn * 5) % 12].cancel() if (seed >> (turn % 6)) & 1 else None
            await asyncio.sleep(0)
            assert gate.running <= 2
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (gate.running, gate.waiting) == (0, 0)
        async with gate.enter(ANN), gate.enter(BOB):
            pass

    asyncio.run(main())
