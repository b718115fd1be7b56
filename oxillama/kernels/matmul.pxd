from libc.stdint cimport int32_t, int64_t, uint8_t

from oxillama.kernels._table cimport ox_gemm_fn
from oxillama.kernels.matrix cimport Matrix
from oxillama.kernels.rows cimport Rows


cdef struct job:
    const uint8_t *packed
    const uint8_t *raw
    size_t panel_bytes, row_bytes
    int kernel
    ox_gemm_fn gemm
    ox_gemm_fn gemm_rows            # of rows as they are stored, or NULL
    int64_t n_in, n_out, n_panels, group
    int64_t together, at_once       # panels that are packed, or read
    bint integer
    int64_t first_task
    const uint8_t *x
    size_t x_bytes
    const int32_t *x_rows
    float *y
    int64_t y_stride                # floats from one row to the next
    const int32_t *y_rows
    int64_t n_tokens
    int accumulate
    bint from_memory
    void *pager                     # the matrix's, or NULL
    int64_t first_page, page_panels
    bint in_panels                  # pages are panels, not rows as files store them
    int64_t first_panel             # of the matrix, where only a page of it is multiplied
    # Of low-rank changes. First products: their rows are multiplied by `scale` and their own one of `scales`, and they
    # count their panels down in `left`. What is changed: second products, added panel by panel once `left` is 0.
    const float *scales
    float scale
    int64_t *left
    const job *changes
    int n_changes
    int file                        # the rows are read from here, to `raw` if that is not NULL; -1: they are there
    int64_t offset
    uint8_t *missed                 # [n_panels]: becomes 1 where they were not in the page cache


cdef int prepare(job *j, Matrix w, int64_t expert, int64_t n_tokens, int nt) except -1
cdef int set_input(job *j, Matrix w, Rows x) except -1
cdef int describe(job *j, Matrix w, Rows x, int nt) except -1
cdef void _task(const job *j, int64_t task, uint8_t *scratch) noexcept nogil
cdef int run(job *jobs, int n_jobs, workspace) except -1
