"""Repetitions in a text: the loop behind DRY."""

from libc.stdint cimport int32_t

from oxillama.kernels._memory cimport freed, resized


def repeat_lengths(const int32_t[::1] tokens not None, Py_ssize_t limit, Py_ssize_t least):
    """{token: n} of the tokens that would lengthen a repetition: n tokens at the end of the text (at most `limit`) also
    stand somewhere before, and this token follows there. The greatest n for each token, from `least` > 0 up.

    O(len(tokens)): Z-algorithm on the reversed text.
    """
    cdef Py_ssize_t n = tokens.shape[0]
    cdef Py_ssize_t k, m, left = 0, right = 0      # text[k] backwards repeats its end, for left <= k < right
    cdef Py_ssize_t *length
    cdef Py_ssize_t last = n - 1
    cdef dict found = {}
    if n < 2 or limit < least:
        return found
    length = <Py_ssize_t *> resized(NULL, n * sizeof(Py_ssize_t))
    if length == NULL:
        raise MemoryError(f"no memory for the repetitions of {n} tokens")
    try:
        length[0] = n
        for k in range(1, n):
            m = min(right - k, length[k - left]) if k < right else 0
            while k + m < n and tokens[last - m] == tokens[last - k - m]:
                m += 1
            length[k] = m
            if k + m > right:
                left = k
                right = k + m
            m = min(m, limit)
            if m >= least and m > found.get(tokens[n - k], 0):
                found[tokens[n - k]] = m
    finally:
        freed(length)
    return found
