"""The gate: turns of keys, the queue's end, and places that are given up."""

import asyncio

import pytest

from oxillama.server.admission import AdmissionQueue
from oxillama.server.auth import Key, anyone
from oxillama.server.errors import ApiError

ANN, BOB = Key("ann"), Key("bob")


async def held(gate, key, release, order=None, name=""):
    """One request that keeps its place until it is released."""
    async with gate.enter(key):
        if order is not None:
            order.append(name)
        await release.wait()


def begin(*coroutines):
    return [asyncio.ensure_future(one) for one in coroutines]


def test_places_go_to_the_key_that_has_the_fewest():
    async def main():
        gate, order, release = AdmissionQueue(2, 100, 10), [], asyncio.Event()
        tasks = begin(*(held(gate, ANN, release, order, f"ann{i}") for i in range(4)))
        await asyncio.sleep(0)
        tasks += begin(*(held(gate, BOB, release, order, f"bob{i}") for i in range(3)))
        await asyncio.sleep(0)
        assert (gate.running, gate.waiting) == (3, 4)  # of two places each key has one at least
        release.set()
        await asyncio.gather(*tasks)
        assert (gate.running, gate.waiting, gate._uses) == (0, 0, {})
        return order

    assert asyncio.run(main()) == ["ann0", "ann1", "bob0", "ann2", "bob1", "ann3", "bob2"]


@pytest.mark.parametrize("max_running", [1, 2, 7, 128])
@pytest.mark.parametrize("max_queue", [0, 1, 5, 1024])
def test_a_key_finds_its_share_of_the_places_whatever_another_sends(max_running, max_queue):
    async def main():
        gate, release = AdmissionQueue(max_running, max_queue, 10), asyncio.Event()
        tasks = []
        for _ in range(max_running + max_queue):
            tasks += begin(held(gate, ANN, release))
            await asyncio.sleep(0)
        with pytest.raises(ApiError) as raised:
            gate.enter(ANN)
        assert (raised.value.status, raised.value.code) == (429, "queue_full")
        assert (gate.running, gate.waiting) == (max_running, max_queue)
        for n in range(max(1, max_running // 2)):
            tasks += begin(held(gate, BOB, release))
            await asyncio.sleep(0)
            assert (gate.running, gate.waiting) == (max_running + 1 + n, max_queue)
        for n in range(-(-max_queue // 2)):
            tasks += begin(held(gate, BOB, release))
            await asyncio.sleep(0)
            assert gate.waiting == max_queue + 1 + n
        for key in (ANN, BOB):
            with pytest.raises(ApiError):
                gate.enter(key)
        release.set()
        await asyncio.gather(*tasks)
        assert (gate.running, gate.waiting, gate._uses) == (0, 0, {})

    asyncio.run(main())


def test_a_key_that_has_more_than_its_share_gets_no_more():
    """What ends leaves room for the others first, until all have as many."""

    async def main():
        gate, events = AdmissionQueue(4, 100, 10), [asyncio.Event() for _ in range(20)]
        tasks = begin(*(held(gate, ANN, event) for event in events[:10]))
        await asyncio.sleep(0)
        tasks += begin(*(held(gate, BOB, event) for event in events[10:]))
        await asyncio.sleep(0)
        seen = []
        for event in events[:4]:
            event.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            seen.append((gate._uses[ANN.owner].n_running, gate._uses[BOB.owner].n_running))
        for event in events:
            event.set()
        await asyncio.gather(*tasks)
        return seen

    assert asyncio.run(main()) == [(3, 2), (2, 2), (2, 2), (2, 2)]


def test_places_by_address_where_there_are_no_keys():
    async def main():
        gate, release = AdmissionQueue(1, 1, 10), asyncio.Event()
        one, other = anyone("192.0.2.1"), anyone("192.0.2.2")
        tasks = begin(held(gate, one, release), held(gate, one, release))
        await asyncio.sleep(0)
        with pytest.raises(ApiError):
            gate.enter(anyone("192.0.2.1"))
        tasks += begin(held(gate, other, release))
        await asyncio.sleep(0)
        assert (gate.running, gate.waiting) == (2, 1)
        release.set()
        await asyncio.gather(*tasks)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("address", "owner"),
    [
        ("", "key -"),
        ("127.0.0.1", "peer 127.0.0.1"),
        ("127.0.0.2", "peer 127.0.0.2"),
        ("::1", "peer ::1"),
        ("::ffff:192.0.2.7", "peer 192.0.2.7"),
        ("2001:db8:0:1:ffff::9", "peer 2001:db8:0:1::/64"),
        ("2001:db8:0:1::a", "peer 2001:db8:0:1::/64"),
        ("fe80::1%eth0", "peer fe80::/64"),
        ("testclient", "peer testclient"),
    ],
)
def test_owner_of_an_address(address, owner):
    assert anyone(address).owner == owner


def test_an_administrator_and_a_user_of_one_name_are_two_owners():
    assert Key("ann").owner != Key("ann", is_admin=True).owner


def test_refused_requests_leave_nothing_behind():
    async def main():
        gate = AdmissionQueue(1, 0, 10)
        async with gate.enter(ANN):
            for i in range(50):
                gate.enter(Key(f"key{i}"))  # never entered
            with pytest.raises(ApiError):
                gate.enter(ANN)
            assert list(gate._uses) == [ANN.owner]
        assert gate._uses == {}

    asyncio.run(main())


def test_tokens_of_requests_under_way_count():
    async def main():
        gate, key = AdmissionQueue(9, 9, 10), Key("ann", tpm=1000)
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
        gate, key = AdmissionQueue(9, 9, 10), Key("ann", max_concurrent=3, tpm=1000)
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
        gate, release = AdmissionQueue(1, 4, 10), asyncio.Event()
        tasks = begin(*(held(gate, ANN, release) for _ in range(5)))
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as raised:
            gate.enter(ANN)
        assert (raised.value.status, raised.value.code) == (429, "queue_full")
        assert 1 <= int(raised.value.headers["Retry-After"]) <= 60
        release.set()
        await asyncio.gather(*tasks)
        assert (gate.running, gate.waiting) == (0, 0)

    asyncio.run(main())


def test_requests_of_a_key_at_a_time():
    async def main():
        gate, key = AdmissionQueue(9, 9, 10), Key("ann", max_concurrent=1)
        async with gate.enter(key):
            with pytest.raises(ApiError) as raised:
                gate.enter(key)
            assert raised.value.code == "rate_limited"
        async with gate.enter(key):
            pass

    asyncio.run(main())


def test_waiting_too_long():
    async def main():
        gate = AdmissionQueue(1, 9, 0.02)
        async with gate.enter(ANN):
            with pytest.raises(ApiError) as raised:
                async with gate.enter(ANN):
                    pass
            assert (raised.value.status, raised.value.code) == (503, "queue_timeout")
            assert gate.waiting == 0
        assert gate.running == 0

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(40))
def test_cancelled_requests_leave_nothing(seed):
    """At every moment: before their turn, as it comes, and during it."""

    async def main():
        gate = AdmissionQueue(2, 100, 10)

        async def one(i):
            async with gate.enter(ANN if i % 3 else BOB):
                for _ in range(i % 4):
                    await asyncio.sleep(0)

        tasks = [asyncio.ensure_future(one(i)) for i in range(12)]
        for turn in range(30):
            tasks[(seed * 7 + turn * 5) % 12].cancel() if (seed >> (turn % 6)) & 1 else None
            await asyncio.sleep(0)
            assert gate.running <= 3  # two places, of which each key has one
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (gate.running, gate.waiting) == (0, 0)
        async with gate.enter(ANN), gate.enter(BOB):
            pass

    asyncio.run(main())
