"""Random settings of samplers, for tests of all that must hold for any."""

from dataclasses import replace

from hypothesis import strategies as st

from oxillama.config import SamplerConfig


def sometimes(value, idle):
    """A setting that is mostly idle, so that few of the many are at work together."""
    return st.one_of(st.just(idle), st.just(idle), value)


CONFIGS = st.builds(
    SamplerConfig,
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=sometimes(st.integers(0, 50), 0),
    top_p=sometimes(st.floats(0, 1), 1.0),
    min_p=sometimes(st.floats(0, 1), 0.0),
    typical_p=sometimes(st.floats(0, 1), 1.0),
    top_a=sometimes(st.floats(0, 1), 0.0),
    eta_cutoff=sometimes(st.floats(0, 0.3), 0.0),
    epsilon_cutoff=sometimes(st.floats(0, 0.3), 0.0),
    top_n_sigma=sometimes(st.floats(0, 4), 0.0),
    repetition_penalty=st.sampled_from([1.0, 1.1, 0.9, 3.0]),
    repetition_penalty_window=st.integers(0, 6),
    frequency_penalty=sometimes(st.floats(-2, 2), 0.0),
    presence_penalty=sometimes(st.floats(-2, 2), 0.0),
    dry_multiplier=sometimes(st.floats(0, 5), 0.0),
    dry_base=st.sampled_from([1.0, 1.75, 50.0]),
    dry_allowed_length=st.integers(1, 4),
    dry_window=st.one_of(st.none(), st.integers(1, 9)),
    dry_sequence_breakers=st.lists(st.integers(0, 9).map(lambda t: [t]), max_size=2),
    xtc_probability=sometimes(st.floats(0, 1), 0.0),
    xtc_threshold=st.floats(0, 0.5),
    dynatemp_range=sometimes(st.floats(0, 2), 0.0),
    dynatemp_exponent=st.sampled_from([0.5, 1.0, 3.0]),
    logit_bias=st.one_of(st.none(), st.dictionaries(st.integers(0, 11), st.floats(-5, 5), max_size=3)),
    banned_tokens=sometimes(st.lists(st.integers(0, 10), max_size=4), ()),
    seed=st.integers(1, (1 << 64) - 1),
)
WILDER = st.one_of(
    CONFIGS,
    st.builds(
        replace,
        CONFIGS,
        mirostat=st.sampled_from([1, 2]),
        mirostat_tau=st.floats(0, 6),
        mirostat_eta=st.sampled_from([0.0, 0.1, 1.0]),
    ),
    st.builds(replace, CONFIGS, temperature=st.just(0.0)),
)
PROMPTS = st.lists(st.integers(0, 11), max_size=12)
