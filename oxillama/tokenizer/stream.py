"""Text out of tokens, one at a time."""

import codecs
from collections.abc import Callable

from oxillama._util.pickling import stays_here

__all__ = ["TokenStream"]


class TokenStream:
    """Turns tokens into text as they come, never splitting a character.

    The concatenation of everything that :meth:`push` and :meth:`flush` return equals decoding all the tokens at
    once. Bytes that are not UTF-8 become U+FFFD.

    Args:
        token_bytes: id -> bytes; also checks the id.
        strip_first_space: drop one leading space of the first token (the one that encoding had put there).
    """

    __reduce_ex__ = stays_here("begin another with Tokenizer.stream() and push the same tokens")

    def __init__(self, token_bytes: Callable[[int], bytes], *, strip_first_space: bool = False) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = strip_first_space

    @property
    def pending(self) -> bytes:
        """Bytes of a character that is not finished."""
        return self._decoder.getstate()[0]

    def push(self, token: int) -> str:
        """Text that ``token`` completes; empty while a character is unfinished.

        Raises:
            TokenizerError: the id is not one of the vocabulary.
        """
        raw = self._token_bytes(token)
        if self._strip and raw:
            self._strip = False
            raw = raw.removeprefix(b" ")
        return self._decoder.decode(raw)

    def flush(self) -> str:
        """End of the text: U+FFFD if a character was left unfinished, else nothing. The stream can be used again."""
        rest = self._decoder.decode(b"", True)
        self._decoder.reset()
        return rest
