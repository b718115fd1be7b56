"""Generation on the fake model as a loop of a few lines, with random prompts and settings for it."""

from hypothesis import strategies as st

from oxillama.config import SamplerConfig
from oxillama.core.results import TokenLogprob
from oxillama.kernels import elementary
from oxillama.sampling import Sampler
from tests.fakes import EOS, N_VOCAB, PIECES, logits_of

PROMPTS = st.lists(st.integers(2, len(PIECES) - 1), min_size=1, max_size=30)
CONFIGS = st.builds(
    SamplerConfig, temperature=st.sampled_from([0.0, 1.0]), repetition_penalty=st.just(1.1), seed=st.integers(0, 99)
)
TOKENS = st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=20)  # with special ones


def plain_log_sum_exp(row):
    """The kernel's arithmetic, one term at a time."""
    peak, sums = max(row), [0.0] * 4
    for i, term in enumerate(elementary.exp([x - peak for x in row]).tolist()):
        sums[i % 4] += term
    return peak + float(elementary.log((sums[0] + sums[1]) + (sums[2] + sums[3])))


def plain_tokens(prompt, config, max_tokens, *, ignore_eos=False):
    """Tokens and finish reason by a loop of five lines: no batches, chunks or blocks."""
    sampler, tokens = Sampler(config, prompt=prompt), []
    while len(tokens) < max_tokens:
        token = sampler.sample(logits_of([*prompt, *tokens]))
        if token == EOS and not ignore_eos:
            return tokens, "stop"
        sampler.accept(token)
        tokens.append(token)
    return tokens, "length"


def text_of(tokens):
    return b"".join(PIECES[t] for t in tokens).decode("utf-8", "replace")


def plain_logprob(tokens, token, k):
    """Log-probability of a token after others, by a loop over the whole row."""
    row = logits_of(tokens).tolist()
    total = plain_log_sum_exp(row)
    made = [TokenLogprob(i, x - total, PIECES[i]) for i, x in enumerate(row)]
    top = sorted(made, key=lambda t: (-t.logprob, t.token_id))[:k]
    return TokenLogprob(token, made[token].logprob, PIECES[token], tuple(top))


def plain_logprobs(tokens, first, k):
    """Log-probabilities of tokens[first:]."""
    return [plain_logprob(tokens[:i], tokens[i], k) for i in range(first, len(tokens))]
