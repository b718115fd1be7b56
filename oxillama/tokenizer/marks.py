"""Marks of spaces, and user-defined symbols, among the pieces of sentencepiece's models.

Kudo and Richardson, "SentencePiece: A simple and language independent subword tokenizer and detokenizer for Neural Text
Processing", 2018.
"""

import numpy as np
from numpy.typing import NDArray

from oxillama.tokenizer._texts import TokenTexts
from oxillama.tokenizer.token_types import NORMAL, USER_DEFINED

__all__ = ["ADDED", "MARK", "marks_follow", "user_symbols"]

MARK = "▁"
# The score that converters write for tokens that were added to a model, at which text is cut before anything else.
ADDED = -1000.0


def user_symbols(
    model: str, tokens: TokenTexts, types: bytes | bytearray, scores: NDArray[np.float64] | None, prefix: bool
) -> frozenset[int]:
    """Ids of the user-defined symbols that a model was trained with, which text holds as it does other pieces.

    Tokens that were added to a model cut the text, so that each part is one of its own: a mark is put before it. Where
    none is (prefix), the difference is in the spaces of their texts alone.
    """
    if model not in ("llama", "t5") or scores is None:
        return frozenset()
    found = np.flatnonzero(np.frombuffer(types, np.uint8) == USER_DEFINED)
    if prefix or model == "t5":
        found = found[scores[found] != ADDED]
    return frozenset(i for i in found.tolist() if tokens[i])


def marks_follow(model: str, tokens: TokenTexts, types: bytes | bytearray, prefix: bool) -> bool:
    """Whether marks stand behind words (``treat_whitespace_as_suffix``), as the pieces show: files don't say it."""
    if model not in ("llama", "t5") or not prefix:
        return False
    sizes = np.diff(tokens.starts)
    places = np.flatnonzero((np.frombuffer(types, np.uint8) == NORMAL) & (sizes > len(MARK.encode())))
    begins, ends = np.ones(len(places), bool), np.ones(len(places), bool)
    starts, stops = tokens.starts[places], tokens.starts[places + 1]
    for i, byte in enumerate(MARK.encode()):
        begins &= tokens.data[starts + i] == byte
        ends &= tokens.data[stops - 3 + i] == byte
    return bool(np.any(ends & ~begins) and not np.any(begins & ~ends))
