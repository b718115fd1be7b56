from libc.stdint cimport int32_t

from oxillama.grammar.automata.vectors cimport Ints


# Appended for each sequence of byte ranges: its length, and low << 8 | high for each byte.
cdef int utf8(Ints *out, int32_t low, int32_t high) except -1
cdef int escapes(Ints *out, int32_t low, int32_t high) except -1
