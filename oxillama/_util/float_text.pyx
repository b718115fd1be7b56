"""Decimal text of float32: nine significant digits, from which every value can be read back exactly.

JSON of vectors is mostly such text, and `repr` of each value as a double takes longer than many a model takes for it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.math cimport fabs, llround, signbit
from libc.stdint cimport int64_t
from libc.string cimport memcpy, memset

from oxillama.errors import ConfigError

cdef enum:
    DIGITS = 9                  # FLT_DECIMAL_DIG of C
    WIDEST = 16                 # "-0.0000123456789" without a comma after it
    LEAST = -5                  # the decimal exponents of values that are written without one
    MOST = 9

# Powers of ten, which doubles hold exactly up to 1e22.
cdef double[20] POWERS = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
                          1e17, 1e18, 1e19]


cdef inline int exponent_of(double value) noexcept nogil:
    """Power of ten that a value from 1e-5 to 1e9 begins with."""
    cdef int e = LEAST
    value *= POWERS[-LEAST]
    while e + 1 < MOST and value >= POWERS[e + 1 - LEAST]:
        e += 1
    return e


cdef char *write(char *out, float given) noexcept nogil:
    """Writes a value that is zero, or from 1e-5 to 1e9 without its sign. Returns where the text ends."""
    cdef double value = fabs(given)
    cdef int e, n, i, n_before
    cdef int64_t number
    cdef char[DIGITS] digits
    if signbit(given):
        out[0] = c'-'
        out += 1
    if value == 0:
        memcpy(out, b"0.0", 3)
        return out + 3
    e = exponent_of(value)
    number = llround(value * POWERS[DIGITS - 1 - e])
    if number >= <int64_t> POWERS[DIGITS]:
        number //= 10
        e += 1
    elif number < <int64_t> POWERS[DIGITS - 1]:  # the power was rounded up
        e -= 1
        number = llround(value * POWERS[DIGITS - 1 - e])
    for i in range(DIGITS - 1, -1, -1):
        digits[i] = c'0' + number % 10
        number //= 10
    n, n_before = DIGITS, e + 1
    while n > 1 and n > n_before and digits[n - 1] == c'0':
        n -= 1
    if n_before <= 0:
        memcpy(out, b"0.", 2)
        memset(out + 2, c'0', -n_before)
        memcpy(out + 2 - n_before, digits, n)
        return out + 2 - n_before + n
    memcpy(out, digits, n_before)
    out[n_before] = c'.'
    if n == n_before:
        out[n_before + 1] = c'0'
        return out + n_before + 2
    memcpy(out + n_before + 1, digits + n_before, n - n_before)
    return out + n + 1


def json_of(const float[::1] values not None):
    """The values as a JSON list, in bytes. Raises ConfigError for NaN and infinities, which JSON lacks."""
    cdef Py_ssize_t i, n = values.shape[0]
    cdef bytes text
    cdef object whole = PyBytes_FromStringAndSize(NULL, 2 + n * (WIDEST + 1))
    cdef char *start = PyBytes_AS_STRING(whole)
    cdef char *out = start
    cdef double size
    out[0] = c'['
    out += 1
    for i in range(n):
        if i:
            out[0] = c','
            out += 1
        size = fabs(values[i])
        if size == 0 or 1e-5 <= size < 1e9:
            out = write(out, values[i])
        else:
            text = b"%.9g" % values[i]
            if not (size < 1e39):
                raise ConfigError(f"value {i} is {values[i]}, which JSON lacks")
            memcpy(out, <const char *> text, len(text))
            out += len(text)
    out[0] = c']'
    return whole[:out + 1 - start]
