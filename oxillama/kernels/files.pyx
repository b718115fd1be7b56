"""File rows: reads of single rows of a table, of which a step needs a few out of many thousand; probes of the page
cache, and the start of writing a part to disk.
"""

from libc cimport errno as system
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t

from oxillama.errors import GenerateError

from oxillama.kernels._at_hand cimport read_if_cached

cdef enum:
    STEP = 512 * 1024           # more probes cost as much as reading, and the read itself finds the missing parts

cdef extern from "<unistd.h>" nogil:
    ssize_t pread(int fd, void *buffer, size_t n_bytes, int64_t offset)
    int close_file "close"(int fd)


cdef extern from *:
    """
    #include <fcntl.h>
    #include <stdint.h>
    /* Errors are of no use here: fsync(2) finds what is wrong with the file. */
    static inline void ox_begin_writing(int fd, int64_t offset, int64_t n_bytes)
    {
    #ifdef SYNC_FILE_RANGE_WRITE
        (void)!sync_file_range(fd, offset, n_bytes, SYNC_FILE_RANGE_WRITE);
    #else
        (void)fd, (void)offset, (void)n_bytes;
    #endif
    }
    """
    void ox_begin_writing(int fd, int64_t offset, int64_t n_bytes) noexcept nogil


cdef class Descriptor:
    """An open file by its number, closed when this is dropped: neither a signal nor the collection of a cycle, whose
    finalisers may still read, comes before that.
    """

    cdef readonly int fd

    def __cinit__(self, int fd):
        self.fd = fd

    def close(self):
        """Closes it now; further calls do nothing, nor does an error that the system reports."""
        cdef int fd = self.fd
        self.fd = -1
        if fd >= 0:
            close_file(fd)

    def __dealloc__(self):
        if self.fd >= 0:
            close_file(self.fd)


cdef int _read(int fd, uint8_t *out, size_t n_bytes, int64_t offset) noexcept nogil:
    """0, the error's number, or -1 where the file ends too early."""
    cdef size_t done = 0
    cdef ssize_t n
    while done < n_bytes:
        n = pread(fd, out + done, n_bytes - done, offset + <int64_t>done)
        if n == 0:
            return -1
        if n > 0:
            done += <size_t>n
        elif errno != EINTR:
            return errno
    return 0


def read_rows(int fd, int64_t offset, int64_t row_bytes, int64_t n_rows, const int32_t[::1] rows, uint8_t[::1] out):
    """Copies ``rows`` of a table that begins at ``offset`` of an open file to ``out``, uint8 [len(rows) * row_bytes].

    Returns 0, the number of the system's error, or -1 if the file ends before one of them. GenerateError, before
    anything is read, for a row that the table doesn't have or an ``out`` of another size.
    """
    cdef Py_ssize_t i
    cdef int status = 0
    if row_bytes < 1 or out.shape[0] != rows.shape[0] * row_bytes:
        raise GenerateError(f"{out.shape[0]} bytes for {rows.shape[0]} rows of {row_bytes}")
    for i in range(rows.shape[0]):
        if not 0 <= rows[i] < n_rows:
            raise GenerateError(f"token id {rows[i]} is not in 0..{n_rows - 1}")
    with nogil:
        for i in range(rows.shape[0]):
            status = _read(fd, &out[i * row_bytes], <size_t>row_bytes, offset + rows[i] * row_bytes)
            if status:
                break
    return status


def can_tell(int fd):
    """Whether `is_cached` works for this file: not on all file systems, NFS and tmpfs among them."""
    cdef char byte
    system.errno = 0            # without such a system call, nothing sets it
    return read_if_cached(fd, &byte, 1, 0) or system.errno == EAGAIN


def is_cached(int fd, int64_t offset, int64_t n_bytes):
    """Whether bytes of an open file seem to be in the page cache: some are probed. False where that is unknown."""
    cdef char byte
    cdef int64_t at = 0
    if n_bytes < 1 or not 0 <= offset <= INT64_MAX - n_bytes or not read_if_cached(fd, &byte, 1, offset + n_bytes - 1):
        return False
    while at < n_bytes:
        if not read_if_cached(fd, &byte, 1, offset + at):
            return False
        at += STEP
    return True


def begin_writing(int fd, int64_t offset, int64_t n_bytes):
    """Starts the system's writing of a part of an open file to disk, where that is possible, without waiting."""
    with nogil:
        ox_begin_writing(fd, offset, n_bytes)
