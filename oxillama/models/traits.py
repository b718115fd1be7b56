"""Traits that distinguish the members of the decoder family beside their metadata. Data only; see `decoder.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

LayerRule = Callable[[int], bool]
Activation = Literal["silu", "gelu", "gelu_erf", "relu", "relu2", "swiglu_oai"]
Part = Literal["q", "k", "v", "o", "ffn", "output"]


def every_layer(i: int) -> bool:
    return True


def all_but_each(period: int) -> LayerRule:
    """Layers 0 … period-2, then not period-1, and so on; none of them for a period of 1, all for 0."""
    return lambda i: period == 0 or i % period != period - 1


def all_but_first(period: int) -> LayerRule:
    """Layers 1 … period-1, then not period, and so on; all for a period of 0."""
    return lambda i: period == 0 or i % period != 0


@dataclass(frozen=True)
class Traits:
    """Facts of an architecture, as its publication has them. The defaults are those of Llama.

    rope: how rotary pairs lie in a head ("interleaved": 2i and 2i + 1, "neox": i and i + n/2), or "none".
    rotates: layers whose queries and keys are rotated; "windows": those with a window, or all where none has one;
        "windows_and_dense": those with a window and the first, which have no experts.
    window: of files that don't say how long it is. chunked: windows are the chunks of positions that `Attention` means.
    windows: layers whose attention sees only the window of metadata, where metadata don't say which. whole_first: of
        the period that metadata may give, the first layer sees everything and not the last.
    window_base: base of the rotary frequencies in those layers, which then ignore scalings; 0: metadata's, None: there
        is nothing special about those layers.
    norm: "rms", "rms_plain" (without a weight), "layer" (weight and bias), "layer_unbiased" (weight), "layer_plain"
        (neither).
    rms_epsilon: the norm's epsilon stands under the name of RMS norms'; None: if it is one. either_epsilon: or under
        that of the others, in files without the first.
    pre_norms, post_norms: whether what goes into a branch, or what comes out of it, is normalised; "after_first": but
        for what goes into the first layer's mixer. post_epsilon: of norms after branches; None: metadata's.
    ffn_norm: name of the tensor that normalises the input of the feed-forward part; None: that of attention does.
    qk_norm: queries and keys are normalised: "head" by head, "some" models' likewise, "whole" projections, or with a
        weight for "each_head", or "plain": each head without one. qk_norm_last: after the rotation.
    parallel: both branches start from the same stream: always, if metadata's key says so, or if there is no ffn_norm.
    biased: parts whose bias belongs to the model; others may have one.
    activation, gated: of the feed-forward part; "swiglu_oai" is one of a gate (see `kernels.activations`).
    embedding_norm: embeddings are normalised; "plain": by the root of their mean square, without weights.
    output_norm: name of the last norm.
    positions: learned ones are added. alibi: scores fall with distance.
    sinks: each query head has a score without a value; "some": in layers of which the file has them.
    gate: what comes out of attention is multiplied by this function of a projection of what went in, value by value or
        head by head (see `gated_attention.py`).
    embedding_scale: "sqrt": embeddings are multiplied by the root of their width.
    attention_scale: what scores are multiplied by, where it isn't 1 / sqrt(head_dim) or metadata's.
    logit_scale: metadata's logit_scale "multiplies" logits or "divides" them.
    causal: a position sees none after its own. recurrent: some layers have no attention. may_skip: or nothing in its
        place, or no feed-forward part. by_index: what a layer computes depends on its index and the number of layers.
    keys: further keys of metadata that the architecture computes with (see spec.NEUTRAL).
    """

    rope: Literal["interleaved", "neox", "none"] = "interleaved"
    rotates: LayerRule | Literal["windows", "windows_and_dense"] = every_layer
    window: int = 0
    chunked: bool = False
    windows: LayerRule = every_layer
    whole_first: bool = False
    window_base: float | None = None
    norm: Literal["rms", "rms_plain", "layer", "layer_unbiased", "layer_plain"] = "rms"
    rms_epsilon: bool | None = None
    either_epsilon: bool = False
    pre_norms: bool | Literal["after_first"] = True
    post_norms: bool = False
    post_epsilon: float | None = None
    ffn_norm: str | None = "ffn_norm"
    qk_norm: Literal["none", "head", "some", "whole", "each_head", "plain"] = "none"
    qk_norm_last: bool = False
    parallel: Literal["no", "yes", "key", "without_ffn_norm"] = "no"
    biased: tuple[Part, ...] = ()
    activation: Activation = "silu"
    gated: bool = True
    embedding_norm: bool | Literal["plain"] = False
    output_norm: str = "output_norm"
    positions: bool = False
    alibi: bool = False
    sinks: bool | Literal["some"] = False
    gate: Literal["none", "sigmoid", "softplus"] = "none"
    embedding_scale: Literal["none", "sqrt"] = "none"
    attention_scale: Callable[[Any], float] | None = None  # of a ModelSpec
    logit_scale: Literal["none", "multiplies", "divides"] = "none"
    causal: bool = True
    recurrent: bool = False
    may_skip: bool = False
    by_index: bool = False
    keys: frozenset[str] = frozenset()
