"""Decoders whose layers are gone through several times: Nanbeige, "Nanbeige 4.2", 2026.

Dehghani et al., "Universal Transformers", 2018. The weights are those of one pass; keys and values are each pass's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from oxillama.gguf import GGUFFile
from oxillama.kernels.batch import Batch
from oxillama.kernels.rope import angles
from oxillama.kernels.rows import Rows
from oxillama.models.decoder import Decoder
from oxillama.models.layers import LayerSlabs
from oxillama.models.spec import ModelSpec, read_spec
from oxillama.models.traits import Traits
from oxillama.models.weights import Weights

MAX_DEPTH = 1 << 12  # layers of all passes


def read_looped(file: GGUFFile, traits: Traits) -> ModelSpec:
    """Each layer keeps keys and values once for each pass."""
    m, spec = file.metadata, read_spec(file, traits)
    n_passes = m.get_int(f"{spec.arch}.num_loops", 1, minimum=1, maximum=MAX_DEPTH // spec.n_layers)
    return replace(spec, states=tuple(kept * n_passes for kept in spec.states))


class Looped(Decoder):
    """``x = norm(layers(x))`` for each pass, the norm being that of the end, which files may leave to the last pass."""

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, context_size: int) -> None:
        super().__init__(spec, traits, w, context_size)
        self.norm_between = not w.metadata.get_bool(f"{spec.arch}.skip_loop_final_norm", False)

    def forward(self, batch: Batch, states: Sequence[LayerSlabs]) -> Rows:
        """Hidden states of the rows that leave the model; see `Decoder.forward`."""
        x = self.embedding.rows(batch)
        tables = [angles(batch, frequencies, magnitude) for frequencies, magnitude in self.rotations]
        passes = [[(slab,) for slab in slabs] for slabs in zip(*states, strict=True)]
        for slabs in passes[:-1]:
            self.run(x, tables, slabs, batch)
            x = self.norm(x) if self.norm_between else x
        self.run(x, tables, passes[-1][:-1], batch)
        batch.poll()
        last = self.layers[-1]
        return self.norm(last.outputs(x, last.angles(tables), passes[-1][-1], batch))
