"""Rotary frequencies and their scalings, from metadata.

Sources: linear interpolation, Chen et al. 2023; YaRN and dynamic scaling of the base ("NTK-aware"), Peng et al. 2023;
Llama-3 and LongRoPE come as factors per frequency in tensors of the file (LongRoPE: Ding et al. 2024).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from oxillama._util.rounded import log, power
from oxillama.config import ROPE_SCALINGS
from oxillama.errors import LoadError, UnsupportedModelError
from oxillama.gguf import Metadata

# Files of these architectures hold a tenth of the multiplier, for readers that once left the 0.1 of YaRN's formula out.
TENTHS = ("deepseek2", "deepseek32", "glm-dsa", "mistral4")
# YaRN's ramp runs between whole dimensions, but in these, by their configuration (``truncate``) which no key holds.
UNROUNDED = ("gpt-oss",)


@dataclass(frozen=True)
class RopeSpec:
    """Settings of rotary embedding: which part of a head is rotated, how fast, and how positions beyond the trained
    ones are squeezed in."""

    n_rot: int
    base: float
    scaling: str
    factor: float
    original_context: int
    attn_factor: float
    beta_fast: float
    beta_slow: float
    ext_factor: float
    log_multiplier: float = 0.0
    scores_stretched: bool = False  # see `attention_factor`
    rounded_ramp: bool = True
    yarn_magnitude: float = 0.0  # 0: by the formula
    n_rot_windows: int = -1  # of layers with a window, where these have frequencies of their own; -1: n_rot

    @classmethod
    def read(cls, m: Metadata, arch: str, head_dim: int, context_length: int) -> RopeSpec:
        """Reads the keys ``<arch>.rope.*``; LoadError names a key with an impossible value."""
        key = f"{arch}.rope."
        n_rot = m.get_int(key + "dimension_count", head_dim, minimum=0, maximum=head_dim)
        if n_rot % 2:
            named = (key + "dimension_count", f"{arch}.attention.key_length")
            source = next((name for name in named if name in m), f"{arch}.embedding_length over attention.head_count")
            raise LoadError(f"{source} is {n_rot}: rotated dimensions come in pairs")
        n_rot_windows = m.get_int(key + "dimension_count_swa", n_rot, minimum=0, maximum=head_dim)
        if n_rot_windows % 2:
            raise LoadError(f"{key}dimension_count_swa is {n_rot_windows}: rotated dimensions come in pairs")
        # A factor without a type is a linear one, and 0 stands for none, as llama.cpp reads them.
        scaling = m.get_str(key + "scaling.type", "linear")
        if scaling not in ROPE_SCALINGS:
            raise UnsupportedModelError(f"{key}scaling.type is {scaling!r}; known: {', '.join(ROPE_SCALINGS)}")
        if scaling == "dynamic" and n_rot <= 2:
            raise LoadError(f"{key}dimension_count is {n_rot}, but {key}scaling.type dynamic needs more than 2")
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
            log_multiplier=m.get_float(key + "scaling.yarn_log_multiplier", 0.0, minimum=0.0, maximum=1e3)
            * (10.0 if arch in TENTHS else 1.0),
            scores_stretched=arch in TENTHS,
            rounded_ramp=arch not in UNROUNDED,
            yarn_magnitude=m.get_float(key + "scaling.yarn_attn_factor", 0.0, minimum=0.0, maximum=1e3),
            n_rot_windows=n_rot_windows,
        )

    def of_windows(self, m: Metadata, arch: str, base: float) -> RopeSpec:
        """Settings of layers with a window in models where these have frequencies of their own, without scaling (Gemma
        3).

        ``base`` stands for ``<arch>.rope.freq_base_swa`` where the file has none.
        """
        base = m.get_float(f"{arch}.rope.freq_base_swa", base, minimum=1.001, maximum=1e12)
        n_rot = self.n_rot if self.n_rot_windows < 0 else self.n_rot_windows
        return replace(self, n_rot=n_rot, base=base, scaling="none", factor=1.0, attn_factor=1.0)

    @property
    def reach(self) -> int:
        """Tokens that positions beyond the original context are squeezed from; 0 without a factor that says so."""
        return int(self.original_context * self.factor) if self.scaling in ("linear", "yarn", "dynamic") else 0

    def frequencies(self, factors: NDArray[np.float32] | None = None, context_size: int = 0) -> NDArray[np.float64]:
        """Radians per token, float64 [n_rot / 2]; ``factors`` divide them one by one (Llama-3, LongRoPE).

        Dynamic scaling stretches them to the configured ``context_size``, once, and not to the length that a sequence
        has reached: logits then don't depend on how much of a prompt was computed at a time, and keys that were rotated
        earlier stay right. Raises LoadError for factors that are not positive and finite.
        """
        i = np.arange(self.n_rot // 2)
        base = self._base_for(context_size)
        plain = np.array([power(base, -2.0 * n / self.n_rot) for n in range(self.n_rot // 2)])
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

    def _base_for(self, context_size: int) -> float:
        """Grown so that the slowest frequency is stretched by ``factor`` of what exceeds the original context."""
        if self.scaling != "dynamic":
            return self.base
        longer = max(context_size / self.original_context, 1.0)
        return self.base * power(self.factor * longer - (self.factor - 1), self.n_rot / (self.n_rot - 2))

    def _ramp(self, i: NDArray[np.int64]) -> NDArray[np.float64]:
        """1 for frequencies that turn often within the original context (kept), 0 for slow ones (interpolated)."""

        def dimension(turns: float) -> float:
            return self.n_rot * log(self.original_context / (turns * 2 * math.pi)) / (2 * log(self.base))

        low, high = dimension(self.beta_fast), dimension(self.beta_slow)
        if self.rounded_ramp:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(0.0, low), min(self.n_rot - 1.0, high)
        return np.asarray(1.0 - np.clip((i - low) / max(0.001, high - low), 0.0, 1.0))

    @property
    def magnitude(self) -> float:
        """Factor of cosines and sines: YaRN's attention temperature, LongRoPE's from metadata.

        A file's ``yarn_attn_factor`` is its model's own ``attention_factor`` and stands in place of the formula.

        Where a file gives a multiplier of YaRN's logarithm, the temperature is relative to that of the multiplier; it
        is exactly one in DeepSeek's models, which put all of it into `attention_factor`.
        """
        if self.scaling != "yarn" or self.ext_factor == 0 or (self.scores_stretched and self.log_multiplier):
            return self.attn_factor
        if self.yarn_magnitude:
            return self.attn_factor * self.yarn_magnitude
        return self.attn_factor * self._temperature(1.0) / self._temperature(self.log_multiplier)

    @property
    def attention_factor(self) -> float:
        """Factor of scores beside 1 / sqrt(head size): DeepSeek-V2, 2024 (``yarn_log_multiplier``)."""
        if self.scaling != "yarn" or not self.scores_stretched or not self.log_multiplier:
            return 1.0
        return (self.attn_factor * self._temperature(self.log_multiplier)) ** 2

    def _temperature(self, multiplier: float) -> float:
        return 1 + 0.1 * multiplier * log(max(self.factor, 1.0))
