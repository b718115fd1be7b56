from libc.stdint cimport int32_t, uint8_t, uint64_t

from oxillama.tokenizer._texts cimport TokenTexts


cdef struct End:                # of a segmentation of the text's first bytes
    float score
    unsigned int start          # of the last token
    int32_t token               # -1: there is no segmentation yet


cdef class UnigramTrie:
    cdef TokenTexts _texts
    cdef const uint8_t[::1] _usable
    cdef const double[::1] _scores
    cdef const int32_t[::1] _byte_ids
    cdef float _unknown
    cdef int32_t _unk
    # A node is a number, 0 the root. An edge holds its node, its byte and the node that it leads to, 0 for a free slot.
    cdef object _edges_owner, _tokens_owner
    cdef uint64_t *_edges
    cdef int32_t *_tokens                       # of each node, -1 for none
    cdef uint64_t _mask, _seed
    cdef Py_ssize_t _n_nodes

    cdef object _make_slots(self, Py_ssize_t n_slots)
    cdef object _grow(self)
    cdef void _add(self, int32_t token, const uint8_t *text, Py_ssize_t n) noexcept nogil
    cdef inline uint64_t _slot(self, uint64_t key) noexcept nogil
    cdef Py_ssize_t longest(self, const uint8_t *text, Py_ssize_t n) noexcept nogil
    cdef void _search(self, const uint8_t *text, Py_ssize_t n, End *ends) noexcept nogil
    cdef list _best(self, const uint8_t *text, Py_ssize_t n, const End *ends)
    cdef object _add_unknown(self, list out, const uint8_t *text, Py_ssize_t n)
