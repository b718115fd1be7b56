"""A decoder's layers whose tokens see each other both ways, to make embeddings (EmbeddingGemma, 2025)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from oxillama.gguf import GGUFFile
from oxillama.gguf.source import FileSource
from oxillama.kernels.batch import Batch
from oxillama.kernels.matmul import linear
from oxillama.kernels.rope import angles
from oxillama.kernels.rows import Rows, take_rows
from oxillama.models.adaptable import Adaptable
from oxillama.models.attention import SelfAttention
from oxillama.models.classifier import Classifier
from oxillama.models.decoder import Embedding, Layer, read_rotations
from oxillama.models.encoder import check_whole, no_logits, read_encoder_spec
from oxillama.models.layers import LayerSlabs, read_norm
from oxillama.models.spec import ModelSpec
from oxillama.models.traits import Traits
from oxillama.models.weights import COMMON, Weights


class Bidirectional:
    """``project(norm(layers(embedding(tokens))))``. Keys and values are forgotten: all layers use the first's slab."""

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, context_size: int) -> None:
        self.spec = spec
        self.embedding = Embedding(spec, traits, w)
        self.rotations = read_rotations(spec, traits, w, context_size)
        self.layers = [Layer(spec, traits, w, i, SelfAttention) for i in range(spec.n_layers)]
        self.norm = read_norm(w, traits.output_norm, spec.n_embd, traits.norm, spec.norm_eps)
        self.projections = []
        if "dense_2.weight" in w or "dense_3.weight" in w:
            n = w.metadata.get_int(f"{spec.arch}.dense_2_feat_out", minimum=1, maximum=1 << 20)
            self.projections = [w.linear("dense_2", n, spec.n_embd), w.linear("dense_3", spec.n_embd, n)]
        self.n_weight_bytes, self.arithmetic = 0, COMMON
        self.mapped: Sequence[FileSource] = ()
        self.adaptable: Mapping[str, Adaptable] = {}
        self.classifier: Classifier | None = None

    def forward(self, batch: Batch, states: Sequence[LayerSlabs]) -> Rows:
        """Hidden states of the rows that leave the model: Rows [batch.outputs.n_rows, n_embd].

        The projections that files may have stand after pooling in the publication. They are linear, so that the mean of
        projected tokens is the projection of their mean. Raises ConfigError for a part of a sequence: its tokens would
        not see the others.
        """
        check_whole(self.spec, batch)
        x = self.embedding.rows(batch)
        tables = [angles(batch, frequencies, magnitude) for frequencies, magnitude in self.rotations]
        for layer in self.layers:
            batch.poll()
            mark = batch.workspace.mark()
            layer.forward(x, layer.angles(tables), states[0], batch)
            batch.workspace.release(mark)
        x = self.norm(x if batch.outputs is batch else take_rows(x, batch.output_rows))
        for projection in self.projections:
            x = linear(x, projection, batch.outputs)
        return x

    def logits(self, hidden: Rows, batch: Batch) -> Rows:
        """Raises GenerateError: there are none."""
        raise no_logits(self.spec)


def read_bidirectional(file: GGUFFile, traits: Traits) -> ModelSpec:
    """A window of metadata is as wide as it reaches to both sides together: half of it to each, and the token."""
    spec = read_encoder_spec(file, traits)
    layers = tuple(replace(layer, window=layer.window and layer.window // 2 + 1) for layer in spec.layers)
    return replace(spec, layers=layers)
