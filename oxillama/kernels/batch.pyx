"""What one forward pass computes: rows of (sequence, token, position), and where each sequence's state lies."""

from libc.stdint cimport int32_t, int64_t, uintptr_t

import numpy as np

from oxillama.errors import ConfigError

from oxillama.kernels.rows cimport Workspace

cdef enum: MAX_POSITION = 2147483647


def _no_poll():
    pass


cdef class Batch:
    """Runs of consecutive tokens of any number of sequences.

    ``spans``: for each sequence ``(tokens, position of the first, block table)``; the block table covers every position
    up to the last one. Activations live in ``workspace``. ``poll`` is called between layers and may raise to give the
    pass up.

    ``wants`` says of each span which rows leave the model: "all" (the default), "last" or "none". ``output_rows`` int32
    are those rows, and ``outputs`` the batch of them alone, or this one if it is all of them.

    Raises ConfigError for an empty span, and for positions, tokens or block ids that can't be.
    """

    def __init__(self, spans, Workspace workspace, poll=None, wants=None):
        cdef int i
        cdef int64_t row = 0
        cdef uintptr_t memory
        cdef const int32_t[::1] table
        cdef Py_ssize_t j
        cdef const int32_t[::1] position
        self.n_spans = len(spans)
        self.workspace = workspace
        self.poll = poll or _no_poll
        for i in range(self.n_spans):
            tokens, start, blocks = spans[i]
            if not len(tokens) or not 0 <= start <= MAX_POSITION - len(tokens):
                raise ConfigError(f"span {i}: {len(tokens)} tokens at position {start}; a span has at least one token, "
                                  f"and positions lie in 0..{MAX_POSITION - 1}")
        try:
            self.tokens = np.fromiter((t for s in spans for t in s[0]), np.int32)
        except (OverflowError, TypeError, ValueError) as e:
            raise ConfigError(f"tokens must be 32-bit integers: {e}") from None
        self.n_rows = len(self.tokens)
        self.positions = np.fromiter((p for s in spans for p in range(s[1], s[1] + len(s[0]))), np.int32, self.n_rows)
        self._spans_memory = np.empty(max(self.n_spans, 1) * sizeof(span), np.uint8)
        memory = self._spans_memory.ctypes.data
        self.span = <span *>memory
        self._tables = []
        for i in range(self.n_spans):
            tokens, start, blocks = spans[i]
            table = np.ascontiguousarray(blocks, np.int32)
            self._tables.append(table)
            self.span[i].row, self.span[i].n, self.span[i].start = row, len(tokens), start
            self.span[i].blocks = &table[0] if table.shape[0] else NULL
            self.span[i].n_blocks, self.span[i].highest_block = table.shape[0], -1
            for j in range(table.shape[0]):
                if table[j] < 0:
                    raise ConfigError(f"span {i}: block id {table[j]} in its block table is negative")
                self.span[i].highest_block = max(self.span[i].highest_block, <int64_t>table[j])
            row += len(tokens)
        position = self.positions
        self.position = &position[0] if self.n_rows else NULL
        self._choose_outputs(spans, wants)

    @property
    def outputs(self):
        # Not kept: a batch that held itself would wait for the garbage collector, and its workspace with it.
        return self if self._outputs is None else self._outputs

    @property
    def output_rows(self):
        return np.arange(self.n_rows, dtype=np.int32) if self._outputs is None else self._output_rows

    def _choose_outputs(self, spans, wants):
        if wants is None or all(want == "all" or want == "last" and len(s[0]) == 1 for want, s in zip(wants, spans)):
            return
        rows, parts, end = [], [], 0
        for want, (tokens, start, blocks) in zip(wants, spans):
            end += len(tokens)
            n = {"all": len(tokens), "last": 1, "none": 0}[want]
            rows.extend(range(end - n, end))
            if n:
                parts.append((tokens[len(tokens) - n:], start + len(tokens) - n, blocks))
        self._outputs, self._output_rows = Batch(parts, self.workspace, self.poll), np.array(rows, np.int32)
