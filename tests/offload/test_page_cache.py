"""Pages that are read past the page cache: the model with numbers alone."""

from oxillama.offload.page_cache import FIRST, MOST, PageCache


def runs(cache, page, n, is_there):
    """How n readings of a page go: runs of the same kind, "cached", "through" or "past", with their lengths."""
    found = []
    for i in range(n):
        there[0] = is_there(i)
        kind = "cached" if cache.has(page) else "past" if cache.passes(page) else "through"
        if found and found[-1][0] == kind:
            found[-1][1] += 1
        else:
            found.append([kind, 1])
        cache.missed()
    return [tuple(run) for run in found]


there = [False]


def probe(page):
    return there[0]


def test_a_cache_that_keeps_nothing_is_tried_less_and_less():
    found = runs(PageCache(probe), 7, 400, lambda i: False)
    past = [n for kind, n in found if kind == "past"]
    assert found[0] == ("through", 1)
    assert all(n == 1 for kind, n in found if kind == "through")
    assert past[:-1] == [min(FIRST << i, MOST) for i in range(len(past) - 1)]


def test_present_pages_are_cached():
    assert runs(PageCache(probe), 7, 10, lambda i: i > 0) == [("through", 1), ("cached", 9)]


def test_a_page_that_was_dropped_is_read_past_the_cache_first():
    """And forgotten once it is there again."""
    cache = PageCache(probe)
    assert runs(cache, 7, 3 + FIRST + 1, lambda i: i < 3) == [("cached", 3), ("past", FIRST), ("through", 1)]
    assert runs(cache, 7, 2 + FIRST, lambda i: i < 2) == [("cached", 2), ("past", FIRST)]


def test_pages_are_known_one_by_one_and_missed_together():
    cache = PageCache(probe)
    there[0] = True
    assert cache.has(1)
    assert cache.has(2)
    there[0] = False
    assert cache.has(1)
    assert not cache.has(3)
    assert cache.was_seen()
    cache.missed()
    assert not cache.was_seen()
    assert not cache.has(1)
    assert cache.will_pass(1)
    assert not cache.will_pass(3)
    assert [cache.passes(3), cache.passes(3)] == [False, True]


def test_without_a_cache_all_pages_are_read_past_it():
    cache = PageCache(None)
    assert not cache.has(1)
    assert cache.will_pass(1)
    assert [cache.passes(1) for _ in range(3 * MOST)] == [True] * 3 * MOST


def test_an_advised_page_does_not_count_as_kept():
    """It is used where it is; and it is gone again, as often as before."""
    cache = PageCache(probe)
    past = []
    for _ in range(5):
        there[0] = True
        assert cache.has(7, brought=True)
        assert not cache.saw(7)
        there[0] = False
        n = 0
        while not cache.has(7) and cache.passes(7):
            n += 1
        past.append(n)
    assert past == [FIRST << i for i in range(5)]
    there[0] = True
    assert cache.has(7)
    assert cache.saw(7)


def test_an_advised_page_is_still_tried_in_its_turn():
    """Pages behind others are read with them, whether they are to be or not."""
    cache = PageCache(probe)
    there[0] = False
    assert [cache.passes(7) for _ in range(3)] == [False, True, True]
    there[0] = True
    assert cache.has(7, brought=True)
    there[0] = False
    assert [cache.passes(7) for _ in range(FIRST - 1)] == [True] * (FIRST - 2) + [False]
