from libc.stdint cimport int32_t, uint8_t, uint32_t

from oxillama.kernels._vectors cimport Ints

cdef enum:
    PLAIN_CHARS = 32            # the longest plain token, in characters


cdef struct Trie:               # in depth-first order; a parent stands before its children
    Ints byte, depth, skip      # skip: the first node that is not below
    Ints token                  # first token that ends here, or -1


cdef class TokenTrie:
    cdef object __weakref__
    cdef readonly Py_ssize_t n_vocab, n_words
    cdef readonly frozenset end_ids
    cdef readonly dict shared   # masks of rules that other grammars have too
    cdef readonly Py_ssize_t shared_bytes
    cdef readonly int max_depth
    cdef list texts
    cdef Ints next              # token -> another one with the same text, or -1
    cdef Trie trie[2]           # tokens of plain characters; all others
    cdef object _levels         # [PLAIN_CHARS + 1, n_words]: plain tokens of at most k characters
    cdef uint32_t *level
    cdef object _end_bits, _other_bits
    cdef uint32_t *end_bits
    cdef uint32_t *not_end_bits
    cdef int build(self, int which, list tokens) except -1
    cdef int close_to(self, Trie *t, Ints *path, Py_ssize_t depth) except -1
