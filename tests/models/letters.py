"""A tokenizer for tiny models, and equality of bits."""

import numpy as np

from oxillama.tokenizer import TokenStream
from tests.fakes import FakeTokenizer
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
