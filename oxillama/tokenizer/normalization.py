"""Normalisation of text for sentencepiece's vocabularies, and their user-defined symbols in it."""

import numpy as np
from numpy.typing import NDArray

from oxillama.tokenizer._normalizing import TextNormalizer
from oxillama.tokenizer._unigram import UnigramTrie
from oxillama.tokenizer.charsmap import Charsmap, read_charsmap
from oxillama.tokenizer.marks import ADDED, MARK
from oxillama.tokenizer.vocab import Vocab

__all__ = ["charsmap_of", "has_rules", "normalizer_of", "symbol_scores", "symbols_in_marks"]

# Of a user-defined symbol's score in sentencepiece 0.2.3: for each byte, if no piece has a higher one, and for all.
_BYTE_SCORE, _SYMBOL_SCORE = np.float32(0.1), -0.1


def charsmap_of(vocab: Vocab) -> Charsmap | None:
    """The rules of a vocabulary's character map. TokenizerError for a damaged one."""
    return read_charsmap(vocab.charsmap) if vocab.charsmap else None


def has_rules(vocab: Vocab) -> bool:
    """Whether normalisation is more than marks for spaces."""
    return bool(vocab.charsmap) or vocab.remove_extra_whitespaces


def normalizer_of(vocab: Vocab) -> TextNormalizer:
    """The normaliser of a vocabulary, which leaves its user-defined symbols alone.

    Raises TokenizerError for a damaged character map.
    """
    charsmap, symbols = charsmap_of(vocab), None
    if vocab.symbols:
        usable = np.zeros(len(vocab.tokens), np.uint8)
        usable[list(vocab.symbols)] = 1
        symbols = UnigramTrie(vocab.tokens, usable, np.zeros(len(usable)), unk=0, unknown=0.0)
    merges = vocab.remove_extra_whitespaces
    if charsmap is None:
        return TextNormalizer(symbols=symbols, merges_spaces=merges)
    return TextNormalizer(charsmap.units, charsmap.replacements, symbols=symbols, merges_spaces=merges)


def symbol_scores(vocab: Vocab, scores: NDArray[np.float64], normal: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The scores of the user-defined symbols, in the order of their ids: no other pieces of their texts have more."""
    ids = sorted(vocab.symbols)
    sizes = np.diff(vocab.tokens.starts)[ids].astype(np.float32)
    highest = np.float32(scores[normal].max(initial=_BYTE_SCORE))
    return ((sizes * highest).astype(np.float64) + _SYMBOL_SCORE).astype(np.float32).astype(np.float64)


def symbols_in_marks(vocab: Vocab) -> dict[str, int]:
    """The user-defined symbols by what they are in normalised text.

    Converters put spaces for the marks in the texts of added tokens. A space in another one's is found in no text.
    """
    return {
        vocab.tokens[i].replace(" ", MARK)
        if vocab.scores is not None and vocab.scores[i] == ADDED
        else vocab.tokens[i]: i
        for i in vocab.symbols
    }
