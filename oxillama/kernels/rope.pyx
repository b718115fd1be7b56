"""Rotary position embedding: Su et al., "RoFormer", 2021."""

from cython.parallel cimport prange

from libc.math cimport floor
from libc.stdint cimport int64_t

from oxillama.errors import ConfigError

from oxillama.kernels._table cimport ox_kernels, table
from oxillama.kernels.batch cimport Batch
from oxillama.kernels._team cimport ROTATION, Team, region
from oxillama.kernels.rows cimport Rows, row_threads

cdef extern from "ox_math.h":
    void cos_sin "ox_cos_sin"(double x, double *cosine, double *sine) noexcept nogil
    double log "ox_log_double"(double x) noexcept nogil

cdef const ox_kernels *K = table()


def angles(Batch batch, const double[::1] frequencies, double magnitude):
    """Cosines, then sines, of ``position * frequencies`` times ``magnitude``: Rows [batch.n_rows, 2 * n_frequencies].

    ``frequencies`` are in radians per token. Angles are computed in double precision: at position 100,000 a float
    angle would be off by 0.004. Cosines and sines are our own: those of C libraries differ in their last bits.
    """
    cdef Py_ssize_t h = frequencies.shape[0], j
    cdef Rows out = batch.workspace.rows(batch.n_rows, 2 * h)
    cdef int64_t i
    cdef double cosine, sine
    with nogil:
        for i in range(batch.n_rows):
            for j in range(h):
                cos_sin(batch.position[i] * frequencies[j], &cosine, &sine)
                out.data[i * 2 * h + j] = <float>(cosine * magnitude)
                out.data[i * 2 * h + h + j] = <float>(sine * magnitude)
    return out


def sharpen_(Rows x, Batch batch, double scale, int64_t length, int64_t offset=0):
    """Multiply each row by ``1 + scale * ln(1 + floor((position + offset) / length))``, in place.

    Queries beyond the first ``length`` tokens get sharper scores, so that many keys don't dilute the few that matter:
    Nakanishi, "Scalable-Softmax Is Superior for Attention", 2025, in the steps that Llama 4 and Mistral 3 take.
    """
    cdef int64_t i, j, dim = x.dim
    cdef float factor
    if batch.n_rows != x.n or length < 1:
        raise ConfigError(f"positions of {batch.n_rows} rows for {x.n}, in steps of {length}")
    with nogil:
        for i in range(x.n):
            factor = <float>(1.0 + scale * log(1.0 + floor(<double>(batch.position[i] + offset) / length)))
            if factor != 1:
                for j in range(dim):
                    x.data[i * dim + j] *= factor
    x.q8 = NULL


cdef void _rotate(float *x, const float *cos_sin, int64_t dim, int64_t head_dim, int64_t n_rot,
                  bint neox) noexcept nogil:
    cdef int64_t head
    for head in range(dim // head_dim):
        if neox:
            K.rope_neox(x + head * head_dim, cos_sin, n_rot)
        else:
            K.rope_norm(x + head * head_dim, cos_sin, n_rot)


def rotate_(Rows x, Rows cos_sin, int64_t head_dim, bint neox):
    """Rotate the first ``cos_sin.dim`` values of each head, in place.

    ``neox`` pairs value i with i + n/2 (GPT-NeoX, Hugging Face), otherwise 2i with 2i + 1 (the original, and Llama
    weights as GGUF files hold them).
    """
    cdef int64_t i, n = x.n, dim = x.dim, n_rot = cos_sin.dim
    cdef region r
    cdef Team team = x.workspace.team
    cdef int nt
    cdef float *data = x.data
    cdef const float *angle = cos_sin.data
    if cos_sin.n != n or n_rot > head_dim or head_dim < 1 or dim % head_dim:
        raise ConfigError(f"angles of {cos_sin.n} x {n_rot} for {n} rows of {dim} values in heads of {head_dim}")
    nt = row_threads(x, &r, ROTATION | neox << 5)
    if nt == 1 and r.brief:
        for i in range(n):
            _rotate(data + i * dim, angle + i * n_rot, dim, head_dim, n_rot, neox)
        team.end(&r)
    elif nt == 1:
        with nogil:
            for i in range(n):
                _rotate(data + i * dim, angle + i * n_rot, dim, head_dim, n_rot, neox)
            team.end(&r)
    else:
        with nogil:
            for i in prange(n, num_threads=nt, schedule="static"):
                _rotate(data + i * dim, angle + i * n_rot, dim, head_dim, n_rot, neox)
            team.end(&r)
    x.q8 = NULL
