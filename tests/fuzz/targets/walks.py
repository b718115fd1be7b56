"""Texts of a grammar, found by walking along its masks."""

import numpy as np

from oxillama.grammar import Vocabulary

# Bytes, and pieces that bring a JSON text to its end.
PIECES = [bytes([i]) for i in range(256)] + [b'"a"', b'": ', b", ", b"ab", b"}]", b"00", b'"]', b"null", b"true"]
VOCABULARY = Vocabulary([*PIECES, None], [len(PIECES)])
END = len(PIECES)
CLOSING = [ord(c) for c in '"]}0a'] + list(range(256, END))
BITS = np.arange(32, dtype=np.uint32)


def choices(state):
    """Tokens that the mask allows."""
    mask = np.empty(VOCABULARY.n_words, np.uint32)
    n = state.mask(mask)
    found = np.flatnonzero((mask[:, None] >> BITS & 1).reshape(-1)).tolist()
    assert n == len(found)
    return found


def text_of(grammar, draw, most=60):
    """A text of the grammar as bytes, or None where none came to its end in time."""
    state, out = grammar.state(VOCABULARY), b""
    for i in range(most):
        possible = choices(state)
        if possible == [END] or (END in possible and draw.random() < 0.25 + i / most):
            break
        possible = [t for t in possible if t != END]
        if not possible:
            # No text of the vocabulary's tokens leads on: with all bytes in it, there must be an end.
            raise AssertionError(f"a dead end after {out!r}")
        closing = [t for t in possible if t in CLOSING] if draw.random() < (0.3 if i < 20 else 0.8) else []
        token = draw.choice(closing or possible)
        state.advance(token)
        out += PIECES[token]
    if not state.is_complete:
        return None
    assert grammar.accepts(out)
    return out
