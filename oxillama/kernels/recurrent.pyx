"""States that layers carry from token to token, one slot for each sequence and checkpoint."""

from libc.stdint cimport uintptr_t

import numpy as np

from oxillama.errors import ConfigError

from oxillama.kernels.batch cimport Batch, span

cdef enum: ALIGNED = 16     # floats of a cache line


cdef class RecurrentSlab:
    """The states of one layer: float32 ``data`` [n_slots, n_values], zeros that the system commits when written.

    Each row begins at a multiple of 64 bytes. A pass never changes a state in place: a span of a batch reads one slot
    and writes another, so that what was there before is still there if the pass is given up.

    Raises ConfigError for no slots or values, MemoryError if the addresses can't be had.
    """

    def __init__(self, int n_slots, int n_values):
        cdef uintptr_t start
        if n_slots < 1 or n_values < 1:
            raise ConfigError(f"{n_slots} slots of {n_values} recurrent values: both must be at least 1")
        self.n_slots, self.n_values = n_slots, n_values
        self._stride = (<size_t>n_values + ALIGNED - 1) // ALIGNED * ALIGNED
        memory = np.zeros(<size_t>n_slots * self._stride + ALIGNED - 1, np.float32)
        first = -memory.ctypes.data % (4 * ALIGNED) // 4
        rows = memory[first:first + <size_t>n_slots * self._stride].reshape(n_slots, self._stride)
        self.data = rows[:, :n_values]
        start = rows.ctypes.data
        self._start = <float *>start

    cdef float *row(self, int slot) noexcept nogil:
        """The values of a slot; NULL for -1, the state before the first token, which is all zeros."""
        return self._start + <size_t>slot * self._stride if slot >= 0 else NULL

    cdef int check(self, Batch batch) except -1:
        """Every span must have slots of this slab. That no span writes what another uses, the batch knows itself."""
        cdef span *p
        cdef int i
        for i in range(batch.n_spans):
            p = &batch.span[i]
            if p.write < 0 or p.read < 0 < p.start:
                raise ConfigError(f"span {i} at position {p.start} reads slot {p.read} and writes slot {p.write}: a "
                                  "recurrent layer needs one to write, and one to read after the first token")
            if max(p.read, p.write) >= self.n_slots:
                raise ConfigError(f"span {i} reads slot {p.read} and writes slot {p.write}; there are {self.n_slots}")
        return 0

    def check_batch(self, Batch batch):
        """Raises ConfigError unless this slab has the slots that every span of the batch reads and writes."""
        self.check(batch)
