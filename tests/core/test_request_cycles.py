"""Requests that are finished are freed at once: none is left for Python's collector."""

import gc
import weakref

import pytest

import oxillama as ox
from oxillama.core.embedding import EmbeddingRequest
from oxillama.core.generation_request import GenerationRequest


@pytest.fixture(scope="module")
def engine():
    with ox.load(num_threads=1) as loaded:
        yield loaded


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (EmbeddingRequest, lambda engine: engine.embed(["a red ball", "b"])),
        (GenerationRequest, lambda engine: engine.generate("a", max_tokens=2, n=2)),
        (GenerationRequest, lambda engine: list(engine.stream("a", max_tokens=2))),
    ],
)
def test_no_cycle_is_left(engine, kind, call, monkeypatch):
    made, init = [], kind.__init__

    def noted(self, *given, **options):
        made.append(weakref.ref(self))
        init(self, *given, **options)

    monkeypatch.setattr(kind, "__init__", noted)
    gc.disable()
    try:
        call(engine)
        n = len(made)
        engine.embed("another")  # the plan of the last step refers to its requests
        assert [one() for one in made[:n]] == [None] * n
    finally:
        gc.enable()
