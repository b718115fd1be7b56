"""Functions of llama.h on a vocabulary: its tokens, its special ids, and text to tokens and back."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from oxillama.compat.c_types import integer
from oxillama.errors import ConfigError
from oxillama.tokenizer import Tokenizer

__all__ = ["FUNCTIONS", "VocabPointer", "library", "llama_model_get_vocab", "llama_token_to_piece", "tokenizer_of"]

# ---- pointers


class VocabPointer(int):
    """A number that stands for a vocabulary, as an address does in C: other libraries pass it back."""

    vocabulary: Tokenizer


_addresses = itertools.count(0x10000, 0x10000)
_by_address: WeakValueDictionary[int, Tokenizer] = WeakValueDictionary()
_pointers: WeakKeyDictionary[Tokenizer, int] = WeakKeyDictionary()


def llama_model_get_vocab(model: Any) -> VocabPointer:
    """The vocabulary of `Llama.model`."""
    vocabulary: Tokenizer = model.vocabulary
    address = _pointers.get(vocabulary)
    if address is None:
        address = _pointers.setdefault(vocabulary, next(_addresses))  # another thread's, if that came first
        _by_address[address] = vocabulary
    pointer = VocabPointer(address)
    pointer.vocabulary = vocabulary
    return pointer


def tokenizer_of(vocab: Any) -> Tokenizer:
    """The vocabulary that a pointer, its number, a `Llama` or a tokenizer stands for.

    Raises ConfigError for anything else, and for the number of one that is no longer there.
    """
    if isinstance(vocab, Tokenizer):
        return vocab
    found = getattr(vocab, "vocabulary", None)
    if found is None and isinstance(number := getattr(vocab, "value", vocab), int):
        found = _by_address.get(number)
    if not isinstance(found, Tokenizer):
        raise ConfigError(f"vocab must be of a Llama that is there, by llama_model_get_vocab(), not {vocab!r:.60}")
    return found


# ---- tokens


def llama_vocab_n_tokens(vocab: Any) -> int:
    """Number of tokens."""
    return tokenizer_of(vocab).n_vocab


_TYPES = {"llama": 1, "gpt2": 2, "gemma4": 2, "bert": 3, "t5": 4, "rwkv": 5}


def llama_vocab_type(vocab: Any) -> int:
    """A `LLAMA_VOCAB_TYPE_…`."""
    return _TYPES.get(tokenizer_of(vocab).model, 0)


def llama_vocab_get_text(vocab: Any, token: Any) -> bytes:
    """The vocabulary's own spelling of a token."""
    return tokenizer_of(vocab).id_to_token(integer("token", token)).encode()


def llama_vocab_get_score(vocab: Any, token: Any) -> float:
    """A token's score; 0 in vocabularies without scores."""
    return tokenizer_of(vocab).token_score(integer("token", token))


# tokenizer.ggml.token_type -> a LLAMA_TOKEN_ATTR_…
_ATTRIBUTES = {1: 4, 2: 1, 3: 8, 4: 16, 5: 2, 6: 32}


def llama_vocab_get_attr(vocab: Any, token: Any) -> int:
    """The kind of a token as a `LLAMA_TOKEN_ATTR_…`."""
    return _ATTRIBUTES.get(tokenizer_of(vocab).token_type(integer("token", token)), 0)


def llama_vocab_is_eog(vocab: Any, token: Any) -> bool:
    """Whether a token ends the text."""
    return tokenizer_of(vocab).is_eog(integer("token", token))


def llama_vocab_is_control(vocab: Any, token: Any) -> bool:
    """Whether a token is a control token."""
    return tokenizer_of(vocab).token_type(integer("token", token)) == 3


def _special(name: str, field: str) -> Callable[[Any], int]:
    def call(vocab: Any) -> int:
        found = getattr(tokenizer_of(vocab), field)
        return -1 if found is None else found

    call.__name__ = call.__qualname__ = f"llama_vocab_{name}"
    call.__doc__ = f"`Tokenizer.{field}`; -1 if there is none."
    return call


def llama_vocab_nl(vocab: Any) -> int:
    """The token of a newline; -1 if there is none."""
    ids = tokenizer_of(vocab).encode("\n", False, continuation=True)
    return ids[0] if len(ids) == 1 else -1


def _adds(name: str) -> Callable[[Any], bool]:
    def call(vocab: Any) -> bool:
        return bool(getattr(tokenizer_of(vocab), f"add_{name}"))

    call.__name__ = call.__qualname__ = f"llama_vocab_get_add_{name}"
    call.__doc__ = f"Whether texts get this token: `Tokenizer.add_{name}`."
    return call


# ---- texts


def _bytes_at(text: Any, length: int) -> bytes:
    """Bytes of a text, or at an address. Raises ConfigError for a null pointer."""
    if text is None:
        raise ConfigError("text must be bytes or an address, not a null pointer")
    return bytes(text[:length]) if isinstance(text, bytes | bytearray) else ctypes.string_at(text, length)


def _put(ids: list[int], tokens: Any, n_tokens_max: int) -> int:
    """Writes token ids, if there is room for all; minus their number if not."""
    if len(ids) > n_tokens_max:
        return -len(ids)
    for i, token in enumerate(ids):
        tokens[i] = token
    return len(ids)


def llama_tokenize(
    vocab: Any, text: Any, text_len: Any, tokens: Any, n_tokens_max: Any, add_special: Any, parse_special: Any
) -> int:
    """Writes the token ids of UTF-8 to `tokens`, a ctypes array; their number, or minus that if they don't fit.

    Bytes that are no UTF-8 are read as U+FFFD, as there.
    """
    given = _bytes_at(text, integer("text_len", text_len)).decode("utf-8", "replace")
    ids = tokenizer_of(vocab).encode(given, bool(add_special), bool(parse_special))
    return _put(ids, tokens, integer("n_tokens_max", n_tokens_max))


def llama_token_to_piece(vocab: Any, token: Any, buf: Any, length: Any, lstrip: Any, special: Any) -> int:
    """Writes the bytes of a token to `buf` and returns their number; minus that number if `length` is too small.

    buf: a ctypes array of char, or a bytearray. lstrip: leading spaces to leave out. special: control tokens have text.
    """
    vocabulary, token = tokenizer_of(vocab), integer("token", token)
    piece = vocabulary.token_bytes(token) if special or not vocabulary.is_special(token) else b""
    for _ in range(integer("lstrip", lstrip)):
        piece = piece.removeprefix(b" ")
    if len(piece) > integer("length", length):
        return -len(piece)
    buf[: len(piece)] = piece
    return len(piece)


def llama_detokenize(
    vocab: Any, tokens: Any, n_tokens: Any, text: Any, text_len_max: Any, remove_special: Any, unparse_special: Any
) -> int:
    """Writes the UTF-8 of token ids to `text`, a ctypes array of char; its length, or minus that if it doesn't fit.

    remove_special: without the tokens that begin and end a text. unparse_special: control tokens have text.
    """
    vocabulary, ids = tokenizer_of(vocab), [int(tokens[i]) for i in range(integer("n_tokens", n_tokens))]
    if remove_special:
        if ids and vocabulary.add_bos and ids[0] == vocabulary.bos_id:
            del ids[0]
        if ids and vocabulary.add_eos and ids[-1] == vocabulary.eos_id:
            del ids[-1]
    data = vocabulary.decode_bytes(ids, skip_special=not unparse_special)
    if len(data) > integer("text_len_max", text_len_max):
        return -len(data)
    text[: len(data)] = data
    return len(data)


class _Library:
    """Functions that libraries in other languages call by their addresses."""

    def __init__(self) -> None:
        number, place = ctypes.c_int32, ctypes.c_void_p
        kind = ctypes.CFUNCTYPE(
            number, place, place, number, ctypes.POINTER(number), number, ctypes.c_bool, ctypes.c_bool
        )
        self.llama_tokenize = kind(llama_tokenize)


@cache
def library() -> _Library:
    """Stand-in for the replaced package's shared library: it lives as long as the process."""
    return _Library()


_SPECIAL = {
    "bos": "bos_id", "eos": "eos_id", "eot": "eot_id", "sep": "sep_id", "pad": "pad_id", "mask": "mask_id",
    "cls": "cls_id", **{f"fim_{name}": f"fim_{name}_id" for name in ("pre", "suf", "mid", "rep", "sep", "pad")},
}  # fmt: skip

FUNCTIONS = (
    llama_model_get_vocab, llama_vocab_n_tokens, llama_vocab_type, llama_vocab_get_text, llama_vocab_get_score,
    llama_vocab_get_attr, llama_vocab_is_eog, llama_vocab_is_control, llama_vocab_nl, llama_tokenize,
    llama_token_to_piece, llama_detokenize, *(_special(name, field) for name, field in _SPECIAL.items()),
    *(_adds(name) for name in ("bos", "eos", "sep")),
)  # fmt: skip
