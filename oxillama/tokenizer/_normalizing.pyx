"""Normalisation of text as sentencepiece does it: by the rules of a character map, and with marks for spaces.

At each place of a text, a user-defined symbol stands for itself, or else the longest rule that fits replaces what it
is about, or else a character stays. A rule may be about several characters: jamo that make a syllable, a letter and
its marks. The table of rules is a double-array trie of bytes (Kanda, "Space- and time-efficient string dictionaries",
2018).
"""

from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy, strlen

from oxillama.errors import TokenizerError
from oxillama.kernels._memory cimport freed, resized
from oxillama.tokenizer._unigram cimport UnigramTrie

cdef enum:
    LONG = 4096                 # bytes of a text, for which other threads may go on meanwhile
    DEEPEST = 256               # bytes of a text that a rule may be about: a damaged table may have no end
    MARK_SIZE = 3
    LEAF = 1 << 8               # of a unit of the table: a rule ends here
    VALUE = 0x7FFFFFFF          # of a unit behind a leaf: where the rule's replacement begins
    SHIFTED = 1 << 9            # of a unit: its offset counts in 256

cdef const char *MARK = "\xe2\x96\x81"          # U+2581
cdef const char *REPLACEMENT = "\xef\xbf\xbd"   # U+FFFD


cdef struct Part:               # of a text
    const uint8_t *text         # what it becomes
    Py_ssize_t n
    Py_ssize_t taken            # bytes of it


cdef struct Output:
    uint8_t *data
    Py_ssize_t n, room
    bint failed


cdef class TextNormalizer:
    """Normaliser of text before it is cut into tokens.

    units, replacements: the table of rules, uint32 [n], and its texts, of which each ends with a zero; checked ones
    (`charsmap.read_charsmap`). None, and nothing: there are no rules. symbols: a trie of texts that no rule changes.
    merges_spaces: spaces in a row become one, and none stays at the ends.
    """

    cdef const uint32_t[::1] _units
    cdef bytes _texts
    cdef const uint8_t *_replacements
    cdef UnigramTrie _symbols
    cdef bint _merges
    cdef bint[256] _begins                      # of a byte: a rule or a symbol may begin with it

    def __init__(self, const uint32_t[::1] units=None, bytes replacements not None=b"", *, UnigramTrie symbols=None,
                 bint merges_spaces=False):
        cdef int byte
        cdef uint8_t text
        self._units, self._texts, self._symbols, self._merges = units, replacements, symbols, merges_spaces
        self._replacements = <const uint8_t *> self._texts
        for byte in range(256):
            text = <uint8_t> byte
            self._begins[byte] = symbols is not None or (
                units is not None and _is_node(units[_child(units[0], 0, text)], text))

    def text(self, str text not None, *, bint before=False, bint after=False):
        """A text with marks for spaces. before, after: one more at that end of a text that isn't empty.

        MemoryError, TokenizerError for a text of 1 GB or one that becomes as long.
        """
        cdef Py_ssize_t n = 0
        cdef const uint8_t *data = <const uint8_t *> PyUnicode_AsUTF8AndSize(text, &n)
        cdef Output out = Output(NULL, 0, 0, False)
        if n >= 1 << 30:
            raise TokenizerError(f"a text of {n} bytes; the limit is {(1 << 30) - 1}")
        try:
            if n >= LONG:
                with nogil:
                    self._normalize(data, n, before, after, &out)
            else:
                self._normalize(data, n, before, after, &out)
            if out.failed and out.n >= 1 << 30:
                raise TokenizerError(f"a text of {n} bytes becomes one of {out.n}; the limit is {(1 << 30) - 1}")
            if out.failed:
                raise MemoryError(f"a normalised text of {out.n} bytes")
            return PyUnicode_DecodeUTF8(<const char *> out.data, out.n, NULL) if out.n else ""
        finally:
            freed(out.data)

    cdef void _normalize(self, const uint8_t *text, Py_ssize_t n, bint before, bint after, Output *out) noexcept nogil:
        cdef Py_ssize_t at = 0, i
        cdef bint behind_space = self._merges
        cdef Part part
        while self._merges and at < n:
            part = self._part(text + at, n - at)
            if part.n != 1 or part.text[0] != c" ":
                break
            at += part.taken
        if at == n or not _make_room(out, n - at + 2 * MARK_SIZE):
            return
        if before:
            _put(out, <const uint8_t *> MARK, MARK_SIZE)
        while at < n and not out.failed:
            part = self._part(text + at, n - at)
            at += part.taken
            i = 0
            while behind_space and i < part.n and part.text[i] == c" ":
                i += 1
            if i < part.n:
                _put_marked(out, part.text + i, part.n - i)
                behind_space = self._merges and part.text[part.n - 1] == c" "
        while self._merges and _ends_with_mark(out):
            out.n -= MARK_SIZE
        if after:
            _put(out, <const uint8_t *> MARK, MARK_SIZE)

    cdef inline Part _part(self, const uint8_t *text, Py_ssize_t n) noexcept nogil:
        """Replacement of the beginning of a text. A rule that ends within a character leaves bytes that are none."""
        cdef Part part
        cdef Py_ssize_t size = 1
        part.text, part.n, part.taken = text, 1, 1
        if self._begins[text[0]]:
            if self._symbols is not None:
                part.taken = self._symbols.longest(text, n)
                if part.taken:
                    part.n = part.taken
                    return part
            if self._units is not None and self._rule(text, n, &part):
                return part
        if text[0] >= 0x80:
            if text[0] & 0xC0 == 0x80:
                part.text, part.n = <const uint8_t *> REPLACEMENT, 3
            else:
                while size < n and text[size] & 0xC0 == 0x80:
                    size += 1
                part.n = size
        part.taken = size
        return part

    cdef inline bint _rule(self, const uint8_t *text, Py_ssize_t n, Part *part) noexcept nogil:
        """The longest rule that a text begins with."""
        cdef Py_ssize_t i, longest = 0
        cdef uint32_t node = 0, unit = self._units[0], found = 0
        for i in range(min(n, DEEPEST)):
            node = _child(unit, node, text[i])
            unit = self._units[node]
            if not _is_node(unit, text[i]):
                break
            if unit & LEAF:
                longest, found = i + 1, self._units[_child(unit, node, 0)] & VALUE
        if longest:
            part.taken, part.text = longest, self._replacements + found
            part.n = <Py_ssize_t> strlen(<const char *> part.text)
        return longest > 0


cdef inline uint32_t _child(uint32_t unit, uint32_t node, uint8_t byte) noexcept nogil:
    """The place where a node has its child of a byte; that of 0 holds its replacement, if it is a leaf."""
    return node ^ (unit >> 10) << ((unit & SHIFTED) >> 6) ^ byte


cdef inline bint _is_node(uint32_t unit, uint8_t byte) noexcept nogil:
    """Whether a place is a node, and that of a byte."""
    return unit >> 31 == 0 and <uint8_t> unit == byte


cdef inline bint _make_room(Output *out, Py_ssize_t n) noexcept nogil:
    """Whether there is room for some bytes more."""
    cdef uint8_t *larger
    cdef Py_ssize_t room
    if out.n + n <= out.room:
        return True
    room = out.n + n + out.room
    larger = NULL
    if out.n + n < 1 << 30:
        with gil:  # as often as a length doubles
            larger = <uint8_t *> resized(out.data, room)
    if larger == NULL:
        out.failed, out.n = True, out.n + n
        return False
    out.data, out.room = larger, room
    return True


cdef inline void _put(Output *out, const uint8_t *text, Py_ssize_t n) noexcept nogil:
    if _make_room(out, n):
        memcpy(out.data + out.n, text, n)
        out.n += n


cdef inline void _put_marked(Output *out, const uint8_t *text, Py_ssize_t n) noexcept nogil:
    """Adds a text with marks for its spaces."""
    cdef Py_ssize_t i
    if not _make_room(out, n * MARK_SIZE):
        return
    for i in range(n):
        if text[i] == c" ":
            memcpy(out.data + out.n, MARK, MARK_SIZE)
            out.n += MARK_SIZE
        else:
            out.data[out.n] = text[i]
            out.n += 1


cdef inline bint _ends_with_mark(const Output *out) noexcept nogil:
    cdef Py_ssize_t start = out.n - MARK_SIZE
    return start >= 0 and out.data[start] == 0xE2 and out.data[start + 1] == 0x96 and out.data[start + 2] == 0x81
