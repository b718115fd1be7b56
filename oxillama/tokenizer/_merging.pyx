"""Byte-pair encoding of pieces of text: of neighbours, those whose merge has the lowest rank become one token.

Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units", 2016. Of merges of the same rank the
leftmost goes first. Ranks come from a list of merges, or from the scores of what is made, as sentencepiece does
(Kudo and Richardson, 2018): a pair may merge then when its text is a token.
"""

from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcpy

import os

import numpy as np

from oxillama.tokenizer._texts cimport TokenTexts, mixed

cdef enum:
    PREFIX = 8                  # bytes of a length before each text, in files
    LONG = 4096                 # bytes of a piece, for which other threads may go on meanwhile
    TURN = 1 << 16              # ids after which they have a turn


cdef struct Symbol:
    int32_t token, before, after                # neighbours, -1 for none; token -1: part of its neighbour by now
    uint32_t start, end                         # bytes of the piece
    bint closed                                 # spelt in bytes or unknown: merges with nothing by its text


cdef struct Merge:
    uint64_t rank
    int32_t left, made
    uint32_t end                                # of the right symbol, which is another one if it ends elsewhere


cdef class MergeTable:
    """Merges of a file by the ids of their halves.

    ``usable``: uint8 [n_vocab], which of the texts may be halves or wholes. ``payload``, ``offsets``: a GGUF array of
    strings ``"left right"``. open: indices of those that can't be resolved yet, because a half or a whole is not there.
    """

    cdef object _owners
    cdef int32_t *_parts                        # [n, 3]: left, right, whole
    cdef int32_t *_slots
    cdef uint64_t _mask, _seed
    cdef Py_ssize_t _n
    cdef readonly list open

    def __init__(self, TokenTexts texts not None, const uint8_t[::1] usable not None,
                 const uint8_t[::1] payload not None, const int64_t[::1] offsets not None):
        cdef Py_ssize_t i, n = offsets.shape[0] - 1
        cdef Py_ssize_t n_slots = 1
        cdef int64_t longest = 1
        while n_slots < 2 * n:
            n_slots *= 2
        for i in range(n):
            longest = max(longest, offsets[i + 1] - offsets[i])
        parts, slots = np.empty((n, 3), np.int32), np.full(n_slots, -1, np.int32)
        scratch = np.empty(longest, np.uint8)
        cdef int32_t[:, ::1] parts_ = parts
        cdef int32_t[::1] slots_ = slots
        cdef uint8_t[::1] scratch_ = scratch
        self._owners = parts, slots
        self._n, self._mask, self._seed = n, <uint64_t> n_slots - 1, int.from_bytes(os.urandom(8), "little") | 1
        self._slots, self.open = &slots_[0], []
        if n == 0:
            return
        self._parts = &parts_[0, 0]
        for i in range(n):
            if not self._resolve(i, texts, &usable[0], &payload[0] + offsets[i] + PREFIX,
                                 offsets[i + 1] - offsets[i] - PREFIX, &scratch_[0]):
                self.open.append(i)

    cdef bint _resolve(self, Py_ssize_t i, TokenTexts texts, const uint8_t *usable, const uint8_t *text,
                       Py_ssize_t n, uint8_t *whole) noexcept nogil:
        """Finds the ids of a merge and of what it makes. Its halves part at the first space behind the first byte."""
        cdef const uint8_t *space = <const uint8_t *> memchr(text + 1, c' ', n - 1) if n > 1 else NULL
        cdef int32_t *to = self._parts + 3 * i
        cdef Py_ssize_t size
        if space == NULL or space == text + n - 1:
            return False
        size = space - text
        memcpy(whole, text, size)
        memcpy(whole + size, space + 1, n - 1 - size)
        to[0], to[1] = texts.find(text, size), texts.find(space + 1, n - 1 - size)
        to[2] = texts.find(whole, n - 1)
        return to[0] >= 0 and to[1] >= 0 and to[2] >= 0 and usable[to[0]] and usable[to[1]] and usable[to[2]]

    def close(self, resolved):
        """Resolves the open merges, ``(left, right, whole)`` each, and makes the table of all."""
        cdef Py_ssize_t i
        for i, ids in zip(self.open, resolved, strict=True):
            for j in range(3):
                self._parts[3 * i + j] = ids[j]
        self.open = []
        with nogil:
            for i in range(self._n):
                self._slots[self._slot(self._parts[3 * i], self._parts[3 * i + 1])] = <int32_t> i  # the last one counts

    cdef uint64_t _slot(self, int32_t left, int32_t right) noexcept nogil:
        """Slot of a pair, or the free one where it would be."""
        cdef uint64_t slot = mixed((<uint64_t> left << 32 | <uint64_t> right) ^ self._seed, 0x9E3779B97F4A7C15)
        slot &= self._mask
        while self._slots[slot] >= 0 and (
                self._parts[3 * self._slots[slot]] != left or self._parts[3 * self._slots[slot] + 1] != right):
            slot = (slot + 1) & self._mask
        return slot

    cdef bint find(self, int32_t left, int32_t right, Merge *found) noexcept nogil:
        cdef int32_t i = self._slots[self._slot(left, right)]
        if i < 0:
            return False
        found.rank, found.made = <uint64_t> i, self._parts[3 * i + 2]
        return True


def lone_chars(TokenTexts texts not None, const uint8_t[::1] usable not None):
    """Characters, as bytes, that are no usable token but an end of one whose rest is a token or a character, too."""
    cdef Py_ssize_t i
    cdef const uint8_t *text
    cdef size_t n, first, last
    found = set()
    for i in range(len(texts)):
        text, n = texts._bytes + texts._starts[i], texts._starts[i + 1] - texts._starts[i]
        first = 1
        while first < n and text[first] & 0xC0 == 0x80:
            first += 1
        if not usable[i] or first >= n:
            continue
        last = n - 1
        while text[last] & 0xC0 == 0x80:
            last -= 1
        if not _is_usable(texts, usable, text, first) and (
                first == last or _is_usable(texts, usable, text + first, n - first)):
            found.add(text[:first])
        if not _is_usable(texts, usable, text + last, n - last) and (
                first == last or _is_usable(texts, usable, text, last)):
            found.add(text[last:n])
    return found


cdef inline bint _is_usable(TokenTexts texts, const uint8_t[::1] usable, const uint8_t *text, size_t n) noexcept:
    cdef int32_t found = texts.find(text, n)
    return found >= 0 and usable[found]


cdef class Merger:
    """Encoder of pieces of text.

    texts, usable: the vocabulary, and which of it text may turn into (uint8 [n_vocab]).
    merges: the ranks; or order: those of tokens by their scores, int32 [n_vocab], -1 for what no merge makes.
    alphabet: for each byte the text of its token, where pieces are merged byte by byte; else character by character.
    whole: a piece that is a usable token is that token.
    lone: texts of characters that have the ids from n_vocab on, beside the tokens.
    byte_ids: of each byte the id by which characters without a token are spelt, int32 [256], -1 for none.
    unk: the id of what can't be spelt, as many characters as there are in a row; -1: they are left out.
    """

    cdef TokenTexts _texts, _lone
    cdef MergeTable _merges
    cdef const uint8_t[::1] _usable
    cdef const int32_t[::1] _order
    cdef bint _whole, _by_bytes
    cdef int32_t _unk
    cdef int32_t[256] _byte_ids
    cdef int32_t[256] _letters                  # ids of the alphabet
    cdef uint8_t[256][4] _spelling
    cdef uint8_t[256] _spelling_size
    cdef uint32_t _longest

    def __init__(self, TokenTexts texts not None, const uint8_t[::1] usable not None, *, MergeTable merges=None,
                 const int32_t[::1] order=None, alphabet=None, bint whole=False, TokenTexts lone=None,
                 const int32_t[::1] byte_ids=None, int32_t unk=-1):
        cdef int i
        cdef bytes letter
        self._texts, self._usable, self._merges, self._order, self._lone = texts, usable, merges, order, lone
        self._whole, self._unk, self._by_bytes = whole, unk, alphabet is not None
        self._longest = int(np.diff(texts.starts).max(initial=0))
        for i in range(256):
            self._byte_ids[i] = -1 if byte_ids is None else byte_ids[i]
            if self._by_bytes:
                letter = alphabet[i]
                memcpy(self._spelling[i], <const uint8_t *> letter, len(letter))
                self._spelling_size[i] = <uint8_t> len(letter)
                self._letters[i] = self._usable_id(letter, len(letter))

    cdef inline int32_t _usable_id(self, const uint8_t *text, size_t n) noexcept nogil:
        cdef int32_t found = self._texts.find(text, n)
        return found if found >= 0 and self._usable[found] else -1

    def ids(self, list pieces not None):
        """The ids of all pieces, one after the other. MemoryError, OverflowError for a piece of 1 GB."""
        cdef Py_ssize_t n = 0, most = 0, n_symbols, at
        cdef const uint8_t *text
        cdef list out = []
        for piece in pieces:
            PyUnicode_AsUTF8AndSize(piece, &n)
            most = max(most, n)
        if most >= 1 << 30:
            raise OverflowError(f"a piece of {most} bytes")
        cdef uint8_t[::1] memory = np.empty((most + 1) * (sizeof(Symbol) + 3 * sizeof(Merge)), np.uint8)
        cdef Symbol *symbols = <Symbol *> &memory[(most + 1) * 3 * sizeof(Merge)]
        cdef Merge *heap = <Merge *> &memory[0]
        for piece in pieces:
            text = <const uint8_t *> PyUnicode_AsUTF8AndSize(piece, &n)
            if n >= LONG:
                with nogil:
                    n_symbols = self._merged(text, <uint32_t> n, symbols, heap)
            else:
                n_symbols = self._merged(text, <uint32_t> n, symbols, heap)
            for at in range(n_symbols):
                if symbols[at].token >= 0:
                    out.append(symbols[at].token)
                if at & (TURN - 1) == TURN - 1:
                    with nogil:
                        _yield_turn()
        return out

    cdef Py_ssize_t _merged(self, const uint8_t *text, uint32_t n, Symbol *symbols, Merge *heap) noexcept nogil:
        """Merges a piece; the number of symbols, of which those without a token are to be left out."""
        cdef Py_ssize_t n_symbols, n_heap = 0, i, j
        cdef Merge found
        cdef int32_t whole = self._as_whole(text, n, <uint8_t *> heap) if self._whole else -1
        if whole >= 0:
            symbols[0].token = whole
            return 1
        n_symbols = self._letter_by_letter(text, n, symbols) if self._by_bytes else self._by_chars(text, n, symbols)
        for i in range(n_symbols):
            symbols[i].before, symbols[i].after = <int32_t> i - 1, <int32_t> i + 1 if i + 1 < n_symbols else -1
        for i in range(n_symbols - 1):
            n_heap = self._offer(text, symbols, <int32_t> i, heap, n_heap)
        while n_heap:
            found = heap[0]
            n_heap -= 1
            if n_heap:
                _sift_down(heap, n_heap, heap[n_heap])
            i, j = found.left, symbols[found.left].after
            if symbols[i].token < 0 or j < 0 or symbols[j].end != found.end:
                continue                                        # one of the two was merged with another one since
            symbols[i].token, symbols[i].end, symbols[i].after = found.made, found.end, symbols[j].after
            symbols[j].token = -1
            if symbols[i].after >= 0:
                symbols[symbols[i].after].before = <int32_t> i
                n_heap = self._offer(text, symbols, <int32_t> i, heap, n_heap)
            if symbols[i].before >= 0:
                n_heap = self._offer(text, symbols, symbols[i].before, heap, n_heap)
        return n_symbols

    cdef Py_ssize_t _offer(self, const uint8_t *text, Symbol *symbols, int32_t left, Merge *heap,
                           Py_ssize_t n) noexcept nogil:
        """Adds the merge of a symbol and the next one to the heap, if there is one; the size of the heap."""
        cdef Symbol *a = symbols + left
        cdef Symbol *b = symbols + a.after
        cdef Merge found
        found.left, found.end = left, b.end
        if self._merges is not None:
            if not self._merges.find(a.token, b.token, &found):
                return n
        else:
            if a.closed or b.closed or b.end - a.start > self._longest:
                return n
            found.made = self._texts.find(text + a.start, b.end - a.start)
            if found.made < 0 or self._order[found.made] < 0:
                return n
            found.rank = <uint64_t> self._order[found.made]
        _sift_up(heap, n, found)
        return n + 1

    # ---- the symbols that a piece begins with

    cdef int32_t _as_whole(self, const uint8_t *text, uint32_t n, uint8_t *spelt) noexcept nogil:
        """The token that a piece is; `spelt` has room for it in the alphabet."""
        cdef uint32_t i
        cdef size_t size = 0
        for i in range(n):
            memcpy(spelt + size, self._spelling[text[i]], 4)
            size += self._spelling_size[text[i]]
            if size > self._longest:
                return -1
        return self._usable_id(spelt, size)

    cdef Py_ssize_t _letter_by_letter(self, const uint8_t *text, uint32_t n, Symbol *symbols) noexcept nogil:
        cdef Py_ssize_t n_symbols = 0
        cdef uint32_t i
        for i in range(n):
            if self._letters[text[i]] >= 0:
                n_symbols = _add(symbols, n_symbols, self._letters[text[i]], i, i + 1, False)
        return n_symbols

    cdef Py_ssize_t _by_chars(self, const uint8_t *text, uint32_t n, Symbol *symbols) noexcept nogil:
        cdef Py_ssize_t n_symbols = 0
        cdef uint32_t start = 0, end, i
        cdef int32_t token
        cdef bint unknown = False
        while start < n:
            end = start + 1
            while end < n and text[end] & 0xC0 == 0x80:
                end += 1
            token = self._char_id(text + start, end - start)
            if token >= 0:
                n_symbols = _add(symbols, n_symbols, token, start, end, False)
            elif self._can_spell(text + start, end - start):
                for i in range(start, end):
                    n_symbols = _add(symbols, n_symbols, self._byte_ids[text[i]], i, i + 1, True)
            elif self._unk >= 0 and unknown:
                symbols[n_symbols - 1].end = end
            elif self._unk >= 0:
                n_symbols = _add(symbols, n_symbols, self._unk, start, end, True)
            unknown = token < 0 and n_symbols and symbols[n_symbols - 1].token == self._unk
            start = end
        return n_symbols

    cdef inline int32_t _char_id(self, const uint8_t *text, uint32_t n) noexcept nogil:
        cdef int32_t found = self._usable_id(text, n)
        if found < 0 and self._lone is not None:
            found = self._lone.find(text, n)
            if found >= 0:
                found += <int32_t> self._texts._n
        return found

    cdef inline bint _can_spell(self, const uint8_t *text, uint32_t n) noexcept nogil:
        cdef uint32_t i
        for i in range(n):
            if self._byte_ids[text[i]] < 0:
                return False
        return True


cdef bint _yield_turn() noexcept nogil:
    return True


cdef inline Py_ssize_t _add(Symbol *symbols, Py_ssize_t n, int32_t token, uint32_t start, uint32_t end,
                            bint closed) noexcept nogil:
    symbols[n].token, symbols[n].start, symbols[n].end, symbols[n].closed = token, start, end, closed
    return n + 1


cdef inline bint _goes_before(Merge *a, Merge *b) noexcept nogil:
    return a.rank < b.rank or (a.rank == b.rank and a.left < b.left)


cdef inline void _sift_up(Merge *heap, Py_ssize_t i, Merge moved) noexcept nogil:
    """Puts an item into a heap of i others."""
    cdef Py_ssize_t parent
    while i > 0:
        parent = (i - 1) // 2
        if not _goes_before(&moved, heap + parent):
            break
        heap[i] = heap[parent]
        i = parent
    heap[i] = moved


cdef inline void _sift_down(Merge *heap, Py_ssize_t n, Merge moved) noexcept nogil:
    """Puts an item in place of the first of a heap of n."""
    cdef Py_ssize_t i = 0, child = 1
    while child < n:
        if child + 1 < n and _goes_before(heap + child + 1, heap + child):
            child += 1
        if not _goes_before(heap + child, &moved):
            break
        heap[i] = heap[child]
        i = child
        child = 2 * i + 1
    heap[i] = moved
