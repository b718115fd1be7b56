"""The stages of sampling, each a plain function (candidates, config, state).

A stage edits or cuts the candidates and returns None, or chooses a token and returns it, which ends the chain.
Formulae are those of llama.cpp where both have the stage. The loops are in `kernels/sampling.pyx`.
"""

import math
from collections.abc import Callable

import numpy as np

from oxillama._util.rounded import exp, log, power
from oxillama.config import SamplerConfig
from oxillama.errors import ConfigError, GrammarError
from oxillama.kernels.sampling import Candidates
from oxillama.sampling.dry import dry_penalties
from oxillama.sampling.masks import NAMES
from oxillama.sampling.mirostat import mirostat_v1, mirostat_v2
from oxillama.sampling.state import SamplerState

__all__ = [
    "CHOOSING",
    "STAGES",
    "Stage",
    "default_stages",
    "draw",
    "dry",
    "epsilon_cutoff",
    "eta_cutoff",
    "grammar",
    "greedy",
    "logit_bias",
    "masks",
    "min_p",
    "mirostat_v1",
    "mirostat_v2",
    "penalties",
    "temperature",
    "top_a",
    "top_k",
    "top_n_sigma",
    "top_p",
    "typical_p",
    "xtc",
]

WITH_GRAMMAR = f"the grammar, {NAMES}"  # which together may leave no token

Stage = Callable[[Candidates, SamplerConfig, SamplerState], int | None]


def logit_bias(candidates: Candidates, config: SamplerConfig, state: SamplerState) -> None:
    """Adds `logit_bias` and bans `banned_tokens`."""
    candidates.bias(*state.bias)


def masks(candidates: Candidates, config: SamplerConfig, state: SamplerState) -> None:
    """Bans all but `allowed_token_ids`, what would complete one of the `bad_words`, and ends before `min_tokens`."""
    if state.masks is not None:
        state.masks.apply(candidates, state.history.tokens, state.n_prompt)
    elif config.masking is not None:
        raise ConfigError(f"{config.masking} is set, but this state was made without it: make another Sampler")


def penalties(candidates: Candidates, config: SamplerConfig, state: SamplerState) -> None:
    """Makes the tokens of the window less likely: the repetition penalty (Keskar et al. 2019, CTRL; signs as in
    llama.cpp), then frequency and presence penalties (as OpenAI's API defines them)."""
    candidates.penalize(
        state.history.counts, config.repetition_penalty, config.frequency_penalty, config.presence_penalty
    )


def dry(candidates: Candidates, config: SamplerConfig, state: SamplerState) -> None:
    """Makes tokens less likely that would lengthen a repetition, the longer the less (`dry.py`)."""
    if state.breaks is None:
        return
    found = dry_penalties(state.history.tokens, state.breaks, config)
    known = [token for token in found if token < candidates.n_tokens]
    candidates.bias(np.array(known, np.int32), np.array([-found[token] for token in known], np.float32))


def top_n_sigma(candidates: Candidates, config: SamplerConfig, state: SamplerState) -> None:
    """Keeps logits at most n standard deviations below the highest (Tang et al. 2024, "Top-nσ").

    If the grammar, whose stage follows, allows none of them, the cut is made among the tokens that it allows instead.
    """
    candidates.top_n_sigma(config.top_n_sigma)


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
    candidates.keep(mask, None if state.masks is None else WITH_GRAMMAR)


def greedy(candidates: Candidates, config: SamplerConfig, state: SamplerState) -> int:
    """Chooses the likeliest token, the lowest id among equals."""
    return candidates.argmax()


def top_k(candidates: Candidates, config: SamplerConfig, state: SamplerState) -> None:
    """Keeps the k likeliest tokens."""
    candidates.top_k(config.top_k)


def typical_p(candidates: Candidates, config: SamplerConfig, state: SamplerState) -> None:
    """Keeps the tokens whose surprise is nearest to the entropy, with more than p together (Meister et al. 2022)."""
    candidates.typical_p(config.typical_p)


def top_p(candidates: Candidates, config: SamplerConfig, state: SamplerState) -> None:
    """Keeps the smallest set of likeliest tokens with probability p or more (Holtzman et al. 2019)."""
    candidates.top_p(config.top_p)


def min_p(candidates: Candidates, config: SamplerConfig, state: SamplerState) -> None:
    """Keeps tokens with at least p times the highest probability (Nguyen et al. 2024)."""
    candidates.min_weight(config.min_p)


def top_a(candidates: Candidates, config: SamplerConfig, state: SamplerState) -> None:
    """Keeps tokens with at least a times the square of the highest probability (BlinkDL, RWKV-LM)."""
    total = candidates.total_weight()
    candidates.min_probability(config.top_a / (total * total))


def eta_cutoff(candidates: Candidates, config: SamplerConfig, state: SamplerState) -> None:
    """Keeps tokens with a probability of at least min(eta, sqrt(eta) exp(-entropy)) (Hewitt et al. 2022)."""
    eta = config.eta_cutoff
    candidates.min_probability(min(eta, math.sqrt(eta) * exp(-candidates.entropy())))


def epsilon_cutoff(candidates: Candidates, config: SamplerConfig, state: SamplerState) -> None:
    """Keeps tokens with a probability of at least epsilon (Hewitt et al. 2022)."""
    candidates.min_probability(config.epsilon_cutoff)


def xtc(candidates: Candidates, config: SamplerConfig, state: SamplerState) -> None:
    """Exclude top choices (p-e-w, text-generation-webui #6335): with some chance, of the tokens with a probability of
    `xtc_threshold` or more only the least likely stays. Takes one number from the generator."""
    if state.rng.uniform() < config.xtc_probability:
        candidates.drop_top(config.xtc_threshold)


def temperature(candidates: Candidates, config: SamplerConfig, state: SamplerState) -> None:
    """Divides logits by the temperature: the one of the settings, or with a range, one that follows the entropy."""
    t = config.temperature
    if config.dynatemp_range > 0.0:
        t = _dynamic_temperature(candidates, config)
    if t > 0.0:
        candidates.temperature(t)
    else:
        candidates.top_k(1)


def _dynamic_temperature(candidates: Candidates, config: SamplerConfig) -> float:
    """Temperature from temperature - range to + range, by (entropy / highest possible entropy) ** exponent (kalomaze,
    "Dynamic temperature"). Banned tokens don't count."""
    n = candidates.count()
    if n < 2:
        return config.temperature
    low, high = max(0.0, config.temperature - config.dynatemp_range), config.temperature + config.dynatemp_range
    share = min(1.0, max(0.0, candidates.entropy() / log(n)))
    return low + (high - low) * power(share, config.dynatemp_exponent)


def draw(candidates: Candidates, config: SamplerConfig, state: SamplerState) -> int:
    """Chooses at random by probability; takes one number from the generator."""
    return candidates.draw(state.rng.uniform())


def default_stages(config: SamplerConfig) -> list[Stage]:
    """The stages in their default order, without those that `config` makes idle, up to the first that chooses."""
    c = config
    heats = c.temperature != 1.0 or c.dynatemp_range > 0.0
    penalises = (c.repetition_penalty, c.frequency_penalty, c.presence_penalty) != (1.0, 0.0, 0.0)
    order: tuple[tuple[Stage, bool], ...] = (
        (logit_bias, bool(c.logit_bias or c.banned_tokens)),
        (masks, c.masking is not None),
        (penalties, c.repetition_penalty_window > 0 and penalises),
        (dry, c.dry_multiplier > 0.0),
        (top_n_sigma, c.top_n_sigma > 0.0),
        (grammar, True),  # also where settings say nothing: a text may be held to calls of tools
        (temperature, c.mirostat > 0 and heats),
        (mirostat_v1, c.mirostat == 1),
        (mirostat_v2, c.mirostat == 2),
        (greedy, c.temperature <= 0.0),
        (top_k, c.top_k > 0),
        (typical_p, c.typical_p < 1.0),
        (top_p, c.top_p < 1.0),
        (min_p, c.min_p > 0.0),
        (top_a, c.top_a > 0.0),
        (eta_cutoff, c.eta_cutoff > 0.0),
        (epsilon_cutoff, c.epsilon_cutoff > 0.0),
        (xtc, c.xtc_probability > 0.0),
        (temperature, heats),
        (draw, True),
    )
    stages = []
    for stage, needed in order:
        if needed:
            stages.append(stage)
            if stage in CHOOSING:
                break
    return stages


# They end a chain.
CHOOSING: tuple[Stage, ...] = (mirostat_v1, mirostat_v2, greedy, draw)
STAGES: dict[str, Stage] = {
    stage.__name__: stage
    for stage in (
        *(logit_bias, masks, penalties, dry, top_n_sigma, grammar, temperature, mirostat_v1, mirostat_v2, greedy),
        *(top_k, typical_p, top_p, min_p, top_a, eta_cutoff, epsilon_cutoff, xtc, draw),
    )
}
