"""A mask of tokens on a row of logits."""

from libc.stdint cimport uint32_t

cdef extern from *:
    """
    #include <math.h>
    #include <stdint.h>
    #include <string.h>

    typedef uint32_t ox_lanes __attribute__((vector_size(16)));

    /* 32 logits by the bits of a word. No branch depends on a bit: masks of real texts are mixed, and a mispredicted
       branch costs as much as thirty logits. */
    static inline void ox_keep_word(float *x, uint32_t word)
    {
        const float banned = -INFINITY;
        uint32_t code;
        memcpy(&code, &banned, 4);
        for (int k = 0; k < 32; k += 4) {
            const ox_lanes bits = {1u << k, 2u << k, 4u << k, 8u << k};
            ox_lanes v;
            ox_lanes kept = (ox_lanes) ((bits & word) != 0);
            memcpy(&v, x + k, sizeof v);
            v = (v & kept) | (code & ~kept);
            memcpy(x + k, &v, sizeof v);
        }
    }

    static inline void ox_apply_mask(float *x, Py_ssize_t n, const uint32_t *mask, Py_ssize_t n_words)
    {
        Py_ssize_t w = 0;
        for (; w < n / 32; w++) {
            uint32_t word = w < n_words ? mask[w] : 0;
            if (word != UINT32_MAX)
                ox_keep_word(x + 32 * w, word);
        }
        for (Py_ssize_t i = 32 * w; i < n; i++)
            if (w >= n_words || !(mask[w] >> (i & 31) & 1))
                x[i] = -INFINITY;
    }
    """
    # Minus infinity for every logit whose bit (i % 32 of word i // 32) is clear, and for those beyond the mask.
    void apply_mask "ox_apply_mask"(float *x, Py_ssize_t n, const uint32_t *mask, Py_ssize_t n_words) noexcept nogil
