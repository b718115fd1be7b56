"""Spellings of characters as sequences of byte ranges: UTF-8, and what follows the backslash of JSON's escapes; runs of
characters of one category.

A set such as all letters has 700 ranges and 8,000 sequences: they are made without objects of Python. The order is that
of `utf8_sequences` and of the escapes of `oxillama.grammar.json_schema.json_text`.
"""

from libc.stdint cimport int32_t

from unicodedata import category

from oxillama.grammar.automata.vectors cimport Ints, drop, push

cdef enum:
    MAX_BMP = 0xFFFF
    SUPPLEMENT = 0x10000        # the first character of two code units
    HIGH = 0xD800               # the first code units of a surrogate pair, and the second ones
    LOW = 0xDC00
    BACKSLASH = 0x5C5C          # as a range
    LETTER_U = 0x7575
    CONTINUED = 0x80BF          # any byte of UTF-8 behind the first


# ---- UTF-8

cdef int utf8(Ints *out, int32_t low, int32_t high) except -1:
    """The sequences of all characters from low to high, neither of which is a surrogate."""
    cdef int32_t last
    cdef int n_bytes
    for n_bytes in range(1, 5):
        last = 0x7F if n_bytes == 1 else 0x7FF if n_bytes == 2 else 0xFFFF if n_bytes == 3 else 0x10FFFF
        if low <= min(high, last):
            aligned(out, 0, 0, low, min(high, last), n_bytes)
            low = last + 1
    return 0


cdef inline int32_t byte_of(int32_t code, int n_bytes, int at) noexcept:
    """Byte number `at` of a character's UTF-8."""
    cdef int32_t bits = code >> 6 * (n_bytes - 1 - at)
    if at:
        return 0x80 | bits & 0x3F
    return bits if n_bytes == 1 else (0xF00 >> n_bytes & 0xFF) | bits


cdef int aligned(Ints *out, int32_t before, int n_before, int32_t low, int32_t high, int n_bytes) except -1:
    """The characters from low to high, which have the first `n_before` bytes in common: those of `before`."""
    cdef int left = n_bytes - n_before          # bytes that may differ
    cdef int32_t rest = (1 << 6 * (left - 1)) - 1
    cdef int32_t first = low, last = high
    if left > 1 and low >> 6 * (left - 1) == high >> 6 * (left - 1):
        return aligned(out, low, n_before + 1, low, high, n_bytes)
    if low & rest:
        aligned(out, low, n_before + 1, low, low | rest, n_bytes)
        first = (low | rest) + 1
    if high & rest != rest:
        last = (high & ~rest) - 1
    if first <= last:
        whole(out, before, n_before, first, last, n_bytes)
    if high & rest != rest:
        aligned(out, high, n_before + 1, high & ~rest, high, n_bytes)
    return 0


cdef int whole(Ints *out, int32_t before, int n_before, int32_t low, int32_t high, int n_bytes) except -1:
    """One sequence: bytes of `before`, a range, and then any bytes."""
    cdef int at
    push(out, n_bytes)
    for at in range(n_bytes):
        if at < n_before:
            push(out, byte_of(before, n_bytes, at) * 0x101)
        elif at == n_before:
            push(out, byte_of(low, n_bytes, at) << 8 | byte_of(high, n_bytes, at))
        else:
            push(out, CONTINUED)
    return 0


# ---- escapes

cdef int escapes(Ints *out, int32_t low, int32_t high) except -1:
    """uXXXX in lowercase digits, and pairs of these, for all characters from low to high, beyond ASCII and none of them
    a surrogate."""
    if low <= MAX_BMP:
        units(out, low, min(high, <int32_t> MAX_BMP))
    if high > MAX_BMP:
        pairs(out, max(low, <int32_t> SUPPLEMENT) - SUPPLEMENT, high - SUPPLEMENT)
    return 0


cdef inline int32_t digit_range(int32_t low, int32_t high) noexcept:
    """Bytes of hexadecimal digits that are all below ten, or none of them is."""
    return (48 + low) << 8 | 48 + high if high < 10 else (87 + low) << 8 | 87 + high


cdef int units(Ints *out, int32_t low, int32_t high) except -1:
    """The escapes of code units from low to high."""
    cdef int32_t size, first, last
    cdef int free
    while low <= high:
        free, size = 0, 1               # last digits that may be any
        while free < 3 and low % (16 * size) == 0 and low + 16 * size - 1 <= high:
            free += 1
            size *= 16
        first = low // size % 16
        last = min(15, first + (high - low + 1) // size - 1)
        digits(out, low, first, last, free)
        low += (last - first + 1) * size
    return 0


cdef int digits(Ints *out, int32_t low, int32_t first, int32_t last, int free) except -1:
    """The escapes with the digits of low before one from first to last, and any behind it. Bytes of digits are in two
    ranges: each choice of these is a sequence."""
    cdef int32_t choice
    cdef int k
    for choice in range(1 << free + 1):         # of each digit whether it is a letter, the first one's bit on top
        if (first > 9 and not choice >> free & 1) or (last < 10 and choice >> free & 1):
            continue
        push(out, 5)
        push(out, LETTER_U)
        for k in range(3, free, -1):
            push(out, digit_range(low >> 4 * k & 15, low >> 4 * k & 15))
        if choice >> free & 1:
            push(out, digit_range(max(first, 10), last))
        else:
            push(out, digit_range(first, min(last, 9)))
        for k in range(free - 1, -1, -1):
            push(out, digit_range(10, 15) if choice >> k & 1 else digit_range(0, 9))
    return 0


cdef int pairs(Ints *out, int32_t low, int32_t high) except -1:
    """Surrogate pairs of characters from low to high, counted from U+10000."""
    cdef int32_t first = low >> 10, last = high >> 10
    cdef int32_t full
    if first == last:
        return product(out, first, first, low & 1023, high & 1023)
    if low & 1023:
        product(out, first, first, low & 1023, 1023)
        first += 1
    full = last if high & 1023 == 1023 else last - 1
    if first <= full:
        product(out, first, full, 0, 1023)
    if full < last:
        product(out, last, last, 0, high & 1023)
    return 0


cdef int product(Ints *out, int32_t first, int32_t last, int32_t low, int32_t high) except -1:
    """Pairs of code units of which each first one goes with each second one."""
    cdef Ints heads = Ints(NULL, 0, 0)
    cdef Ints tails = Ints(NULL, 0, 0)
    cdef Py_ssize_t i, k, j
    try:
        units(&heads, HIGH + first, HIGH + last)
        units(&tails, LOW + low, LOW + high)
        for i in range(0, heads.n, 6):
            for k in range(0, tails.n, 6):
                push(out, 11)
                for j in range(1, 6):
                    push(out, heads.at[i + j])
                push(out, BACKSLASH)
                for j in range(1, 6):
                    push(out, tails.at[k + j])
    finally:
        drop(&heads)
        drop(&tails)
    return 0


def category_runs(int32_t first, int32_t end):
    """Runs of characters of one general category of Unicode: (category, first, last) of each. A hundred thousand
    characters are asked for one by one: nothing of Unicode tells where runs end."""
    cdef list found = []
    cdef str here, before = ""
    cdef int32_t code, begin = first
    for code in range(first, end):
        here = category(chr(code))
        if here != before:
            if code > begin:
                found.append((before, begin, code - 1))
            before, begin = here, code
    if end > begin:
        found.append((before, begin, end - 1))
    return found
