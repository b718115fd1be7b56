"""Byte-pair vocabularies: byte-level (gpt2), raw UTF-8 (gemma4) and by score (llama).

The ``tokenizers`` library cuts text by its patterns; `Merger` merges the pieces.
"""

import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oxillama._util.lazy import lazy
from oxillama.errors import TokenizerError
from oxillama.tokenizer._merging import Merger, MergeTable, lone_chars
from oxillama.tokenizer._texts import TokenTexts
from oxillama.tokenizer.marks import MARK
from oxillama.tokenizer.normalization import symbols_in_marks
from oxillama.tokenizer.pre_tokenizers import PreTokenizer
from oxillama.tokenizer.special import Partition
from oxillama.tokenizer.token_bytes import BYTE_TO_CHAR
from oxillama.tokenizer.token_types import BYTE, CONTROL, UNKNOWN
from oxillama.tokenizer.vocab import Vocab

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer, pre_tokenizers

    from oxillama.gguf import GGUFArray

__all__ = [
    "Encode",
    "Splitter",
    "byte_level_encoder",
    "check_longest",
    "is_library_fault",
    "run",
    "score_order",
    "usable_tokens",
    "utf8_encoder",
]

Encode = Callable[[str], list[int]]

MERGES = "tokenizer.ggml.merges"
# Characters that are cut into pieces at a time, while no other thread runs; more where they have no place to be cut at.
WINDOW = 1 << 11
WIDEST = 1 << 14
PIECES = 512  # that are merged at a time
PARALLELISM = "TOKENIZERS_PARALLELISM"  # the library's own variable
_LETTER = re.compile(r"[^\W\d_]")
_ASCII = re.compile(r"[\x00-\x7f]")
# Sentencepiece makes pieces of at most 16 characters by default, and of some dozens for runs of spaces.
_MAX_SCORED = 512
# 0xC0, 0xC1 and 0xF5..0xFF never occur in UTF-8.
_UTF8_BYTES = frozenset(range(256)) - {0xC0, 0xC1, *range(0xF5, 0x100)}


def is_library_fault(error: BaseException) -> bool:
    """Whether an exception came out of the library: a Rust panic is a BaseException that has no public class."""
    if isinstance(error, MemoryError):
        return False
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def run(tokenizer: "Tokenizer", text: str) -> "Encoding":
    """Encode plain text. A fault inside the library (its regex engine giving up, say) becomes a TokenizerError.

    Of long texts, the library lets other threads run where it starts none of its own for what it calls a batch.
    """
    try:
        if len(text) > WINDOW and _is_serial():
            return tokenizer.encode_batch([text], add_special_tokens=False)[0]
        return tokenizer.encode(text, add_special_tokens=False)
    except BaseException as error:
        raise _failed(text, error) from None


def _is_serial() -> bool:
    """Whether the library was told to start no threads."""
    return os.environ.get(PARALLELISM, "yes").lower() in ("", "off", "false", "f", "no", "n", "0")


def _failed(text: str, error: BaseException) -> BaseException:
    """The error for a fault inside the library; other exceptions as they are."""
    if is_library_fault(error):
        return TokenizerError(f"the tokenizer failed on a text of {len(text)} characters: {error}")
    return error


class Splitter:
    """Cuts text into the pieces that merges work on: the library's pre-tokenizer, made when a text is cut first."""

    def __init__(self, cut: PreTokenizer) -> None:
        self._patterns = cut.patterns

    @lazy
    def _made(self) -> "pre_tokenizers.PreTokenizer":
        from tokenizers import Regex, pre_tokenizers

        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in self._patterns])

    @lazy
    def _whole(self) -> "Tokenizer":
        """A tokenizer of which each piece is a token."""
        from tokenizers import Tokenizer, models

        found = Tokenizer(models.WordLevel({"": 0}, unk_token=""))
        found.pre_tokenizer = self._made
        return found

    def pieces(self, text: str) -> Iterator[list[str]]:
        """The pieces of a text, many at a time: other threads run between them. Raises TokenizerError."""
        at, size = 0, WINDOW
        while at + size < len(text) and size <= WIDEST:
            window = text[at : at + size]
            # Digits alone, say, have no place to be cut at: they are not cut into pieces to find that.
            found = self(window) if _LETTER.search(window, 0, size - size // 4) else []
            last = last_cut(found, window)
            if not last:
                size *= 2
                continue
            yield [piece for piece, _ in found[:last]]
            at, size = at + found[last][1][0], WINDOW
        rest = text[at:] if at else text
        if len(rest) <= WIDEST or not _is_serial():
            yield [piece for piece, _ in self(rest)]
            return
        made = run(self._whole, rest)
        for first in range(0, len(made), PIECES):
            places = map(made.token_to_chars, range(first, min(first + PIECES, len(made))))
            yield [rest[place[0] : place[1]] for place in places if place is not None]

    def __call__(self, text: str) -> list[tuple[str, tuple[int, int]]]:
        """The pieces, and where they begin and end in the text. TokenizerError for a fault inside the library."""
        try:
            return self._made.pre_tokenize_str(text)
        except BaseException as error:
            raise _failed(text, error) from None


def last_cut(found: list[tuple[str, tuple[int, int]]], window: str) -> int:
    """The last of the pieces of a window before which a longer text can be cut: its pieces up to there, and behind it,
    are those of the two parts. 0 if there is none.

    The patterns match a text from left to right, none looks back, and those that look ahead are of spaces and digits:
    behind a letter, and well before the window's end, they find the same in the whole.
    """
    for i in range(len(found) - 1, 0, -1):
        start = found[i][1][0]
        if start <= len(window) - len(window) // 4 and window[start - 1].isalpha():
            return i
    return 0


def composed(text: str) -> str:
    """The text in NFC, made in parts that begin with a character of ASCII, which is composed with none before it."""
    if len(text) <= WINDOW:
        return unicodedata.normalize("NFC", text)
    parts, at = [], 0
    while (found := _ASCII.search(text, at + WINDOW)) is not None:
        parts.append(unicodedata.normalize("NFC", text[at : found.start()]))
        at = found.start()
    return "".join([*parts, unicodedata.normalize("NFC", text[at:])])


def merged(merger: Merger, pieces: list[str]) -> list[int]:
    """The ids of pieces: other threads run after every few of them."""
    if len(pieces) <= PIECES:
        return merger.ids(pieces)
    return [i for first in range(0, len(pieces), PIECES) for i in merger.ids(pieces[first : first + PIECES])]


def usable_tokens(vocab: Vocab, *more: int) -> NDArray[np.uint8]:
    """Tokens that plain text may turn into, and some more, uint8 [n_vocab]."""
    found = np.ones(len(vocab.tokens), np.uint8)
    found[vocab.of_kinds(BYTE, CONTROL, UNKNOWN)] = 0
    found[list(more)] = 1
    return found


def _merge_parts(merges: "GGUFArray", i: int) -> tuple[str, str]:
    """``"a b"`` -> ``("a", "b")``; the separator is the first space that is not the first character."""
    raw = merges.bytes_at(i)
    try:
        merge = raw.decode()
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{MERGES}[{i}] is not valid UTF-8: {raw[:32]!r} ({error.reason})") from None
    at = merge.find(" ", 1)
    if at < 0 or at == len(merge) - 1:
        raise TokenizerError(f"{MERGES}[{i}] is {merge!r}, not two tokens with a space between")
    return merge[:at], merge[at + 1 :]


def _merge_table(
    vocab: Vocab, usable: NDArray[np.uint8], merges: "GGUFArray", *, keeps_lone: bool
) -> tuple[MergeTable, list[str]]:
    """The table of a file's merges, and characters that it gives the ids from n_vocab on.

    keeps_lone: single characters that only occur in merges have a place there. Raises TokenizerError for a merge that
    is malformed, or names tokens that are not there.
    """
    payload, offsets = merges.string_places()
    table = MergeTable(vocab.tokens, usable, payload, offsets)
    merges.check()
    parts = [_merge_parts(merges, i) for i in table.open]

    def is_token(text: str) -> bool:
        return text in vocab.ids and bool(usable[vocab.ids[text]])

    lone = sorted(
        {part for pair in parts for part in pair if len(part) == 1 and not is_token(part)} if keeps_lone else ()
    )
    beside = {char: len(vocab.tokens) + i for i, char in enumerate(lone)}

    def resolved(i: int, text: str) -> int:
        if is_token(text):
            return vocab.ids[text]
        if text not in beside:
            merge = " ".join(_merge_parts(merges, i))
            raise TokenizerError(f"{MERGES}[{i}] is {merge!r}, but {text!r} is not in tokenizer.ggml.tokens")
        return beside[text]

    ids = [[resolved(i, text) for text in (*pair, "".join(pair))] for i, pair in zip(table.open, parts, strict=True)]
    table.close([(left, right, whole) for left, right, whole in ids])
    return table, lone


def byte_level_encoder(vocab: Vocab, merges: "GGUFArray") -> Encode:
    """Encoder of a ``gpt2`` vocabulary, whose tokens are spelt in GPT-2's byte alphabet.

    A vocabulary that lacks some of the 256 bytes (a few do) refuses text that needs them, instead of dropping it.

    Raises:
        TokenizerError: a merge is malformed or names tokens that are not there.
    """
    whole = vocab.cut.ignore_merges
    everything = np.ones(len(vocab.tokens), np.uint8)
    # Left in, a control token that reads like a word would be taken for a piece of plain text.
    usable = usable_tokens(vocab) if whole else everything
    try:
        table, _ = _merge_table(vocab, usable, merges, keeps_lone=False)
    except TokenizerError:
        if not whole:
            raise
        usable = everything
        table, _ = _merge_table(vocab, usable, merges, keeps_lone=False)
    alphabet = [BYTE_TO_CHAR[byte].encode() for byte in range(256)]
    merger = Merger(vocab.tokens, usable, merges=table, alphabet=alphabet, whole=whole)
    split = Splitter(vocab.cut)
    missing = bytes(byte for byte in sorted(_UTF8_BYTES) if BYTE_TO_CHAR[byte] not in vocab.ids)

    def encode(text: str) -> list[int]:
        if vocab.nfc:
            text = composed(text)
        if missing:
            refuse(text, missing)
        if len(text) <= WINDOW:
            return merger.ids(list(map(itemgetter(0), split(text))))
        return [i for pieces in split.pieces(text) for i in merged(merger, pieces)]

    return encode


def refuse(text: str, missing: bytes) -> None:
    raw = text.encode()
    if raw.translate(None, missing) != raw:
        at = next(i for i, char in enumerate(text) if set(char.encode()) & set(missing))
        raise TokenizerError(
            f"text holds {text[at]!r} at position {at}, which can't be spelt: its bytes are not in the vocabulary"
        )


def check_longest(vocab: Vocab, usable: NDArray[np.bool_], order: NDArray[np.intp] | None = None) -> None:
    """TokenizerError for a scored token of which a text may make so many tries that encoding it would take ages: the
    longest of the usable ones, the first in an order of ids."""
    lengths = np.where(usable, vocab.tokens.n_chars(), 0)
    longest = int(np.argmax(lengths)) if order is None else int(order[np.argmax(lengths[order])])
    if lengths[longest] > _MAX_SCORED:
        raise TokenizerError(
            f"tokenizer.ggml.tokens[{longest}] has {lengths[longest]} characters; the limit is {_MAX_SCORED}"
        )


def score_order(vocab: Vocab, usable: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Ranks of tokens as what merges make, int32 [n_vocab]: the highest score goes first; one score has one rank.

    -1: nothing makes it, since it is a single character or not usable.

    Raises:
        TokenizerError: a token is so long that looking at all that might make it would take ages.
    """
    texts, n_chars = vocab.tokens, vocab.tokens.n_chars()
    made = (n_chars > 1) & (usable != 0)
    scores = np.zeros(len(texts)) if vocab.scores is None else vocab.scores
    by_rank = np.argsort(-scores, kind="stable")
    check_longest(vocab, made, by_rank)
    order = np.zeros(len(texts), np.int32)
    order[by_rank[1:]] = np.cumsum(np.diff(scores[by_rank]) != 0)
    order[~made] = -1
    return order


def utf8_encoder(vocab: Vocab, merges: "GGUFArray | None") -> Encode:
    """Encoder of a vocabulary spelt in UTF-8 with ``▁`` for spaces: ``gemma4`` (given merges) or ``llama`` (scores).

    A character outside the vocabulary becomes its ``<0xXX>`` tokens, or the unknown token where those are missing, one
    for all in a row. A literal ``▁`` is a space, as it is to sentencepiece.

    Raises:
        TokenizerError: a merge is malformed; or there is neither an unknown token nor a full set of byte tokens.
    """
    unk = vocab.special.unk
    if unk is None and _UTF8_BYTES - vocab.byte_ids.keys():
        raise TokenizerError(
            "the vocabulary has neither all <0xXX> byte tokens nor an unknown token (tokenizer.ggml.unknown_token_id)"
        )
    merger, lone = _utf8_merger(vocab, merges)
    spelt = {len(vocab.tokens) + i: _spell(vocab, char) for i, char in enumerate(lone)}
    symbols = Partition(symbols_in_marks(vocab), frozenset(), frozenset())

    def merged(text: str) -> list[int]:
        out = merger.ids([text])
        if spelt and max(out, default=0) >= len(vocab.tokens):
            out = [i for token in out for i in spelt.get(token, (token,))]
            if unk is not None and out.count(unk) > 1:
                out = [token for i, token in enumerate(out) if token != unk or not i or out[i - 1] != unk]
        return out

    def encode(text: str) -> list[int]:
        if vocab.nfc:
            text = composed(text)
        text = text.replace(" ", MARK)
        if not vocab.symbols:
            return merged(text)
        return [i for part in symbols(text) for i in ((part,) if isinstance(part, int) else merged(part))]

    return encode


def _utf8_merger(vocab: Vocab, merges: "GGUFArray | None") -> tuple[Merger, list[str]]:
    """The merger behind :func:`utf8_encoder`, and characters that have ids from ``n_vocab`` on in it."""
    unk, options = vocab.special.unk, dict[str, Any]()
    plain = usable_tokens(vocab)
    usable = usable_tokens(vocab, *vocab.byte_ids.values(), *([] if unk is None else [unk]))
    # Single characters that only occur inside tokens need a place in the model; they are spelt out afterwards.
    if merges is not None:
        options["merges"], lone = _merge_table(vocab, usable, merges, keeps_lone=True)
    else:
        options["order"] = score_order(vocab, plain)
        lone = sorted(char.decode() for char in lone_chars(vocab.tokens, plain))
    options |= {"lone": _texts(lone), "byte_ids": _byte_ids(vocab, usable), "unk": -1 if unk is None else unk}
    return Merger(vocab.tokens, usable, **options), lone


def _byte_ids(vocab: Vocab, usable: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Table from each byte to the id that spells it, int32 [256], -1 for none.

    Where a vocabulary has byte tokens, usable ones that its file gives another type spell characters too.
    """
    found = np.full(256, -1, np.int32)
    for byte in range(256) if vocab.byte_ids else ():
        token = vocab.byte_ids.get(byte, vocab.ids.get(f"<0x{byte:02X}>", -1))
        if token >= 0 and usable[token]:
            found[byte] = token
    return found


def _texts(texts: Iterable[str]) -> TokenTexts:
    raw = [text.encode() for text in texts]
    payload = b"".join(len(text).to_bytes(8, "little") + text for text in raw)
    offsets = np.cumsum([0, *(8 + len(text) for text in raw)], dtype=np.int64)
    return TokenTexts(np.frombuffer(payload, np.uint8), offsets)


def _spell(vocab: Vocab, char: str) -> tuple[int, ...]:
    raw = char.encode()
    if all(byte in vocab.byte_ids for byte in raw):
        return tuple(vocab.byte_ids[byte] for byte in raw)
    return () if vocab.special.unk is None else (vocab.special.unk,)
