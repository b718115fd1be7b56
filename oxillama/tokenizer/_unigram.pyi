import numpy as np
from numpy.typing import NDArray

from oxillama.tokenizer._texts import TokenTexts

class UnigramTrie:
    def __init__(
        self,
        texts: TokenTexts,
        usable: NDArray[np.uint8],
        scores: NDArray[np.float64],
        *,
        unk: int,
        unknown: float,
        byte_ids: NDArray[np.int32] | None = None,
    ) -> None: ...
    def ids(self, text: str) -> list[int]: ...
