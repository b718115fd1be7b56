"""Layers whose router reads what goes into attention: Song et al., "SmallThinker", 2025."""

from __future__ import annotations

from oxillama.errors import MissingTensorError
from oxillama.kernels.batch import Batch
from oxillama.kernels.rows import Rows, take_rows
from oxillama.models.decoder import Layer, ReadMixer
from oxillama.models.experts import Experts
from oxillama.models.layers import LayerSlabs
from oxillama.models.spec import ModelSpec
from oxillama.models.traits import Traits
from oxillama.models.weights import Weights


class RoutedFirst(Layer):
    """``chosen = router(x); x += mixer(norm(x)); x += experts(norm(x), chosen)``. The router's input has no norm."""

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, i: int, read_mixer: ReadMixer) -> None:
        super().__init__(spec, traits, w, i, read_mixer)
        if not isinstance(self.ffn, Experts):
            raise MissingTensorError(
                f"tensor blk.{i}.ffn_gate_inp.weight is missing; architecture {spec.arch} needs it"
            )
        self.experts = self.ffn

    def forward(self, x: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> None:
        routing = self.experts.route(x, batch)
        self.mixer.add_to(x, self.attn_norm(x, self.mixer.codes), cos_sin, slabs, batch)
        self.experts.add_routed(x, self.ffn_input(x, x), routing, batch)

    def outputs(self, x: Rows, cos_sin: Rows | None, slabs: LayerSlabs, batch: Batch) -> Rows:
        """The last layer: all rows store their state, but only those of the output are computed further."""
        if batch.outputs is batch:
            self.forward(x, cos_sin, slabs, batch)
            return x
        h = self.attn_norm(x, self.mixer.codes)
        x = take_rows(x, batch.output_rows)
        routing = self.experts.route(x, batch.outputs) if x.n else None
        self.mixer.add_outputs_to(x, h, cos_sin, slabs, batch)
        if routing is not None:
            self.experts.add_routed(x, self.ffn_input(x, x), routing, batch.outputs)
        return x
