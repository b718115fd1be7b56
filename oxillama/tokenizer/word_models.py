"""WordPiece (bert) and Unigram (t5) vocabularies on the ``tokenizers`` library."""

import re
from typing import TYPE_CHECKING

from oxillama.errors import TokenizerError
from oxillama.tokenizer.bpe import MARK, Encode, is_library_fault, run
from oxillama.tokenizer.token_types import BYTE, CONTROL, UNKNOWN, USER_DEFINED
from oxillama.tokenizer.vocab import Vocab

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.normalizers import Normalizer

__all__ = ["keeps", "unigram_encoder", "word_piece_encoder"]

# BERT's own limit: a longer word is unknown.
_MAX_WORD = 100
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
    return lambda text: list(run(tokenizer, text).ids)


def unigram_encoder(vocab: Vocab) -> Encode:
    """Encoder of a ``t5`` vocabulary: sentencepiece's normalisation, then the best-scoring segmentation.

    Raises:
        TokenizerError: there is no unknown token, or the precompiled character map is damaged.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import Unigram

    unk = vocab.special.unk
    if unk is None:
        raise TokenizerError("a t5 vocabulary needs an unknown token: set tokenizer.ggml.unknown_token_id")
    # Ids are positions, so a place must be kept for tokens that text can't produce; no plain space reaches the model.
    scored = [(f" {i}", 0.0) for i in range(len(vocab.tokens))]
    scores = [0.0] * len(scored) if vocab.scores is None else vocab.scores.tolist()
    for i, (text, kind) in enumerate(zip(vocab.tokens, vocab.types, strict=True)):
        if text and kind not in (CONTROL, UNKNOWN, BYTE):
            scored[i] = (text, 0.0 if kind == USER_DEFINED else scores[i])
    tokenizer = Tokenizer(Unigram(scored, unk, False))
    normalizer = _charsmap_normalizer(vocab.charsmap)
    fallback = len(vocab.byte_ids) == 256

    def encode(text: str) -> list[int]:
        if normalizer is not None:
            text = normalizer.normalize_str(text)
        if vocab.remove_extra_whitespaces:
            text = re.sub(" {2,}", " ", text.strip(" "))
        if not text:
            return []
        if vocab.add_space_prefix:
            text = " " + text
        return _segment(tokenizer, text.replace(" ", MARK), unk, vocab.byte_ids if fallback else {})

    return encode


def _segment(tokenizer: "Tokenizer", text: str, unk: int, byte_ids: dict[int, int]) -> list[int]:
    """Ids of normalised text; with ``byte_ids``, what is unknown is spelt in bytes."""
    found = run(tokenizer, text)
    if not byte_ids or unk not in found.ids:
        return list(found.ids)
    out: list[int] = []
    for token, (start, end) in zip(found.ids, found.offsets, strict=True):
        out += [byte_ids[byte] for byte in text[start:end].encode()] if token == unk else [token]
    return out


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
    import numpy as np

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
