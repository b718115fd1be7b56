"""Text out of tokens, one at a time."""

from codecs import utf_8_decode
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
        begins: of a special token, and whether the text is at a beginning before it: whether it is at one behind it,
            where a leading space is dropped, too; ``None`` for ordinary tokens. Without it none is special.
        known: pieces of the ids that were asked for, to which the stream adds; streams may share it. Those that are
            ASCII are text already.
    """

    __slots__ = ("_at_start", "_begins", "_known", "_pending", "_strips", "_token_bytes")

    __reduce_ex__ = stays_here("begin another with Tokenizer.stream() and push the same tokens")

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        *,
        strip_first_space: bool = False,
        begins: Callable[[int, bool], bool | None] | None = None,
        known: dict[int, str | bytes] | None = None,
    ) -> None:
        self._token_bytes = token_bytes
        self._known: dict[int, str | bytes] = {} if known is None else known
        self._strips = self._at_start = strip_first_space
        self._begins = begins
        self._pending = b""

    @property
    def pending(self) -> bytes:
        """Bytes of a character that is not finished."""
        return self._pending

    def push(self, token: int) -> str:
        """Text that ``token`` completes; empty while a character is unfinished.

        Raises:
            TokenizerError: the id is not one of the vocabulary.
        """
        piece = self._known.get(token) if type(token) is int else None
        if piece is None:
            raw = self._token_bytes(token)
            piece = self._known[token] = raw.decode("ascii") if raw.isascii() else raw
        if self._strips:
            piece = self._without_space(token, piece)
        if isinstance(piece, str):
            if not self._pending:  # most tokens
                return piece
            piece = piece.encode("ascii")
        data = self._pending + piece
        text, n_used = utf_8_decode(data, "replace", False)
        self._pending = data[n_used:]
        return text

    def _without_space(self, token: int, piece: str | bytes) -> str | bytes:
        """A token's text without the space that encoding had put before it."""
        if self._begins is not None and (begins := self._begins(token, self._at_start)) is not None:
            self._at_start = begins
            return piece
        if not self._at_start or (self._begins is None and not piece):
            return piece
        self._at_start = False
        self._strips = self._begins is not None
        return piece.removeprefix(" ") if isinstance(piece, str) else piece.removeprefix(b" ")

    def flush(self) -> str:
        """End of the text: U+FFFD if a character was left unfinished, else nothing. The stream can be used again."""
        data, self._pending = self._pending, b""
        return utf_8_decode(data, "replace", True)[0]
