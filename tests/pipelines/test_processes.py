"""Mappers in processes of their own: spawned and forked; the bits are those of one process."""

import multiprocessing
import os
import pickle
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

import oxillama.data as oxd
from tests.pipelines.tables import cells, made

ROWS = {"animal": [f"{size} {animal}" for size in ("big", "little", "") for animal in ("cat", "fox", "hen", "owl")]}
ROWS["animal"][5] = None
SAME = {"max_tokens": 10, "seed": 5, "temperature": 1.0}
CONFIG = {"num_threads": 1, "context_size": 128}


def mappers():
    return (
        oxd.Generate(template="Once there was a {animal}", output="story", details=True, engine=CONFIG, **SAME),
        oxd.Embed(input="animal", engine=CONFIG),
    )


def parts(size):
    rows = ROWS["animal"]
    return [{"animal": rows[i : i + size]} for i in range(0, len(rows), size)]


def joined(found):
    """The rows of batches, as values that compare bit by bit."""
    return [
        [cell.tobytes() if hasattr(cell, "tobytes") else cell for cell in row]
        for batch in found
        for row in zip(*batch.values(), strict=True)
    ]


@pytest.fixture(scope="module")
def whole():
    return [joined([mapper(ROWS)]) for mapper in mappers()]


@pytest.mark.parametrize("size", [1, 7])
def test_batches_of_any_size_give_the_same_bits(whole, size):
    for mapper, expected in zip(mappers(), whole, strict=True):
        assert joined(map(mapper, parts(size))) == expected
        assert joined(mapper.map(parts(size))) == expected


def placed(mapper, batch):
    return mapper(batch), os.getpid(), id(mapper.engine)


@pytest.fixture(scope="module")
def pool():
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


def test_four_processes_give_the_bits_of_one(pool, whole):
    for mapper, expected in zip(mappers(), whole, strict=True):
        found = list(pool.map(placed, [mapper] * 12, parts(1)))
        assert joined(batch for batch, _, _ in found) == expected
        places = {(pid, engine) for _, pid, engine in found}
        assert os.getpid() not in {pid for pid, _ in places}
        assert len(places) == len({pid for pid, _ in places}) <= 4  # each opened one


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
def test_forked_children_go_on_with_their_parents_engine(whole):
    mapper = mappers()[0]
    expected = joined([mapper(ROWS)])  # it has computed before the fork
    receive, send = multiprocessing.get_context("fork").Pipe(duplex=False)

    def work():
        send.send((joined(map(mapper, parts(3))), id(mapper.engine)))

    for _ in range(2):
        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        assert receive.poll(60)
        assert receive.recv() == (expected, id(mapper.engine))
        child.join(60)
        assert child.exitcode == 0
    assert joined([mapper(ROWS)]) == expected == whole[0]


def test_threads_share_a_mapper(whole):
    mapper = mappers()[0]
    mapper.close()
    engines = set()
    start = threading.Barrier(4)

    def work(_):
        start.wait(60)
        engines.add(mapper.engine)
        return joined(map(mapper, parts(5)))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [whole[0]] * 4
    assert len(engines) == 1


@pytest.mark.parametrize("kind", ["arrow", "pandas", "polars"])
def test_tables_travel_with_their_mappers(pool, kind, whole):
    found = pool.submit(mappers()[0], made(kind, ROWS)).result()
    assert cells(found, "story") == [row[1] for row in whole[0]]


def test_a_pickle_holds_no_engine_and_an_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mapper = oxd.Generate("m.gguf", prompt="p", engine={"tokenizer_path": "t.gguf"})
    assert mapper.source._config.model_path == str(tmp_path / "m.gguf")
    assert mapper.source._config.tokenizer_path == str(tmp_path / "t.gguf")
    for mapper in mappers():
        before = len(pickle.dumps(mapper))
        mapper(ROWS)
        assert len(pickle.dumps(mapper)) < before + 200


def test_a_pickle_holds_the_absolute_path_of_packed_weights(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for packed, expected in (("a.packed", str(tmp_path / "a.packed")), (True, True)):
        mapper = oxd.Embed(input="animal", engine={"packed": packed})
        assert mapper.source._config.packed == expected
        assert pickle.loads(pickle.dumps(mapper)).source._config.packed == expected
