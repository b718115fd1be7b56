"""Vocabularies of byte strings (rwkv), of which a text gets the longest that fits, from its beginning to its end.

Peng et al., "RWKV: Reinventing RNNs for the Transformer Era", 2023. Files hold the strings as Python prints bytes.
"""

from typing import TYPE_CHECKING

from oxillama.tokenizer.bpe import Encode, refuse
from oxillama.tokenizer.token_bytes import from_escapes
from oxillama.tokenizer.token_types import NORMAL

if TYPE_CHECKING:
    from oxillama.tokenizer.vocab import Vocab

__all__ = ["byte_piece_encoder"]


def byte_piece_encoder(vocab: "Vocab") -> Encode:
    """Encoder of an ``rwkv`` vocabulary, which raises TokenizerError for bytes that no token begins with."""
    ids: dict[bytes, int] = {}
    for i, (text, kind) in enumerate(zip(vocab.tokens, vocab.types, strict=True)):
        piece = from_escapes(text) if kind == NORMAL else b""
        if piece:
            ids.setdefault(piece, i)
    lengths: dict[int, list[int]] = {}  # of the pieces that begin with a byte, longest first
    for first, n in sorted({(piece[0], len(piece)) for piece in ids}, reverse=True):
        lengths.setdefault(first, []).append(n)

    def encode(text: str) -> list[int]:
        data, out, at = text.encode(), [], 0
        while at < len(data):
            n = next((n for n in lengths.get(data[at], ()) if data[at : at + n] in ids), 0)
            if not n:
                refuse(text, data[at : at + 1])
            out.append(ids[data[at : at + n]])
            at += n
        return out

    return encode
