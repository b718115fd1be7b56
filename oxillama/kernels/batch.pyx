"""Batch of one forward pass: rows of (sequence, token, position), and the place of each sequence's state."""

cimport cython

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t

import numpy as np

from oxillama.errors import ConfigError

from oxillama.kernels._memory cimport freed, resized
from oxillama.kernels._weights cimport likeliest_of
from oxillama.kernels.rows cimport Workspace

cdef enum:
    MAX_POSITION = 2147483647
    MAX_SLOT = 2147483646


def _no_poll():
    pass


@cython.freelist(64)
@cython.no_gc
cdef class Span:
    """One sequence's share of a pass: consecutive tokens, and which of their rows leave the model.

    ``start`` is the absolute position of ``tokens[0]``; ``block_table`` covers every position up to the last token, in
    models with attention. ``want`` is "last", "likeliest" (of the last row, the token that `divide` gives), "all" or
    "none". ``slots``, in models with recurrent layers:
    ``(read, write)``; ``read`` holds the state after ``start`` tokens (-1 at position 0), and the pass leaves the state
    after the last token in ``write``. ``windowed``, where slabs with a window have blocks of their own: their block
    table, which begins with -1 for each block that was given back, as no row sees it any more. ``loras``: changes of
    the model's matrices with their scales, in an order of their own. ``n_source``, in models with an encoder: tokens
    that it reads, the first of the sequence.

    Raises ConfigError for another ``want``, and for a negative ``n_source``.
    """

    def __init__(self, tokens, int64_t start, block_table, str want="last", slots=None, windowed=(), loras=(),
                 int64_t n_source=0):
        if want != "likeliest" and want != "last" and want != "all" and want != "none":
            raise ConfigError(f"want must be 'last', 'likeliest', 'all' or 'none', not {want!r}")
        self.tokens, self.start, self.block_table, self.want = tokens, start, block_table, want
        if n_source < 0:
            raise ConfigError(f"n_source={n_source} can't be negative")
        self.slots, self.windowed, self.loras, self.n_source = slots, windowed, loras, n_source


cdef class Batch:
    """Rows of the spans of any number of sequences.

    Activations live in ``workspace``. ``poll`` is called between layers and may raise to give the pass up.

    ``output_rows`` int32 are the rows that leave the model, those that the spans want or, with ``every_row``, all of
    them; ``outputs`` is the batch of them alone, or this one if it is all of them; without slots, since recurrent
    layers need all rows.

    ``adapters``: the changes of matrices in this pass (:class:`.lora.Adapters`), made for the same ``spans``, or None.
    Products apply them to rows of the batch; ``outputs`` has those of its own rows.

    Raises ConfigError for an empty span, for positions, tokens, block or slot ids that can't be, and for a slot that is
    written by one span and used by another.
    """

    def __init__(self, spans, Workspace workspace, poll=None, adapters=None, *, bint every_row=False):
        self.n_spans, self.spans = len(spans), spans
        self.workspace = workspace
        self.poll = poll or _no_poll
        self.adapters = adapters
        self._allocate(spans)
        self._place(spans)
        self._check_slots()
        if not every_row:
            self._choose_outputs(spans)

    def __dealloc__(self):
        freed(self.span)

    cdef int _allocate(self, spans) except -1:
        """One piece of memory for places, block tables and positions: a step of few rows must not cost many calls."""
        cdef Span s
        cdef int64_t n_ids = 0
        for s in spans:
            if s is None:  # which Cython takes for any class
                raise TypeError("a span must be a Span, not None")
            self.n_rows += len(s.tokens)
            n_ids += len(s.block_table) + len(s.windowed)
        cdef size_t n_bytes = self.n_spans * sizeof(span) + <size_t>(n_ids + self.n_rows + 1) * 4
        cdef span *memory = <span *>resized(self.span, n_bytes)
        if memory == NULL:
            raise MemoryError(f"no memory for a batch of {self.n_rows} rows")
        self.span = memory
        self.position = <int32_t *>(self.span + self.n_spans)
        self.tokens = np.empty(self.n_rows, np.int32)
        return 0

    cdef int _place(self, spans) except -1:
        """Places each span in the batch and in its sequence, with tokens and positions of its rows."""
        cdef Span s
        cdef span *p = self.span
        cdef int i = 0
        cdef int64_t j, n, row = 0
        cdef int32_t *token = numbers_of(self.tokens)
        cdef int32_t *free = self.position + self.n_rows
        for s in spans:
            n = len(s.tokens)
            if not n or not 0 <= s.start <= MAX_POSITION - n:
                raise ConfigError(f"span {i}: {n} tokens at position {s.start}; a span has at least one token, "
                                  f"and positions lie in 0..{MAX_POSITION - 1}")
            p.row, p.n, p.start, p.n_source = row, n, s.start, s.n_source
            free = _set_table(&p.tables[0], free, i, s.block_table, False)
            free = _set_table(&p.tables[1], free, i, s.windowed, True)
            self._set_slots(p, i, s.slots)
            tokens = s.tokens
            try:
                for j in range(n):
                    token[row + j] = tokens[j]
                    self.position[row + j] = <int32_t>(s.start + j)
            except (OverflowError, TypeError, ValueError) as e:
                raise ConfigError(f"tokens must be 32-bit integers: {e}") from None
            row += n
            p += 1
            i += 1
        return 0

    cdef int _set_slots(self, span *p, int i, slots) except -1:
        p.read = p.write = -1
        if slots is None:
            return 0
        read, write = slots
        if not -1 <= read <= MAX_SLOT or not 0 <= write <= MAX_SLOT or (read == -1) != (p.start == 0) or read == write:
            raise ConfigError(f"span {i} at position {p.start} reads slot {read} and writes slot {write}: it reads -1 "
                              "at position 0 and another one than it writes after that")
        p.read, p.write = read, write
        return 0

    cdef int _check_slots(self) except -1:
        """Checks that no span reads or writes what another one writes."""
        cdef int i, j
        for i in range(self.n_spans):
            if self.span[i].write < 0:
                continue
            for j in range(self.n_spans):
                if j != i and self.span[i].write in (self.span[j].read, self.span[j].write):
                    raise ConfigError(f"span {i} writes slot {self.span[i].write}, which span {j} uses")
        return 0

    @property
    def positions(self):
        """Position of each row in its sequence, int32 [n_rows]."""
        return np.array(<int32_t[:self.n_rows]>self.position) if self.n_rows else np.empty(0, np.int32)

    @property
    def outputs(self):
        # Not kept: a batch that held itself would wait for the garbage collector, and its workspace with it.
        return self if self._outputs is None else self._outputs

    @property
    def output_rows(self):
        return np.arange(self.n_rows, dtype=np.int32) if self._outputs is None else self._output_rows

    cdef int _choose_outputs(self, spans) except -1:
        cdef Span s
        cdef int64_t n, first, end = 0
        for s in spans:
            if s.want != "all" and (s.want == "none" or len(s.tokens) > 1):
                break
        else:
            return 0
        rows, parts = [], []
        for s in spans:
            n = len(s.tokens)
            end += n
            first = 0 if s.want == "all" else n - (s.want != "none")
            rows.extend(range(end - n + first, end))
            if first < n:
                parts.append(Span(s.tokens[first:], s.start + first, s.block_table, "all", None, s.windowed,
                                  n_source=s.n_source))
        self._output_rows = np.array(rows, np.int32)
        adapters = None if self.adapters is None else self.adapters.of_rows(self._output_rows)
        self._outputs = Batch(parts, self.workspace, self.poll, adapters)
        return 0


def divide(rows, spans, bint every_row=False):
    """Divides the rows of a pass, float32 [n, n_vocab or n_embd], among its spans: those that they want or with
    ``every_row`` all.

    A list of views, None for spans that want none. For a span that wants the likeliest token it has that alone, the
    lowest id among equals; or the row, as a view too, if a logit is NaN or plus infinity, or all are minus infinity.
    """
    cdef Span s
    cdef const float[:, ::1] values = rows
    cdef Py_ssize_t token, first, end = 0
    found = []
    for s in spans:
        first = end
        end += len(s.tokens) if every_row or s.want == "all" else s.want != "none"
        if end > values.shape[0]:
            raise ConfigError(f"{values.shape[0]} rows for spans that want more")
        if end == first:
            found.append(None)
            continue
        token = -1
        if s.want == "likeliest" and not every_row and values.shape[1]:
            token = likeliest_of(&values[first, 0], values.shape[1])
        found.append(token if token >= 0 else rows[first:end])
    return found


cdef int32_t *numbers_of(array) except NULL:
    """Address of an array's int32 numbers: a memoryview of them would take as long as filling in ten rows."""
    cdef Py_buffer view
    cdef int32_t *found
    PyObject_GetBuffer(array, &view, PyBUF_WRITABLE)
    found = <int32_t *>view.buf
    PyBuffer_Release(&view)
    return found


cdef int32_t *_set_table(block_table *t, int32_t *memory, int i, blocks, bint windowed) except NULL:
    """Copies a block table to memory: the end of it there."""
    cdef int64_t j, n = len(blocks)
    cdef int32_t block
    t.blocks, t.n, t.highest, t.first = memory if n else NULL, n, -1, 0
    for j in range(n):
        block = blocks[j]
        memory[j] = block
        if block >= 0:
            t.highest = max(t.highest, <int64_t>block)
        elif windowed and j == t.first:
            t.first += 1
        else:
            raise ConfigError(f"span {i}: block id {block} in its block table is negative")
    return memory + n
