"""Growing arrays of integers and a map between them; the memory belongs to the owner of the struct."""

from libc.stdint cimport int32_t, uint64_t

from oxillama.grammar.automata.turns cimport give_way, turn
from oxillama.kernels._memory cimport freed, resized, zeroed


cdef enum:
    FILLED = 1 << 16            # integers that are written between two turns of other threads


cdef struct Ints:
    int32_t *at
    Py_ssize_t n, room


cdef struct Map:                # open addressing; key 0 marks a free place
    uint64_t *key
    int32_t *value
    Py_ssize_t n, mask


cdef inline int reserve(Ints *v, Py_ssize_t room) except -1:
    cdef int32_t *bigger
    if room > 0x7FFFFFFF:       # places in one vector are items of another
        raise MemoryError(f"{room} integers of a grammar are more than can be counted")
    if room > v.room:
        room = max(room, 2 * v.room, 16)
        bigger = <int32_t *> resized(v.at, room * sizeof(int32_t))
        if bigger == NULL:
            raise MemoryError(f"no memory for {room} integers of a grammar")
        v.at = bigger
        v.room = room
    return 0


cdef inline int push(Ints *v, int32_t x) except -1:
    if v.n == v.room:
        reserve(v, v.n + 1)
    v.at[v.n] = x
    v.n += 1
    return 0


cdef inline int fill(Ints *v, Py_ssize_t n, int32_t x) except -1:
    """Lengthens `v` to n items with x; other threads have their turns."""
    cdef Py_ssize_t i, end
    cdef int32_t *at
    if n > v.n:
        reserve(v, n)
        at, i = v.at, v.n
        while i < n:
            end = min(i + FILLED, n)
            while i < end:
                at[i] = x
                i += 1
            if i < n:
                give_way()
        v.n = n
    return 0


cdef inline void drop(Ints *v) noexcept:
    freed(v.at)
    v.at = NULL
    v.n = v.room = 0


cdef inline void sort(int32_t *at, Py_ssize_t n) noexcept nogil:
    """Sorts states in ascending order. Most sets are few, or in order as they come; others are sorted as Shell 1959
    does, with the gaps of Gonnet and Baeza-Yates, for which nothing is called or moved elsewhere."""
    cdef Py_ssize_t i = 1, k, gap = n if n > 24 else 1
    cdef int32_t x
    while i < n and at[i - 1] <= at[i]:
        i += 1
    if i >= n:
        return
    while True:
        gap = max(gap * 5 // 11, <Py_ssize_t> 1)
        for i in range(gap, n):
            x, k = at[i], i
            while k >= gap and at[k - gap] > x:
                at[k] = at[k - gap]
                k -= gap
            at[k] = x
        if gap == 1:
            return


cdef inline uint64_t pair_key(int32_t a, int32_t b) noexcept nogil:
    return (<uint64_t> a + 1) << 32 | (<uint64_t> b + 1)


cdef inline uint64_t mixed(uint64_t x) noexcept nogil:
    # The finaliser of MurmurHash3.
    x = (x ^ x >> 33) * <uint64_t> 0xFF51AFD7ED558CCD
    x = (x ^ x >> 33) * <uint64_t> 0xC4CEB9FE1A85EC53
    return x ^ x >> 33


cdef inline int32_t get(const Map *m, uint64_t key) noexcept nogil:
    """The value at key, or -1."""
    cdef Py_ssize_t i
    if m.key == NULL:
        return -1
    i = mixed(key) & m.mask
    while m.key[i]:
        if m.key[i] == key:
            return m.value[i]
        i = (i + 1) & m.mask
    return -1


cdef inline void _place(Map *m, uint64_t key, int32_t value) noexcept nogil:
    cdef Py_ssize_t i = mixed(key) & m.mask
    while m.key[i] and m.key[i] != key:
        i = (i + 1) & m.mask
    if not m.key[i]:
        m.key[i] = key
        m.n += 1
    m.value[i] = value


cdef inline void forget(Map *m) noexcept:
    freed(m.key)
    freed(m.value)
    m.key = NULL
    m.value = NULL
    m.n = m.mask = 0


cdef inline int make_map(Map *m, Py_ssize_t n) except -1:
    """An empty map that takes n keys without growing."""
    m.n, m.mask = 0, 127
    while 2 * n > m.mask:
        m.mask = 2 * m.mask + 1
    m.key = <uint64_t *> zeroed((m.mask + 1) * sizeof(uint64_t))
    m.value = <int32_t *> resized(NULL, (m.mask + 1) * sizeof(int32_t))
    if m.key == NULL or m.value == NULL:
        forget(m)
        raise MemoryError(f"no memory for a map of {n} entries of a grammar")
    return 0


cdef inline int put(Map *m, uint64_t key, int32_t value) except -1:
    cdef Map bigger
    cdef Py_ssize_t i
    if m.key == NULL or 2 * (m.n + 1) > m.mask:
        make_map(&bigger, 0 if m.key == NULL else m.mask)
        if m.key != NULL:
            for i in range(m.mask + 1):
                if m.key[i]:
                    _place(&bigger, m.key[i], m.value[i])
                turn(i)
            forget(m)
        m[0] = bigger
    _place(m, key, value)
    return 0
