"""A model with paged weights gives the bits of one in memory, whatever is paged."""

import threading

import numpy as np
import pytest

import oxillama as ox
import oxillama.gguf as gguf
from oxillama.kernels._table import writable_formats
from oxillama.kernels.matmul import matmul, quantize
from oxillama.kernels.matrix import Matrix
from oxillama.kernels.rows import Workspace
from oxillama.offload import OffloadPolicy
from oxillama.offload.reader import PageReader
from tests.lora.files import linear_shapes, random_factors, write_adapter
from tests.offload.paged import NAMES, least_of, open_runner, path_of, rows, tokens_of


@pytest.mark.sweep(6)
@pytest.mark.parametrize("name", NAMES)
def test_every_architecture_gives_the_same_bits(name):
    """In the least memory that works, in a half of what it takes, and with a part of it pinned; in chunks and whole."""
    path, tokens = path_of(name), tokens_of(name)
    whole = open_runner(path)
    expected = rows(whole, tokens)
    most, least = open_runner(path, OffloadPolicy(budget=1 << 40)).pager.nbytes, least_of(path)
    assert least < most / 2 < path.stat().st_size
    for policy, threads, repack, chunk in (
        (OffloadPolicy(budget=least), 1, True, 7),
        (OffloadPolicy(budget=(most + least) // 2), 2, True, None),
        (OffloadPolicy(budget=(most + least) // 2), 3, False, 5),
        (OffloadPolicy(pinned="*1.*"), 2, True, 1),
    ):
        runner = open_runner(path, policy, threads=threads, repack=repack)
        assert runner.pager.nbytes <= (policy.budget or most)
        for _ in range(2):  # the second time, other pages are there
            assert (rows(runner, tokens, chunk=chunk) == expected).all()
        assert runner.pager.counts()["faults"] > 0


@pytest.mark.sweep(7)
@pytest.mark.parametrize("type", writable_formats())
def test_every_format_gives_the_same_bits(tmp_path, type):
    path = tmp_path / "model.gguf"
    gguf.quantize_file(path_of("mixtral"), path, type, allow_requantize=True, pure=True)
    tokens = tokens_of("mixtral")
    expected = rows(open_runner(path), tokens)
    for repack in (True, False):
        runner = open_runner(path, OffloadPolicy(budget=least_of(path) * 3), repack=repack)
        assert (rows(runner, tokens, chunk=9) == expected).all()
        assert runner.pager.counts()["faults"] > 0


@pytest.mark.long
@pytest.mark.parametrize("name", ["llama", "mixtral", "falcon-h1"])
def test_a_partly_cached_file_gives_the_same_bits(tmp_path, monkeypatch, name):
    """What is not is multiplied later, and nothing twice, products that add to something included."""
    path, tokens = path_of(name), tokens_of(name)
    data = path.read_bytes()
    part = tmp_path / "part"
    expected = rows(open_runner(path), tokens)
    take, missed = PageReader.take, []

    def some(self, call):
        return [(page, address, file if file < 0 else fd, offset) for page, address, file, offset in take(self, call)]

    def noted(self, call, missing, n_bytes, done=PageReader.done):
        missed.extend(missing)
        done(self, call, missing, n_bytes)

    monkeypatch.setattr(PageReader, "take", some)
    monkeypatch.setattr(PageReader, "done", noted)
    for end in (0, len(data) // 3, len(data) * 2 // 3, len(data)):
        part.write_bytes(data[:end])
        missed.clear()
        with part.open("rb") as f:
            fd = f.fileno()
            for repack, chunk in ((True, 1), (False, 11)):
                runner = open_runner(path, OffloadPolicy(budget=least_of(path) * 3), repack=repack)
                assert (rows(runner, tokens, chunk=chunk) == expected).all()
        assert missed or end == len(data)  # even then the system may have let go of it


def test_large_chunks_in_matrices_of_many_panels():
    """More than eight rows at a time pack several panels at once; all of it in more than one task."""
    rng = np.random.default_rng(1)
    values = rng.standard_normal((700, 512), dtype=np.float32)
    for type in ("Q4_K", "Q6_K", "Q8_0", "F16", "F32", "BF16"):
        data = quantize(values, type)
        packed, raw = Matrix(data, type, values.shape), Matrix(data, type, values.shape, repack=False)
        for n in (1, 8, 9, 33, 130):
            x = rng.standard_normal((n, 512), dtype=np.float32)
            for threads in (1, 2):
                ws = Workspace(threads)
                a, b = matmul(ws.from_array(x), packed, raw)
                assert (a.numpy() == b.numpy()).all()


def test_requests_of_an_engine():
    """Sampled, in a batch, with an adapter and with texts that begin alike."""
    prompts = ["Once upon a time", "Once upon a hill", "A fox"]
    with ox.load(num_threads=2) as engine:
        size = engine.memory_bytes()["weights"]
        expected = engine.generate(prompts, max_tokens=12, seed=3)
    with ox.load(num_threads=2, offload=size // 2) as engine:
        found = engine.generate(prompts, max_tokens=12, seed=3)
        assert [c.token_ids for c in found] == [c.token_ids for c in expected]
        assert engine.memory_bytes()["weights"] <= size // 2
        assert engine.metrics_snapshot().offload_bytes > 0


@pytest.mark.parametrize("name", ["mixtral", "deepseek2", "qwen2moe", "falcon-h1", "mamba"])
def test_adapters_give_the_same_bits(tmp_path, name):
    """Of every matrix, stack of experts and table."""
    path, ids = path_of(name), tokens_of(name)[:20]
    with gguf.open(path) as file:
        arch = file.metadata.arch
    adapter = write_adapter(tmp_path / "a.gguf", arch, random_factors(linear_shapes(path), 4))
    found = []
    for budget in (None, least_of(path), least_of(path) * 4):
        with ox.load(path, num_threads=2, context_size=64, offload=budget) as engine:
            plain = engine.forward_logits(ids)
            engine.apply_lora(adapter)
            changed = engine.forward_logits(ids)
            found.append((plain, changed))
    assert not (found[0][0] == found[0][1]).all()
    for plain, changed in found[1:]:
        assert (plain == found[0][0]).all()
        assert (changed == found[0][1]).all()


def test_two_engines_of_one_file_at_once():
    """Threads of their own, in the least memory; each as if it were alone."""
    path = path_of("mixtral")
    ids = tokens_of("mixtral")[:30]
    with ox.load(path, num_threads=1, context_size=64) as engine:
        expected = engine.forward_logits(ids)
    found = []

    def work():
        with ox.load(path, num_threads=2, context_size=64, offload=least_of(path)) as engine:
            found.extend((engine.forward_logits(ids) == expected).all() for _ in range(3))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 6
