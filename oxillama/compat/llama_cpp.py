"""Low-level names: constants, and the two functions on vocabularies that other packages call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oxillama.compat.constants import CONSTANTS
from oxillama.tokenizer import Tokenizer

__all__ = ["llama_model_get_vocab", "llama_token_to_piece"]


def llama_model_get_vocab(model: Any) -> Tokenizer:
    """The vocabulary of `Llama.model`."""
    vocab: Tokenizer = model.vocabulary
    return vocab


def llama_token_to_piece(vocab: Tokenizer, token: int, buf: Any, length: int, lstrip: int, special: bool) -> int:
    """Writes the bytes of a token to `buf` and returns their number; minus that number if `length` is too small.

    buf: a ctypes array of char, or a bytearray. lstrip: leading spaces to leave out. special: control tokens have text.
    """
    token = int(getattr(token, "value", token))
    piece = vocab.token_bytes(token) if special or not vocab.is_special(token) else b""
    for _ in range(lstrip):
        piece = piece.removeprefix(b" ")
    if len(piece) > length:
        return -len(piece)
    buf[: len(piece)] = piece
    return len(piece)


def _unavailable(name: str) -> Callable[..., Any]:
    def call(*args: object, **keywords: object) -> Any:
        raise NotImplementedError(
            f"{name}() is a function of llama.cpp's C interface: use the methods of Llama instead"
        )

    call.__name__ = call.__qualname__ = name
    return call


def __getattr__(name: str) -> Any:
    if name in CONSTANTS:
        return CONSTANTS[name]
    if name.startswith(("llama_", "ggml_")):
        return _unavailable(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *CONSTANTS})
