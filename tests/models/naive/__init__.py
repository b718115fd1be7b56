"""Every architecture in plain numpy, float64: a second witness, written from the published descriptions alone.

Nothing here is taken from oxillama's forward passes, and nothing is fast: every formula stands as papers write it, over
all tokens at once, without a cache. `logits` of a file is what the project's own logits are held against.
"""

from dataclasses import dataclass

import numpy as np

from . import (
    delta,
    dense,
    encoder,
    gemma3n,
    gemma4,
    hierarchical,
    indexed,
    kda,
    latent,
    lightning,
    llama4,
    recurrent,
    relatives,
    rwkv,
    sparse,
    t5,
)
from .file import File

ENCODERS = encoder.ENCODERS | relatives.ENCODERS | t5.ENCODERS
DECODERS = (
    delta.ARCHS
    | dense.ARCHS
    | indexed.ARCHS
    | hierarchical.ARCHS
    | kda.ARCHS
    | latent.ARCHS
    | lightning.ARCHS
    | llama4.ARCHS
    | recurrent.ARCHS
    | relatives.ARCHS
    | sparse.ARCHS
)
WHOLE = gemma3n.WHOLE | gemma4.WHOLE | rwkv.WHOLE | t5.WHOLE
ARCHITECTURES = sorted(DECODERS | ENCODERS | WHOLE)


@dataclass(frozen=True)
class Options:
    """What a caller wants otherwise than metadata say."""

    context_size: int | None = None  # what the model is loaded for: LongRoPE asks
    window: int | None = None
    n_rot: int | None = None
    factors: np.ndarray | float | None = None  # divide the plain rotary frequencies
    frequencies: np.ndarray | None = None  # radians per token, in place of all that
    magnitude: float | None = None


def logits(path, tokens, *, overrides=None, **options):
    """Scores of every position from an empty context, float64 [tokens, n_vocab]; of an encoder hidden states."""
    file = File(path, overrides)
    if file.arch in ENCODERS:
        return ENCODERS[file.arch](file, tokens)
    if file.arch in WHOLE:
        return WHOLE[file.arch](file, tokens)
    return dense.decode(file, tokens, DECODERS[file.arch], Options(**options))
