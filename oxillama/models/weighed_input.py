"""Experts that read their input multiplied by the router's weight: Meta, "Llama 4", 2025."""

from __future__ import annotations

from oxillama.kernels.batch import Batch
from oxillama.kernels.routing import Routing, take_weights
from oxillama.kernels.rows import Rows, mul_heads_
from oxillama.kernels.ssm import columns
from oxillama.models.experts import Experts


class WeighedInput(Experts):
    """``expert(weight * h)`` in place of ``weight * expert(h)``, of one expert for each row."""

    def hidden(self, h: Rows, routing: Routing, batch: Batch) -> Rows:
        h = columns(h, 0, h.dim)
        mul_heads_(h, take_weights(routing))
        return super().hidden(h, routing, batch)
