"""Best-scoring segmentation of a text into tokens, by Viterbi's algorithm over a trie of the vocabulary.

Kudo, "Subword Regularization: Improving Neural Network Translation Models with Multiple Subword Candidates", 2018. Of
segmentations with the same score the one is taken whose last token begins first. Scores are added as sentencepiece adds
them, a float32 kept for each place of a text: its rounding decides between segmentations of the same tokens in other
orders, which texts like "aaaaaaaa" have many of.

The `tokenizers` library has a hash map in each node: 250 thousand tokens take it 0.4 s of CPU time and 190 MB to build,
and texts four times as long. All edges in one hash map take 0.045 s and 22 MB.
"""

from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

import os

import numpy as np

from oxillama.errors import TokenizerError
from oxillama.tokenizer._texts cimport TokenTexts, mixed

cdef enum:
    LONG = 4096                 # bytes of a text, for which other threads may go on meanwhile
    NODE_BITS = 28


cdef class UnigramTrie:
    """Encoder of normalised text.

    texts, usable: the vocabulary, and which of it text may turn into (uint8 [n_vocab]). scores: float64 [n_vocab].
    unk, unknown: the id of a character that is no token, as many as there are in a row, and its score, a float32.
    byte_ids: of each byte the id by which unknown characters are spelt, int32 [256]; None: they are not.
    TokenizerError for a vocabulary of 256 MB, ValueError for arrays of other lengths.
    """

    def __init__(self, TokenTexts texts not None, const uint8_t[::1] usable not None, const double[::1] scores not None,
                 *, int32_t unk, float unknown, const int32_t[::1] byte_ids=None):
        cdef Py_ssize_t i, n, most = len(texts.data) + 1
        if most > 1 << NODE_BITS:
            raise TokenizerError(f"the vocabulary holds {most - 1} bytes of text; the limit is {(1 << NODE_BITS) - 1}")
        if not len(usable) == len(scores) == texts._n or (byte_ids is not None and len(byte_ids) != 256):
            raise ValueError(f"{texts._n} tokens with {len(usable)} uses and {len(scores)} scores, or not 256 bytes")
        self._texts, self._usable, self._scores, self._byte_ids = texts, usable, scores, byte_ids
        self._unk, self._unknown = unk, unknown
        self._seed = int.from_bytes(os.urandom(8), "little")
        tokens = np.empty(most, np.int32)       # of whose memory the system gives what is written
        cdef int32_t[::1] tokens_ = tokens
        self._tokens_owner, self._tokens, self._n_nodes = tokens, &tokens_[0], 1
        self._tokens[0] = -1
        self._make_slots(1024)
        for i in range(texts._n):
            n = texts._starts[i + 1] - texts._starts[i]
            if n and usable[i]:
                while 2 * (self._n_nodes + n) > <Py_ssize_t> self._mask:
                    self._grow()
                self._add(<int32_t> i, texts._bytes + texts._starts[i], n)

    # ---- the trie

    cdef object _make_slots(self, Py_ssize_t n_slots):
        edges = np.zeros(n_slots, np.uint64)
        cdef uint64_t[::1] edges_ = edges
        self._edges_owner, self._edges, self._mask = edges, &edges_[0], <uint64_t> n_slots - 1

    cdef object _grow(self):
        """Twice as many slots."""
        cdef Py_ssize_t i, n_old = <Py_ssize_t> self._mask + 1
        cdef uint64_t *old = self._edges
        cdef object _owner = self._edges_owner   # while it is read
        self._make_slots(2 * n_old)
        for i in range(n_old):
            if old[i]:
                self._edges[self._slot(old[i] >> NODE_BITS)] = old[i]

    cdef void _add(self, int32_t token, const uint8_t *text, Py_ssize_t n) noexcept nogil:
        cdef Py_ssize_t i
        cdef uint64_t node = 0, key, slot
        for i in range(n):
            key = node << 8 | text[i]
            slot = self._slot(key)
            if not self._edges[slot]:
                self._edges[slot] = key << NODE_BITS | <uint64_t> self._n_nodes
                self._tokens[self._n_nodes] = -1
                self._n_nodes += 1
            node = self._edges[slot] & ((1 << NODE_BITS) - 1)
        self._tokens[node] = token

    cdef inline uint64_t _slot(self, uint64_t key) noexcept nogil:
        """Slot of a node and a byte, or the free one where it would be."""
        cdef uint64_t slot = mixed(key ^ self._seed, 0x9E3779B97F4A7C15) & self._mask
        while self._edges[slot] and self._edges[slot] >> NODE_BITS != key:
            slot = (slot + 1) & self._mask
        return slot

    cdef Py_ssize_t longest(self, const uint8_t *text, Py_ssize_t n) noexcept nogil:
        """Bytes of the longest token that a text begins with; 0 if there is none."""
        cdef Py_ssize_t i, found = 0
        cdef uint64_t node = 0
        for i in range(n):
            node = self._edges[self._slot(node << 8 | text[i])] & ((1 << NODE_BITS) - 1)
            if not node:
                break
            if self._tokens[node] >= 0:
                found = i + 1
        return found

    # ---- texts

    def ids(self, str text not None):
        """The ids of a text's tokens, in 12 bytes of memory for each byte of it.

        MemoryError, TokenizerError for a text of 1 GB, UnicodeEncodeError for half of a surrogate pair.
        """
        cdef Py_ssize_t n = 0
        cdef const uint8_t *data = <const uint8_t *> PyUnicode_AsUTF8AndSize(text, &n)
        if n >= 1 << 30:
            raise TokenizerError(f"a text of {n} bytes; the limit is {(1 << 30) - 1}")
        cdef uint8_t[::1] memory = np.empty((n + 1) * sizeof(End), np.uint8)
        cdef End *ends = <End *> &memory[0]
        if n >= LONG:
            with nogil:
                self._search(data, n, ends)
        else:
            self._search(data, n, ends)
        return self._best(data, n, ends)

    cdef void _search(self, const uint8_t *text, Py_ssize_t n, End *ends) noexcept nogil:
        """Finds the best last token of what is before each character of a text."""
        cdef Py_ssize_t at = 0, after, i
        cdef uint64_t node
        cdef int32_t token
        cdef bint known
        for i in range(n + 1):
            ends[i].token = -1
        ends[0].score = 0
        while at < n:
            after = at + 1
            while after < n and text[after] & 0xC0 == 0x80:
                after += 1
            node, known = 0, False
            for i in range(at, n):
                node = self._edges[self._slot(node << 8 | text[i])] & ((1 << NODE_BITS) - 1)
                if not node:
                    break
                token = self._tokens[node]
                if token >= 0:
                    known = known or i + 1 == after
                    _offer(ends + i + 1, <float> (ends[at].score + self._scores[token]), at, token)
            if not known:
                _offer(ends + after, <float> (ends[at].score + self._unknown), at, self._unk)
            at = after

    cdef list _best(self, const uint8_t *text, Py_ssize_t n, const End *ends):
        """The tokens from the last one to the first, turned around."""
        cdef Py_ssize_t start
        cdef list out = []
        while n:
            start = ends[n].start
            if ends[n].token != self._unk:
                out.append(ends[n].token)
            else:
                while start and ends[start].token == self._unk:
                    start = ends[start].start
                self._add_unknown(out, text + start, n - start)
            n = start
        out.reverse()
        return out

    cdef object _add_unknown(self, list out, const uint8_t *text, Py_ssize_t n):
        """Unknown characters in a row; as in the library, the token of their text, if the unknown one has texts."""
        cdef int32_t found = self._texts.find(text, n)
        cdef Py_ssize_t i
        if found < 0 or not self._usable[found]:
            found = self._unk
        if found != self._unk or self._byte_ids is None:
            out.append(found)
        else:
            for i in range(n - 1, -1, -1):
                out.append(self._byte_ids[text[i]])


cdef inline void _offer(End *end, float score, Py_ssize_t start, int32_t token) noexcept nogil:
    if end.token < 0 or score > end.score:
        end.score, end.start, end.token = score, <uint32_t> start, token
