"""A tokenizer for tiny models, and equality of bits."""

import numpy as np

from oxillama.tokenizer import TokenStream
from tests.fakes import FakeTokenizer, assert_idle
from tests.models.tiny import Shape

N_VOCAB = Shape().n_vocab


class Letters(FakeTokenizer):
    """A letter for each token; none ends the text."""

    n_vocab = N_VOCAB
    eog_ids = frozenset()
    mask_id = None

    def token_bytes(self, token):
        return b"%c" % (97 + token % 26)

    def stream(self, *, skip_special=False, shown=()):
        return TokenStream(self.token_bytes)


def same(a, b):
    return np.array_equal(a.view(np.uint32), b.view(np.uint32))


def forwards_and_back(engine, whole, seed):
    """A session's rows are those of its tokens computed whole, wherever it goes back to in between."""
    rng, tokens = np.random.default_rng(seed), []
    for _ in range(12):
        new = rng.integers(0, N_VOCAB, rng.integers(1, 12)).tolist()
        at = int(rng.integers(0, len(tokens) + 1)) if rng.random() < 0.4 else len(tokens)
        tokens = tokens[:at] + new
        row = engine.forward_prefill(new, at)
        assert same(row, whole.forward_logits(tokens)[-1])
        if rng.random() < 0.3:
            tokens = tokens[: int(rng.integers(0, len(tokens) + 1))]
            engine.truncate(len(tokens))
    assert_idle(engine)
