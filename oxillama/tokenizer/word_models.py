"""WordPiece (bert) and Unigram (t5) vocabularies.

The ``tokenizers`` library has WordPiece and its normaliser; `UnigramTrie` finds the best segmentation.
"""

import re
from collections.abc import Iterator

import numpy as np

from oxillama.errors import TokenizerError
from oxillama.tokenizer._unigram import UnigramTrie
from oxillama.tokenizer.bpe import WINDOW, Encode, check_longest, run, usable_tokens
from oxillama.tokenizer.marks import MARK
from oxillama.tokenizer.normalization import normalizer_of, symbol_scores
from oxillama.tokenizer.token_types import CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED
from oxillama.tokenizer.vocab import Vocab

__all__ = ["WORD_END", "unigram_encoder", "word_piece_encoder"]

# BERT's own limit: a longer word is unknown.
_MAX_WORD = 100
# What ends a word before it: whitespace and punctuation of ASCII, and characters that are words by themselves.
WORD_END = re.compile(r"[ \t\n!-/:-@\[-`{-~\u4e00-\u9fff]")
_LONG_WORD = re.compile(rf"([A-Za-z0-9]{{{2 * _MAX_WORD}}})[A-Za-z0-9]+")  # unknown with, and without, its end
# Of an unknown character below the lowest score, in sentencepiece.
_UNKNOWN_PENALTY = np.float32(10.0)


def _piece(text: str, kind: int) -> str:
    """GGUF marks the pieces that begin a word (``▁word``, ``piece``); WordPiece the others (``word``, ``##piece``)."""
    if text.startswith(MARK) and len(text) > 1:  # alone it is the piece of that character
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
    trie, normalizer = _trie(vocab, unk), normalizer_of(vocab)
    before = vocab.add_space_prefix and not vocab.marks_follow
    after = vocab.add_space_prefix and vocab.marks_follow
    return lambda text: trie.ids(normalizer.text(text, before=before, after=after))


def _trie(vocab: Vocab, unk: int) -> UnigramTrie:
    """The trie of a vocabulary, with sentencepiece's scores: of unknown characters below the lowest of normal tokens.

    Tokens that were added to a model have 0, as in the ``tokenizers`` library. Unused ones stand for no text. Where
    there are tokens for all bytes, unknown characters are spelt in those.
    """
    usable = usable_tokens(vocab)
    usable[vocab.of_kinds(UNUSED)] = 0
    check_longest(vocab, usable != 0)
    scores = np.zeros(len(vocab.tokens)) if vocab.scores is None else vocab.scores.copy()
    normal = np.isin(np.frombuffer(vocab.types, np.uint8), (0, NORMAL)) & (np.diff(vocab.tokens.starts) > 0)
    unknown = float(np.float32(scores[normal].min(initial=np.inf if normal.any() else 0.0)) - _UNKNOWN_PENALTY)
    scores[vocab.of_kinds(USER_DEFINED)] = 0.0
    scores[sorted(vocab.symbols)] = symbol_scores(vocab, scores, normal)
    byte_ids = np.array([vocab.byte_ids[i] for i in range(256)], np.int32) if len(vocab.byte_ids) == 256 else None
    return UnigramTrie(vocab.tokens, usable, scores, unk=unk, unknown=unknown, byte_ids=byte_ids)
