"""Encoder-decoder: an encoder reads a prompt whole, and the layers of a decoder attend to what it leaves of it.

Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", 2020.

A sequence begins with the prompt, in whole KV blocks, and the decoder's tokens follow. Each layer of the decoder has
one slab: in the prompt's blocks are keys and values of the encoder's states, in the others those of its own tokens,
whose positions count from the first of them on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from oxillama.errors import ConfigError
from oxillama.gguf import GGUFFile
from oxillama.gguf.source import FileSource
from oxillama.kernels.attention import Attention, KvSlab, attend_source, store
from oxillama.kernels.batch import Batch, Span
from oxillama.kernels.matmul import linear, linear_add_, matmul
from oxillama.kernels.rows import Rows, scale_, take_rows
from oxillama.layer_state import KvShape, source_positions
from oxillama.models.adaptable import Adaptable
from oxillama.models.classifier import Classifier
from oxillama.models.decoder import look_up
from oxillama.models.layers import LayerSlabs, read_norm
from oxillama.models.spec import ModelSpec, read_spec
from oxillama.models.t5 import Bias, BiasedAttention, Encoder, common_layer, read_biases, read_ffn, read_projections
from oxillama.models.traits import Traits
from oxillama.models.weights import COMMON, Weights


class EncoderDecoder:
    """``logits = output(norm(layers(embedding(tokens), encoder(prompt))))``."""

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, context_size: int) -> None:
        self.spec = spec
        self.encoder = Encoder(spec, traits, w, context_size)
        biases = read_biases(spec, w, "dec", spec.n_layers, both_ways=False)
        self.layers = [DecoderLayer(spec, traits, w, f"dec.blk.{i}.", bias) for i, bias in enumerate(biases)]
        self.norm = read_norm(w, "dec.output_norm", spec.n_embd, traits.norm, spec.norm_eps)
        tied = "output.weight" not in w
        self.output = w.linear("token_embd" if tied else "output", spec.n_vocab, spec.n_embd)
        self.scale = spec.n_embd**-0.5 if tied else 1.0
        self.n_weight_bytes, self.arithmetic = 0, COMMON
        self.mapped: Sequence[FileSource] = ()
        self.adaptable: Mapping[str, Adaptable] = {}
        self.classifier: Classifier | None = None

    def forward(self, batch: Batch, states: Sequence[LayerSlabs]) -> Rows:
        """Computes the rows that leave the model, the decoder's hidden states or the encoder's: Rows [n, n_embd].

        A span is a whole prompt, or tokens of the decoder after it. The encoder's states leave the model where they are
        wanted, and then nothing is kept for the decoder. Raises ConfigError for other spans.
        """
        slabs: list[KvSlab] = [slab for (slab,) in states]
        unit = slabs[0].block_tokens
        check_spans(self.spec, batch.spans, unit)
        read = part_of(batch, [None if s.start else source_of(s) for s in batch.spans])
        if read.n_rows:
            h = self.encoder.norm(self.encoder.run(slabs[0], read), self.layers[0].source.codes)
            if read.outputs is read:
                return h
            for layer, slab in zip(self.layers, slabs, strict=True):
                layer.source.remember(h, slab, read)
        after = part_of(batch, [s if s.start else None for s in batch.spans]) if read.n_rows else batch
        own = part_of(after, [from_first(s, unit) for s in after.spans])
        return self.decode(slabs, own, after)

    def decode(self, slabs: Sequence[KvSlab], own: Batch, after: Batch) -> Rows:
        """The decoder's hidden states. own, after: its rows, in positions of their own and in those of the sequence."""
        x = look_up(own, self.encoder.table, own.tokens)
        for layer, slab in zip(self.layers[:-1], slabs, strict=False):
            own.poll()
            mark = own.workspace.mark()
            layer.forward(x, slab, own, after)
            own.workspace.release(mark)
        own.poll()
        return self.norm(self.layers[-1].outputs(x, slabs[-1], own, after))

    def logits(self, hidden: Rows, batch: Batch) -> Rows:
        """Scores over the vocabulary: Rows [hidden.n, n_vocab]. batch: the one whose rows ``hidden`` has."""
        logits = linear(hidden, self.output, batch)
        if self.scale != 1.0:
            scale_(logits, self.scale)
        return logits


class DecoderLayer:
    """``x += attention(norm(x)); x += source(norm(x)); x += feed_forward(norm(x))``, in place."""

    def __init__(self, spec: ModelSpec, traits: Traits, w: Weights, prefix: str, bias: Bias) -> None:
        self.attn_norm, self.source_norm, self.ffn_norm = (
            read_norm(w, f"{prefix}{name}_norm", spec.n_embd, traits.norm, spec.norm_eps)
            for name in ("attn", "cross_attn", "ffn")
        )
        self.attention = BiasedAttention(spec, w, prefix, bias, causal=True)
        self.source = SourceAttention(spec, w, prefix)
        self.ffn = read_ffn(spec, traits, w, prefix)

    def forward(self, x: Rows, slab: KvSlab, own: Batch, after: Batch) -> None:
        self.attention.add_to(x, self.attn_norm(x, self.attention.codes), slab, own)
        self.source.add_to(x, self.source_norm(x, self.source.codes), slab, after)
        self.ffn.add_to(x, self.ffn_norm(x, self.ffn.codes), own)

    def outputs(self, x: Rows, slab: KvSlab, own: Batch, after: Batch) -> Rows:
        """The last layer: all rows store keys and values, but only those of the output are computed further."""
        if own.outputs is own:
            self.forward(x, slab, own, after)
            return x
        h = self.attn_norm(x, self.attention.codes)
        x = take_rows(x, own.output_rows)
        self.attention.add_outputs_to(x, h, slab, own)
        if x.n:
            self.source.add_to(x, self.source_norm(x, self.source.codes), slab, after.outputs)
            self.ffn.add_to(x, self.ffn_norm(x, self.ffn.codes), own.outputs)
        return x


class SourceAttention:
    """``x += out(attention(q(h), k(s), v(s)))`` over the encoder's states ``s``; scores are not scaled."""

    def __init__(self, spec: ModelSpec, w: Weights, prefix: str) -> None:
        self.q, self.k, self.v, self.out = read_projections(spec, w, f"{prefix}cross_attn")
        self.codes = self.q.integer
        self.rule = Attention(1.0, causal=False)
        w.leave_out(f"{prefix}cross_attn_rel_b.")  # of T5 1.0, whose authors' code doesn't read it

    def remember(self, states: Rows, slab: KvSlab, batch: Batch) -> None:
        """Keys and values of what the encoder gives for whole prompts."""
        mark = batch.workspace.mark()
        k, v = matmul(states, self.k, self.v, batch=batch)
        store(k, v, slab, batch)
        batch.workspace.release(mark)

    def add_to(self, x: Rows, h: Rows, slab: KvSlab, batch: Batch) -> None:
        q = linear(h, self.q, batch)
        linear_add_(x, attend_source(q, slab, batch, self.rule), self.out, batch)


def check_spans(spec: ModelSpec, spans: Sequence[Span], unit: int) -> None:
    """Raises ConfigError unless each span is a whole prompt or follows one, and all rows that are wanted are alike."""
    for i, span in enumerate(spans):
        first = source_positions(span.n_source, unit)
        n = len(span.tokens)
        if not span.n_source or (span.n_source > n or n > first if span.start == 0 else span.start < first):
            raise ConfigError(
                f"span {i}, {n} tokens at position {span.start}: architecture {spec.arch} takes a prompt whole, here "
                f"of {span.n_source} tokens in {first} positions, and the decoder's tokens after it"
            )
    wanted = [span.start == 0 for span in spans if span.want != "none"]
    if any(wanted) and not all(s.start == 0 and s.want == "all" and len(s.tokens) == s.n_source for s in spans):
        raise ConfigError("hidden states of an encoder can only be had of all spans, and of all of their tokens")


def source_of(span: Span) -> Span:
    """The tokens of a prompt that the encoder reads, without those that fill its last block."""
    return Span(span.tokens[: span.n_source], 0, span.block_table, span.want)


def from_first(span: Span, unit: int) -> Span:
    """A span of the decoder, whose positions count from the decoder's first."""
    first = source_positions(span.n_source, unit)
    return Span(span.tokens, span.start - first, span.block_table[first // unit :], span.want)


def part_of(batch: Batch, spans: Sequence[Span | None]) -> Batch:
    """The first rows of each span of a batch, as many as the other one in its place has; None: no rows of it."""
    adapters = batch.adapters
    if adapters is not None:
        rows: list[int] = []
        first = 0
        for old, new in zip(batch.spans, spans, strict=True):
            if new is not None:
                rows.extend(range(first, first + len(new.tokens)))
            first += len(old.tokens)
        adapters = adapters.of_rows(np.array(rows, np.int32))
    return Batch([span for span in spans if span is not None], batch.workspace, batch.poll, adapters)


def read_encoder_decoder(file: GGUFFile, traits: Traits) -> ModelSpec:
    """Hyper-parameters; layers are the decoder's. Raises UnsupportedModelError if layers differ."""
    spec, m = read_spec(file, traits), file.metadata
    layer = common_layer(spec)
    n_layers = m.get_int(f"{spec.arch}.decoder_block_count", spec.n_layers, minimum=1, maximum=1 << 12)
    start = m.get_int(f"{spec.arch}.decoder_start_token_id", minimum=0, maximum=spec.n_vocab - 1)
    shape = KvShape(layer.n_kv_heads, spec.head_dim, spec.v_head_dim)
    return replace(
        spec, n_layers=n_layers, layers=(layer,) * n_layers, states=((shape,),) * n_layers, decoder_start=start
    )
