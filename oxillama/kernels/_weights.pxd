"""exp, sums of softmax weights, and the order of candidates: what the loops of sampling are made of.

exp is our own, so that a seed gives the same text with every C library and on every CPU: additions and products of
doubles alone, which no compiler can round in two ways. Sums run in eight lanes over blocks of BLOCK values; lanes, then
blocks, are added in order.
"""

from libc.float cimport FLT_MAX
from libc.math cimport INFINITY, sqrt
from libc.stdint cimport int32_t, uint32_t
from libc.string cimport memcpy


cdef extern from "ox_math.h":
    double log "ox_log_double"(double x) noexcept nogil


cdef enum:
    BLOCK = 256


cdef struct Candidate:
    float logit
    int32_t id


cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    typedef double ox_pair __attribute__((vector_size(16)));
    typedef uint64_t ox_bits __attribute__((vector_size(16)));
    typedef float ox_four __attribute__((vector_size(16)));
    typedef int32_t ox_mask __attribute__((vector_size(16)));

    /* Copies n logits; whether all are below infinity, and none is NaN. Adding zero turns -0.0 into 0.0, so that equal
       logits have equal bits. */
    static inline int ox_copy(float *to, const float *from, Py_ssize_t n)
    {
        ox_mask good = {-1, -1, -1, -1};
        Py_ssize_t i = 0;
        int all;
        for (; i + 4 <= n; i += 4) {
            ox_four x;
            memcpy(&x, from + i, sizeof x);
            x += 0.0f;
            good &= x < __builtin_inff();
            memcpy(to + i, &x, sizeof x);
        }
        all = good[0] & good[1] & good[2] & good[3];
        for (; i < n; i++) {
            to[i] = from[i] + 0.0f;
            all &= -(from[i] < __builtin_inff());
        }
        return all != 0;
    }

    /* Whether n floats are below infinity and none is NaN; the highest of those that are, minus infinity of none. */
    static inline int ox_highest(const float *x, Py_ssize_t n, float *high)
    {
        ox_mask good[4];
        ox_four lane[4];
        Py_ssize_t i = 0;
        int all = -1;
        float best = -__builtin_inff();
        for (int j = 0; j < 4; j++) {
            good[j] = (ox_mask){-1, -1, -1, -1};
            lane[j] = (ox_four){best, best, best, best};
        }
        for (; i + 16 <= n; i += 16) {
            #pragma GCC unroll 4 /* -O2 leaves the lanes in memory */
            for (int j = 0; j < 4; j++) {
                ox_four some;
                ox_mask higher;
                memcpy(&some, x + i + 4 * j, sizeof some);
                good[j] &= some < __builtin_inff();
                higher = some > lane[j];
                lane[j] = (ox_four)(((ox_mask)some & higher) | ((ox_mask)lane[j] & ~higher));
            }
        }
        for (; i < n; i++) {
            all &= -(x[i] < __builtin_inff());
            best = x[i] > best ? x[i] : best;
        }
        for (int j = 0; j < 16; j++) {
            all &= good[j / 4][j % 4];
            best = lane[j / 4][j % 4] > best ? lane[j / 4][j % 4] : best;
        }
        *high = best;
        return all != 0;
    }

    /* The first of n floats, one of which it is, that equals x: blocks without it are passed over. */
    static inline Py_ssize_t ox_first(const float *from, Py_ssize_t n, float x)
    {
        Py_ssize_t i = 0;
        for (; i + 16 <= n; i += 16) {
            ox_mask found = {0, 0, 0, 0};
            #pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                ox_four some;
                memcpy(&some, from + i + 4 * j, sizeof some);
                found |= some == x;
            }
            if (found[0] | found[1] | found[2] | found[3])
                break;
        }
        while (from[i] != x)
            i++;
        return i;
    }

    /* The likeliest of n tokens by their logits, the lowest id among equals; -1 if a logit is NaN or plus infinity, or
       none is above minus infinity. */
    static inline Py_ssize_t ox_likeliest(const float *logit, Py_ssize_t n)
    {
        float high;
        if (!ox_highest(logit, n, &high) || high == -__builtin_inff())
            return -1;
        return ox_first(logit, n, high);
    }

    static inline ox_four ox_higher(ox_four a, ox_four b)
    {
        ox_mask first = a > b;
        return (ox_four)(((ox_mask)a & first) | ((ox_mask)b & ~first));
    }

    /* The highest of n floats without NaN, minus infinity of none. */
    static inline float ox_largest(const float *x, Py_ssize_t n)
    {
        float low = -__builtin_inff(), best = low;
        ox_four lane[8];
        Py_ssize_t i = 0;
        for (int j = 0; j < 8; j++)
            lane[j] = (ox_four){low, low, low, low};
        for (; i + 32 <= n; i += 32)
            for (int j = 0; j < 8; j++) {
                ox_four some;
                memcpy(&some, x + i + 4 * j, sizeof some);
                lane[j] = ox_higher(some, lane[j]);
            }
        for (int left = (int)(n - i); left > 0; left--)
            best = x[n - left] > best ? x[n - left] : best;
        for (int step = 4; step; step /= 2)
            for (int j = 0; j < step; j++)
                lane[j] = ox_higher(lane[j], lane[j + step]);
        for (int j = 0; j < 4; j++)
            best = lane[0][j] > best ? lane[0][j] : best;
        return best;
    }

    /* exp of two numbers up to 0, to some units in the last place; 0 below -708, where doubles end.
       x = k ln 2 + r with |r| <= ln(2) / 2: Taylor's series for exp(r), whose next term is below 2e-16, times 2^k. */
    static inline ox_pair ox_exp(ox_pair x)
    {
        ox_bits alive = (ox_bits)(x >= -708.0);
        ox_pair y = (ox_pair)((ox_bits)x & alive);
        /* Adding 1.5 * 2^52 rounds to an integer, which then stands in the lowest bits. */
        ox_pair t = y * 1.4426950408889634 + 6755399441055744.0;
        ox_pair k = t - 6755399441055744.0;
        /* ln 2 in two parts: products of the first with such integers are exact. */
        ox_pair r = (y - k * 0.6931471803691238) - k * 1.9082149292705877e-10;
        ox_pair r2 = r * r, r4 = r2 * r2;
        ox_pair a = (1.0 + r) + (0.5 + r * (1.0 / 6)) * r2;
        ox_pair b = (1.0 / 24 + r * (1.0 / 120)) + (1.0 / 720 + r * (1.0 / 5040)) * r2;
        ox_pair c = (1.0 / 40320 + r * (1.0 / 362880)) + (1.0 / 3628800 + r * (1.0 / 39916800)) * r2;
        ox_pair p = a + (b + (c + r4 * (1.0 / 479001600)) * r4) * r4;
        p *= (ox_pair)(((ox_bits)t + 1023) << 52);
        return (ox_pair)((ox_bits)p & alive);
    }

    static inline double ox_weight(double x)
    {
        return ox_exp((ox_pair){x, x})[0];
    }

    /* Sum of exp(x - peak) over n logits, in eight lanes; if there is a place for it, the sum of (x - peak) exp(...) is
       added to moment. */
    static inline double ox_block_mass(const float *x, Py_ssize_t n, double peak, double *moment)
    {
        ox_pair lane[4] = {{0.0}}, moments[4] = {{0.0}};
        double total = 0.0;
        for (Py_ssize_t i = 0; i < n; i += 8) {
            float some[8];
            if (i + 8 <= n)
                memcpy(some, x + i, sizeof some);
            else
                for (int j = 0; j < 8; j++)
                    some[j] = i + j < n ? x[i + j] : -__builtin_inff();
            for (int j = 0; j < 4; j++) {
                ox_pair d = (ox_pair){some[2 * j], some[2 * j + 1]} - peak;
                ox_pair w = ox_exp(d);
                lane[j] += w;
                if (moment) /* minus infinity times zero is zero here */
                    moments[j] += (ox_pair)((ox_bits)d & (ox_bits)(d >= -708.0)) * w;
            }
        }
        for (int j = 0; j < 8; j++) {
            total += lane[j / 2][j % 2];
            if (moment)
                *moment += moments[j / 2][j % 2];
        }
        return total;
    }
    """
    bint copy_logits "ox_copy"(float *to, const float *source, Py_ssize_t n) noexcept nogil
    Py_ssize_t likeliest_of "ox_likeliest"(const float *logits, Py_ssize_t n) noexcept nogil
    float largest "ox_largest"(const float *x, Py_ssize_t n) noexcept nogil
    double weight "ox_weight"(double x) noexcept nogil
    double block_mass "ox_block_mass"(const float *x, Py_ssize_t n, double peak, double *moment) noexcept nogil


cdef inline float finite(float x) noexcept nogil:
    """Clamps a value to finite floats."""
    return min(max(x, <float> -FLT_MAX), <float> FLT_MAX)


cdef inline double lowest(double peak, double bound) noexcept nogil:
    """A logit below which no weight exp(logit - peak) is `bound`: exp is computed from here up, and decides."""
    return peak + log(bound) - 0.001 if bound > 0.0 else -FLT_MAX


cdef inline double total_mass(
    const float *x, Py_ssize_t n, double peak, double *masses, double *moment
) noexcept nogil:
    """Sum of exp(x - peak) over any number of logits; `masses`, if given, become those of the blocks."""
    cdef Py_ssize_t block
    cdef double mass, total = 0.0
    for block in range((n + BLOCK - 1) // BLOCK):
        mass = block_mass(x + block * BLOCK, min(n - block * BLOCK, <Py_ssize_t> BLOCK), peak, moment)
        if masses != NULL:
            masses[block] = mass
        total += mass
    return total


cdef inline Py_ssize_t place_at(
    const float *x, Py_ssize_t n, double peak, const double *masses, double bound
) noexcept nogil:
    """The first position up to which the weights add up to more than `bound`, given those of the blocks.

    Rounding may leave the sums short of the bound: the last possible position then.
    """
    cdef Py_ssize_t i, block, last = 0, chosen = 0
    cdef double w, mass = 0.0, after = 0.0
    for block in range((n + BLOCK - 1) // BLOCK):
        if masses[block] > 0.0:
            last = block
            mass = after
            after += masses[block]
            if after > bound:
                break
    for i in range(last * BLOCK, min(n, (last + 1) * BLOCK)):
        w = weight(x[i] - peak)
        if w > 0.0:
            chosen = i
        mass += w
        if mass > bound:
            break
    return chosen


cdef inline double deviation(const float *x, Py_ssize_t n) noexcept nogil:
    """The standard deviation of what is not minus infinity."""
    cdef Py_ssize_t i, count = 0
    cdef double total = 0.0, squares = 0.0, mean
    for i in range(n):
        if x[i] != -INFINITY:
            total += x[i]
            count += 1
    mean = total / count
    for i in range(n):
        if x[i] != -INFINITY:
            squares += (x[i] - mean) * (x[i] - mean)
    return sqrt(squares / count)


cdef inline bint before(Candidate a, Candidate b) noexcept nogil:
    return a.logit > b.logit or (a.logit == b.logit and a.id < b.id)


cdef inline void sift_down(Candidate *heap, Py_ssize_t n, Py_ssize_t i) noexcept nogil:
    """Restores the heap whose root is the last in order, after its item i was replaced."""
    cdef Candidate moved = heap[i]
    cdef Py_ssize_t child
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and before(heap[child], heap[child + 1]):
            child += 1
        if before(heap[child], moved):
            break
        heap[i] = heap[child]
        i = child
    heap[i] = moved


cdef inline void best_of(const float *x, Py_ssize_t n, Candidate *out, Py_ssize_t k) noexcept nogil:
    """The first k of the order (0 < k <= n) to `out`, in order; ids are positions in x."""
    cdef Py_ssize_t i, j, end, block
    cdef Candidate c
    for i in range(k):
        out[i].logit = x[i]
        out[i].id = <int32_t> i
    for i in range(k // 2 - 1, -1, -1):
        sift_down(out, k, i)
    i = k
    while i < n:
        # An equal logit that comes later never goes before the root. Most blocks have none that does.
        if i + BLOCK <= n and largest(x + i, BLOCK) <= out[0].logit:
            i += BLOCK
            continue
        block = min(i + BLOCK, n)
        while i < block:
            end = min(i + 32, block)
            if largest(x + i, end - i) > out[0].logit:
                for j in range(i, end):
                    if x[j] > out[0].logit:
                        out[0].logit = x[j]
                        out[0].id = <int32_t> j
                        sift_down(out, k, 0)
            i = end
    for i in range(k - 1, 0, -1):
        c = out[0]
        out[0] = out[i]
        out[i] = c
        sift_down(out, i, 0)


cdef inline uint32_t descending_key(float x) noexcept nogil:
    """An integer that grows as x falls (x is not NaN, nor minus zero)."""
    cdef uint32_t bits
    memcpy(&bits, &x, 4)
    return bits if bits >> 31 else ~bits & <uint32_t> 0x7FFFFFFF


cdef inline void radix_sort(Candidate *data, Candidate *spare, Py_ssize_t n) noexcept nogil:
    """Sorts by falling logit; stable, so that ids that came in rising order stay so among equals."""
    cdef Py_ssize_t[2049] count
    cdef Py_ssize_t i
    cdef Candidate *swap
    cdef uint32_t key
    cdef int shift
    for shift in range(0, 33, 11):
        for i in range(2049):
            count[i] = 0
        for i in range(n):
            count[(descending_key(data[i].logit) >> shift & 2047) + 1] += 1
        for i in range(2048):
            count[i + 1] += count[i]
        for i in range(n):
            key = descending_key(data[i].logit) >> shift & 2047
            spare[count[key]] = data[i]
            count[key] += 1
        swap = data
        data = spare
        spare = swap
    # Three passes leave the result in what was the spare buffer.
    memcpy(spare, data, n * sizeof(Candidate))
