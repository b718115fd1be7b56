"""Choosing a token among a hundred and fifty thousand."""

from typing import Any

import numpy as np

from oxillama import Sampler, SamplerConfig

N_VOCAB = 151_936
CUT = {"top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}
CONFIGS: dict[str, dict[str, Any]] = {
    "default": {},
    "original": {"repetition_penalty": 1.1},
    "greedy": {"temperature": 0.0, "repetition_penalty": 1.0},
    "penalties": {"temperature": 0.0, "frequency_penalty": 0.5},
    "dry": {"dry_multiplier": 0.8, "dry_sequence_breakers": ()},
    "min_p": CUT | {"min_p": 0.05},
    "top_p": CUT | {"top_p": 0.95},
    "typical_p": CUT | {"typical_p": 0.95},
    "top_n_sigma": CUT | {"top_n_sigma": 1.0},
    "eta_cutoff": CUT | {"eta_cutoff": 0.001},
    "xtc": CUT | {"min_p": 0.02, "xtc_probability": 1.0},
    "mirostat_v2": CUT | {"mirostat": 2},
    "everything": CUT | {"temperature": 1.0},
}


def rows(n: int) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    """Logits like those of models: a bell, and a few tokens far above it."""
    rng = np.random.default_rng(0)
    found = [(rng.standard_normal(N_VOCAB) * 2.5).astype(np.float32) for _ in range(n)]
    for row in found:
        row[rng.integers(0, N_VOCAB, 20)] += 12
    return found


class Choose:
    """One token: the whole chain, and what is remembered of it."""

    params = tuple(CONFIGS)
    param_names = ("config",)

    def setup(self, name: str) -> None:
        self.rows = rows(4)
        self.sampler = Sampler(SamplerConfig(seed=1, **CONFIGS[name]), prompt=range(2000))
        self.n = 0

    def time_sample(self, name: str) -> None:
        self.n += 1
        self.sampler.accept(self.sampler.sample(self.rows[self.n % 4]))
