from collections.abc import Iterable

def plain_length(text: bytes) -> int: ...

class TokenTrie:
    n_vocab: int
    n_words: int
    end_ids: frozenset[int]
    shared: dict[object, object]
    shared_bytes: int
    max_depth: int
    def __init__(self, texts: Iterable[bytes | None], end_ids: Iterable[int] = ()) -> None: ...
    def text(self, token: int) -> bytes | None: ...
    def remember(self, key: object, entry: object, size: int, limit: int) -> None: ...
