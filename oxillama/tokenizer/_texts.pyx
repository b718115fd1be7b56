"""Texts of tokens in one piece of memory, and an index from text to id.

A list of strings and a dict of 128 thousand tokens take 25 MB and 50 ms; this takes a tenth of each.
"""

from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

import os

import numpy as np

cdef extern from *:
    uint64_t text_hash "ox_hash"(const uint8_t *p, size_t n, uint64_t seed) noexcept nogil

cdef enum:
    PREFIX = 8                  # bytes of a length before each text, in files


cdef class TokenTexts:
    """Sequence of n texts, each UTF-8 (which the caller checks), by id.

    ``payload`` and ``offsets``: a GGUF array of strings, as `_scan.string_offsets` describes it; what is needed of it
    is copied. data: all texts, uint8. starts: uint32 [n + 1], where each begins in them. twice: the first two ids that
    have the same text, which isn't empty; or None. OverflowError for 4 GB of texts.
    """

    def __init__(self, const uint8_t[::1] payload not None, const int64_t[::1] offsets not None):
        cdef Py_ssize_t n = offsets.shape[0] - 1
        cdef Py_ssize_t total = offsets[n] - offsets[0] - PREFIX * n
        cdef Py_ssize_t n_slots = 1
        if total >= 1 << 32 or n >= 1 << 30:
            raise OverflowError(f"{n} texts of {total} bytes")
        while n_slots < 2 * n:
            n_slots *= 2
        data, starts, slots = np.empty(total + 1, np.uint8), np.empty(n + 1, np.uint32), np.full(n_slots, -1, np.int32)
        cdef uint8_t[::1] bytes_ = data
        cdef uint32_t[::1] starts_ = starts
        cdef int32_t[::1] slots_ = slots
        self._n, self._mask, self._seed = n, <uint64_t> n_slots - 1, int.from_bytes(os.urandom(8), "little")
        self._bytes, self._starts, self._slots = &bytes_[0], &starts_[0], &slots_[0]
        self._slots_owner = slots
        bytes_[total] = 0
        self.data, self.starts = data[:total], starts
        self.twice = self._fill(&payload[0] if payload.shape[0] else NULL, &offsets[0], &bytes_[0], &starts_[0])

    cdef object _fill(self, const uint8_t *payload, const int64_t *offsets, uint8_t *data, uint32_t *starts):
        """Copies the texts and indexes them; the first two ids of one text, or None."""
        cdef Py_ssize_t i, n = self._n
        cdef size_t size
        cdef uint32_t at = 0
        cdef int32_t first = -1, second = -1, found
        with nogil:
            for i in range(n):
                size = <size_t> (offsets[i + 1] - offsets[i] - PREFIX)
                starts[i] = at
                if size:
                    memcpy(data + at, payload + offsets[i] + PREFIX, size)
                at += <uint32_t> size
            starts[n] = at
            for i in range(n):
                if starts[i] < starts[i + 1]:
                    found = self._add(<int32_t> i)
                    if found >= 0 and first < 0:
                        first, second = found, <int32_t> i
        return None if first < 0 else (first, second)

    cdef int32_t _add(self, int32_t i) noexcept nogil:
        """Indexes a text; the id that has the same one already, or -1."""
        cdef const uint8_t *text = self._bytes + self._starts[i]
        cdef size_t n = self._starts[i + 1] - self._starts[i]
        cdef uint64_t slot = text_hash(text, n, self._seed) & self._mask
        cdef int32_t other
        while self._slots[slot] >= 0:
            other = self._slots[slot]
            if self._starts[other + 1] - self._starts[other] == n and memcmp(
                    self._bytes + self._starts[other], text, n) == 0:
                return other
            slot = (slot + 1) & self._mask
        self._slots[slot] = i
        return -1

    cdef int32_t find(self, const uint8_t *text, size_t n) noexcept nogil:
        """The id of a text, or -1; -1 for an empty one."""
        cdef uint64_t slot
        cdef int32_t i
        if n == 0 or self._n == 0:
            return -1
        slot = text_hash(text, n, self._seed) & self._mask
        while self._slots[slot] >= 0:
            i = self._slots[slot]
            if self._starts[i + 1] - self._starts[i] == n and memcmp(self._bytes + self._starts[i], text, n) == 0:
                return i
            slot = (slot + 1) & self._mask
        return -1

    def id_of(self, object text):
        """The id of a text, or -1; -1 for an empty one, for one that has no UTF-8 form, and for what is no text."""
        cdef Py_ssize_t n = 0
        cdef const char *data
        if not isinstance(text, str):               # subclasses are texts, too, which an argument of type str refuses
            return -1
        try:
            data = PyUnicode_AsUTF8AndSize(text, &n)
        except UnicodeEncodeError:
            return -1
        return self.find(<const uint8_t *> data, <size_t> n)

    def n_chars(self):
        """Characters of each text, int32 [n]."""
        ends = np.cumsum((self.data & 0xC0) != 0x80, dtype=np.int32)
        ends = np.concatenate([np.zeros(1, np.int32), ends])[self.starts]
        return np.diff(ends)

    def __len__(self):
        return self._n

    def __getitem__(self, Py_ssize_t i):
        if i < 0:
            i += self._n
        if not 0 <= i < self._n:
            raise IndexError(f"{i} of {self._n} texts")
        return PyUnicode_DecodeUTF8(
            <const char *> self._bytes + self._starts[i], self._starts[i + 1] - self._starts[i], NULL
        )

    def __iter__(self):
        return map(self.__getitem__, range(self._n))
