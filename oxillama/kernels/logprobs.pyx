"""Log-probabilities of a row of logits."""

from libc.math cimport INFINITY

cdef extern from "ox_math.h":
    double exp "ox_exp_double"(double x) noexcept nogil
    double log "ox_log_double"(double x) noexcept nogil


def log_sum_exp(const float[::1] row not None):
    """log Σ exp(row), which taken from a logit leaves its log-softmax.

    NaN if there is NaN or plus infinity in the row, or nothing above minus infinity. The highest logit is taken out
    first, so that nothing overflows. Terms are doubles, added up in four sums by position modulo 4, and those in order:
    the same row gives the same bits, on every CPU and with every C library.
    """
    cdef Py_ssize_t i, n = row.shape[0]
    cdef int j
    cdef float[16] lane
    cdef double[4] sums
    cdef double peak
    with nogil:
        for j in range(16):
            lane[j] = -INFINITY
        for i in range(0, n - 15, 16):
            for j in range(16):  # which the compiler turns into vectors
                lane[j] = row[i + j] if row[i + j] > lane[j] else lane[j]
        for i in range(n - n % 16, n):
            lane[0] = row[i] if row[i] > lane[0] else lane[0]
        for j in range(1, 16):
            lane[0] = lane[j] if lane[j] > lane[0] else lane[0]
        peak = lane[0]
        for j in range(4):
            sums[j] = 0.0
        for i in range(0, n - 3, 4):  # four chains, since each addition waits for the one before
            sums[0] += exp(row[i] - peak)
            sums[1] += exp(row[i + 1] - peak)
            sums[2] += exp(row[i + 2] - peak)
            sums[3] += exp(row[i + 3] - peak)
        for i in range(n - n % 4, n):
            sums[i % 4] += exp(row[i] - peak)
        peak += log((sums[0] + sums[1]) + (sums[2] + sums[3]))
    return peak if n else float("nan")
