"""JSON text as Python values, like `json.loads`, within bounds and while other threads run.

`json.loads` keeps the interpreter to itself from the first byte to the last, whatever the text makes of it: eight
megabytes of brackets are millions of lists. Here depth and numbers of parts are bounded before they are made, and other
threads have a turn after every few thousand steps.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint32_t

cdef extern from "Python.h":
    object PyUnicode_FromKindAndData(int kind, const void *buffer, Py_ssize_t size)
    void PyObject_GC_UnTrack(object)

__all__ = ["JsonError", "JsonTooMuch", "JsonTree", "untracked"]

cdef enum:
    TURN = 4096                 # parts, and four times as many bytes of strings, after which other threads have a turn
    PIECE = 1 << 16             # characters of a string that are made at a time
    MOST_DIGITS = 4300          # of a number, as of Python's integers
    MOST_FAST = 18              # characters of an integer that 64 bits hold
    MOST_KEY = 64               # characters of keys that are kept to be used again
    MOST_KEYS = 1024            # of these
    UCS4 = 4
    MANY = 1024                 # entries of a list which the collector of garbage would look at in vain


class JsonError(ValueError):
    """Text that is no JSON, or is ambiguous."""


class JsonTooMuch(ValueError):
    """JSON that nests too deeply, or has too many parts. field: the outermost key that it stands under; "" for none."""

    field = ""

    def __init__(self, message, field):
        super().__init__(message)
        self.field = field


def untracked(list values not None):
    """The list, at which the collector of garbage looks no more: for many values that can't lead back to it. A million
    of them take it ten milliseconds, in which no thread runs."""
    PyObject_GC_UnTrack(values)
    return values


cdef bint _yield_turn() noexcept nogil:
    return True


cdef class JsonTree:
    """Reader of one text.

    data: UTF-8, checked already. most_depth: of lists and objects in one another. most_parts: lists and objects
    together. most_keys: keys of all objects. has_halves: whether a string that was read has half of a surrogate pair.
    """

    cdef bytes _owner
    cdef const uint8_t *_text
    cdef Py_ssize_t _n, _at, _steps, _n_parts, _n_keys, _most_parts, _most_keys
    cdef int _depth, _most_depth
    cdef dict _known
    cdef bytearray _memory                      # of a piece of a string; None until one has escapes
    cdef uint32_t *_chars                       # the same
    cdef object _field
    cdef readonly bint has_halves

    def __init__(self, bytes data not None, *, int most_depth, Py_ssize_t most_parts, Py_ssize_t most_keys):
        self._owner, self._known, self._field = data, {}, ""
        self._text, self._n = <const uint8_t *> PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)
        self._most_depth, self._most_parts, self._most_keys = most_depth, most_parts, most_keys

    def read(self):
        """The value. Raises JsonError, with the words and places of `json`; JsonTooMuch."""
        cdef object found
        self._at = self._depth = self._steps = self._n_parts = self._n_keys = 0
        self._skip()
        found = self._value()
        self._skip()
        if self._at < self._n:
            self._fail("Extra data", self._at)
        return found

    # ---- places

    cdef inline uint8_t _here(self) noexcept nogil:
        """The byte at the place; 0 behind the text, as the bytes of Python have it."""
        return self._text[self._at]

    cdef inline void _skip(self) noexcept nogil:
        while self._text[self._at] in (32, 9, 10, 13):
            self._at += 1

    cdef int _fail(self, message, Py_ssize_t at) except -1:
        before = self._owner[:at].decode("utf-8", "replace")
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise JsonError(f"{message}: line {line} column {column} (char {len(before)})")

    cdef inline int _step(self) except -1:
        """Counts a step, and lets other threads have a turn now and then."""
        self._steps += 1
        if self._steps >= TURN:
            self._steps = 0
            with nogil:
                _yield_turn()
        return 0

    # ---- values

    cdef object _value(self):
        cdef uint8_t first = self._here()
        self._step()
        if first == c'"':
            return self._string()
        if first == c'{':
            return self._object()
        if first == c'[':
            return self._list()
        if first == c'-' or c'0' <= first <= c'9':
            return self._number()
        if self._word(b"null"):
            return None
        if self._word(b"true"):
            return True
        if self._word(b"false"):
            return False
        if self._word(b"NaN") or self._word(b"Infinity"):
            raise JsonError(("NaN" if first == c'N' else "Infinity") + " is no JSON")
        return self._fail("Expecting value", self._at)

    cdef bint _word(self, bytes word):
        cdef Py_ssize_t n = PyBytes_GET_SIZE(word)
        if self._owner[self._at:self._at + n] != word:
            return False
        self._at += n
        return True

    cdef int _enter(self) except -1:
        self._depth += 1
        self._n_parts += 1
        if self._depth > self._most_depth:
            raise JsonTooMuch(f"must nest at most {self._most_depth} deep", self._field)
        if self._n_parts > self._most_parts:
            text = f"must have at most {self._most_parts} lists and objects, with all of the body"
            raise JsonTooMuch(text, self._field)
        return 0

    cdef object _list(self):
        cdef list found = []
        cdef Py_ssize_t n_parts
        self._enter()
        n_parts = self._n_parts
        self._at += 1
        self._skip()
        if self._here() != c']':
            while True:
                found.append(self._value())
                self._skip()
                if self._here() != c',':
                    break
                self._at += 1
                self._skip()
            if self._here() != c']':
                self._fail("Expecting ',' delimiter", self._at)
        self._at += 1
        self._depth -= 1
        if len(found) >= MANY and self._n_parts == n_parts:
            PyObject_GC_UnTrack(found)
        return found

    cdef object _object(self):
        cdef dict found = {}
        cdef Py_ssize_t n = 0
        self._enter()
        self._at += 1
        self._skip()
        if self._here() != c'}':
            while True:
                if self._here() != c'"':
                    self._fail("Expecting property name enclosed in double quotes", self._at)
                key = self._key()
                self._skip()
                if self._here() != c':':
                    self._fail("Expecting ':' delimiter", self._at)
                self._at += 1
                self._skip()
                found[key] = self._value()
                n += 1
                self._skip()
                if self._here() != c',':
                    break
                self._at += 1
                self._skip()
            if self._here() != c'}':
                self._fail("Expecting ',' delimiter", self._at)
        self._at += 1
        self._depth -= 1
        if len(found) < n:
            raise JsonError("an object has the same key twice")
        return found

    cdef object _key(self):
        key = self._string()
        if self._depth == 1:
            self._field = key
        self._n_keys += 1
        if self._n_keys > self._most_keys:
            raise JsonTooMuch(f"must have at most {self._most_keys} names of fields, with all of the body", self._field)
        if len(key) > MOST_KEY:
            return key
        known = self._known.get(key)
        if known is not None:
            return known
        if len(self._known) < MOST_KEYS:
            self._known[key] = key
        return key

    cdef object _number(self):
        cdef Py_ssize_t start = self._at, at = self._at
        cdef bint whole = True
        cdef const uint8_t *text = self._text
        if text[at] == c'-':
            at += 1
            if text[at] == c'I' and self._owner[at:at + 8] == b"Infinity":
                raise JsonError("-Infinity is no JSON")
        if not c'0' <= text[at] <= c'9':
            self._fail("Expecting value", start)
        if text[at] == c'0':
            at += 1
        else:
            at = self._digits(at)
        if text[at] == c'.' and c'0' <= text[at + 1] <= c'9':
            whole, at = False, self._digits(at + 1)
        if text[at] in (c'e', c'E'):
            if c'0' <= text[at + 1] <= c'9':
                whole, at = False, self._digits(at + 1)
            elif text[at + 1] in (c'+', c'-') and c'0' <= text[at + 2] <= c'9':
                whole, at = False, self._digits(at + 2)
        self._at = at
        if at - start > MOST_DIGITS:
            raise JsonError(f"a number has {at - start} characters: at most {MOST_DIGITS} are read")
        if whole and at - start <= MOST_FAST:
            return self._small(start, at)
        digits = self._owner[start:at]
        if whole:
            return int(digits)
        number = float(digits)
        if number in (float("inf"), -float("inf")):
            raise JsonError(f"the number {digits[:40].decode()} is too large")
        return number

    cdef int64_t _small(self, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
        """An integer of few digits."""
        cdef bint negative = self._text[at] == c'-'
        cdef int64_t found = 0
        for at in range(at + negative, end):
            found = 10 * found + (self._text[at] - c'0')
        return -found if negative else found

    cdef Py_ssize_t _digits(self, Py_ssize_t at) noexcept nogil:
        while c'0' <= self._text[at] <= c'9':
            at += 1
        return at

    # ---- strings

    cdef object _string(self):
        cdef Py_ssize_t start = self._at + 1, end
        with nogil:
            end = self._plain_end(start)
        self._steps += (end - start) // 4
        if self._text[end] == c'"' and end < self._n and end - start <= PIECE:
            self._at = end + 1
            return PyUnicode_DecodeUTF8(<const char *> self._text + start, end - start, NULL)
        return self._long_string(start)

    cdef Py_ssize_t _plain_end(self, Py_ssize_t at) noexcept nogil:
        """Place of the first byte that ends a string, or is an escape or a control character."""
        while at < self._n and self._text[at] != c'"' and self._text[at] != c'\\' and self._text[at] >= 32:
            at += 1
        return at

    cdef object _long_string(self, Py_ssize_t start):
        """A string with escapes, or many characters: made in pieces."""
        cdef Py_ssize_t n
        cdef list parts = []
        cdef const char *wrong = NULL
        cdef Py_ssize_t wrong_at = 0
        if self._memory is None:
            self._memory = bytearray(PIECE * sizeof(uint32_t))
            self._chars = <uint32_t *> PyByteArray_AS_STRING(self._memory)
        self._at = start
        while True:
            with nogil:
                n = self._fill(self._chars, start, &wrong, &wrong_at)
            if wrong != NULL:
                self._fail((<bytes> wrong).decode(), wrong_at)
            parts.append(PyUnicode_FromKindAndData(UCS4, self._chars, n))
            if n < PIECE:
                break
        return parts[0] if len(parts) == 1 else "".join(parts)

    cdef Py_ssize_t _fill(self, uint32_t *out, Py_ssize_t start, const char **wrong, Py_ssize_t *at) noexcept nogil:
        """The next characters of a string: fewer than PIECE at its end, behind which the place is then."""
        cdef Py_ssize_t n = 0
        cdef uint8_t byte
        cdef uint32_t char, second
        while n < PIECE:
            byte = self._text[self._at]
            if self._at >= self._n:
                wrong[0], at[0] = b"Unterminated string starting at", start - 1
                return n
            if byte == c'"':
                self._at += 1
                return n
            if byte < 32:
                wrong[0], at[0] = b"Invalid control character at", self._at
                return n
            if byte != c'\\':
                out[n] = self._utf8()
                n += 1
                continue
            if self._at + 1 >= self._n:
                wrong[0], at[0] = b"Unterminated string starting at", start - 1
                return n
            byte = self._text[self._at + 1]
            if byte == c'u':
                if not self._hex(self._at + 2, &char):
                    wrong[0], at[0] = b"Invalid \\uXXXX escape", self._at + 1
                    return n
                self._at += 6
                if 0xD800 <= char <= 0xDBFF and self._text[self._at] == c'\\' and self._text[self._at + 1] == c'u' \
                        and self._hex(self._at + 2, &second) and 0xDC00 <= second <= 0xDFFF:
                    char = 0x10000 + (((char - 0xD800) << 10) | (second - 0xDC00))
                    self._at += 6
                elif 0xD800 <= char <= 0xDFFF:
                    self.has_halves = True
            else:
                char = _escaped(byte)
                if char == 0:
                    wrong[0], at[0] = b"Invalid \\escape", self._at
                    return n
                self._at += 2
            out[n] = char
            n += 1
        return n

    cdef uint32_t _utf8(self) noexcept nogil:
        """The character at the place, which moves on. The text was checked before."""
        cdef const uint8_t *text = self._text + self._at
        if text[0] < 0x80:
            self._at += 1
            return text[0]
        if text[0] < 0xE0:
            self._at += 2
            return (text[0] & 0x1F) << 6 | (text[1] & 0x3F)
        if text[0] < 0xF0:
            self._at += 3
            return <uint32_t> (text[0] & 0x0F) << 12 | (text[1] & 0x3F) << 6 | (text[2] & 0x3F)
        self._at += 4
        return <uint32_t> (text[0] & 7) << 18 | <uint32_t> (text[1] & 0x3F) << 12 | (text[2] & 0x3F) << 6 \
            | (text[3] & 0x3F)

    cdef bint _hex(self, Py_ssize_t at, uint32_t *char) noexcept nogil:
        cdef int i
        cdef uint8_t byte
        char[0] = 0
        if at + 4 > self._n:
            return False
        for i in range(4):
            byte = self._text[at + i]
            if c'0' <= byte <= c'9':
                byte -= c'0'
            elif c'a' <= byte <= c'f':
                byte -= c'a' - 10
            elif c'A' <= byte <= c'F':
                byte -= c'A' - 10
            else:
                return False
            char[0] = char[0] << 4 | byte
        return True


cdef uint32_t _escaped(uint8_t byte) noexcept nogil:
    """The character that a letter behind a backslash stands for; 0 for none."""
    if byte == c'"' or byte == c'\\' or byte == c'/':
        return byte
    if byte == c'b':
        return 8
    if byte == c'f':
        return 12
    if byte == c'n':
        return 10
    if byte == c'r':
        return 13
    return 9 if byte == c't' else 0
