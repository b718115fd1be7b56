"""Masks on logits, against numpy's bits."""

import numpy as np
import pytest

from oxillama.grammar.automata.masks import apply_mask


@pytest.mark.parametrize("n", [0, 1, 3, 31, 32, 33, 64, 100, 1000])
@pytest.mark.parametrize("n_words", [0, 1, 2, 31, 40])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_what_has_no_bit_is_banned_and_the_rest_untouched(n, n_words, share):
    draw = np.random.default_rng(n + n_words)
    kept = draw.random(32 * n_words) < share
    mask = np.packbits(kept, bitorder="little").view(np.uint32)
    logits = draw.normal(size=n).astype(np.float32)
    logits[::5] = [np.inf, -0.0, np.nan, -np.inf][n % 4]
    before = logits.copy()
    apply_mask(logits, mask)
    kept = np.resize(kept, n) if n <= len(kept) else np.append(kept, np.zeros(n - len(kept), bool))
    assert logits.tobytes() == np.where(kept, before, np.float32(-np.inf)).tobytes()


def test_logits_inside_an_array_have_untouched_neighbours():
    row = np.ones(101, np.float32)
    apply_mask(row[1:100], np.zeros(4, np.uint32))
    assert row[0] == row[100] == 1
    assert np.isneginf(row[1:100]).all()
