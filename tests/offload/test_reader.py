"""The page reader: many threads request, abandon and repeat, and all see the file's bytes."""

import ctypes
import errno
import os
import random
import threading

import numpy as np
import pytest

from oxillama.errors import EngineClosedError, GenerateError, ModelFileError
from oxillama.gguf.source import DIRECT_SLACK, FileSource
from oxillama.kernels.files import can_tell, is_cached
from oxillama.offload.calls import Page
from oxillama.offload.order import AccessOrder
from oxillama.offload.reader import PageReader

N, SIZE = 40, 1000  # pages; the last ones of each matrix are shorter


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "pages"
    path.write_bytes(np.random.default_rng(0).bytes(N * SIZE))
    return FileSource(path)


@pytest.fixture(autouse=True, params=[True, False], ids=["cached", "not cached"])
def cached(request, monkeypatch):
    """With the file in the page cache, and as if it were not."""
    if not request.param:
        monkeypatch.setattr("oxillama.offload.ahead.is_cached", lambda *_: False)
    return request.param


def make_reader(source, n_window, n_experts):
    """Four matrices of five pages, and four stacks of five experts, in turns."""
    pages = []
    for i in range(N):
        is_expert = i // 5 % 2 == 1
        pages.append(Page(source, i * SIZE, SIZE - 100 * (i % 5 == 4), is_expert))
    first = list(range(0, N + 1, 5))
    order = AccessOrder(first, [1, 5] * 4, {i: i + 2 if i % 4 == 1 else None for i in range(1, 8, 2)})
    order.follow([0, 2, 4, 6])
    room = SIZE + DIRECT_SLACK
    reader = PageReader(pages, order, {False: room, True: room}, direct=False)
    reader.resize(n_window, n_experts)
    return reader


def bring(reader, pages):
    """Lists of pages and their bytes, as they come: from the file, where it is in the page cache."""
    call = reader.begin(pages)
    try:
        while call.n_open:
            found, n_bytes = [], 0
            for page, address, file, offset in reader.take(call):
                p = reader._pages[page]
                if file < 0:
                    data = ctypes.string_at(address, p.nbytes)
                else:
                    data = os.pread(file, p.nbytes, offset)
                    n_bytes += p.nbytes
                    if address:
                        ctypes.memmove(address, data, p.nbytes)
                found.append((page, data))
            reader.done(call, [], n_bytes)
            yield found
    finally:
        reader.end(call)


def check(reader, ready):
    data = reader._pages[0].source.path.read_bytes()
    for page, found in ready:
        p = reader._pages[page]
        assert found == data[p.offset : p.offset + p.nbytes]


@pytest.mark.parametrize(("n_window", "n_experts"), [(1, 1), (2, 2), (3, 5), (20, 20)])
def test_every_page_comes_once_with_its_bytes(source, n_window, n_experts):
    reader = make_reader(source, n_window, n_experts)
    rng = random.Random(n_window)
    for _ in range(60):
        wanted = rng.sample(range(N), rng.randint(1, N))
        found = []
        for ready in bring(reader, wanted):
            check(reader, ready)
            found += [page for page, _ in ready]
        assert sorted(found) == sorted(wanted)
    c = reader.counts
    assert c.hits + c.faults > 0
    reader.stop(wait=True)


def test_many_threads_some_of_which_abandon_their_requests(source):
    reader = make_reader(source, 2, 3)
    errors = []

    def work(seed):
        rng = random.Random(seed)
        try:
            for _ in range(60):
                left = rng.choice([1, 2, 1000])
                calls = bring(reader, rng.sample(range(N), rng.randint(1, 12)))
                for ready in calls:
                    check(reader, ready)
                    left -= 1
                    if not left:
                        break
                calls.close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads)
    assert errors == []
    assert not reader._asked
    assert not any(slots._holders for slots in reader._slots.values() if not reader._reading)
    assert not reader._filled
    reader.stop(wait=True)


def test_pages_of_other_sizes_of_slots(source):
    """Between steps slots come and go."""
    reader = make_reader(source, 4, 4)
    rng = random.Random(1)
    for _ in range(40):
        reader.resize(rng.randint(1, 9), rng.randint(1, 9))
        reader.forget(rng.sample(range(N), 5))
        for ready in bring(reader, rng.sample(range(N), 12)):
            check(reader, ready)
    for is_expert in (False, True):
        assert len(reader._buffers._buffers[is_expert]) <= len(reader._slots[is_expert])
    reader.stop(wait=True)


def test_what_was_read_ahead_is_a_hit(source, monkeypatch):
    """In the order that was seen, all but the first pages are there before they are asked for."""
    monkeypatch.setattr("oxillama.offload.ahead.is_cached", lambda *_: False)  # that is not copied before it is needed
    reader = make_reader(source, 8, 1)
    rounds = [range(5), range(10, 15), range(20, 25), range(30, 35)]
    for pages in rounds:
        list(bring(reader, pages))
    before = reader.counts.faults
    with reader._arrival:
        while any(page not in reader._slots[False] or page in reader._reading for page in rounds[0]):
            assert reader._arrival.wait(timeout=60)
    list(bring(reader, rounds[0]))
    assert reader.counts.faults == before
    reader.stop(wait=True)


def test_an_error_reaches_only_the_requests_of_its_page(source, monkeypatch):
    monkeypatch.setattr("oxillama.offload.ahead.is_cached", lambda *_: False)
    monkeypatch.setattr(FileSource, "can_pass_cache", False)
    reader = make_reader(source, 1, 2)
    read = FileSource.read

    def fail(self, offset, out):
        if offset == 5 * SIZE:
            raise ModelFileError("page 5")
        read(self, offset, out)

    monkeypatch.setattr(FileSource, "read", fail)
    for _ in range(3):
        with pytest.raises(ModelFileError, match="page 5"):
            list(bring(reader, [6, 5, 7]))
        assert sum(len(ready) for ready in bring(reader, [6, 7])) == 2
    reader.stop(wait=True)


def test_cached_pages_fill_only_empty_slots(source, cached):
    """Cached matrices are read by the products that need them; no page is evicted from a slot for them."""
    if not cached:
        return
    reader = make_reader(source, 3, 1)
    rounds = [range(5), range(10, 15), range(20, 25), range(30, 35)] * 3
    for pages in rounds:
        list(bring(reader, pages))
    with reader._arrival:
        while reader._reading or sum(page in reader._slots[False] for page in range(N)) < 2:
            assert reader._arrival.wait(timeout=60)
        there = {page for page in range(N) if page in reader._slots[False]}
        hits = reader.counts.hits
    for pages in rounds[:4]:
        list(bring(reader, pages))
    assert reader.counts.hits - hits >= 2
    assert all(page in reader._slots[False] for page in there)
    reader.stop(wait=True)


def test_experts_stay_in_their_slots(source):
    """Read by the threads or by products, also cached ones."""
    reader = make_reader(source, 1, 4)
    counts = []
    for _ in range(3):
        list(bring(reader, [5, 6]))
        list(bring(reader, [15, 16]))
        counts.append((reader.counts.faults, reader.counts.hits))
    assert sum(counts[0]) == 4
    assert counts[1:] == [(counts[0][0], counts[0][1] + 4), (counts[0][0], counts[0][1] + 8)]
    reader.stop(wait=True)


def direct_shares(reader, n_rounds, after=lambda: None):
    """Of the bytes of each round through the matrices, the part that is read past the cache; `after` each matrix."""
    shares = []
    for _ in range(n_rounds):
        before = reader.counts.bytes, reader.counts.direct_bytes
        for pages in (range(5), range(10, 15), range(20, 25), range(30, 35)):
            for ready in bring(reader, pages):
                check(reader, ready)
            after()
        shares.append((reader.counts.direct_bytes - before[1]) / (reader.counts.bytes - before[0]))
    return shares


@pytest.mark.parametrize("can_pass", [True, False])
def test_pages_that_the_cache_does_not_keep_are_read_past_it(source, cached, monkeypatch, can_pass):
    """Not the first time, and only where there is a way."""
    if cached:
        return
    can_pass = can_pass and source.can_pass_cache
    monkeypatch.setattr(FileSource, "can_pass_cache", can_pass)
    reader = make_reader(source, 2, 1)
    shares = direct_shares(reader, 6)
    assert shares[0] < 0.5  # a page read ahead may be needed twice
    assert max(shares[1:]) > 0.8 if can_pass else max(shares) == 0
    reader.stop(wait=True)


def test_an_advised_page_is_not_taken_to_be_kept(source, cached, monkeypatch):
    """A system that reads on behind what was read, brings what it is told to, and keeps nothing of it for long."""
    if cached:
        return
    if not source.can_pass_cache:
        pytest.skip("there are no direct reads here")
    there, read = set(), FileSource.read

    def reads_on(self, offset, out):
        there.update(range(offset // SIZE, offset // SIZE + 4))
        read(self, offset, out)

    monkeypatch.setattr(FileSource, "expect", lambda self, offset, n_bytes: there.add(offset // SIZE))
    monkeypatch.setattr(FileSource, "read", reads_on)
    monkeypatch.setattr("oxillama.offload.ahead.is_cached", lambda fd, offset, n_bytes: offset // SIZE in there)
    reader = make_reader(source, 3, 1)
    shares = direct_shares(reader, 60, there.clear)
    assert sum(shares[20:]) > 0.8 * len(shares[20:])
    reader.stop(wait=True)


def four_rounds(reader):
    """What is read through the page cache, and past it."""
    for _ in range(4):
        for pages in (range(5), range(10, 15), range(20, 25), range(30, 35)):
            for ready in bring(reader, pages):
                check(reader, ready)
    return reader.counts.bytes - reader.counts.direct_bytes, reader.counts.direct_bytes


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP, errno.EIO])
def test_a_disk_that_refuses_direct_reads(source, cached, monkeypatch, number):
    """The page is read through the page cache instead; unless the disk is at fault."""
    if cached or not source.can_pass_cache:
        return
    tried = []

    def refuse(*args):
        tried.append(args)
        raise source.failed(number) from OSError(number, "refused")

    monkeypatch.setattr(FileSource, "read_direct", refuse)
    reader = make_reader(source, 2, 1)
    if number == errno.EIO:
        with pytest.raises(ModelFileError, match="can't be read any more"):
            four_rounds(reader)
    else:
        assert four_rounds(reader)[1] == 0
        assert 1 <= len(tried) <= 2  # by both threads
        assert not source.can_pass_cache
    reader.stop(wait=True)


def test_a_file_whose_cached_pages_are_unknown(source, cached, monkeypatch):
    """What is not seen in the page cache may be there all the same: it is read through it."""
    if cached:
        return
    monkeypatch.setattr("oxillama.gguf.source.can_tell", lambda fd: False)
    reader = make_reader(source, 2, 1)
    assert four_rounds(reader)[1] == 0
    reader.stop(wait=True)


@pytest.mark.parametrize("n_started", [0, 1])
def test_a_thread_that_can_not_be_started(source, cached, monkeypatch, n_started):
    """One is enough; without any there is an error, and the next call tries again."""
    if cached:
        return
    start, left = threading.Thread.start, [n_started]

    def limited(thread):
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    reader = make_reader(source, 2, 1)
    if n_started:
        four_rounds(reader)
        assert left[0] < 0 or not source.can_pass_cache
    else:
        for _ in range(2):
            with pytest.raises(GenerateError, match="the thread that reads weights couldn't be started: can't start"):
                reader.begin([0])
        monkeypatch.undo()
        list(bring(reader, [0]))
    reader.stop(wait=True)


def test_nothing_is_read_while_the_process_forks(source, cached, monkeypatch):
    """A child would have a part in the memory that a disk writes to."""
    if cached:
        return
    reader = make_reader(source, 2, 1)
    started, go_on, read = threading.Event(), threading.Event(), PageReader._read

    def slow(*args):
        started.set()
        go_on.wait(60)
        return read(*args)

    monkeypatch.setattr(PageReader, "_read", slow)
    call = reader.begin([0, 1])
    started.wait(60)
    threading.Timer(0.05, go_on.set).start()
    reader.before_fork()
    try:
        assert go_on.is_set()
        assert not reader._reading
    finally:
        reader.after_fork_in_parent()
    while call.n_open:  # reading has gone on
        check(reader, [(page, ctypes.string_at(at, SIZE)) for page, at, _, _ in reader.take(call)])
    reader.end(call)
    reader.stop(wait=True)


def test_can_tell_agrees_with_the_system(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"something")
    with path.open("rb") as f:
        fd = f.fileno()
        if is_cached(fd, 0, 1):
            assert can_tell(fd)
        if hasattr(os, "RWF_NOWAIT"):
            try:
                os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT)
                expected = True
            except OSError as error:
                expected = error.errno == errno.EAGAIN
            assert can_tell(fd) == expected
    assert not can_tell(fd)


def test_is_cached_on_real_files(tmp_path):
    """It is never said of bytes that aren't there, and nothing is raised."""
    path = tmp_path / "file"
    path.write_bytes(bytes(300_000))
    with path.open("rb") as f:
        fd = f.fileno()
        f.read()
        assert is_cached(fd, 0, 300_000) in (True, False)
        for offset, n_bytes in ((0, 300_001), (300_000, 1), (0, 0), (-5, 3), (0, -1), (1 << 62, 1 << 62)):
            assert not is_cached(fd, offset, n_bytes)
    assert not is_cached(fd, 0, 1)
    read, write = os.pipe()
    assert not is_cached(read, 0, 1)
    os.close(read)
    os.close(write)


def test_a_reader_that_was_stopped_says_so(source, monkeypatch):
    reader = make_reader(source, 1, 1)
    list(bring(reader, [0]))
    monkeypatch.setattr("oxillama.offload.ahead.is_cached", lambda *_: False)
    reader.stop(wait=True)
    with pytest.raises(EngineClosedError, match="closed while it was in use"):
        list(bring(reader, [1, 2]))
