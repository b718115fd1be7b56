"""Two stacks of layers in turns: a fast one, gone through several times, and a slow one after it.

Wang et al., "Hierarchical Reasoning Model", 2025; Sapient Intelligence, "HRM-Text", 2026. The published models were
trained with prompts whose tokens see each other both ways; here, as in llama.cpp, they see what was before them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from oxillama.errors import LoadError
from oxillama.gguf import GGUFFile, Metadata
from oxillama.kernels.batch import Batch
from oxillama.kernels.rope import angles
from oxillama.kernels.rows import Rows, add_, add_bias_, zeros
from oxillama.models.decoder import Decoder
from oxillama.models.gated_attention import GatedAttention
from oxillama.models.layers import LayerSlabs
from oxillama.models.spec import ModelSpec, read_spec
from oxillama.models.traits import Traits
from oxillama.models.weights import Weights

MAX_DEPTH = 1 << 12  # layers of all passes


@dataclass(frozen=True)
class Cycles:
    """``slow`` times: ``fast`` passes through the first ``n_layers``, and one through as many others."""

    n_layers: int
    slow: int
    fast: int

    @classmethod
    def read(cls, m: Metadata) -> Cycles:
        """Reads metadata, whose count of blocks is that of all passes; LoadError names the keys that contradict it."""
        key = f"{m.arch}.hrm."
        names = ("layers_per_stack", "h_cycles", "l_cycles")
        cycles = cls(*(m.get_int(key + name, minimum=1, maximum=MAX_DEPTH) for name in names))
        depth, found = cycles.n_layers * cycles.slow * (cycles.fast + 1), m.get_int(f"{m.arch}.block_count")
        if found != depth:
            raise LoadError(
                f"{m.arch}.block_count is {found}, but {key}layers_per_stack {cycles.n_layers}, h_cycles {cycles.slow} "
                f"and l_cycles {cycles.fast} make {depth}"
            )
        return cycles


class Hierarchical(Decoder):
    """``low = stack(low + high)``, ``fast`` times, then ``high = stack(high + low)``; all of that ``slow`` times.

    ``high`` begins as the embeddings, ``low`` as a vector of the file. A stack ends with a norm.
    """

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, context_size: int) -> None:
        super().__init__(spec, traits, w, context_size, GatedAttention)
        self.cycles = Cycles.read(w.metadata)
        self.start = w.vector("hrm.z_l_init", spec.n_embd)

    def forward(self, batch: Batch, states: Sequence[LayerSlabs]) -> Rows:
        """Hidden states of the rows that leave the model; see `Decoder.forward`."""
        n, high = self.cycles.n_layers, self.embedding.rows(batch)
        tables = [angles(batch, frequencies, magnitude) for frequencies, magnitude in self.rotations]
        low = zeros(batch.workspace, high.n, high.dim)
        add_bias_(low, self.start)
        fast = zip(*states[:n], strict=True)
        *slow, final = zip(*states[n:], strict=True)
        for slabs in slow:
            low = self.lower(low, high, tables, fast, batch)
            add_(high, low)
            self.run(high, tables, [(slab,) for slab in slabs], batch, n)
            high = self.norm(high)
        add_(high, self.lower(low, high, tables, fast, batch))
        self.run(high, tables, [(slab,) for slab in final[:-1]], batch, n)
        batch.poll()
        last = self.layers[-1]
        return self.norm(last.outputs(high, last.angles(tables), final[-1:], batch))

    def lower(self, low: Rows, high: Rows, tables: Sequence[Rows], slabs: Iterator[LayerSlabs], batch: Batch) -> Rows:
        """The fast stack's passes, each with the next of the slabs, of each layer one."""
        for _ in range(self.cycles.fast):
            add_(low, high)
            self.run(low, tables, [(slab,) for slab in next(slabs)], batch)
            low = self.norm(low)
        return low


def read_hierarchical(file: GGUFFile, traits: Traits) -> ModelSpec:
    """Each layer keeps keys and values once for each pass."""
    spec, cycles = read_spec(file, traits), Cycles.read(file.metadata)
    n, passes = cycles.n_layers, (cycles.slow * cycles.fast, cycles.slow)
    states = tuple(spec.states[i] * passes[i // n] for i in range(2 * n))
    return replace(spec, n_layers=2 * n, layers=spec.layers[: 2 * n], states=states)
