from libc.stdint cimport int32_t, uint8_t, uint32_t

from oxillama.grammar.automata.vectors cimport Ints

cdef enum:
    PLAIN_CHARS = 32            # the longest plain token, in characters
    LOWER = 0x61                # classes of characters that shapes don't tell apart: a-z, A-Z, 0-9,
    UPPER = 0x41
    DIGIT = 0x30
    BEYOND = 0x80               # and all beyond ASCII; of the rest, each is its own class
    N_SHAPE_CLASSES = 0x81


cdef inline uint8_t shape_class(uint8_t byte) noexcept nogil:
    """The class of the character that begins with a byte."""
    if byte >= 0x80:
        return BEYOND
    if 0x61 <= byte <= 0x7A:
        return LOWER
    if 0x41 <= byte <= 0x5A:
        return UPPER
    return DIGIT if 0x30 <= byte <= 0x39 else byte


cdef struct Trie:               # in depth-first order; a parent stands before its children
    Ints byte, depth, skip      # skip: the first node that is not below
    Ints token                  # first token that ends here, or -1


cdef struct Shapes:             # in the same order
    Ints cls, depth, skip
    Ints above                  # node of `trie` before this character, or -1: texts of the shape so far differ
    Ints first                  # its first token in `token`; those of all below follow
    Ints token


cdef class TokenTrie:
    cdef object __weakref__
    cdef readonly Py_ssize_t n_vocab, n_words
    cdef readonly frozenset end_ids
    cdef readonly dict shared   # masks of rules that other grammars have too
    cdef readonly Py_ssize_t shared_bytes
    cdef readonly int max_depth
    cdef list texts
    cdef Ints next              # token -> another one with the same text, or -1
    cdef Trie trie[3]           # tokens of plain characters; of other whole characters; all others
    cdef Shapes shapes[2]       # of the first two
    cdef bytes blob             # the texts, one after the other
    cdef Ints start             # token -> where its text starts, and where the next one does
    cdef object _levels         # [PLAIN_CHARS + 1, n_words]: plain tokens of at most k characters
    cdef uint32_t *level
    cdef object _end_bits, _other_bits, _control_bits
    cdef uint32_t *end_bits
    cdef uint32_t *not_end_bits
    cdef uint32_t *control_bits     # tokens without text that don't end one
    cdef int build(self, int which, list tokens) except -1
    cdef int build_shapes(self, int which, dict tokens) except -1
    cdef int add_shape(self, Shapes *t, int cls, int32_t depth, int32_t above) except -1
    cdef int32_t child(self, int which, int32_t above, uint8_t cls) except -2
    cdef int close_to(self, Trie *t, Ints *path, Py_ssize_t depth) except -1
