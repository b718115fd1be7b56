from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from oxillama.tokenizer._texts import TokenTexts

class MergeTable:
    open: list[int]
    def __init__(
        self, texts: TokenTexts, usable: NDArray[np.uint8], payload: NDArray[np.uint8], offsets: NDArray[np.int64]
    ) -> None: ...
    def close(self, resolved: Iterable[tuple[int, int, int]]) -> None: ...

def lone_chars(texts: TokenTexts, usable: NDArray[np.uint8]) -> set[bytes]: ...

class Merger:
    def __init__(
        self,
        texts: TokenTexts,
        usable: NDArray[np.uint8],
        *,
        merges: MergeTable | None = None,
        order: NDArray[np.int32] | None = None,
        alphabet: Sequence[bytes] | None = None,
        whole: bool = False,
        lone: TokenTexts | None = None,
        byte_ids: NDArray[np.int32] | None = None,
        unk: int = -1,
    ) -> None: ...
    def ids(self, pieces: list[str]) -> list[int]: ...
