"""WordPiece (bert) and Unigram (t5) vocabularies.

The ``tokenizers`` library has WordPiece and the normalisers of both; `UnigramTrie` finds the best segmentation.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from oxillama.errors import TokenizerError
from oxillama.tokenizer._unigram import UnigramTrie
from oxillama.tokenizer.bpe import MARK, WINDOW, Encode, check_longest, is_library_fault, run, usable_tokens
from oxillama.tokenizer.token_types import CONTROL, UNKNOWN, USER_DEFINED
from oxillama.tokenizer.vocab import Vocab

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer

__all__ = ["WORD_END", "keeps", "unigram_encoder", "word_piece_encoder"]

# BERT's own limit: a longer word is unknown.
_MAX_WORD = 100
# What ends a word before it: whitespace and punctuation of ASCII, and characters that are words by themselves.
WORD_END = re.compile(r"[ \t\n!-/:-@\[-`{-~\u4e00-\u9fff]")
_LONG_WORD = re.compile(rf"([A-Za-z0-9]{{{2 * _MAX_WORD}}})[A-Za-z0-9]+")  # unknown with, and without, its end
# Of an unknown character below the lowest score, in sentencepiece.
_UNKNOWN_PENALTY = 10.0
_CHARSMAP = "tokenizer.ggml.precompiled_charsmap"


def _piece(text: str, kind: int) -> str:
    """GGUF marks the pieces that begin a word (``▁word``, ``piece``); WordPiece the others (``word``, ``##piece``)."""
    if text.startswith(MARK):
        return text[1:]
    if kind in (CONTROL, UNKNOWN, USER_DEFINED) or (text.startswith("[") and text.endswith("]")):
        return text
    return "##" + text


def word_piece_encoder(vocab: Vocab) -> Encode:
    """Encoder of a ``bert`` vocabulary: BERT's normaliser and word splitter, then the longest match first.

    Raises:
        TokenizerError: there is no unknown token.
    """
    from tokenizers import Tokenizer, normalizers, pre_tokenizers
    from tokenizers.models import WordPiece

    unk = vocab.special.unk
    if unk is None:
        raise TokenizerError("a bert vocabulary needs an unknown token: set tokenizer.ggml.unknown_token_id")
    pieces = {_piece(text, vocab.types[i]): i for i, text in enumerate(vocab.tokens) if text}
    pieces.pop("", None)
    name = vocab.tokens[unk]
    pieces[name] = unk
    tokenizer = Tokenizer(WordPiece(pieces, unk_token=name, max_input_chars_per_word=_MAX_WORD))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=vocab.strip_accents,
        lowercase=vocab.lowercase,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def encode(text: str) -> list[int]:
        if len(text) <= WINDOW:
            return run(tokenizer, text).ids
        return [i for part in _parts(_LONG_WORD.sub(r"\1", text)) for i in run(tokenizer, part).ids]

    return encode


def _parts(text: str) -> Iterator[str]:
    """A text of words in parts that end where words do: other threads run between them."""
    at = 0
    while (found := WORD_END.search(text, at + WINDOW)) is not None:
        yield text[at : found.start()]
        at = found.start()
    yield text[at:]


def unigram_encoder(vocab: Vocab) -> Encode:
    """Encoder of a ``t5`` vocabulary: sentencepiece's normalisation, then the best-scoring segmentation.

    Raises:
        TokenizerError: there is no unknown token, a token is too long, or the precompiled character map is damaged.
    """
    unk = vocab.special.unk
    if unk is None:
        raise TokenizerError("a t5 vocabulary needs an unknown token: set tokenizer.ggml.unknown_token_id")
    trie = _trie(vocab, unk)
    normalizer = _charsmap_normalizer(vocab.charsmap)

    def encode(text: str) -> list[int]:
        if normalizer is not None:
            text = normalizer.normalize_str(text)
        if vocab.remove_extra_whitespaces:
            text = re.sub(" {2,}", " ", text.strip(" "))
        if not text:
            return []
        if vocab.add_space_prefix:
            text = " " + text
        return trie.ids(text.replace(" ", MARK))

    return encode


def _trie(vocab: Vocab, unk: int) -> UnigramTrie:
    """The trie of a vocabulary, with the scores that the ``tokenizers`` library has after sentencepiece's.

    User-defined tokens have 0, and so have those that text can't turn into, of which the lowest score may be. Where
    there are tokens for all bytes, unknown characters are spelt in those.
    """
    usable = usable_tokens(vocab)
    check_longest(vocab, usable != 0)
    scores = np.zeros(len(vocab.tokens)) if vocab.scores is None else vocab.scores.copy()
    scores[(usable == 0) | (np.diff(vocab.tokens.starts) == 0)] = 0.0
    scores[vocab.of_kinds(USER_DEFINED)] = 0.0
    unknown = float(scores.min()) - _UNKNOWN_PENALTY
    byte_ids = np.array([vocab.byte_ids[i] for i in range(256)], np.int32) if len(vocab.byte_ids) == 256 else None
    return UnigramTrie(vocab.tokens, usable, scores, unk=unk, unknown=unknown, byte_ids=byte_ids)


def keeps(vocab: Vocab, chars: str) -> bool:
    """Whether the vocabulary's character map leaves each of some characters as it is."""
    normalizer = _charsmap_normalizer(vocab.charsmap)
    return normalizer is None or all(normalizer.normalize_str(char) == char for char in chars)


def _charsmap_normalizer(charsmap: bytes) -> "Normalizer | None":
    """Sentencepiece's compiled normalisation table; checked before the library sees it."""
    if not charsmap:
        return None
    from tokenizers import normalizers

    _check_charsmap(charsmap)
    try:
        return normalizers.Precompiled(charsmap)
    except BaseException as error:
        if is_library_fault(error):
            raise TokenizerError(f"{_CHARSMAP} is damaged: {error}") from None
        raise


def _check_charsmap(charsmap: bytes) -> None:
    """Refuse a table in which a lookup could leave its arrays: the library does not check, and panics.

    The table is a double-array trie of 32-bit units behind a byte count, then NUL-terminated UTF-8 replacements. A unit
    without bit 31 is a node: its children stand at ``index ^ offset ^ byte``, its replacement (if bit 8 is set) at
    ``index ^ offset``. (S. Kanda, "Space- and time-efficient string dictionaries", 2018, describes the structure.)
    """
    size = int.from_bytes(charsmap[:4], "little")
    if len(charsmap) < 8 or size % 4 or not 4 <= size < len(charsmap) - 4:
        raise TokenizerError(f"{_CHARSMAP} is damaged: its header gives {size} bytes of table in {len(charsmap)}")
    units = np.frombuffer(charsmap, "<u4", size // 4, 4).astype(np.int64)
    replacements = charsmap[4 + size :]
    nodes = np.flatnonzero(units >> 31 == 0)
    offsets = (units[nodes] >> 10) << ((units[nodes] & 512) >> 6)
    targets = nodes ^ offsets
    if nodes.size == 0 or nodes[0] != 0 or int((targets | 255).max()) >= units.size:
        raise TokenizerError(f"{_CHARSMAP} is damaged: its table of {units.size} units points outside itself")
    values = units[targets[units[nodes] & 256 != 0]] & 0x7FFFFFFF
    try:
        replacements.decode()
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{_CHARSMAP} is damaged: its replacements are not UTF-8 ({error.reason})") from None
    starts = np.frombuffer(replacements, np.uint8) & 0xC0 != 0x80
    if values.size and not (int(values.max()) < starts.size and bool(starts[values].all())):
        raise TokenizerError(f"{_CHARSMAP} is damaged: it points outside its {starts.size} bytes of replacements")
