"""The loops of sampling: candidate tokens with their logits, cut down stage by stage.

Candidates are ordered by logit, ties by the lower token id; the order is total, so what a stage keeps never depends on
how it searches. Logits are float32 as the model gives them; probabilities and sums are computed in double from them.
"""

from libc.math cimport INFINITY
from libc.stdint cimport int32_t, uint32_t
from libc.string cimport memcpy

import numpy as np

from oxillama.errors import ConfigError, GenerateError
from oxillama.kernels._masks cimport apply_mask
from oxillama.kernels._memory cimport freed, resized
from oxillama.kernels._weights cimport (
    BLOCK, Candidate, best_of, copy_logits, deviation, finite, largest, likeliest_of, log, lowest, place_at, radix_sort,
    total_mass, weight
)

# Up to here the best k come from a heap in one pass; beyond, sorting everything by radix costs less.
cdef enum:
    HEAP_LIMIT = 1024
    CHUNK = 1024               # logits that are looked at again while the nearest cache has them


cdef object ndarray = np.ndarray, FLOAT32 = np.dtype(np.float32)


def described(value):
    """An array by its type and shape, anything else by its class: for messages."""
    return f"{value.dtype} of shape {value.shape}" if isinstance(value, ndarray) else type(value).__name__


cdef const float[::1] as_row(row):
    """A row of logits as it is, or a copy in one piece."""
    if isinstance(row, ndarray) and row.dtype == FLOAT32:
        try:
            return row
        except ValueError:
            if row.ndim == 1:
                return np.ascontiguousarray(row)
    raise ConfigError(f"logits must be a float32 array of one dimension, not {described(row)}")


def likeliest(logits):
    """The likeliest token of a row of logits, float32 [n_vocab], the lowest id among equals.

    It is `argmax` of candidates that were loaded with the row, without a copy of it. Raises what `load` raises.
    """
    cdef const float[::1] values = as_row(logits)
    cdef Py_ssize_t n = values.shape[0], found = likeliest_of(&values[0], n) if n else -1
    if found < 0:
        Candidates().load(logits)
    return found


cdef class Candidates:
    """The tokens that may come next, with their logits: loaded from a row of the model, cut down by stages.

    One object serves any number of rows, one after another; it keeps its buffers. Not for use by two threads at once.
    """

    cdef float *row            # of every token, while nothing was cut
    cdef float *picked         # what is left after the first cut: logits and ids
    cdef int32_t *id
    cdef Candidate *item       # for sorting; before, the row as it was without the cut by sigma
    cdef Candidate *spare
    cdef double *mass          # of blocks; owns the memory of all
    cdef Py_ssize_t n_vocab, capacity, n
    cdef bint dense            # nothing cut yet: `row` rules, ids are positions
    cdef bint ordered          # `picked` is in order; otherwise its ids rise
    cdef bint fresh            # `row` is as it was loaded: its highest value, and the chunk where that comes first
    cdef float high
    cdef Py_ssize_t high_at
    cdef double sigmas         # of the cut of the whole row that may be made again; 0: there was none

    def __cinit__(self):
        self.dense = True          # and all else zero: there is no memory yet

    def __dealloc__(self):
        freed(self.mass)

    cdef int reserve(self, Py_ssize_t n) except -1:
        cdef Py_ssize_t blocks = n // BLOCK + 1
        if n <= self.capacity:
            return 0
        self.capacity = 0
        freed(self.mass)
        self.mass = <double *> resized(
            NULL, blocks * sizeof(double) + n * (2 * sizeof(Candidate) + 3 * sizeof(float))
        )
        if self.mass == NULL:
            raise MemoryError(f"no memory for {n} candidates")
        self.item = <Candidate *> (self.mass + blocks)
        self.spare = self.item + n
        self.row = <float *> (self.spare + n)
        self.picked = self.row + n
        self.id = <int32_t *> (self.picked + n)
        self.capacity = n
        return 0

    def load(self, logits):
        """Takes a copy of a row of logits, float32 [n_vocab]; minus infinity bans a token.

        Raises ConfigError for anything but a float32 array of one dimension, GenerateError if a logit is NaN or plus
        infinity, or none is left.
        """
        cdef const float[::1] values = as_row(logits)
        cdef Py_ssize_t i = 0, n = values.shape[0]
        cdef bint good = True
        cdef float high
        self.n = 0                 # until all is well
        self.fresh = False
        self.dense = True
        self.ordered = False
        self.sigmas = 0.0
        if n == 0:
            raise GenerateError("there are no logits to sample from: the row is empty")
        self.reserve(n)
        self.high = -INFINITY
        while i < n:
            good &= copy_logits(self.row + i, &values[i], min(n - i, <Py_ssize_t> CHUNK))
            high = largest(self.row + i, min(n - i, <Py_ssize_t> CHUNK))
            if high > self.high:
                self.high = high
                self.high_at = i
            i += CHUNK
        if not good:
            i = 0
            while values[i] < INFINITY:
                i += 1
            raise GenerateError(f"the model's logit of token {i} is {values[i]}: the weights or the input are damaged")
        if self.high == -INFINITY:
            raise GenerateError(f"no token is left to choose from: all {n} logits are minus infinity")
        self.n = self.n_vocab = n
        self.fresh = True

    cdef int check_alive(self, str why) except -1:
        if largest(self.row, self.n) == -INFINITY:
            raise GenerateError(f"no token is left to choose from: {why}")
        return 0

    cdef int check_loaded(self) except -1:
        if self.n == 0:
            raise GenerateError("there is nothing to choose from: load a row of logits first")
        return 0

    cdef int change_whole(self, str stage) except -1:
        self.fresh = False
        if not self.dense:
            raise GenerateError(f"{stage} must come before the stages that cut candidates, such as top_k and min_p")
        return 0

    # What changes logits

    def bias(
        self, const int32_t[::1] tokens not None, const float[::1] values not None,
        str names="logit_bias and banned_tokens",
    ):
        """Adds values to the logits of tokens; minus infinity bans one. Before any cut.

        Results stay finite otherwise. names: of the settings, for errors. Raises ConfigError for a token that is not in
        the row, GenerateError after a cut or if all are banned.
        """
        cdef Py_ssize_t i, token
        self.change_whole("biases")
        if tokens.shape[0] != values.shape[0]:
            raise ConfigError(f"there must be a value for each of {tokens.shape[0]} tokens, not {values.shape[0]}")
        for i in range(tokens.shape[0]):
            token = tokens[i]
            if not 0 <= token < self.n:
                raise ConfigError(f"tokens of {names} must be from 0 to {self.n - 1}, not {token}")
            if values[i] == -INFINITY:
                self.row[token] = -INFINITY
            elif self.row[token] != -INFINITY:
                self.row[token] = finite(self.row[token] + values[i])
        self.check_alive(f"{names} ban them all")

    def penalize(self, dict counts not None, double repetition, double frequency=0.0, double presence=0.0):
        """Penalties on tokens, which are given with how often they occur. Before any cut.

        A positive logit is divided by `repetition`, any other multiplied; then frequency * count + presence is taken
        off. Results stay finite, so that no penalty bans a token. Tokens that are not in the row are passed over.
        """
        cdef Py_ssize_t token
        cdef float logit, factor = <float> repetition, each = <float> frequency, once = <float> presence
        self.change_whole("penalties")
        for token, count in counts.items():
            if 0 <= token < self.n and self.row[token] != -INFINITY:
                logit = self.row[token]
                logit = finite(logit / factor if logit > 0 else logit * factor)
                self.row[token] = finite(logit - (<float> count * each + once)) + <float> 0.0

    def temperature(self, double t):
        """Divides the distances to the highest logit by t > 0, which is what dividing the logits does to softmax.

        Distances can't overflow upwards, however small t is. The highest logit becomes 0.
        """
        cdef Py_ssize_t i
        cdef float *x = self.logits()
        cdef double peak
        with nogil:
            peak = self.peak()
            self.fresh = False
            for i in range(self.n):
                x[i] = <float> ((<double> x[i] - peak) / t)

    # What is there

    def __len__(self):
        return self.n

    @property
    def n_tokens(self):
        """Number of tokens before any cut."""
        return self.n_vocab

    def items(self):
        """Candidates left, as (id, logit) pairs: in order after a cut by top_k, top_p or typical_p, else by rising
        id."""
        cdef Py_ssize_t i
        cdef const float *x = self.logits()
        return [(i if self.dense else self.id[i], x[i]) for i in range(self.n)]

    def best(self, Py_ssize_t k):
        """The first k of the order, as (id, logit) pairs; all stay."""
        cdef Py_ssize_t i
        cdef const float *x = self.logits()
        k = max(0, min(k, self.n))
        if k == 0:
            return []
        best_of(x, self.n, self.item, k)
        return [(self.id_at(self.item[i].id), self.item[i].logit) for i in range(k)]

    def probabilities(self):
        """Softmax over what is left, as (id, probability) pairs in the order of `items`."""
        cdef double peak = self.peak()
        cdef double total = self.total(peak)
        return [(token, weight(<double> logit - peak) / total) for token, logit in self.items()]

    def softmax(self, int32_t[::1] ids not None, double[::1] probs not None):
        """`probabilities`, written to arrays of as many places as candidates are left."""
        cdef Py_ssize_t i
        cdef const float *x = self.logits()
        cdef double peak = self.peak(), total = self.total(peak)
        if ids.shape[0] != self.n or probs.shape[0] != self.n:
            raise ConfigError(f"arrays must have {self.n} places, not {ids.shape[0]} and {probs.shape[0]}")
        for i in range(self.n):
            ids[i] = self.id_at(i)
            probs[i] = weight(<double> x[i] - peak) / total

    def total_weight(self):
        """Sum of exp(logit - highest logit), the first of which is 1 / (highest probability)."""
        return self.total(self.peak())

    def entropy(self):
        """Entropy of softmax over the candidates that are left, in nats."""
        cdef double total, mean = self.mean_distance(self.peak(), &total)
        return log(total) - mean

    def count(self):
        """Number of tokens left that are not banned."""
        cdef Py_ssize_t i, found = 0
        cdef const float *x = self.logits()
        for i in range(self.n):
            found += x[i] != -INFINITY
        return found

    cdef inline float *logits(self) noexcept nogil:
        return self.row if self.dense else self.picked

    cdef inline int32_t id_at(self, Py_ssize_t i) noexcept nogil:
        return <int32_t> i if self.dense else self.id[i]

    cdef inline double peak(self) noexcept nogil:
        if self.ordered:
            return self.picked[0]
        return self.high if self.dense and self.fresh else largest(self.logits(), self.n)

    cdef double total(self, double peak) noexcept nogil:
        """Sum of exp(logit - peak); leaves those of blocks in `mass`."""
        return total_mass(self.logits(), self.n, peak, self.mass, NULL)

    cdef double mean_distance(self, double peak, double *total) noexcept nogil:
        """The expected logit - peak; `total` becomes the sum of exp(logit - peak)."""
        cdef double moment = 0.0
        total[0] = total_mass(self.logits(), self.n, peak, NULL, &moment)
        return moment / total[0]

    # What cuts

    def keep(self, const uint32_t[::1] mask not None, str names=None):
        """Bans every token whose bit (t % 32 of word t // 32) is clear, and those beyond the mask. Before any cut.

        If `top_n_sigma` left nothing of what the mask allows, its cut is made again among what the mask allows.
        names: of the settings that the mask is of, for errors, if it is not the grammar's.
        Raises GenerateError after another cut, or if no token with a logit above minus infinity is left.
        """
        cdef double sigmas = self.sigmas
        cdef const uint32_t *words = &mask[0] if mask.shape[0] else NULL
        self.change_whole("the grammar's stage" if names is None else f"the stage of {names}")
        self.sigmas = 0.0
        apply_mask(self.row, self.n, words, mask.shape[0])
        if sigmas and largest(self.row, self.n) == -INFINITY:
            memcpy(self.row, self.item, self.n * sizeof(float))
            apply_mask(self.row, self.n, words, mask.shape[0])
            if largest(self.row, self.n) != -INFINITY:
                self.top_n_sigma(sigmas)
        self.check_alive("all that the grammar allows are banned" if names is None else f"{names} ban them all")

    def top_n_sigma(self, double n):
        """Keeps logits that are at most n standard deviations of all logits (but banned ones) below the highest.

        On a whole row, the others are banned and nothing is cut, so that the grammar's mask can follow.
        """
        cdef Py_ssize_t i
        cdef float *x = self.logits()
        cdef double bound
        if n <= 0.0:
            return
        with nogil:
            bound = self.peak() - n * deviation(x, self.n)
            if self.dense:
                memcpy(self.item, x, self.n * sizeof(float))
                self.sigmas = n
                self.fresh = False
                for i in range(self.n):
                    x[i] = x[i] if x[i] >= bound else -INFINITY
            else:
                self.pick(bound, 0.0, 0.0)

    cdef void pick(self, double low, double peak, double bound) noexcept nogil:
        """Keeps what has a logit of at least `low` and a weight exp(logit - peak) of at least `bound`, if not zero."""
        cdef Py_ssize_t i, kept = 0
        cdef const float *x = self.logits()
        for i in range(self.n):
            if x[i] >= low and (bound <= 0.0 or weight(x[i] - peak) >= bound):
                self.id[kept] = self.id_at(i)
                self.picked[kept] = x[i]
                kept += 1
        self.n = kept
        self.dense = False

    cdef void keep_heavy(self, double peak, double bound) noexcept nogil:
        """Keeps weights exp(logit - peak) of at least `bound`, and the highest whatever it is."""
        self.pick(lowest(peak, min(bound, 1.0)), peak, min(bound, 1.0))

    def min_weight(self, double bound):
        """Keeps tokens that are at least `bound` times as likely as the likeliest; at least those as likely as that."""
        if bound > 0.0:
            with nogil:
                self.keep_heavy(self.peak(), bound)

    def min_probability(self, double p):
        """Keeps tokens with a probability of at least p; at least those as likely as the likeliest."""
        if p > 0.0:
            with nogil:
                self.keep_heavy(self.peak(), p * self.total(self.peak()))

    cdef void take(self, const Candidate *items, Py_ssize_t n) noexcept nogil:
        """Makes n items, whose ids are positions, in order, what is left."""
        cdef Py_ssize_t i
        for i in range(n):
            self.spare[i].id = self.id_at(items[i].id)
        for i in range(n):
            self.picked[i] = items[i].logit
            self.id[i] = self.spare[i].id
        self.n = n
        self.dense = False
        self.ordered = True

    cdef void sort(self, Py_ssize_t k) noexcept nogil:
        """Puts the first k of the order in order and drops the rest."""
        cdef Py_ssize_t i
        cdef const float *x = self.logits()
        if self.ordered:
            self.n = k
        elif k <= HEAP_LIMIT and (k < self.n or k < 256):
            best_of(x, self.n, self.item, k)
            self.take(self.item, k)
        else:
            for i in range(self.n):
                self.item[i].logit = x[i]
                self.item[i].id = <int32_t> i
            radix_sort(self.item, self.spare, self.n)
            self.take(self.item, k)

    def top_k(self, Py_ssize_t k):
        """Keeps the first k of the order; 0 keeps all."""
        if 0 < k < self.n:
            with nogil:
                self.sort(k)

    def top_p(self, double p):
        """Keeps the smallest leading part of the order whose probabilities add up to p or more; at least one token."""
        cdef Py_ssize_t i = 0
        cdef double peak, total, mass = 0.0
        if p >= 1.0:
            return
        with nogil:
            peak = self.peak()
            total = self.total(peak)
            # All below half of the average of what may go have less than that together: no need to sort them.
            if not self.ordered and p < 1.0 - 1e-9:
                self.pick(lowest(peak, 0.5 * (1.0 - p) * total / self.n), peak, 0.0)
            self.sort(self.n)
            for i in range(self.n):
                mass += weight(self.picked[i] - peak)
                if mass >= p * total:
                    self.n = i + 1
                    break

    def typical_p(self, double p):
        """Keeps the tokens whose surprise is nearest to the entropy, until they have more than p together.

        The surprise is the entropy where the logit is the expected one, so these are a part of the order around one
        place. Of two that are equally near the likelier comes first.
        """
        cdef Py_ssize_t i, low, high = 0
        cdef double centre, peak, total, mass = 0.0
        if p >= 1.0:
            return
        with nogil:
            peak = self.peak()
            centre = peak + self.mean_distance(peak, &total)
            # As in top_p; and what is further below the centre than the peak is above it comes after all that is left.
            if not self.ordered and p < 1.0 - 1e-9:
                self.pick(min(lowest(peak, 0.5 * (1.0 - p) * total / self.n), 2.0 * centre - peak), peak, 0.0)
            self.sort(self.n)
            while high < self.n and self.picked[high] >= centre:
                high += 1
            low = high
            while mass <= p * total and (low > 0 or high < self.n):
                if high == self.n or (low > 0 and self.picked[low - 1] - centre <= centre - self.picked[high]):
                    low -= 1
                    mass += weight(self.picked[low] - peak)
                else:
                    mass += weight(self.picked[high] - peak)
                    high += 1
            self.n = high - low
            for i in range(self.n):
                self.picked[i] = self.picked[low + i]
                self.id[i] = self.id[low + i]

    def drop_top(self, double p):
        """Drops all tokens with a probability of at least p but the last of them in the order."""
        cdef Py_ssize_t i, least = 0, found = 0, kept = 0
        cdef const float *x = self.logits()
        cdef double peak, bound, low
        with nogil:
            peak = self.peak()
            bound = p * self.total(peak)
            low = lowest(peak, bound)
            for i in range(self.n):
                if x[i] >= low and weight(x[i] - peak) >= bound:
                    found += 1
                    least = i if found == 1 or x[i] <= x[least] else least
            if found > 1:
                for i in range(self.n):
                    if i == least or x[i] < low or weight(x[i] - peak) < bound:
                        self.id[kept] = self.id_at(i)
                        self.picked[kept] = x[i]
                        kept += 1
                self.n = kept
                self.dense = False

    # What chooses

    def argmax(self):
        """The first of the order."""
        cdef Py_ssize_t best = self.high_at if self.dense and self.fresh else 0
        cdef const float *x = self.logits()
        cdef double peak = self.peak()
        self.check_loaded()
        while x[best] != peak:
            best += 1
        return self.id_at(best)

    def pick_at(self, double u):
        """(token, its probability) at u, 0 <= u < 1, of the cumulative softmax over what is left."""
        cdef Py_ssize_t chosen
        cdef const float *x = self.logits()
        cdef double peak, total
        self.check_loaded()
        with nogil:
            peak = self.peak()
            total = self.total(peak)
            chosen = place_at(x, self.n, peak, self.mass, u * total)
        return self.id_at(chosen), weight(x[chosen] - peak) / total

    def draw(self, double u):
        """The token of `pick_at`."""
        return self.pick_at(u)[0]
