"""Activations of a feed-forward layer, value by value and in place; gated ones multiply by a second input."""

from libc.math cimport INFINITY, isfinite
from libc.stdint cimport int64_t

from oxillama.errors import ConfigError

from oxillama.kernels._table cimport ox_kernels, table
from oxillama.kernels.rows cimport Rows, change_rows, check_alike, row_job

cdef const ox_kernels *K = table()


cdef void _silu_row(const row_job *j, int64_t i) noexcept nogil:
    K.silu(j.y + i * j.dim, j.dim)


def silu_(Rows x):
    """``x * sigmoid(x)``, in place: Elfwing, Uchibe and Doya, 2017."""
    cdef row_job j
    change_rows(x, _silu_row, &j)


cdef void _gelu_row(const row_job *j, int64_t i) noexcept nogil:
    K.gelu(j.y + i * j.dim, j.dim)


def gelu_(Rows x):
    """``x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2``, in place: Hendrycks and Gimpel, 2016."""
    cdef row_job j
    change_rows(x, _gelu_row, &j)


cdef void _gelu_erf_row(const row_job *j, int64_t i) noexcept nogil:
    K.gelu_erf(j.y + i * j.dim, j.dim)


def gelu_erf_(Rows x):
    """``x * (1 + erf(x / sqrt(2))) / 2``, in place: what :func:`gelu_` approximates."""
    cdef row_job j
    change_rows(x, _gelu_erf_row, &j)


cdef void _relu_row(const row_job *j, int64_t i) noexcept nogil:
    K.relu(j.y + i * j.dim, j.dim)


def relu_(Rows x):
    """``max(x, 0)``, in place: Nair and Hinton, 2010."""
    cdef row_job j
    change_rows(x, _relu_row, &j)


cdef void _relu2_row(const row_job *j, int64_t i) noexcept nogil:
    K.relu2(j.y + i * j.dim, j.dim)


def relu2_(Rows x):
    """``max(x, 0)**2``, in place: So et al., "Primer", 2021."""
    cdef row_job j
    change_rows(x, _relu2_row, &j)


cdef void _xielu_row(const row_job *j, int64_t i) noexcept nogil:
    K.xielu(j.y + i * j.dim, j.dim, j.w[0], j.w[1], j.w[2], j.w[3])


def xielu_(Rows x, float p, float q, float beta, float eps):
    """``p * x**2 + beta * x`` above zero and ``q * (exp(min(x, eps)) - 1 - x) + beta * x`` below, in place.

    Huang and Schlag, "Deriving Activation Functions Using Integration", 2024. ConfigError unless ``eps`` is at most 0
    and all four are finite.
    """
    cdef float[4] numbers = [p, q, beta, eps]
    cdef row_job j
    if not (eps <= 0 and isfinite(p) and isfinite(q) and isfinite(beta) and isfinite(eps)):
        raise ConfigError(f"xIELU with {p}, {q}, {beta} and eps {eps}: finite numbers are needed, and eps at most 0")
    j.w = numbers
    change_rows(x, _xielu_row, &j)


cdef void _sigmoid_row(const row_job *j, int64_t i) noexcept nogil:
    K.sigmoid(j.y + i * j.dim, j.dim)


def sigmoid_(Rows x):
    """``1 / (1 + exp(-x))``, in place."""
    cdef row_job j
    change_rows(x, _sigmoid_row, &j)


cdef void _softplus_row(const row_job *j, int64_t i) noexcept nogil:
    K.softplus(j.y + i * j.dim, j.dim)


def softplus_(Rows x):
    """``ln(1 + exp(x))``, in place."""
    cdef row_job j
    change_rows(x, _softplus_row, &j)


cdef void _swiglu_row(const row_job *j, int64_t i) noexcept nogil:
    K.swiglu(j.y + i * j.dim, j.x + i * j.dim, j.y + i * j.dim, j.dim)


def swiglu_(Rows gate, Rows up):
    """``gate = silu(gate) * up``: Shazeer, "GLU Variants Improve Transformer", 2020. Returns ``gate``."""
    cdef row_job j
    check_alike(gate, up)
    j.x = up.data
    change_rows(gate, _swiglu_row, &j)
    return gate


cdef void _geglu_row(const row_job *j, int64_t i) noexcept nogil:
    K.geglu(j.y + i * j.dim, j.x + i * j.dim, j.y + i * j.dim, j.dim)


def geglu_(Rows gate, Rows up):
    """``gate = gelu(gate) * up``, by the formula of :func:`gelu_`: Shazeer, 2020. Returns ``gate``."""
    cdef row_job j
    check_alike(gate, up)
    j.x = up.data
    change_rows(gate, _geglu_row, &j)
    return gate


cdef void _swiglu_oai_row(const row_job *j, int64_t i) noexcept nogil:
    K.swiglu_oai(j.y + i * j.dim, j.x + i * j.dim, j.y + i * j.dim, j.dim, j.a, j.c)


def swiglu_oai_(Rows gate, Rows up, float alpha=1.702, float limit=7.0):
    """``gate = g * sigmoid(alpha * g) * (u + 1)``: gpt-oss, OpenAI, 2025. Returns ``gate``.

    ``g`` is the gate, at most ``limit``; ``u`` is ``up`` between ``-limit`` and ``limit``.
    """
    cdef row_job j
    check_alike(gate, up)
    if not 0 < limit < INFINITY:
        raise ConfigError(f"a limit of {limit}; it must be positive and finite")
    j.x, j.a, j.c = up.data, alpha, limit
    change_rows(gate, _swiglu_oai_row, &j)
    return gate


cdef void _geglu_erf_row(const row_job *j, int64_t i) noexcept nogil:
    K.geglu_erf(j.y + i * j.dim, j.x + i * j.dim, j.y + i * j.dim, j.dim)


def geglu_erf_(Rows gate, Rows up):
    """``gate = gelu_erf(gate) * up``, by the formula of :func:`gelu_erf_`: Shazeer, 2020. Returns ``gate``."""
    cdef row_job j
    check_alike(gate, up)
    j.x = up.data
    change_rows(gate, _geglu_erf_row, &j)
    return gate


cdef void _reglu_row(const row_job *j, int64_t i) noexcept nogil:
    K.reglu(j.y + i * j.dim, j.x + i * j.dim, j.y + i * j.dim, j.dim)


def reglu_(Rows gate, Rows up):
    """``gate = max(gate, 0) * up``: Shazeer, 2020. Returns ``gate``."""
    cdef row_job j
    check_alike(gate, up)
    j.x = up.data
    change_rows(gate, _reglu_row, &j)
    return gate


cdef void _swiglu_limited_row(const row_job *j, int64_t i) noexcept nogil:
    K.swiglu_limited(j.y + i * j.dim, j.x + i * j.dim, j.y + i * j.dim, j.dim, j.a)


def swiglu_limited_(Rows gate, Rows up, float limit):
    """``gate = min(silu(gate), limit) * u``, ``u`` being ``up`` between ``-limit`` and ``limit``. Returns ``gate``.

    Step 3.5: StepFun, 2026.
    """
    cdef row_job j
    check_alike(gate, up)
    if not 0 < limit < INFINITY:
        raise ConfigError(f"a limit of {limit}; it must be positive and finite")
    j.x, j.a = up.data, limit
    change_rows(gate, _swiglu_limited_row, &j)
    return gate
