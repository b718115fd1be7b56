"""Batch of one forward pass: rows of (sequence, token, position), and the place of each sequence's state."""

from libc.stdint cimport int32_t, int64_t, uint8_t

import numpy as np

from oxillama.errors import ConfigError

from oxillama.kernels.rows cimport Workspace

cdef enum:
    MAX_POSITION = 2147483647
    MAX_SLOT = 2147483646


def _no_poll():
    pass


cdef class Batch:
    """Runs of consecutive tokens of any number of sequences.

    ``spans``: for each sequence ``(tokens, position of the first, block table)``, and ``(read, write)`` as a fourth
    where the model has recurrent layers, else None. The block table covers every position up to the last one. ``read``
    is the slot of the state before the span, -1 at position 0; the pass leaves the state after it in ``write``. Fifth
    is the block table of slabs that are ``windowed``: it begins with -1 for each block that was given back, as no row
    sees it any more. Activations live in ``workspace``. ``poll`` is called between layers and may raise to give the
    pass up.

    ``wants`` says of each span which rows leave the model: "all" (the default), "last" or "none". ``output_rows`` int32
    are those rows, and ``outputs`` the batch of them alone, or this one if it is all of them; without slots, since
    recurrent layers need all rows.

    ``adapters``: the changes of matrices in this pass (:class:`.lora.Adapters`), made for the same spans, or None.
    Products apply them to rows of the batch; ``outputs`` has those of its own rows.

    Raises ConfigError for an empty span, for positions, tokens, block or slot ids that can't be, and for a slot that is
    written by one span and used by another.
    """

    def __init__(self, spans, Workspace workspace, poll=None, wants=None, adapters=None):
        self.n_spans = len(spans)
        self.workspace = workspace
        self.poll = poll or _no_poll
        self.adapters = adapters
        self._spans = np.empty(max(self.n_spans, 1) * sizeof(span), np.uint8)
        cdef uint8_t[::1] memory = self._spans
        self.span = <span *>&memory[0]
        self._tables = []
        self._place(spans)
        self._check_slots()
        self._fill(spans)
        self._choose_outputs(spans, wants)

    cdef int _place(self, spans) except -1:
        """Where each span lies in the batch and in its sequence."""
        cdef span *p
        cdef int i = 0
        cdef int64_t n, start
        for tokens, first, blocks, *more in spans:
            n = len(tokens)
            if not n or not 0 <= first <= MAX_POSITION - n:
                raise ConfigError(f"span {i}: {n} tokens at position {first}; a span has at least one token, "
                                  f"and positions lie in 0..{MAX_POSITION - 1}")
            start = first
            p = &self.span[i]
            p.row, p.n, p.start = self.n_rows, n, start
            self._set_table(&p.tables[0], i, blocks, False)
            self._set_slots(p, i, more[0] if more else None)
            self._set_table(&p.tables[1], i, more[1] if len(more) > 1 else (), True)
            self.n_rows += n
            i += 1
        return 0

    cdef int _set_table(self, block_table *t, int i, blocks, bint windowed) except -1:
        array = np.ascontiguousarray(blocks, np.int32)
        cdef const int32_t[::1] table = array
        cdef Py_ssize_t j
        self._tables.append(array)
        t.blocks = &table[0] if table.shape[0] else NULL
        t.n, t.highest, t.first = table.shape[0], -1, 0
        for j in range(table.shape[0]):
            if table[j] >= 0:
                t.highest = max(t.highest, <int64_t>table[j])
            elif windowed and j == t.first:
                t.first += 1
            else:
                raise ConfigError(f"span {i}: block id {table[j]} in its block table is negative")
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
        """What one span writes, no other reads or writes."""
        cdef int i, j
        for i in range(self.n_spans):
            if self.span[i].write < 0:
                continue
            for j in range(self.n_spans):
                if j != i and self.span[i].write in (self.span[j].read, self.span[j].write):
                    raise ConfigError(f"span {i} writes slot {self.span[i].write}, which span {j} uses")
        return 0

    cdef int _fill(self, spans) except -1:
        """Tokens and positions of every row."""
        cdef int32_t[::1] token, position
        cdef int64_t row = 0, i
        self.tokens, self.positions = np.empty(self.n_rows, np.int32), np.empty(self.n_rows, np.int32)
        token, position = self.tokens, self.positions
        for i in range(self.n_spans):
            for t in spans[i][0]:
                try:
                    token[row] = t
                except (OverflowError, TypeError, ValueError) as e:
                    raise ConfigError(f"tokens must be 32-bit integers: {e}") from None
                position[row] = <int32_t>(self.span[i].start + row - self.span[i].row)
                row += 1
        self.position = &position[0] if self.n_rows else NULL
        return 0

    @property
    def outputs(self):
        # Not kept: a batch that held itself would wait for the garbage collector, and its workspace with it.
        return self if self._outputs is None else self._outputs

    @property
    def output_rows(self):
        return np.arange(self.n_rows, dtype=np.int32) if self._outputs is None else self._output_rows

    def _choose_outputs(self, spans, wants):
        cdef int i
        if wants is None:
            return
        for i in range(self.n_spans):
            if not (wants[i] == "all" or wants[i] == "last" and self.span[i].n == 1):
                break
        else:
            return
        rows, parts, end = [], [], 0
        for want, (tokens, start, blocks, *more) in zip(wants, spans):
            end += len(tokens)
            n = {"all": len(tokens), "last": 1, "none": 0}[want]
            rows.extend(range(end - n, end))
            if n:
                parts.append((tokens[len(tokens) - n:], start + len(tokens) - n, blocks, None, *more[1:]))
        self._output_rows = np.array(rows, np.int32)
        adapters = None if self.adapters is None else self.adapters.of_rows(self._output_rows)
        self._outputs = Batch(parts, self.workspace, self.poll, None, adapters)
