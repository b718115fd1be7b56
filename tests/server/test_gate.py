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


def test_keys_that_take_more_tokens_have_fewer_turns():
    """Two keys that always want more get as many tokens each, whatever each of their requests takes."""

    async def main():
        gate, used, ended = Gate(2, 1000, 60), {"ann": 0, "bob": 0}, []

        async def one(key, n_tokens):
            async with gate.enter(key):
                await asyncio.sleep(0)
                gate.spend(key, n_tokens)
                used[key.name] += n_tokens
                ended.append(dict(used))

        tasks = [asyncio.ensure_future(one(*pair)) for _ in range(200) for pair in ((ANN, 3000), (BOB, 100))]
        await asyncio.gather(*tasks)
        assert (gate.running, gate.waiting, gate._uses) == (0, 0, {})
        return ended

    while_both_wait = [used for used in asyncio.run(main()) if used["bob"] < 19_000]
    assert len(while_both_wait) > 150
    assert all(abs(used["ann"] - used["bob"]) <= 2 * 3000 + 512 for used in while_both_wait)


def test_a_key_owes_nothing_of_the_time_in_which_no_other_waited():
    async def main():
        gate, order = Gate(2, 100, 60), []

        async def one(key, n_tokens):
            async with gate.enter(key) as place:
                await asyncio.sleep(0)
                order.append(key.name)
                place.spend(n_tokens)

        async with gate.enter(ANN):
            for _ in range(300):
                await one(ANN, 3000)
            await asyncio.gather(*(one(key, 100) for _ in range(20) for key in (ANN, BOB)))
        assert gate._uses == {}
        return order[300:]

    order = asyncio.run(main())
    assert len(order) == 40
    assert abs(order[:20].count("ann") - 10) <= 5


def test_a_key_that_asks_one_by_one_pays_too():
    """Of two keys, one with many requests and one that has nothing open in between, none gets more tokens."""

    async def main():
        gate, used, shares = Gate(1, 1000, 60), {"ann": 0, "bob": 0}, []

        async def one(key, n_tokens):
            async with gate.enter(key) as place:
                await asyncio.sleep(0)
                used[key.name] += n_tokens
                place.spend(n_tokens)

        async def sequential():
            for _ in range(30):
                await one(ANN, 3000)

        many = [asyncio.ensure_future(one(BOB, 100)) for _ in range(400)]
        single = asyncio.ensure_future(sequential())
        while len(shares) < 4000 and used["bob"] < 30_000:
            shares.append(dict(used))
            await asyncio.sleep(0)
        await asyncio.gather(*many, single)
        assert gate._uses == {}
        return shares

    assert all(used["ann"] <= used["bob"] + 2 * 3000 + 512 for used in asyncio.run(main()))


def test_tokens_of_requests_under_way_count():
    async def main():
        gate, key = Gate(9, 9, 10), Key("ann", tpm=1000)
        async with gate.enter(key) as first, gate.enter(key) as second:
            first.expect(600)
            second.expect(600)  # 400 were left: not known to be too few
            assert gate.limits(key)["x-ratelimit-remaining-tokens"] == "0"
            with pytest.raises(ApiError) as raised:
                gate.enter(key)
            assert (raised.value.status, raised.value.code) == (429, "rate_limited")
            first.spend(50)
            first.spend(50)  # once
            assert gate.limits(key)["x-ratelimit-remaining-tokens"] == "350"
            async with gate.enter(key) as third, gate.enter(key) as fourth:
                third.expect(500)
                with pytest.raises(ApiError):
                    fourth.expect(1)
        assert gate.limits(key)["x-ratelimit-remaining-tokens"] == "950"
        async with gate.enter(key) as alone:
            alone.expect(10**6)

    asyncio.run(main())


def test_what_a_key_has_left():
    async def main():
        gate, key = Gate(9, 9, 10), Key("ann", max_concurrent=3, tpm=1000)
        assert gate.limits(Key("bob")) == {}
        async with gate.enter(key):
            gate.spend(key, 300)
            said = gate.limits(key)
        assert said == {
            "x-ratelimit-limit-tokens": "1000", "x-ratelimit-remaining-tokens": "700",
            "x-ratelimit-reset-tokens": "60s", "x-ratelimit-limit-requests": "3", "x-ratelimit-remaining-requests": "2",
        }  # fmt: skip
        async with gate.enter(key):
            gate.spend(key, 5000)
        assert gate.limits(key)["x-ratelimit-remaining-tokens"] == "0"
        assert gate.limits(key)["x-ratelimit-remaining-requests"] == "3"
        return gate

    asyncio.run(main())


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
