"""The default chain of samplers out of the twin's stages."""

import math

from tests.sampling import twin


def heat(left, c):
    if c.temperature == 1.0 and not c.dynatemp_range:
        return left
    return twin.dynamic_temperature(left, c.temperature, c.dynatemp_range, c.dynatemp_exponent)


def plain_changes(row, c, history):
    """What a default chain does to logits before anything is cut."""
    left = [(i, float(x)) for i, x in enumerate(row)]
    biases = dict(c.logit_bias or {}) | dict.fromkeys(c.banned_tokens, -math.inf)
    left = twin.bias(left, biases)
    recent = history[-c.repetition_penalty_window :] if c.repetition_penalty_window else []
    counts = {token: recent.count(token) for token in recent}
    left = twin.penalize(left, counts, c.repetition_penalty, c.frequency_penalty, c.presence_penalty)
    if c.dry_multiplier:
        said = history[-(c.dry_window or 0) :]
        breaks = [i for i, token in enumerate(said) if (token,) in c.dry_sequence_breakers]
        limit = len(said) - 1 - breaks[-1] if breaks else len(said)
        lost = twin.dry(said, limit, c.dry_allowed_length, c.dry_multiplier, c.dry_base)
        left = twin.bias(left, {t: -x for t, x in lost.items() if (t,) not in c.dry_sequence_breakers})
    return twin.top_n_sigma(left, c.top_n_sigma) if c.top_n_sigma else left


def plain_cuts(left, c, memory):
    """What the last draw of a chain chooses from."""
    left = twin.top_p(twin.typical_p(twin.top_k(left, c.top_k), c.typical_p), c.top_p)
    left = twin.min_p(left, c.min_p)
    left = twin.top_a(left, c.top_a) if c.top_a else left
    left = twin.eta_cutoff(left, c.eta_cutoff) if c.eta_cutoff else left
    left = twin.min_probability(left, c.epsilon_cutoff)
    if c.xtc_probability:
        memory[0] = twin.xorshift(memory[0])
        if twin.uniform(memory[0]) < c.xtc_probability:
            left = twin.xtc(left, c.xtc_threshold)
    return heat(left, c)
