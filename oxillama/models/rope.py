"""Rotary frequencies and their scalings, from metadata.

Sources: linear interpolation, Chen et al. 2023; YaRN, Peng et al. 2023; Llama-3 and LongRoPE come as factors per
frequency in tensors of the file (LongRoPE: Ding et al. 2024).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oxillama.errors import LoadError, UnsupportedModelError
from oxillama.gguf import Metadata

SCALINGS = ("none", "linear", "yarn", "longrope")


@dataclass(frozen=True)
class RopeSpec:
    """Which part of a head is rotated, how fast, and how positions beyond the trained ones are squeezed in."""

    n_rot: int
    base: float
    scaling: str
    factor: float
    original_context: int
    attn_factor: float
    beta_fast: float
    beta_slow: float
    ext_factor: float

    @classmethod
    def read(cls, m: Metadata, arch: str, head_dim: int, context_length: int) -> RopeSpec:
        """From the keys ``<arch>.rope.*``; LoadError names a key whose value can't be."""
        key = f"{arch}.rope."
        n_rot = m.get_int(key + "dimension_count", head_dim, minimum=0, maximum=head_dim)
        if n_rot % 2:
            raise LoadError(f"{key}dimension_count is {n_rot}: rotated dimensions come in pairs")
        # A factor without a type is a linear one, and 0 stands for none, as llama.cpp reads them.
        scaling = m.get_str(key + "scaling.type", "linear")
        if scaling not in SCALINGS:
            raise UnsupportedModelError(f"{key}scaling.type is {scaling!r}; known: {', '.join(SCALINGS)}")
        factor_key = key + "scaling.factor"
        if factor_key not in m:
            factor_key = key + "scale_linear"
        factor = m.get_float(factor_key, 1.0) and m.get_float(factor_key, 1.0, minimum=1e-3, maximum=1e6)
        ext_factor = m.get_float(key + "scaling.yarn_ext_factor", -1.0, minimum=-1.0, maximum=1.0)
        return cls(
            n_rot=n_rot,
            base=m.get_float(key + "freq_base", 10000.0, minimum=1.001, maximum=1e12),
            scaling=scaling,
            factor=factor or 1.0,
            original_context=m.get_int(key + "scaling.original_context_length", context_length, minimum=1),
            attn_factor=m.get_float(key + "scaling.attn_factor", 1.0, minimum=1e-3, maximum=1e3),
            beta_fast=m.get_float(key + "scaling.yarn_beta_fast", 32.0, minimum=1e-3, maximum=1e6),
            beta_slow=m.get_float(key + "scaling.yarn_beta_slow", 1.0, minimum=1e-3, maximum=1e6),
            ext_factor=ext_factor if ext_factor >= 0 else 1.0,
        )

    def frequencies(self, factors: NDArray[np.float32] | None = None) -> NDArray[np.float64]:
        """Radians per token, float64 [n_rot / 2]; ``factors`` divide them one by one (Llama-3, LongRoPE).

        Raises LoadError for factors that are not positive and finite.
        """
        i = np.arange(self.n_rot // 2)
        plain: NDArray[np.float64] = np.power(self.base, -2.0 * i / max(self.n_rot, 1))
        if factors is not None:
            if not (np.isfinite(factors).all() and (factors > 0).all()):
                raise LoadError("the file's rotary factors are not all positive and finite")
            plain = plain / factors.astype(np.float64)
        if self.scaling == "linear":
            return plain / self.factor
        if self.scaling == "yarn":
            keep = self.ext_factor * self._ramp(i)
            return plain / self.factor * (1 - keep) + plain * keep
        return plain

    def _ramp(self, i: NDArray[np.int64]) -> NDArray[np.float64]:
        """1 for frequencies that turn often within the original context (kept), 0 for slow ones (interpolated)."""

        def dimension(turns: float) -> float:
            return self.n_rot * math.log(self.original_context / (turns * 2 * math.pi)) / (2 * math.log(self.base))

        low = max(0.0, math.floor(dimension(self.beta_fast)))
        high = min(self.n_rot - 1.0, math.ceil(dimension(self.beta_slow)))
        return np.asarray(1.0 - np.clip((i - low) / max(0.001, high - low), 0.0, 1.0))

    @property
    def magnitude(self) -> float:
        """What cosines and sines are multiplied by: YaRN's attention temperature, LongRoPE's from metadata."""
        if self.scaling == "yarn" and self.ext_factor != 0:
            return self.attn_factor * (1 + 0.1 * math.log(self.factor))
        return self.attn_factor
