"""Diffusion models of texts: every position sees every other, and has logits for the token in its own place.

Nie et al., "Large Language Diffusion Models", 2025 (LLaDA); Ye et al., "Dream 7B", 2025, whose logits are for the place
after their own; Radical Numerics, "RND1", 2025.
"""

from __future__ import annotations

from dataclasses import replace

from oxillama.gguf import GGUFFile
from oxillama.kernels.batch import Batch
from oxillama.kernels.matmul import linear
from oxillama.kernels.rows import Rows
from oxillama.models.bidirectional import Bidirectional
from oxillama.models.decoder import read_output
from oxillama.models.encoder import read_encoder_spec
from oxillama.models.spec import ModelSpec
from oxillama.models.traits import Traits
from oxillama.models.weights import Weights

IN_PLACE = ("llada", "llada-moe")


class Denoiser(Bidirectional):
    """``logits = output(norm(layers(embedding(tokens))))`` of whole texts."""

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, context_size: int) -> None:
        super().__init__(spec, traits, w, context_size)
        self.output = read_output(spec, traits, w)

    def logits(self, hidden: Rows, batch: Batch) -> Rows:
        """Scores over the vocabulary: Rows [hidden.n, n_vocab]. batch: the one whose rows ``hidden`` has."""
        return linear(hidden, self.output, batch)


def read_denoiser(file: GGUFFile, traits: Traits) -> ModelSpec:
    """Reads a diffusion model. Where metadata don't say it, logits are for the next place, but those of models that
    were no others before."""
    shifted = file.metadata.get_bool("diffusion.shift_logits", file.metadata.arch not in IN_PLACE)
    return replace(read_encoder_spec(file, traits), denoises=True, shifted=shifted)
