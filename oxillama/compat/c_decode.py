"""Functions of llama.h that compute: batches of tokens in, logits out, and the memory of one sequence between them."""

from __future__ import annotations

import ctypes
import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oxillama.compat.c_types import integer, llama_batch, llama_seq_id, llama_token
from oxillama.compat.model import LlamaLike
from oxillama.compat.one_sequence import BatchTokens
from oxillama.compat.wording import reworded
from oxillama.errors import ConfigError, ContextOverflowError, KvCacheFullError, TokenizerError

__all__ = ["FUNCTIONS"]

_LOG = logging.getLogger("oxillama")
Floats = Any  # a pointer to float

# What `llama_decode` returns.
DONE, NO_ROOM, INVALID = 0, 1, -1


class _InvalidBatch(Exception):
    """A batch that can't be computed."""


# ---- batches


def llama_batch_init(n_tokens: Any, embd: Any, n_seq_max: Any) -> llama_batch:
    """A batch with room for so many tokens, each of at most so many sequences.

    Raises NotImplementedError for a batch of embeddings (`embd` above 0).
    """
    n, n_seq = integer("n_tokens", n_tokens), integer("n_seq_max", n_seq_max)
    if integer("embd", embd):
        raise NotImplementedError("llama_batch_init() makes batches of tokens: embd must be 0")
    if n < 0 or n_seq < 1:
        raise ConfigError(f"n_tokens must be at least 0 and n_seq_max at least 1, not {n} and {n_seq}")
    ids = (llama_seq_id * (n * n_seq))()
    start, size = ctypes.addressof(ids), ctypes.sizeof(llama_seq_id) * n_seq
    row = ctypes.POINTER(llama_seq_id)
    rows = (row * (n + 1))(*(ctypes.cast(start + i * size, row) for i in range(n)))
    batch = llama_batch(
        0, (llama_token * n)(), None, (ctypes.c_int32 * n)(), (ctypes.c_int32 * n)(), rows, (ctypes.c_int8 * n)()
    )
    batch._ids, batch._room = ids, n
    return batch


def llama_batch_free(batch: llama_batch) -> None:
    """Forgets the arrays of a batch."""
    batch.n_tokens, batch.token, batch.pos, batch.n_seq_id, batch.seq_id, batch.logits = 0, None, None, None, None, None
    batch._ids, batch._room = None, 0


def llama_batch_get_one(tokens: Any, n_tokens: Any) -> llama_batch:
    """A batch of tokens, a ctypes array, that go on after those so far; the last one's logits are wanted."""
    batch = llama_batch(integer("n_tokens", n_tokens), ctypes.cast(tokens, ctypes.POINTER(llama_token)))
    if isinstance(tokens, ctypes.Array):
        batch._room = len(tokens)
    return batch


def _read(batch: llama_batch, position: int, n_vocab: int) -> BatchTokens:
    """Raises _InvalidBatch with what is wrong."""
    n = int(batch.n_tokens)
    if batch.embd:
        raise _InvalidBatch("it has embeddings, and batches are of tokens")
    if n <= 0 or not batch.token:
        raise _InvalidBatch(f"it has {n} tokens" if batch.token else "it has no tokens")
    room = getattr(batch, "_room", n)  # not of one that a program put together from pointers
    if n > room:
        raise _InvalidBatch(f"it has {n} tokens, and room for {room}")
    tokens = batch.token[:n]
    for i, token in enumerate(tokens):
        if not 0 <= token < n_vocab:
            raise _InvalidBatch(f"token[{i}] is {token}, and the vocabulary goes from 0 to {n_vocab - 1}")
        if batch.pos and batch.pos[i] != position + i:
            raise _InvalidBatch(
                f"pos[{i}] is {batch.pos[i]}, and the next position is {position + i}: what is there must be removed "
                "first, by llama_memory_seq_rm()"
            )
        if batch.seq_id and (not batch.seq_id[i] or batch.seq_id[i][0] != 0 or _n_sequences(batch, i) != 1):
            raise _InvalidBatch(f"seq_id[{i}] must be sequence 0 alone: there is one sequence")
    wanted = [i for i in range(n) if batch.logits[i]] if batch.logits else [n - 1]
    return BatchTokens(tokens, wanted)


def _n_sequences(batch: llama_batch, i: int) -> int:
    return int(batch.n_seq_id[i]) if batch.n_seq_id else 1


def llama_decode(ctx: LlamaLike, batch: llama_batch) -> int:
    """Appends a batch's tokens to the sequence of a context (`Llama.ctx`): 0; 1 if there is no room; -1 if it is wrong.

    What is wrong, or lacks room, goes to the logger `oxillama`. Nothing has changed then. Raises what `Session.prefill`
    raises otherwise: GenerateError for a closed model, and for an encoder.
    """
    with ctx.lock:
        sequence = ctx.one_sequence
        try:
            found = _read(batch, sequence.position, ctx.engine.n_vocab)
        except _InvalidBatch as error:
            _LOG.error("llama_decode: the batch is invalid: %s", error)
            return INVALID
        try:
            sequence.decode(found)
        except (ContextOverflowError, KvCacheFullError) as error:
            _LOG.error("llama_decode: %s", reworded(str(error)))
            return NO_ROOM
        except (ConfigError, TokenizerError) as error:
            _LOG.error("llama_decode: the batch is invalid: %s", reworded(str(error)))
            return INVALID
    return DONE


# ---- logits: rows that are there until the next batch


def llama_get_logits(ctx: LlamaLike) -> Floats:
    """A pointer to the logits that the last batch asked for, float32 [rows, n_vocab]; a null pointer without any."""
    return _pointer(ctx.one_sequence.rows)


def llama_get_logits_ith(ctx: LlamaLike, i: Any) -> Floats:
    """A pointer to the logits of the last batch's token i, or from the last row on below 0; else a null pointer."""
    return _pointer(ctx.one_sequence.row(integer("i", i)))


def _pointer(rows: NDArray[np.float32] | None) -> Floats:
    kind = ctypes.POINTER(ctypes.c_float)
    return kind() if rows is None or not rows.size else rows.ctypes.data_as(kind)


# ---- memory


def llama_get_memory(ctx: LlamaLike) -> LlamaLike:
    """Handle that the functions of a context's memory take."""
    return ctx


def llama_memory_clear(mem: LlamaLike, data: Any = True) -> None:
    """Forgets the sequence."""
    _remove(mem, 0)


def llama_memory_seq_rm(mem: LlamaLike, seq_id: Any, p0: Any, p1: Any) -> bool:
    """Forgets the tokens from position p0 to before p1 (below 0: the first; all that follow) of sequence 0, or any.

    False, and nothing has changed, for tokens with others behind them.
    """
    first, end = max(0, integer("p0", p0)), integer("p1", p1)
    with mem.lock:
        position = mem.one_sequence.position
        if integer("seq_id", seq_id) > 0 or first >= position or 0 <= end <= first:
            return True
        if 0 <= end < position:
            return False
        _remove(mem, first)
    return True


def llama_memory_seq_keep(mem: LlamaLike, seq_id: Any) -> None:
    """Forgets all sequences but this one."""
    if integer("seq_id", seq_id):
        _remove(mem, 0)


def llama_memory_seq_pos_min(mem: LlamaLike, seq_id: Any) -> int:
    """The first position of a sequence; -1 if it is empty."""
    return 0 if llama_memory_seq_pos_max(mem, seq_id) >= 0 else -1


def llama_memory_seq_pos_max(mem: LlamaLike, seq_id: Any) -> int:
    """The last position of a sequence; -1 if it is empty."""
    return -1 if integer("seq_id", seq_id) else mem.one_sequence.position - 1


def llama_memory_can_shift(mem: LlamaLike) -> bool:
    """False: tokens keep their positions."""
    return False


def _remove(mem: LlamaLike, first: int) -> None:
    with mem.lock:
        session = mem.one_sequence.session
        session.truncate(min(first, session.position))


FUNCTIONS = (
    llama_batch_init, llama_batch_free, llama_batch_get_one, llama_decode, llama_get_logits, llama_get_logits_ith,
    llama_get_memory, llama_memory_clear, llama_memory_seq_rm, llama_memory_seq_keep, llama_memory_seq_pos_min,
    llama_memory_seq_pos_max, llama_memory_can_shift,
)  # fmt: skip
