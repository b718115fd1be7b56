"""The loops of sampling: candidate tokens with their logits, cut down stage by stage, and the generator that draws.

Candidates are ordered by logit, ties by the lower token id; the order is total, so what a stage keeps never depends on
how it searches. Logits are float32 as the model gives them; probabilities and sums are computed in double from them.
"""

from libc.float cimport FLT_MAX
from libc.math cimport exp, INFINITY
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from oxillama.errors import GenerateError

# Up to here the best k come from a heap in one pass; beyond, sorting everything by radix costs less.
cdef enum:
    HEAP_LIMIT = 1024


cdef struct Candidate:
    float logit
    int32_t id


cdef inline bint before(Candidate a, Candidate b) noexcept nogil:
    return a.logit > b.logit or (a.logit == b.logit and a.id < b.id)


cdef void sift_down(Candidate *heap, Py_ssize_t n, Py_ssize_t i) noexcept nogil:
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


cdef inline uint32_t descending_key(float x) noexcept nogil:
    """An integer that grows as x falls (x is not NaN, nor minus zero)."""
    cdef uint32_t bits
    memcpy(&bits, &x, 4)
    return bits if bits >> 31 else ~bits & 0x7FFFFFFF


cdef float largest(const float *x, Py_ssize_t n) noexcept nogil:
    """The highest of n > 0 floats without NaN, in lanes that the compiler turns into vectors."""
    cdef float[16] lane
    cdef Py_ssize_t i
    cdef int j
    for j in range(16):
        lane[j] = -INFINITY
    for i in range(0, n - 15, 16):
        for j in range(16):
            lane[j] = x[i + j] if x[i + j] > lane[j] else lane[j]
    for i in range(n - n % 16, n):
        lane[0] = x[i] if x[i] > lane[0] else lane[0]
    for j in range(1, 16):
        lane[0] = lane[j] if lane[j] > lane[0] else lane[0]
    return lane[0]


cdef void radix_sort(Candidate *data, Candidate *spare, Py_ssize_t n) noexcept nogil:
    """Sorts by falling logit; stable, so that ids that came in rising order stay so among equals."""
    cdef Py_ssize_t count[2049]
    cdef Py_ssize_t i
    cdef Candidate *swap
    cdef int shift
    for shift in range(0, 33, 11):
        for i in range(2049):
            count[i] = 0
        for i in range(n):
            count[(descending_key(data[i].logit) >> shift & 2047) + 1] += 1
        for i in range(2048):
            count[i + 1] += count[i]
        for i in range(n):
            spare[count[descending_key(data[i].logit) >> shift & 2047]] = data[i]
            count[descending_key(data[i].logit) >> shift & 2047] += 1
        swap = data
        data = spare
        spare = swap
    # Three passes leave the result in what was the spare buffer.
    memcpy(spare, data, n * sizeof(Candidate))


cdef class Candidates:
    """The tokens that may come next, with their logits: loaded from a row of the model, cut down by stages.

    One object serves any number of rows, one after another; it keeps its buffers. Not for use by two threads at once.
    """

    cdef float *logit          # of every token, while nothing was cut
    cdef Candidate *item       # what is left after the first cut
    cdef Candidate *spare
    cdef Py_ssize_t n_vocab, capacity, n
    cdef bint dense            # nothing cut yet: `logit` rules, ids are positions
    cdef bint ordered          # `item` is in order; otherwise its ids rise

    def __cinit__(self):
        self.logit = NULL
        self.item = self.spare = NULL
        self.capacity = self.n_vocab = self.n = 0
        self.dense = True
        self.ordered = False

    def __dealloc__(self):
        free(self.logit)
        free(self.item)
        free(self.spare)

    cdef int reserve(self, Py_ssize_t n) except -1:
        if n <= self.capacity:
            return 0
        self.capacity = 0
        free(self.logit)
        free(self.item)
        free(self.spare)
        self.logit = <float *> malloc(n * sizeof(float))
        self.item = <Candidate *> malloc(n * sizeof(Candidate))
        self.spare = <Candidate *> malloc(n * sizeof(Candidate))
        if self.logit == NULL or self.item == NULL or self.spare == NULL:
            raise MemoryError(f"no memory for {n} candidates")
        self.capacity = n
        return 0

    def load(self, const float[::1] logits not None):
        """Takes a copy of a row of logits, float32 [n_vocab]; minus infinity bans a token.

        Raises GenerateError if one is NaN or plus infinity, or none is left.
        """
        cdef Py_ssize_t i, n = logits.shape[0]
        cdef int bad = 0
        cdef int alive = 0
        cdef const float *source
        cdef float *target
        if n == 0:
            raise GenerateError("there are no logits to sample from: the row is empty")
        self.reserve(n)
        source = &logits[0]
        target = self.logit
        with nogil:
            for i in range(n):
                # Adding zero turns -0.0 into 0.0, so that equal logits have equal bits.
                target[i] = source[i] + <float> 0.0
                bad |= not (source[i] <= FLT_MAX)
                alive |= source[i] >= -FLT_MAX
        self.n = self.n_vocab = n
        self.dense = True
        self.ordered = False
        if bad:
            i = 0
            while logits[i] <= FLT_MAX:
                i += 1
            raise GenerateError(f"the model's logit of token {i} is {logits[i]}: the weights or the input are damaged")
        if not alive:
            raise GenerateError(f"no token is left to choose from: all {n} logits are minus infinity")

    def keep(self, const uint32_t[::1] mask not None):
        """Bans every token whose bit (t % 32 of word t // 32) is clear, and those beyond the mask. Before any cut.

        Raises GenerateError after a cut, or if no token with a logit above minus infinity is left.
        """
        cdef Py_ssize_t i, w
        cdef uint32_t word
        cdef float best
        if not self.dense:
            raise GenerateError("the grammar's stage must come before the stages that cut: top_k, top_p, min_p")
        with nogil:
            for w in range((self.n + 31) // 32):
                word = mask[w] if w < mask.shape[0] else 0
                if word != <uint32_t> 0xFFFFFFFF:          # most words are all set or all clear
                    for i in range(32 * w, min(32 * w + 32, self.n)):
                        self.logit[i] = self.logit[i] if word >> (i & 31) & 1 else -INFINITY
            best = largest(self.logit, self.n)
        if best == -INFINITY:
            raise GenerateError("no token is left to choose from: all that the grammar allows are banned")

    def __len__(self):
        return self.n

    def items(self):
        """What is left, as (id, logit) pairs: in order after a cut by top_k or top_p, else by rising id."""
        cdef Py_ssize_t i
        if self.dense:
            return [(i, self.logit[i]) for i in range(self.n)]
        return [(self.item[i].id, self.item[i].logit) for i in range(self.n)]

    def probabilities(self):
        """Softmax over what is left, as (id, probability) pairs in the order of `items`."""
        cdef double peak = self.peak()
        cdef double total = self.total(peak)
        return [(token, exp(<double> logit - peak) / total) for token, logit in self.items()]

    cdef inline float logit_at(self, Py_ssize_t i) noexcept nogil:
        return self.logit[i] if self.dense else self.item[i].logit

    cdef float peak(self) noexcept nogil:
        cdef Py_ssize_t i
        cdef float best = -INFINITY
        if self.dense:
            return largest(self.logit, self.n)
        if self.ordered:
            return self.item[0].logit
        for i in range(self.n):
            best = max(best, self.item[i].logit)
        return best

    cdef double total(self, double peak) noexcept nogil:
        """Sum of exp(logit - peak), first to last."""
        cdef Py_ssize_t i
        cdef double total = 0.0
        for i in range(self.n):
            total += exp(<double> self.logit_at(i) - peak)
        return total

    cdef void list_items(self) noexcept nogil:
        cdef Py_ssize_t i
        if self.dense:
            for i in range(self.n):
                self.item[i].logit = self.logit[i]
                self.item[i].id = <int32_t> i
            self.dense = False

    cdef void best_of(self, Candidate *out, Py_ssize_t k) noexcept nogil:
        """Writes the first k of the order to `out`, in order (0 < k <= n)."""
        cdef Py_ssize_t i
        cdef Candidate c
        for i in range(k):
            out[i].logit = self.logit_at(i)
            out[i].id = <int32_t> i if self.dense else self.item[i].id
        for i in range(k // 2 - 1, -1, -1):
            sift_down(out, k, i)
        # Ids rise while nothing is ordered, so an equal logit that comes later never goes before the root.
        for i in range(k, self.n):
            if self.logit_at(i) > out[0].logit:
                out[0].logit = self.logit_at(i)
                out[0].id = <int32_t> i if self.dense else self.item[i].id
                sift_down(out, k, 0)
        for i in range(k - 1, 0, -1):
            c = out[0]
            out[0] = out[i]
            out[i] = c
            sift_down(out, i, 0)

    cdef void sort(self) noexcept nogil:
        if self.ordered:
            return
        self.list_items()
        radix_sort(self.item, self.spare, self.n)
        self.ordered = True

    cdef void adopt_spare(self, Py_ssize_t n) noexcept nogil:
        cdef Candidate *swap = self.item
        self.item = self.spare
        self.spare = swap
        self.n = n
        self.dense = False
        self.ordered = True

    def top_k(self, Py_ssize_t k):
        """Keeps the first k of the order; 0 keeps all."""
        if k <= 0 or k >= self.n:
            return
        with nogil:
            if self.ordered:
                self.n = k
            elif k <= HEAP_LIMIT:
                self.best_of(self.spare, k)
                self.adopt_spare(k)
            else:
                self.sort()
                self.n = k

    def top_p(self, double p):
        """Keeps the smallest leading part of the order whose probabilities add up to p or more; at least one token."""
        cdef Py_ssize_t head
        cdef double peak, bound
        if p >= 1.0:
            return
        with nogil:
            peak = self.peak()
            bound = p * self.total(peak)
            if not self.ordered:
                head = self.n if self.n < HEAP_LIMIT else HEAP_LIMIT
                self.best_of(self.spare, head)
                if self.nucleus(self.spare, head, peak, bound) < head or head == self.n:
                    self.adopt_spare(head)
                else:
                    self.sort()
            self.n = self.nucleus(self.item, self.n, peak, bound)

    cdef Py_ssize_t nucleus(self, Candidate *item, Py_ssize_t n, double peak, double bound) noexcept nogil:
        cdef Py_ssize_t i
        cdef double mass = 0.0
        for i in range(n):
            mass += exp(<double> item[i].logit - peak)
            if mass >= bound:
                return i + 1
        return n

    def min_p(self, double p):
        """Keeps the tokens that are at least p times as likely as the likeliest; at least that one."""
        cdef Py_ssize_t i, kept = 0
        cdef double peak
        if p <= 0.0:
            return
        with nogil:
            self.list_items()
            peak = self.peak()
            for i in range(self.n):
                if exp(<double> self.item[i].logit - peak) >= p:
                    self.item[kept] = self.item[i]
                    kept += 1
            self.n = kept

    def temperature(self, double t):
        """Divides the distances to the highest logit by t > 0, which is what dividing the logits does to softmax.

        Distances can't overflow upwards, however small t is. The highest logit becomes 0.
        """
        cdef Py_ssize_t i
        cdef double peak
        with nogil:
            peak = self.peak()
            for i in range(self.n):
                if self.dense:
                    self.logit[i] = <float> ((<double> self.logit[i] - peak) / t)
                else:
                    self.item[i].logit = <float> ((<double> self.item[i].logit - peak) / t)

    def penalize(self, tokens, double penalty):
        """Repetition penalty on distinct `tokens`: a positive logit is divided by it, any other multiplied.

        Results stay finite, so that no penalty bans a token. Must come before any cut. Tokens that are not in the row
        are passed over.
        """
        cdef Py_ssize_t token
        cdef float logit
        cdef float factor = <float> penalty
        if not self.dense:
            raise GenerateError("penalties must come before the stages that cut candidates")
        for token in tokens:
            if 0 <= token < self.n:
                logit = self.logit[token]
                if logit > 0:
                    self.logit[token] = min(logit / factor, <float> FLT_MAX)
                elif logit >= -FLT_MAX:
                    self.logit[token] = max(logit * factor, <float> -FLT_MAX)

    def argmax(self):
        """The first of the order."""
        cdef Py_ssize_t best = 0
        cdef float best_logit
        with nogil:
            if not self.ordered:
                best_logit = self.peak()
                while self.logit_at(best) != best_logit:
                    best += 1
        return best if self.dense else self.item[best].id

    def draw(self, double u):
        """The token at u, 0 <= u < 1, of the cumulative softmax over what is left."""
        cdef Py_ssize_t i
        cdef Py_ssize_t chosen = 0
        cdef double peak, bound, weight
        cdef double mass = 0.0
        with nogil:
            peak = self.peak()
            bound = u * self.total(peak)
            for i in range(self.n):
                weight = exp(<double> self.logit_at(i) - peak)
                if weight > 0.0:
                    chosen = i  # rounding may leave the sum short of the bound: the last possible token then
                mass += weight
                if mass > bound:
                    break
        return chosen if self.dense else self.item[chosen].id


cdef class XorShift64:
    """Marsaglia's 64-bit xorshift (shifts 13, 7, 17), started with `seed`; `state` is all there is to save.

    The state moves as plain xorshift. A uniform number is the top 53 bits of the state after the finaliser of
    SplitMix64 (Steele et al. 2014): without it, the first numbers of all small seeds would be almost zero, and the
    texts of seeds 1, 2, 3 would begin with the same word.
    """

    cdef public uint64_t state

    def __init__(self, seed):
        # Zero is the one state that xorshift never leaves.
        self.state = seed if seed else 0x517CC1B727220A95

    def next(self):
        """Moves on and returns the new state."""
        cdef uint64_t x = self.state
        x ^= x << 13
        x ^= x >> 7
        x ^= x << 17
        self.state = x
        return x

    def uniform(self):
        """Moves on and returns a float in [0, 1)."""
        cdef uint64_t x = self.state
        x ^= x << 13
        x ^= x >> 7
        x ^= x << 17
        self.state = x
        x = (x ^ (x >> 30)) * <uint64_t> 0xBF58476D1CE4E5B9
        x = (x ^ (x >> 27)) * <uint64_t> 0x94D049BB133111EB
        return <double> ((x ^ (x >> 31)) >> 11) * (1.0 / 9007199254740992.0)
