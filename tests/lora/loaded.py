"""Models that are loaded with an adapter, and adapters of random factors for them."""

import numpy as np

import oxillama.gguf as gguf
from oxillama.core.runner import Runner
from oxillama.kernels.batch import Span
from oxillama.kv_cache.arrays import slot_bytes
from oxillama.lora import Lora, LoraRegistry
from oxillama.models import load_model
from tests.lora.files import linear_shapes, random_factors, write_adapter
from tests.models.references import forward_of, passes

RANK, ALPHA, SCALE = 4, 8.0, 0.7


class Loaded:
    """A model, and what its adapters are."""

    def __init__(self, path, threads=2, repack=True):
        with gguf.open(path) as file:
            self.model = load_model(file, num_threads=threads, repack=repack)
        self.spec, self.threads = self.model.spec, threads
        self.registry = LoraRegistry(self.spec, lambda: self.model.adaptable)

    def load(self, name, path):
        self.registry.load(name, Lora.load(path))

    def runner(self, n_blocks):
        n_slots = 6 if slot_bytes(self.spec.states) else 0
        return Runner(self.model, num_threads=self.threads, kv_type="f32", n_blocks=n_blocks, n_slots=n_slots)

    def logits(self, tokens, wanted=(), chunk=None):
        """Every position's logits, the prompt taken in chunks; hidden states of an encoder."""
        members = self.registry.select(tuple(wanted)).members
        n_blocks = -(-len(tokens) // 16) + 1
        runner, table = self.runner(n_blocks), list(range(n_blocks))
        forward = forward_of(runner)
        parts = []
        for i, (part, start, want, n) in enumerate(passes(self.spec, tokens, chunk or len(tokens))):
            slots = ((i - 1) % 3 if i else -1, i % 3) if slot_bytes(self.spec.states) else None
            span = Span(part, start, table, want, slots, loras=members, n_source=n)
            parts.append(forward([span]).copy())
        return np.concatenate(parts)


def adapter_for(path, to, rank=RANK, seed=0, alpha=ALPHA):
    """An adapter of everything that can be changed, and its factors."""
    with gguf.open(path) as file:
        arch, last = file.metadata.arch, file.metadata.get_int(f"{file.metadata.arch}.block_count")
        last -= file.metadata.get_int(f"{arch}.nextn_predict_layers", 0)
    shapes = {name: s for name, s in linear_shapes(path).items() if not name.startswith(f"blk.{last}.")}
    factors = random_factors(shapes, rank, seed)
    return write_adapter(to, arch, factors, alpha), factors
