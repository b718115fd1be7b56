"""Models with packed weights, below the engine, so that files without a tokenizer can be computed, too."""

from functools import partial

import oxillama.gguf as gguf
from oxillama.config import EngineConfig
from oxillama.core.loading import page_weights
from oxillama.core.runner import Runner
from oxillama.kv_cache.arrays import slot_bytes
from oxillama.models import load_model
from oxillama.models.packed import Cache, place_packed


def open_runner(source, packed=True, *, threads=2, policy=None):
    """A runner of the model, whose weights are in its packed file, or with an OffloadPolicy read from it."""
    pagers = []
    with gguf.open(source) as file:
        place = partial(place_packed, file, packed, threads, None)
        if policy is not None:
            config = EngineConfig(packed=packed, offload=policy)
            place = partial(page_weights, file, config, threads, None, pagers)
        model = load_model(file, num_threads=threads, place=place)
    n_slots = 3 if slot_bytes(model.spec.states) else 0
    return Runner(model, num_threads=threads, n_blocks=8, n_slots=n_slots, pager=pagers[0] if pagers else None)


def packed_files():
    """The files in the cache."""
    return [file.path for file in Cache.default().files()]
