"""Byte-pair vocabularies on the ``tokenizers`` library: byte-level (gpt2), raw UTF-8 (gemma4) and by score (llama)."""

import gc
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from oxillama.errors import TokenizerError
from oxillama.tokenizer.pre_tokenizers import PreTokenizer
from oxillama.tokenizer.token_bytes import BYTE_TO_CHAR
from oxillama.tokenizer.token_types import BYTE, CONTROL, UNKNOWN
from oxillama.tokenizer.vocab import Vocab

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer, pre_tokenizers

__all__ = [
    "MARK",
    "Encode",
    "byte_level_encoder",
    "is_library_fault",
    "run",
    "score_merges",
    "splitter",
    "utf8_encoder",
]

Encode = Callable[[str], list[int]]

MARK = "▁"
# Sentencepiece makes pieces of at most 16 characters by default, and of some dozens for runs of spaces.
_MAX_SCORED = 512
# 0xC0, 0xC1 and 0xF5..0xFF never occur in UTF-8.
_UTF8_BYTES = frozenset(range(256)) - {0xC0, 0xC1, *range(0xF5, 0x100)}


@contextmanager
def _no_collector() -> Iterator[None]:
    """Half a million small tuples in a row would start the cyclic collector hundreds of times for nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def is_library_fault(error: BaseException) -> bool:
    """Whether an exception came out of the library: a Rust panic is a BaseException that has no public class."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def run(tokenizer: "Tokenizer", text: str) -> "Encoding":
    """Encode plain text. A fault inside the library (its regex engine giving up, say) becomes a TokenizerError."""
    try:
        return tokenizer.encode(text, add_special_tokens=False)
    except BaseException as error:
        if is_library_fault(error):
            raise TokenizerError(f"the tokenizer failed on a text of {len(text)} characters: {error}") from None
        raise


def _merge_pairs(merges: list[str]) -> list[tuple[str, str]]:
    """``"a b"`` -> ``("a", "b")``; the separator is the first space that is not the first character."""
    pairs: list[Any] = [tuple(merge.split(" ")) for merge in merges]
    if set(map(len, pairs)) - {2}:
        for i, merge in enumerate(merges):
            at = merge.find(" ", 1)
            if at < 0 or at == len(merge) - 1:
                raise TokenizerError(f"tokenizer.ggml.merges[{i}] is {merge!r}, not two tokens with a space between")
            pairs[i] = (merge[:at], merge[at + 1 :])
    elif any(not left or not right for left, right in pairs):
        i = next(i for i, pair in enumerate(pairs) if not all(pair))
        raise TokenizerError(f"tokenizer.ggml.merges[{i}] is {merges[i]!r}, not two tokens with a space between")
    return pairs


def _bpe(ids: dict[str, int], pairs: list[tuple[str, str]], **options: Any) -> "Tokenizer":
    from tokenizers import Tokenizer
    from tokenizers.models import BPE

    try:
        return Tokenizer(BPE(ids, pairs, **options))
    except Exception as error:
        for i, (left, right) in enumerate(pairs):
            for text in (left, right, left + right):
                if text not in ids:
                    merge = f"{left} {right}"
                    raise TokenizerError(
                        f"tokenizer.ggml.merges[{i}] is {merge!r}, but {text!r} is not in tokenizer.ggml.tokens"
                    ) from None
        raise TokenizerError(f"tokenizer.ggml.merges can't be used: {error}") from None


def splitter(cut: PreTokenizer) -> "pre_tokenizers.PreTokenizer":
    """Splitter of text into the pieces that merges work on, spelt in the byte alphabet if ``cut.byte_level``."""
    from tokenizers import Regex, pre_tokenizers

    steps: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in cut.patterns]
    if cut.byte_level:
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(steps)


def _plain_ids(vocab: Vocab) -> dict[str, int]:
    """The tokens that plain text may turn into, by text."""
    ids = dict(vocab.ids)
    for i, kind in enumerate(vocab.types):
        if kind in (BYTE, CONTROL, UNKNOWN):
            ids.pop(vocab.tokens[i], None)
    return ids


def byte_level_encoder(vocab: Vocab, merges: list[str]) -> Encode:
    """Encoder of a ``gpt2`` vocabulary, whose tokens are spelt in GPT-2's byte alphabet.

    A vocabulary that lacks some of the 256 bytes (a few do) refuses text that needs them, instead of dropping it.

    Raises:
        TokenizerError: a merge is malformed or names tokens that are not there.
    """
    whole = vocab.cut.ignore_merges
    with _no_collector():
        pairs = _merge_pairs(merges)
        try:
            # Left in, a control token that reads like a word would be taken for a piece of plain text.
            tokenizer = _bpe(_plain_ids(vocab) if whole else vocab.ids, pairs, ignore_merges=whole)
        except TokenizerError:
            if not whole:
                raise
            tokenizer = _bpe(vocab.ids, pairs, ignore_merges=whole)
    tokenizer.pre_tokenizer = splitter(vocab.cut)
    missing = bytes(byte for byte in sorted(_UTF8_BYTES) if BYTE_TO_CHAR[byte] not in vocab.ids)

    def encode(text: str) -> list[int]:
        if vocab.nfc:
            text = unicodedata.normalize("NFC", text)
        if missing:
            refuse(text, missing)
        return list(run(tokenizer, text).ids)

    return encode


def refuse(text: str, missing: bytes) -> None:
    raw = text.encode()
    if raw.translate(None, missing) != raw:
        at = next(i for i, char in enumerate(text) if set(char.encode()) & set(missing))
        raise TokenizerError(
            f"text holds {text[at]!r} at position {at}, which can't be spelt: its bytes are not in the vocabulary"
        )


def score_merges(ids: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Merges that rebuild a sentencepiece BPE vocabulary: the pair whose whole has the highest score goes first.

    A pair may merge when its whole is a token. Wholes of one score go by id.

    Raises:
        TokenizerError: a token is so long that looking at all its halves would take ages.
    """
    order = sorted((text for text in ids if len(text) > 1), key=lambda text: -scores[ids[text]])
    longest = max(order, key=len, default="")
    if len(longest) > _MAX_SCORED:
        raise TokenizerError(
            f"tokenizer.ggml.tokens[{ids[longest]}] has {len(longest)} characters; the limit is {_MAX_SCORED}"
        )
    return [
        (text[:i], text[i:])
        for text in order
        for i in range(1, len(text))
        if (i == 1 or text[:i] in ids) and (i == len(text) - 1 or text[i:] in ids)
    ]


def utf8_encoder(vocab: Vocab, merges: list[str] | None) -> Encode:
    """Encoder of a vocabulary spelt in UTF-8 with ``▁`` for spaces: ``gemma4`` (given merges) or ``llama`` (scores).

    A character outside the vocabulary becomes its ``<0xXX>`` tokens, or the unknown token where those are missing.
    A literal ``▁`` also becomes bytes, or decoding would turn it into a space.

    Raises:
        TokenizerError: a merge is malformed; or there is neither an unknown token nor a full set of byte tokens.
    """
    unk = vocab.special.unk
    if unk is None and _UTF8_BYTES - vocab.byte_ids.keys():
        raise TokenizerError(
            "the vocabulary has neither all <0xXX> byte tokens nor an unknown token (tokenizer.ggml.unknown_token_id)"
        )
    with _no_collector():
        tokenizer, lone = _utf8_model(vocab, merges)
    spelt = {len(vocab.tokens) + i: _spell(vocab, char) for i, char in enumerate(lone)}
    mark = [vocab.byte_ids[byte] for byte in MARK.encode() if byte in vocab.byte_ids]

    def encode(text: str) -> list[int]:
        if vocab.nfc:
            text = unicodedata.normalize("NFC", text)
        parts = text.split(MARK) if len(mark) == 3 else [text]
        out: list[int] = []
        for i, part in enumerate(parts):
            if i:
                out += mark
            if part:
                out += run(tokenizer, part.replace(" ", MARK)).ids
        if spelt and max(out, default=0) >= len(vocab.tokens):
            return [i for token in out for i in spelt.get(token, (token,))]
        return out

    return encode


def _utf8_model(vocab: Vocab, merges: list[str] | None) -> tuple["Tokenizer", list[str]]:
    """The model behind :func:`utf8_encoder`, and characters that have ids from ``n_vocab`` on in it."""
    unk = vocab.special.unk
    ids = _plain_ids(vocab)
    pairs = _merge_pairs(merges) if merges is not None else score_merges(ids, vocab.scores or [])
    # Single characters that only occur inside tokens need a place in the model; they are spelt out afterwards.
    lone = sorted({part for pair in pairs for part in pair if len(part) == 1 and part not in ids})
    ids.update((char, len(vocab.tokens) + i) for i, char in enumerate(lone))
    ids.update((vocab.tokens[i], i) for i in (*vocab.byte_ids.values(), *([] if unk is None else [unk])))
    unk_token = None if unk is None else vocab.tokens[unk]
    options = {"unk_token": unk_token, "fuse_unk": True, "byte_fallback": bool(vocab.byte_ids)}
    return _bpe(ids, pairs, **options), lone


def _spell(vocab: Vocab, char: str) -> tuple[int, ...]:
    raw = char.encode()
    if all(byte in vocab.byte_ids for byte in raw):
        return tuple(vocab.byte_ids[byte] for byte in raw)
    return () if vocab.special.unk is None else (vocab.special.unk,)
