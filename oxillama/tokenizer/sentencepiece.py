"""What sentencepiece's models say of text beyond their pieces: its normalisation, symbols and where marks stand.

Kudo and Richardson, "SentencePiece: A simple and language independent subword tokenizer and detokenizer for Neural Text
Processing", 2018.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from oxillama.tokenizer._normalizing import TextNormalizer
from oxillama.tokenizer._texts import TokenTexts
from oxillama.tokenizer._unigram import UnigramTrie
from oxillama.tokenizer.charsmap import Charsmap, read_charsmap
from oxillama.tokenizer.token_types import NORMAL, USER_DEFINED

if TYPE_CHECKING:
    from oxillama.tokenizer.vocab import Vocab

__all__ = [
    "MARK",
    "charsmap_of",
    "has_rules",
    "marks_follow",
    "normalizer_of",
    "symbol_scores",
    "symbols_in_marks",
    "user_symbols",
]

MARK = "▁"
# What converters write for tokens that were added to a model, at which text is cut before anything else.
_ADDED = -1000.0
# Of a user-defined symbol's score in sentencepiece 0.2.3: for each byte, if no piece has a higher one, and for all.
_BYTE_SCORE, _SYMBOL_SCORE = np.float32(0.1), -0.1


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
        found = found[scores[found] != _ADDED]
    return frozenset(i for i in found.tolist() if tokens[i])


def symbols_in_marks(vocab: "Vocab") -> dict[str, int]:
    """The user-defined symbols by what they are in normalised text.

    Converters put spaces for the marks in the texts of added tokens. A space in another one's is found in no text.
    """
    return {
        vocab.tokens[i].replace(" ", MARK)
        if vocab.scores is not None and vocab.scores[i] == _ADDED
        else vocab.tokens[i]: i
        for i in vocab.symbols
    }


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


def charsmap_of(vocab: "Vocab") -> Charsmap | None:
    """The rules of a vocabulary's character map. TokenizerError for a damaged one."""
    return read_charsmap(vocab.charsmap) if vocab.charsmap else None


def has_rules(vocab: "Vocab") -> bool:
    """Whether normalisation is more than marks for spaces."""
    return bool(vocab.charsmap) or vocab.remove_extra_whitespaces


def normalizer_of(vocab: "Vocab") -> TextNormalizer:
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


def symbol_scores(vocab: "Vocab", scores: NDArray[np.float64], normal: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The scores of the user-defined symbols, in the order of their ids: no other pieces of their texts have more."""
    ids = sorted(vocab.symbols)
    sizes = np.diff(vocab.tokens.starts)[ids].astype(np.float32)
    highest = np.float32(scores[normal].max(initial=_BYTE_SCORE))
    return ((sizes * highest).astype(np.float64) + _SYMBOL_SCORE).astype(np.float32).astype(np.float64)
