"""Apertus: Llama with norms of queries and keys, and a feed-forward part without a gate, bent by xIELU.

Swiss AI, "Apertus", 2025; Huang and Schlag, "Deriving Activation Functions Using Integration", 2024. Files say the four
numbers of each layer's activation in keys without the architecture's name.
"""

from __future__ import annotations

from functools import partial

from oxillama._util.rounded import exp, log
from oxillama.errors import UnsupportedModelError
from oxillama.gguf import Metadata
from oxillama.kernels.activations import xielu_
from oxillama.models.decoder import Decoder, Layer
from oxillama.models.layers import FeedForward, Plain
from oxillama.models.registry import Architecture, register
from oxillama.models.spec import ModelSpec, per_layer_float
from oxillama.models.traits import Traits
from oxillama.models.weights import Weights

LARGEST = 1e4  # of the numbers in files, either way


def read_xielu(m: Metadata, n_layers: int, i: int) -> tuple[float, float, float, float]:
    """Parameters of `xielu_` in layer ``i``: files hold the first two before they are made positive."""
    largest = {"alpha_p": LARGEST, "alpha_n": LARGEST, "beta": LARGEST, "eps": 0.0}
    p, n, beta, eps = (
        per_layer_float(m, f"xielu.{name}", n_layers, None, bound, -LARGEST)[i] for name, bound in largest.items()
    )
    return softplus(p), beta + softplus(n), beta, eps


def softplus(x: float) -> float:
    return max(x, 0.0) + log(1.0 + exp(-abs(x)))


class ApertusLayer(Layer):
    def read_ffn(self, spec: ModelSpec, traits: Traits, w: Weights, i: int) -> FeedForward:
        if spec.experts is not None:
            raise UnsupportedModelError(f"{spec.arch}.expert_count must be 0: no Apertus with experts is known")
        ffn = super().read_ffn(spec, traits, w, i)
        assert isinstance(ffn, Plain)  # no layer is without one
        p, q, beta, eps = read_xielu(w.metadata, spec.n_layers, i)
        ffn.activate = partial(xielu_, p=p, q=q, beta=beta, eps=eps)
        return ffn


def build(spec: ModelSpec, traits: Traits, w: Weights, context_size: int) -> Decoder:
    return Decoder(spec, traits, w, context_size, layer=ApertusLayer)


APERTUS = Traits(rope="neox", qk_norm="head", gated=False)

register(Architecture("apertus", "Apertus 8B, 70B", APERTUS, build=build))
