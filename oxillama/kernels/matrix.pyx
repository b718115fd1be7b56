"""A weight matrix, and where its weights are.

A :class:`Matrix` is kept in panels of 16 interleaved rows (``repack``, at load), or stays where the file is mapped, or
read to, and is packed panel by panel by the product that uses it. Or it is brought in page by page whenever it is
multiplied (``page``), by a pager that keeps as much of it as there is room for.
"""

from cython.parallel cimport prange

from libc.stdint cimport int64_t, uint8_t, uintptr_t

import numpy as np

from oxillama.errors import QuantError

from oxillama.kernels._table cimport OX_PANEL, find_kernel_format, format_info, ox_format_info, ox_kernels, table
from oxillama.kernels._threads cimport start_team
from oxillama.kernels.rows cimport Vector

cdef const ox_kernels *K = table()

cdef enum:
    REPACK_BYTES = 16 << 20     # of a matrix are resident twice while it is repacked


cdef class Matrix:
    """A weight matrix [n_out, n_in], or a stack of them [n_experts, n_out, n_in].

    ``data`` is the tensor as files store it, uint8 [nbytes]; ``bias``, [n_out] or [n_experts * n_out], is added to
    whatever a matrix gives. ``rounds``: BF16 is multiplied by activations in BF16 where the CPU does that. Raises
    QuantError when the format has no kernels or the sizes don't fit.
    """

    def __init__(self, data, str type, shape, *, Vector bias=None, str name="?", bint repack=True, bint rounds=True):
        cdef const uint8_t[::1] raw = data
        cdef const ox_format_info *f = format_info(find_kernel_format(type))
        self.name, self.type = name, type
        experts, n_out, n_in = shape if len(shape) == 3 else (1, *shape)
        self.n_experts, self.n_out, self.n_in = experts, n_out, n_in
        if (min(experts, n_out, n_in) < 1 or n_in % f.values
                or raw.shape[0] != experts * n_out * n_in // f.values * f.bytes):  # in Python's integers: no overflow
            raise QuantError(f"{name}: {raw.shape[0]} bytes of {type} are not a matrix of shape {tuple(shape)}")
        if bias is not None and bias.n != experts * n_out:
            raise QuantError(f"{name}: a bias of {bias.n} values for a matrix of shape {tuple(shape)}")
        self.bias = bias
        self.kernel = f.kernel
        self.integer = f.values > 1
        self.rounds = rounds and f.name == b"BF16" and K.gemm_bf16 != NULL
        self.gemm = K.gemm_bf16 if self.rounds else K.gemm[self.kernel]
        self.row_bytes = <size_t>(self.n_in // f.values * f.bytes)
        self.n_panels = (self.n_out + OX_PANEL - 1) // OX_PANEL
        self.panel_bytes = <size_t>((self.n_in + f.packed_values - 1) // f.packed_values * f.packed_bytes)
        self.raw, self._raw_owner = &raw[0], data
        if repack:
            self.repack()

    def repack(self, *, int num_threads=1, release=None, allocate=None):
        """Moves the weights into panels, in memory that ``allocate(n_bytes)`` gives (uint8).

        ``release(part of data)`` is called for each part that is done with. Does nothing a second time.
        """
        if self.raw != NULL and self.has_panels:
            buffer = (allocate or (lambda n_bytes: np.empty(n_bytes, np.uint8)))(self.panels_nbytes + 64)
            self._repack(buffer, num_threads, release or (lambda part: None))

    def _repack(self, buffer, int num_threads, release):
        cdef int64_t i, first, last, total = self.n_experts * self.n_panels
        cdef int64_t step = max(<int64_t>1, <int64_t>(REPACK_BYTES // self.panel_bytes))
        cdef int nt = start_team(num_threads)
        cdef uintptr_t start = buffer.ctypes.data
        self.packed, self._packed_owner = <uint8_t *>((start + 63) // 64 * 64), buffer
        for first in range(0, total, step):
            last = min(first + step, total)
            for i in prange(first, last, nogil=True, num_threads=nt, schedule="static"):
                self._pack(i)
            release(self._raw_owner[self._first_byte(first):self._first_byte(last)])
        self.raw, self._raw_owner, self.repacked = NULL, None, True

    def hold(self, data):
        """Takes the weights from ``data``, as files store them (uint8 [file_nbytes]), instead of from where they were.

        QuantError when they are not as many bytes.
        """
        cdef const uint8_t[::1] raw = data
        if raw.shape[0] != self.file_nbytes:
            raise QuantError(f"{self.name}: {raw.shape[0]} bytes for a matrix of {self.file_nbytes}")
        self._forget()
        self.raw, self._raw_owner = &raw[0], data

    def hold_panels(self, data):
        """Takes the weights from panels as `repack` makes them (uint8 [panels_nbytes]), which are only read.

        ``data`` is at a multiple of 64 bytes. QuantError when it isn't, or has another number of bytes.
        """
        cdef const uint8_t[::1] panels = data
        if panels.shape[0] != self.panels_nbytes or <uintptr_t>&panels[0] % 64:
            raise QuantError(f"{self.name}: {panels.shape[0]} bytes for panels of {self.panels_nbytes}, or not aligned")
        self._forget()
        self.packed, self._packed_owner, self.repacked = <uint8_t *>&panels[0], data, True

    def page(self, pager, int64_t first_page, int64_t page_panels, *, bint in_panels=False):
        """Lets go of the weights: from now on each product asks for those that it reads.

        The rows of each matrix of a stack are cut into pages of ``page_panels`` panels of 16, the last of them shorter,
        with numbers from ``first_page`` on. QuantError for pages that can't be. Of the pager a product uses

        - ``call = begin(numbers)``: what it wants; ``call.n_open`` pages of it are left to be taken;
        - ``take(call)``: a list of ``(number, address, file, offset)``, pages as files store them, or ``in_panels`` as
          `repack` makes them, to be used until ``done``. With ``file`` -1 they are in memory at the address. Otherwise
          they may be in the page cache: the product reads them to the address, or if that is 0 to memory of its own;
        - ``done(call, missing, n_bytes)``: pages that were not completely in the cache, and the number of bytes read;
        - ``end(call)``, in any case.
        """
        if first_page < 0 or page_panels < 1:
            raise QuantError(f"{self.name}: pages of {page_panels} panels from number {first_page} on")
        self._forget()
        self.pager, self.first_page, self.page_panels = pager, first_page, page_panels
        self.pages_in_panels = in_panels

    def _forget(self):
        self.raw = self.packed = NULL
        self._raw_owner = self._packed_owner = self.pager = None
        self.repacked = False

    cdef size_t _first_byte(self, int64_t i) noexcept nogil:
        """Offset of the rows of panel ``i`` in the file's tensor."""
        return <size_t>(i // self.n_panels * self.n_out + i % self.n_panels * OX_PANEL) * self.row_bytes

    cdef void _pack(self, int64_t i) noexcept nogil:
        cdef int64_t rows = min(self.n_out - i % self.n_panels * OX_PANEL, <int64_t>OX_PANEL)
        K.pack[self.kernel](self.raw + self._first_byte(i), self.row_bytes, rows, self.n_in,
                            self.packed + <size_t>i * self.panel_bytes)

    @property
    def shape(self):
        matrix = (self.n_out, self.n_in)
        return (self.n_experts, *matrix) if self.n_experts > 1 else matrix

    @property
    def raw_nbytes(self):
        """Bytes of the file's tensor, until it is repacked."""
        return 0 if self._raw_owner is None else self._raw_owner.nbytes

    @property
    def nbytes(self):
        """Bytes held beside the files' own: what is mapped can't be written to, and is not counted."""
        owner = self._packed_owner
        return owner.nbytes if owner is not None and owner.flags.writeable else 0

    @property
    def data(self):
        """The bytes as files store them, uint8 [file_nbytes], until they are repacked, or come page by page."""
        return self._raw_owner

    @property
    def panels(self):
        """The panels, uint8 [panels_nbytes], once it is repacked; else None."""
        if self._packed_owner is None:
            return None
        first = <uintptr_t>self.packed - <uintptr_t>self._packed_owner.ctypes.data
        return self._packed_owner[first:first + self.panels_nbytes]

    @property
    def panels_nbytes(self):
        """Bytes of all panels."""
        return self.n_experts * self.n_panels * <int64_t>self.panel_bytes

    @property
    def has_panels(self):
        """Whether `repack` moves it into panels.

        Rows that fill no panel are padded to one: a stack of tiny matrices would grow sixteenfold, and stays as is.
        """
        return self.panels_nbytes <= 2 * self.file_nbytes + (1 << 20)

    @property
    def file_nbytes(self):
        """Bytes of the tensor as files store it."""
        return self.n_experts * self.n_out * <int64_t>self.row_bytes

    @property
    def held_nbytes(self):
        """Bytes that the matrix would take in memory, repacked if that is done at all."""
        return self.panels_nbytes + 64 if self.has_panels else self.file_nbytes

    def __repr__(self):
        return f"Matrix({self.name!r}, {self.type}, {self.shape}, repacked={bool(self.repacked)})"
