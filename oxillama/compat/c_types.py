"""Types of llama.h as ctypes has them: numbers, callbacks and structures that programs make and pass."""

from __future__ import annotations

import ctypes
from typing import Any

from oxillama.errors import ConfigError

__all__ = ["TYPES", "copied", "integer", "llama_batch"]

llama_pos = llama_token = llama_seq_id = ctypes.c_int32


class llama_token_data(ctypes.Structure):
    """A token, its logit and its probability."""

    _fields_ = (("id", llama_token), ("logit", ctypes.c_float), ("p", ctypes.c_float))


class llama_token_data_array(ctypes.Structure):
    """Candidates of a sampler."""

    _fields_ = (
        ("data", ctypes.POINTER(llama_token_data)),
        ("size", ctypes.c_size_t),
        ("selected", ctypes.c_int64),
        ("sorted", ctypes.c_bool),
    )


class llama_batch(ctypes.Structure):
    """Tokens for `llama_decode`, each with its position, its sequences, and whether its logits are wanted.

    A null `pos` goes on after the tokens so far, a null `seq_id` is sequence 0, a null `logits` wants those of the last
    token.
    """

    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(llama_token)),
        ("embd", ctypes.POINTER(ctypes.c_float)),
        ("pos", ctypes.POINTER(llama_pos)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(llama_seq_id))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


class llama_chat_message(ctypes.Structure):
    """Role and content of a message."""

    _fields_ = (("role", ctypes.c_char_p), ("content", ctypes.c_char_p))


class llama_logit_bias(ctypes.Structure):
    """Bias that is added to a token's logit."""

    _fields_ = (("token", llama_token), ("bias", ctypes.c_float))


# Names of the replaced package's module: types of values, of pointers to what is opaque, and of functions.
TYPES: dict[str, Any] = {
    **{t.__name__: t for t in (llama_batch, llama_chat_message, llama_logit_bias)},
    **{t.__name__: t for t in (llama_token_data, llama_token_data_array)},
    **{f"{t.__name__}_p": ctypes.POINTER(t) for t in (llama_token_data, llama_token_data_array, llama_logit_bias)},
    "llama_pos": llama_pos,
    "llama_token": llama_token,
    "llama_seq_id": llama_seq_id,
    "llama_token_p": ctypes.POINTER(llama_token),
    "llama_state_seq_flags": ctypes.c_uint32,
    **{f"llama_{name}_p": int for name in ("vocab", "model", "context", "kv_cache")},
    **{f"llama_{name}_p_ctypes": ctypes.c_void_p for name in ("vocab", "model", "context", "kv_cache")},
    "llama_memory_t": int,
    "llama_memory_t_ctypes": ctypes.c_void_p,
    "llama_log_callback": ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p),
    "llama_progress_callback": ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_float, ctypes.c_void_p),
    "ggml_abort_callback": ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p),
    "ggml_backend_sched_eval_callback": ctypes.CFUNCTYPE(
        ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p
    ),
}


def integer(name: str, value: Any) -> int:
    """A Python or ctypes integer as an int. Raises ConfigError for anything else."""
    number = getattr(value, "value", value)
    index = getattr(number, "__index__", None)
    if index is None:
        raise ConfigError(f"{name} must be an integer, not {value!r:.60}")
    return int(index())


def copied(data: bytes, buf: Any, size: Any) -> int:
    """Writes a text with its closing zero to a buffer of C, cut to its size; the whole text's length.

    buf: a ctypes array of char, a bytearray, or an address. Raises ConfigError for a null pointer that is to be
    written to.
    """
    room = integer("buf_size", size)
    if room > 0:
        text = data[: room - 1] + b"\0"
        if isinstance(buf, ctypes.Array | bytearray | memoryview):
            buf[: len(text)] = text
        elif not ctypes.cast(buf, ctypes.c_void_p).value:
            raise ConfigError("buf must be a buffer, not a null pointer")
        else:
            ctypes.memmove(buf, text, len(text))
    return len(data)
