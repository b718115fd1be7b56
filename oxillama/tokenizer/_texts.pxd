from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    /* Of 8 bytes at a time; a product of 64 by 64 bits mixes well (the step of wyhash). */
    static inline uint64_t ox_mixed(uint64_t a, uint64_t b) {
        unsigned __int128 product = (unsigned __int128)a * b;
        return (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    static inline uint64_t ox_hash(const uint8_t *p, size_t n, uint64_t seed) {
        uint64_t h = seed ^ n, word;
        for (; n >= 8; p += 8, n -= 8) {
            memcpy(&word, p, 8);
            h = ox_mixed(h ^ word, 0x9E3779B97F4A7C15ull);
        }
        word = 0;
        for (size_t i = 0; i < n; i++)
            word |= (uint64_t)p[i] << (8 * i);
        return ox_mixed(h ^ word ^ 0xE7037ED1A0B428DBull, seed | 1);
    }
    """
    uint64_t mixed "ox_mixed"(uint64_t a, uint64_t b) noexcept nogil


cdef class TokenTexts:
    cdef readonly object data, starts
    cdef readonly object twice
    cdef object _slots_owner
    cdef Py_ssize_t _n
    cdef const uint8_t *_bytes
    cdef const uint32_t *_starts
    cdef int32_t *_slots
    cdef uint64_t _mask
    cdef uint64_t _seed

    cdef int32_t find(self, const uint8_t *text, size_t n) noexcept nogil
    cdef object _fill(self, const uint8_t *payload, const int64_t *offsets, uint8_t *data, uint32_t *starts)
    cdef int32_t _add(self, int32_t i) noexcept nogil
