"""Lower bounds of how many tokens a text has, by which one that is far too long is refused without tokenising it.

Tokenising takes some 200 bytes and a microsecond for each character. A text has at least its length divided by that of
the longest token, which costs nothing to know; a better bound comes from its beginning, tokenised in pieces until
enough tokens are there. A bound is never too high: where a text is cut, the tokens on both sides must be those that the
whole has there (`Measure.cuts`).
"""

import re
import string
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from oxillama.errors import TokenizerError
from oxillama.tokenizer.bpe import Splitter
from oxillama.tokenizer.marks import MARK
from oxillama.tokenizer.normalization import charsmap_of, has_rules
from oxillama.tokenizer.token_types import CONTROL, UNKNOWN
from oxillama.tokenizer.vocab import Vocab
from oxillama.tokenizer.word_models import WORD_END

__all__ = ["Measure", "least_tokens", "measure_of"]

# Characters that are tokenised at a time, at first; twice as many if they have no cut, but not more than the last.
PIECE = 1 << 13
LONGEST_PIECE = 1 << 14
# Cuts of a piece that are tried: only where special tokens stand everywhere, none will do.
MOST_TRIES = 64
# Characters that one composed character (NFC) is made of at most: no canonical decomposition is longer.
COMPOSED = 4
WORD_CHARS = " " + string.ascii_letters + string.digits

Cuts = Callable[[str], Iterable[int]]


@dataclass(frozen=True, slots=True)
class Measure:
    """Measures of a vocabulary's tokens.

    longest: characters of a text that one token stands for at most; 0: any number, as an unknown token does.
    cuts: of some text, places at which it can be cut, in the order of preference.
    dropped: characters behind a cut that are left out, since tokenising puts them before each text.
    slack: tokens more that a text may have for being cut once.
    """

    longest: int
    cuts: Cuts
    dropped: int = 0
    slack: int = 0


def least_tokens(
    text: str, enough: int, measure: Measure, count: Callable[[str, bool], int], specials: Collection[str], spaces: bool
) -> int:
    """A number of tokens that `text` has at least; it is not looked for a higher one than enough + 1.

    count: tokens of a piece of text, (piece, whether it is the first). specials: texts of tokens that are looked for
    before all else. spaces: whether whitespace beside those may have no token.
    """
    n = len(text) if not spaces else len(text) - sum(map(text.count, _whitespace()))
    if (least := _by_length(n, measure)) > enough:
        return least
    n_found = at = 0
    while n_found <= enough and (cut := _next_cut(text, at, measure, specials)):
        n_found += max(0, count(text[at:cut], not at) - (measure.slack if at else 0))
        at = cut + measure.dropped
    return max(least, n_found if spaces else n_found + _by_length(len(text) - at, measure))


def _by_length(n: int, measure: Measure) -> int:
    return -(-n // measure.longest) if measure.longest else 0


def _next_cut(text: str, at: int, measure: Measure, specials: Collection[str]) -> int:
    """The place of the next cut of a text, which continues for a while behind it; 0 if there is none."""
    size = PIECE
    while at + size < len(text) and size <= LONGEST_PIECE:
        window = text[at : at + size]
        tries = (cut for cut in measure.cuts(window) if size // 4 <= cut < size - size // 4)
        for cut, _ in zip(tries, range(MOST_TRIES), strict=False):
            if not _has_special(window, cut, specials):
                return at + cut
        size *= 2
    return 0


def _has_special(window: str, cut: int, specials: Collection[str]) -> bool:
    """Whether a special token stands at a cut or touches it."""
    reach = max(map(len, specials), default=0)
    beside = window[max(0, cut - reach) : cut + reach]
    return any(special in beside for special in specials)


def _whitespace() -> Iterator[str]:
    """Characters that `str.rstrip` and `\\s` take for whitespace."""
    return (char for char in map(chr, range(0x3001)) if char.isspace())


# ---- by kind of vocabulary


def measure_of(vocab: Vocab) -> Measure:
    """Measures of a vocabulary."""
    if vocab.model == "bert":
        return Measure(0, _word_cuts)
    if vocab.model == "t5":
        return _unigram_measure(vocab)
    longest = int(vocab.tokens.n_chars().max(initial=0))
    if vocab.model == "llama" and has_rules(vocab):  # any number of characters may have no token
        return Measure(0, _no_cuts)
    if vocab.model == "rwkv":  # where a text is cut, its pieces may be others
        return Measure(longest, _no_cuts)
    if vocab.nfc:  # composing may reach across a cut
        return Measure(longest * COMPOSED if _spells_all(vocab) else 0, _no_cuts)
    if vocab.model == "llama" or not vocab.cut.byte_level:
        return _marked_measure(vocab, longest)
    return Measure(longest, _byte_level_cuts(vocab))


def _no_cuts(window: str) -> Iterable[int]:
    return ()


def _spells_all(vocab: Vocab) -> bool:
    """Whether no text has unknown tokens, of which one stands for any number of characters in a row."""
    return len(vocab.byte_ids) == 256 or (vocab.model == "gpt2" and vocab.cut.byte_level)


def _byte_level_cuts(vocab: Vocab) -> Cuts:
    """Places where the patterns cut behind a letter. They match a text from left to right, none looks back, and those
    that look ahead are of spaces and digits: so the text on either side of such a place is cut as if it were alone."""
    split = Splitter(vocab.cut)

    def cuts(window: str) -> Iterator[int]:
        try:
            starts = [start for _, (start, _) in split(window)]
        except TokenizerError:
            return iter(())
        return (start for start in reversed(starts) if start and window[start - 1].isalpha())

    return cuts


def _marked_measure(vocab: Vocab, longest: int) -> Measure:
    """Merges reach across a place only to make a token that has the characters on both sides of it in a row."""
    texts = (text.replace(" ", MARK) if i in vocab.symbols else text for i, text in enumerate(vocab.tokens))
    before = {pair[0] for text in texts for pair in re.findall(f"[^{MARK}]{MARK}", text)}

    def cuts(window: str) -> Iterator[int]:
        places = [match.end() for match in re.finditer(rf"[^\s{MARK}](?= )", window)]
        return (place for place in reversed(places) if window[place - 1] not in before)

    known = _spells_all(vocab)
    return Measure(longest if known else 0, _no_cuts if vocab.marks_follow else cuts, slack=0 if known else 1)


def _word_cuts(window: str) -> Iterator[int]:
    """Ends of BERT's words, from the middle of the window on."""
    return (match.start() for match in WORD_END.finditer(window, len(window) // 2))


def _unigram_measure(vocab: Vocab) -> Measure:
    """Between words: if no token has a mark of a word's beginning behind another character, each segmentation of a text
    has a bound there, and so has the best. Unknown characters on both sides are one token."""
    texts = [text for text, kind in zip(vocab.tokens, vocab.types, strict=True) if kind not in (CONTROL, UNKNOWN)]
    if not vocab.add_space_prefix or vocab.marks_follow or any(MARK in text[1:] for text in texts):
        return Measure(0, _no_cuts)
    charsmap, letters = charsmap_of(vocab), WORD_CHARS.strip()
    if charsmap and not (
        charsmap.keeps(WORD_CHARS) and not charsmap.joins(letters, " ") and not charsmap.joins(" ", letters)
    ):
        return Measure(0, _no_cuts)

    def cuts(window: str) -> Iterator[int]:
        return (match.end() for match in reversed(list(re.finditer(r"[A-Za-z0-9](?= [A-Za-z0-9])", window))))

    return Measure(0, cuts, dropped=1, slack=1)
