"""Vocabularies of byte strings (rwkv), of which a text gets the longest that fits, from its beginning to its end.

Peng et al., "RWKV: Reinventing RNNs for the Transformer Era", 2023. Files hold the strings as Python prints bytes.
"""

from bisect import bisect_right
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
    pieces = sorted(ids)
    shorter = longest_prefixes(pieces)
    longest = max(map(len, pieces), default=0)

    def encode(text: str) -> list[int]:
        data, out, at = text.encode(), [], 0
        while at < len(data):
            # In this order each beginning of what follows is the last piece before it, or a beginning of that one.
            i = bisect_right(pieces, data[at : at + longest]) - 1
            while i >= 0 and not data.startswith(pieces[i], at):
                i = shorter[i]
            if i < 0:
                refuse(text, data[at : at + 1])
            out.append(ids[pieces[i]])
            at += len(pieces[i])
        return out

    return encode


def longest_prefixes(pieces: list[bytes]) -> list[int]:
    """Index, for each of the sorted pieces, of the longest other one that it begins with; -1 for none."""
    found: list[int] = []
    nested: list[int] = []  # those that the last piece begins with, and itself
    for i, piece in enumerate(pieces):
        while nested and not piece.startswith(pieces[nested[-1]]):
            nested.pop()
        found.append(nested[-1] if nested else -1)
        nested.append(i)
    return found
