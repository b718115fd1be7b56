"""Bytes of each token id."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from oxillama.tokenizer.token_types import BYTE, CONTROL, UNKNOWN, USER_DEFINED

if TYPE_CHECKING:
    from oxillama.tokenizer.vocab import Vocab

__all__ = ["BYTE_TO_CHAR", "from_escapes", "token_bytes_of"]


def _alphabet() -> dict[int, str]:
    """GPT-2's byte alphabet: printable Latin-1 stands for itself, the other 68 bytes for U+0100 onwards, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) if byte in printable else chr(0x100 + others.index(byte)) for byte in range(256)}


BYTE_TO_CHAR = _alphabet()
_CHAR_TO_BYTE = {char: bytes([byte]) for byte, char in BYTE_TO_CHAR.items()}


def _from_alphabet(text: str) -> bytes:
    # A character outside the alphabet can only come from a token that was added as plain text.
    return b"".join(_CHAR_TO_BYTE.get(char) or char.encode() for char in text)


def _from_marked(text: str) -> bytes:
    return text.replace("▁", " ").encode()


def _word_piece(text: str) -> bytes:
    return (" " + text[1:] if text.startswith("▁") and len(text) > 1 else text).encode()


_ESCAPE = re.compile(rb"\\(?:x([0-9A-Fa-f]{2})|(.))", re.DOTALL)
_NAMED = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


def from_escapes(text: str) -> bytes:
    """The bytes that ``\\xff``, ``\\n`` and the like stand for; other characters behind a backslash are themselves."""

    def unescaped(found: re.Match[bytes]) -> bytes:
        return bytes([int(found[1], 16)]) if found[1] else _NAMED.get(found[2], found[2])

    return _ESCAPE.sub(unescaped, text.encode())


def token_bytes_of(vocab: "Vocab") -> Callable[[int], bytes]:
    """A function id -> bytes for a vocabulary, which remembers them. Ids must be in range.

    Special and user-defined tokens stand for their own text, byte tokens for their byte. Where tokens have marks
    for spaces, user-defined ones have them, too.
    """
    known: dict[int, bytes] = {}
    tokens, types = vocab.tokens, vocab.types
    if vocab.model == "bert":
        plain = _word_piece
    elif vocab.model == "rwkv":
        plain = from_escapes
    elif vocab.spaces_escaped:
        plain = _from_marked
    else:
        plain = _from_alphabet

    def spelled(token: int) -> bytes:
        kind = types[token]
        if kind in (UNKNOWN, CONTROL) or (kind == USER_DEFINED and plain is not _from_marked):
            return tokens[token].encode()
        if kind == BYTE:
            return bytes([int(tokens[token][3:5], 16)])
        return plain(tokens[token])

    def token_bytes(token: int) -> bytes:
        found = known.get(token)
        if found is None:
            found = known[token] = spelled(token)
        return found

    return token_bytes
