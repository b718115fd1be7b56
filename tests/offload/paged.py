"""Models with paged weights, below the engine, so that files without a tokenizer can be computed, too."""

from pathlib import Path

import numpy as np

import oxillama.gguf as gguf
from oxillama.core.runner import Runner
from oxillama.kernels.batch import Span
from oxillama.kv_cache.arrays import slot_bytes
from oxillama.models import load_model
from oxillama.offload import LayerPager, OffloadPolicy
from tests.models.references import forward_of, passes

MODELS = Path(__file__).parents[1] / "data" / "models"
NAMES = sorted(p.stem for p in MODELS.glob("*.gguf"))


def path_of(name):
    return MODELS / f"{name}.gguf"


def tokens_of(name):
    return np.load(path_of(name).with_suffix(".npz"))["tokens"].tolist()


def open_runner(path, policy=None, *, threads=2, repack=True, n_blocks=8, probe=None):
    """A runner of the model; `policy` an OffloadPolicy, or None."""
    pagers = []

    def place(weights):
        pagers.append(LayerPager(weights, policy, repack=repack, num_threads=threads, probe=probe))
        return ()

    with gguf.open(path) as file:
        model = load_model(file, num_threads=threads, repack=repack, place=place if policy is not None else None)
    n_slots = 3 if slot_bytes(model.spec.states) else 0
    return Runner(model, num_threads=threads, n_blocks=n_blocks, n_slots=n_slots, pager=pagers[0] if pagers else None)


def rows(runner, tokens, *, chunk=None, want="all"):
    """Logits, or hidden states of an encoder, of a text in chunks."""
    spec = runner.model.spec
    forward = forward_of(runner)
    recurrent = bool(slot_bytes(spec.states))
    parts = []
    for i, (part, start, wanted, n) in enumerate(passes(spec, tokens, chunk or len(tokens))):
        slots = ((i - 1) % 3 if i else -1, i % 3) if recurrent else None
        wanted = want if wanted == "all" else wanted
        parts.append(forward([Span(part, start, list(range(8)), wanted, slots, n_source=n)]).copy())
    return np.concatenate(parts)


def least_of(path, **options):
    """The smallest budget that works."""
    return open_runner(path, OffloadPolicy(budget=1 << 40), **options).pager.least
