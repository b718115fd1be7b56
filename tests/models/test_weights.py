"""Tensors of a file as matrices: which of them each token reads from memory."""

import pytest

from oxillama.core.loading import shipped_model
from oxillama.gguf.reader import open_gguf
from oxillama.models import weights as module
from oxillama.models.weights import Weights

NAME, SHAPE = "blk.0.attn_q.weight", (256, 256)


@pytest.fixture
def file():
    return open_gguf(shipped_model())


def test_matrices_of_a_file_that_caches_hold_are_not_read_from_memory(file, monkeypatch):
    total = sum(t.nbytes for t in file.tensors.values())
    for cached, from_memory in ((total, False), (total - 1, True)):
        monkeypatch.setattr(module, "CACHED_BYTES", cached)
        w = Weights(file)
        data = file.tensors[NAME].data.tobytes()
        assert w.matrix(NAME, *SHAPE).from_memory is from_memory
        assert w.rearranged(NAME, data, file.tensors[NAME].type, *SHAPE).from_memory is from_memory
