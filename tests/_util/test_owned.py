"""Owned cache: bounds and order against a plain twin, sums and work, threads, interrupts and forks."""

import os
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxillama._util.owned import Bound, OwnedCache
from tests.other_threads import switching

BIG = Bound(1 << 30, 1 << 40)


class Twin:
    """The same rules, where all is measured and compared anew at each value that is put."""

    def __init__(self, own, whole):
        self.own, self.whole, self.kept = own, whole, {}

    def find(self, owner, key):
        if key not in self.kept.get(owner, {}):
            return None
        shares = self.kept[owner] = self.kept.pop(owner)
        value = shares[key] = shares.pop(key)
        return value

    def put(self, owner, key, value):
        if self.find(owner, key) is None:
            self.kept[owner] = {**self.kept.pop(owner, {}), key: value}
            while self.exceeds([owner], self.own):
                self.drop(owner)
            while self.exceeds(self.kept, self.whole):
                self.drop(max(self.kept, key=self.part))

    def sums(self, owners):
        values = [value for owner in owners for value in self.kept.get(owner, {}).values()]
        return len(values), sum(values)

    def exceeds(self, owners, most):
        return any(n > limit for n, limit in zip(self.sums(owners), most, strict=True))

    def part(self, owner):
        n, n_bytes = self.sums([owner])
        return n / self.whole.entries + n_bytes / self.whole.n_bytes

    def drop(self, owner):
        self.kept[owner].pop(next(iter(self.kept[owner])))
        if not self.kept[owner]:
            del self.kept[owner]


def by_value(key, value):
    return value


def ordered(kept):
    return {owner: list(values.items()) for owner, values in kept.items()}


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from("abcde"), st.integers(0, 9), st.integers(0, 40)), max_size=120),
    st.integers(1, 9), st.integers(1, 60), st.integers(1, 12), st.integers(1, 100),
)  # fmt: skip
def test_what_is_kept_is_what_a_plain_twin_keeps(steps, own_n, own_bytes, all_n, all_bytes):
    bounds = Bound(own_n, own_bytes), Bound(all_n, all_bytes)
    cache, twin = OwnedCache(by_value, *bounds), Twin(*bounds)
    for puts, owner, key, value in steps:
        if puts:
            cache.put(owner, key, value)
            twin.put(owner, key, value)
        else:
            assert cache.find(owner, key) == twin.find(owner, key)
        assert ordered(cache.contents()) == ordered(twin.kept)
        assert (len(cache), cache._content.n_bytes) == twin.sums(twin.kept)


def test_the_value_that_was_put_first_stays():
    cache = OwnedCache(lambda key, value: 1, BIG, BIG)
    first, second = [1], [1]
    assert cache.put("a", "x", first) is first
    assert cache.put("a", "x", second) is first
    assert cache.find("a", "x") is first


def test_a_value_larger_than_its_bound_is_not_kept():
    cache = OwnedCache(by_value, Bound(9, 50), BIG)
    assert cache.put("a", "x", 51) == 51
    assert len(cache) == 0
    assert cache.contents() == {}


def work_of(act, n):
    """Calls of functions, Python's and C's, and sizes measured, in n times `act`."""
    calls = 0

    def count(frame, event, arg):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        for i in range(n):
            act(i)
    finally:
        sys.setprofile(None)
    return calls / n


@pytest.mark.parametrize("n_owners", [1, 40, 2000])
def test_the_work_of_a_new_value_does_not_grow_with_what_is_kept(n_owners):
    works = []
    for most in (4, 2000):
        cache = OwnedCache(lambda key, value: 1, Bound(most, most), Bound(most, most))
        for i in range(2 * most):
            cache.put(i % n_owners, i, i)
        works.append(work_of(lambda i, cache=cache: cache.put(i % n_owners, -i - 1, i), 400))
        assert len(cache) == most
    assert works[1] < 2 * works[0] + 10


def test_ranks_do_not_pile_up():
    cache = OwnedCache(lambda key, value: 1, BIG, Bound(20, BIG.n_bytes))
    for i in range(5000):
        cache.put(i % 30, i, i)
        cache.find(i % 7, i - 7)
    assert len(cache._content.ranks) < 200


def test_values_that_grow_are_measured_again():
    sizes = {}
    cache = OwnedCache(lambda key, value: sizes.get(key, 1), Bound(99, 50), BIG, watch=2)
    for key in range(10):
        cache.put("a", key, object())
    cache.put("b", 0, object())
    sizes.update(dict.fromkeys(range(1, 8), 20))
    for _ in range(20):
        cache.find("b", 0)
    assert sum(sizes.get(key, 1) for key in cache.contents()["a"]) == cache._content.n_bytes - 1 <= 50
    assert len(cache.contents()["a"]) < 10
    cache.clear()
    assert cache._content.n_bytes == len(cache) == 0


def test_sizes_measured_while_all_is_forgotten_count_for_nothing():
    sizes, clears = {}, []

    def size(key, value):
        for clear in clears:
            clear()
        return sizes.get(key, 1)

    cache = OwnedCache(size, BIG, BIG, watch=4)
    cache.put("a", 1, "value")
    sizes[1] = 1000
    clears.append(cache.clear)
    cache.find("a", 1)
    clears.clear()
    assert cache._content.n_bytes == len(cache) == 0
    cache.put("a", 1, "value")
    assert (cache._content.n_bytes, len(cache)) == (1000, 1)


# ---- threads


def in_threads(act, n, rounds):
    """Errors of n threads that each call act(number, round)."""
    errors = []

    def run(number):
        try:
            for i in range(rounds):
                act(number, i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(n)]
    with switching():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return errors


def test_threads_share_a_cache():
    cache = OwnedCache(lambda key, value: len(value), Bound(40, 900), Bound(100, 2000), watch=3)

    def act(number, i):
        owner, key = (number * i) % 11, (i % 29, number % 3)
        found = cache.find(owner, key)
        value = cache.put(owner, key, [owner, key] * (i % 5 + 1))
        assert value[:2] == [owner, key]
        assert found is None or found[:2] == [owner, key]
        if i % 97 == 0:
            cache.clear()

    assert in_threads(act, 8, 400) == []
    kept = cache.contents()
    assert all(value[:2] == [owner, key] for owner, values in kept.items() for key, value in values.items())
    assert len(cache) == sum(map(len, kept.values())) <= 100
    assert cache._content.n_bytes == sum(len(value) for values in kept.values() for value in values.values()) <= 2000


def test_the_lock_is_free_while_values_are_measured_and_freed():
    free, freed = [], []

    def is_free():
        def look():
            got = cache._lock.acquire(blocking=False)
            free.append(got)
            if got:
                cache._lock.release()

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    class Value:
        def __del__(self):
            freed.append(1)
            is_free()

    def size(key, value):
        is_free()
        return 1

    cache = OwnedCache(size, Bound(2, 99), Bound(3, 99), watch=1)
    for i in range(8):
        cache.put(i % 3, i, Value())
        cache.find(i % 3, i)
    cache.clear()
    assert len(freed) == 8  # at once, without the collector
    assert len(free) > 2 * 8
    assert all(free)


def test_a_change_that_is_cut_short_leaves_an_empty_cache():
    class Key:
        raises = False

        def __hash__(self):
            return 1

        def __eq__(self, other):
            if Key.raises:
                raise KeyboardInterrupt
            return self is other

    cache = OwnedCache(lambda key, value: 1, BIG, BIG)
    for key in (Key(), Key()):
        cache.put("a", key, "value")
    Key.raises = True
    with pytest.raises(KeyboardInterrupt):
        cache.put("a", Key(), "value")
    assert (len(cache), cache._content.n_bytes, cache.contents()) == (0, 0, {})
    assert cache.put("a", "x", "value") == "value"


def test_a_finaliser_under_the_lock_may_use_the_cache():
    cache = OwnedCache(lambda key, value: 1, BIG, BIG)
    with cache._lock:
        cache.put("a", 1, "value")
        cache.clear()
    assert len(cache) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("is_held", [False, True])
def test_a_child_has_a_free_lock(is_held):
    cache = OwnedCache(lambda key, value: 1, BIG, BIG)
    cache.put("a", 1, "value")
    held, done = threading.Event(), threading.Event()

    def hold():
        with cache._lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    if is_held:
        thread.start()
        held.wait(60)
    pid = os.fork()
    if pid == 0:
        ok = len(cache) == (0 if is_held else 1)
        cache.put("b", 2, "value")
        os._exit(0 if ok and cache.find("b", 2) == "value" else 1)
    done.set()
    if is_held:
        thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert cache.find("a", 1) == "value"
