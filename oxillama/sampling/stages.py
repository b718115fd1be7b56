"""The stages of sampling, each a plain function (candidates, config, state).

A stage edits or cuts the candidates and returns None, or chooses a token and returns it, which ends the chain.
Formulae are those of llama.cpp where both have the stage.
"""

from collections.abc import Callable

import numpy as np

from oxillama.config import SamplerConfig
from oxillama.errors import ConfigError, GrammarError
from oxillama.kernels.sampling import Candidates
from oxillama.sampling.state import SamplerState

__all__ = [
    "DEFAULT_ORDER",
    "Stage",
    "draw",
    "grammar",
    "greedy",
    "min_p",
    "repetition_penalty",
    "temperature",
    "top_k",
    "top_p",
]

Stage = Callable[[Candidates, SamplerConfig, SamplerState], int | None]


def repetition_penalty(candidates: Candidates, config: SamplerConfig, state: SamplerState) -> None:
    """Makes the tokens of the window less likely (Keskar et al. 2019, CTRL; signs as in llama.cpp)."""
    candidates.penalize(state.window.counts, config.repetition_penalty)


def grammar(candidates: Candidates, config: SamplerConfig, state: SamplerState) -> None:
    """Bans the tokens that the request's grammar doesn't allow next. Comes before any stage that cuts.

    Raises ConfigError if the settings have one, or a schema, pattern or choices, but there is no state to follow it;
    GrammarError if no token of the vocabulary can go on.
    """
    if state.grammar is None:
        if config.constraint is not None:
            name = config.constraint[0]
            raise ConfigError(
                f"{name} is set, but this Sampler was made without a state of it: give Sampler(grammar=...)"
            )
        return
    mask = np.empty(state.grammar.vocabulary.n_words, np.uint32)
    if not state.grammar.mask(mask):
        raise GrammarError("no token of the vocabulary can go on here: it can't spell what the grammar asks for")
    candidates.keep(mask)


def greedy(candidates: Candidates, config: SamplerConfig, state: SamplerState) -> int:
    """Chooses the likeliest token, the lowest id among equals."""
    return candidates.argmax()


def top_k(candidates: Candidates, config: SamplerConfig, state: SamplerState) -> None:
    """Keeps the k likeliest tokens."""
    candidates.top_k(config.top_k)


def top_p(candidates: Candidates, config: SamplerConfig, state: SamplerState) -> None:
    """Keeps the smallest set of likeliest tokens with probability p or more (Holtzman et al. 2019)."""
    candidates.top_p(config.top_p)


def min_p(candidates: Candidates, config: SamplerConfig, state: SamplerState) -> None:
    """Keeps tokens with at least p times the highest probability (Nguyen et al. 2024)."""
    candidates.min_p(config.min_p)


def temperature(candidates: Candidates, config: SamplerConfig, state: SamplerState) -> None:
    """Divides logits by the temperature."""
    candidates.temperature(config.temperature)


def draw(candidates: Candidates, config: SamplerConfig, state: SamplerState) -> int:
    """Chooses at random by probability; takes one number from the generator."""
    return candidates.draw(state.rng.uniform())


# Each stage with the test that says whether a configuration needs it.
DEFAULT_ORDER: tuple[tuple[Stage, Callable[[SamplerConfig], bool]], ...] = (
    (repetition_penalty, lambda c: c.repetition_penalty != 1.0 and c.repetition_penalty_window > 0),
    (grammar, lambda c: True),  # also where settings say nothing: a text may be held to calls of tools
    (greedy, lambda c: c.temperature <= 0.0),
    (top_k, lambda c: c.top_k > 0),
    (top_p, lambda c: c.top_p < 1.0),
    (min_p, lambda c: c.min_p > 0.0),
    (temperature, lambda c: c.temperature != 1.0),
    (draw, lambda c: True),
)
