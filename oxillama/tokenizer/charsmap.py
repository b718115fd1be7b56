"""Sentencepiece's compiled table of normalisation rules, checked before any text is looked up in it.

The table is a double-array trie of 32-bit units behind a byte count, then replacements in UTF-8 that end with a zero
each. A unit without bit 31 is a node: its children stand at ``index ^ offset ^ byte``, its replacement (if bit 8 is
set) at ``index ^ offset``. (S. Kanda, "Space- and time-efficient string dictionaries", 2018, describes the structure.)
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oxillama.errors import TokenizerError

__all__ = ["Charsmap", "read_charsmap"]

_KEY = "tokenizer.ggml.precompiled_charsmap"
_IS_NO_NODE, _LEAF, _SHIFTED = 1 << 31, 1 << 8, 1 << 9
# Bytes of a replacement: the longest of Unicode's compositions has 33.
_MOST = 1024


@dataclass(frozen=True, slots=True)
class Charsmap:
    """Rules of normalisation: ``units``, uint32 [n], the trie of what they replace, and the ``replacements``."""

    units: NDArray[np.uint32]
    replacements: bytes

    def keeps(self, chars: str) -> bool:
        """Whether each of some ASCII characters stays as it is where no rule of several characters is about it."""
        for char in chars:
            node = _child(self.units, 0, ord(char))
            if int(self.units[node]) & (_IS_NO_NODE | 0xFF) == ord(char) and int(self.units[node]) & _LEAF:
                return False
        return True

    def joins(self, firsts: str, seconds: str) -> bool:
        """Whether a rule might be about an ASCII character of each, side by side."""
        nodes = np.flatnonzero(np.isin(self.units & (_IS_NO_NODE | 0xFF), [ord(first) for first in firsts]))
        places = _children(self.units, nodes)
        return any(
            bool(np.any(self.units[places ^ ord(second)] & (_IS_NO_NODE | 0xFF) == ord(second))) for second in seconds
        )


def _children(units: NDArray[np.uint32], nodes: NDArray[np.intp]) -> NDArray[np.int64]:
    """The places of nodes' children, but for the byte of each."""
    found = units[nodes].astype(np.int64)
    return nodes ^ ((found >> 10) << ((found & _SHIFTED) >> 6))


def _child(units: NDArray[np.uint32], node: int, byte: int) -> int:
    return int(_children(units, np.array([node], np.intp))[0]) ^ byte


def read_charsmap(data: bytes) -> Charsmap:
    """The rules of a table. TokenizerError for one in which a lookup could leave its arrays."""
    size = int.from_bytes(data[:4], "little")
    if len(data) < 8 or size % 4 or not 4 <= size < len(data) - 4:
        raise TokenizerError(f"{_KEY} is damaged: its header gives {size} bytes of table in {len(data)}")
    units = np.frombuffer(data, "<u4", size // 4, 4).astype(np.uint32)
    replacements = data[4 + size :]
    nodes = np.flatnonzero(units & _IS_NO_NODE == 0)
    targets = _children(units, nodes)
    if nodes.size == 0 or nodes[0] != 0 or int((targets | 255).max()) >= units.size:
        raise TokenizerError(f"{_KEY} is damaged: its table of {units.size} units points outside itself")
    _check_replacements(replacements, units[targets[units[nodes] & _LEAF != 0]] & (_IS_NO_NODE - 1))
    return Charsmap(units, replacements)


def _check_replacements(replacements: bytes, values: NDArray[np.uint32]) -> None:
    """TokenizerError for replacements that are no texts, and for values that aren't places where one begins."""
    try:
        replacements.decode()
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{_KEY} is damaged: its replacements are not UTF-8 ({error.reason})") from None
    texts = np.frombuffer(replacements, np.uint8)
    if not values.size:
        return
    if int(values.max()) >= texts.size or bool(np.any(texts[values] & 0xC0 == 0x80)):
        raise TokenizerError(f"{_KEY} is damaged: it points outside its {texts.size} bytes of replacements")
    ends = np.append(np.flatnonzero(texts == 0), texts.size)
    longest = int((ends[np.searchsorted(ends, values)] - values).max())
    if longest > _MOST:
        raise TokenizerError(f"{_KEY} is damaged: a replacement has {longest} bytes; the limit is {_MOST}")
