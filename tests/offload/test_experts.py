"""Pages of experts: only those chosen by a router are read, each once while there is room for it."""

import re

import pytest

from oxillama.models.experts import Experts
from oxillama.offload import OffloadPolicy
from tests.offload.paged import NAMES, least_of, open_runner, path_of, rows, tokens_of

MIXTURES = [n for n in NAMES if re.search(r"mix|moe|dbrx|deepseek|olmoe|gpt-oss|jamba|dots", n)]


@pytest.fixture
def watched(monkeypatch):
    """What routers chose: (layer, experts), in order."""
    chosen = []
    route = Experts.route

    def noted(self, h, batch):
        routing = route(self, h, batch)
        chosen.append((self, routing.experts.copy()))
        return routing

    monkeypatch.setattr(Experts, "route", noted)
    return chosen


def expert_pages(pager):
    """Numbers of the pages of experts that were read so far, as many times as they were."""
    pages, read, take, done = pager.reader._pages, pager.reader._read, pager.reader.take, pager.reader.done
    seen = []

    def noted(page, slot, past_cache):
        if pages[page].is_expert:
            seen.append(page)
        return read(page, slot, past_cache)

    def taken(call):
        """Pages that products read themselves."""
        found = take(call)
        seen.extend(page for page, _, file, _ in found if file >= 0 and pages[page].is_expert)
        return found

    def was_done(call, missing, n_bytes):
        """Those that the system had given up are read after all."""
        for page in missing:
            if pages[page].is_expert:
                seen.remove(page)
        done(call, missing, n_bytes)

    pager.reader._read, pager.reader.take, pager.reader.done = noted, taken, was_done
    return seen


def page_of(pager, w):
    """Of a stack of experts: the pages of each expert."""
    layout = pager._survey.layout
    i = next(i for i, s in enumerate(pager._survey.stored) if s.matrix is w)
    n = (layout.first_page[i + 1] - layout.first_page[i]) // w.n_experts
    return [range(layout.first_page[i] + e * n, layout.first_page[i] + (e + 1) * n) for e in range(w.n_experts)]


def wanted_pages(pager, chosen):
    """Of each pass of a router, the set of pages that it needs."""
    for layer, experts in chosen:
        used = sorted(set(experts.reshape(-1).tolist()))
        matrices = [w for w in (layer.gate, layer.up, layer.down) if w is not None and w.pager is not None]
        yield {page for w in matrices for e in used for page in page_of(pager, w)[e]}


@pytest.mark.parametrize("name", MIXTURES)
def test_each_chosen_expert_is_read_once(name, watched):
    """With room for all but a little: nothing has to leave."""
    chosen = watched
    path, tokens = path_of(name), tokens_of(name)
    most = open_runner(path, OffloadPolicy(budget=1 << 40), repack=False).pager.nbytes
    runner = open_runner(path, OffloadPolicy(budget=most - 1), repack=False)
    if runner.pager._plan.n_experts < sum(p.is_expert for p in runner.pager.reader._pages):
        runner.pager.reader.resize(runner.pager._plan.n_window, sum(p.is_expert for p in runner.pager.reader._pages))
    seen = expert_pages(runner.pager)
    rows(runner, tokens, chunk=3)
    assert sorted(seen) == sorted(set().union(*wanted_pages(runner.pager, chosen)))
    assert seen
    n_read = len(seen)
    rows(runner, tokens, chunk=3)
    assert len(seen) == n_read  # all of them are still there


@pytest.mark.parametrize("name", MIXTURES)
def test_other_experts_are_never_read(name, watched):
    """In little memory each is read for the pass that needs it, however often, and none before it was chosen."""
    chosen = watched
    runner = open_runner(path_of(name), OffloadPolicy(budget=least_of(path_of(name)) * 2))
    seen = expert_pages(runner.pager)
    for token in tokens_of(name)[:6]:
        chosen.clear()
        seen.clear()
        rows(runner, [token])
        assert set(seen) <= set().union(*wanted_pages(runner.pager, chosen))


def test_pages_of_one_token_are_counted(watched):
    """Faults, hits and bytes of a first and a second pass of the same token, from what routers chose."""
    chosen = watched
    path = path_of("mixtral")
    most = open_runner(path, OffloadPolicy(budget=1 << 40), repack=False).pager.nbytes
    runner = open_runner(path, OffloadPolicy(budget=most - 1), repack=False)
    before = runner.pager.counts()
    assert before["faults"] == before["hits"] == 0
    rows(runner, [5])
    wanted = [set(p) for p in wanted_pages(runner.pager, chosen)]
    after = runner.pager.counts()
    pages = runner.pager.reader._pages
    assert after["faults"] + after["hits"] == sum(map(len, wanted)) > 0
    assert after["bytes"] - before["bytes"] == sum(pages[p].nbytes for p in set().union(*wanted))
    rows(runner, [5])
    again = runner.pager.counts()
    assert again["faults"] == after["faults"]
    assert again["bytes"] == after["bytes"]
    assert again["hits"] - after["hits"] == sum(map(len, wanted))
