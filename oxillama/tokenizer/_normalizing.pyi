import numpy as np
from numpy.typing import NDArray

from oxillama.tokenizer._unigram import UnigramTrie

class TextNormalizer:
    def __init__(
        self,
        units: NDArray[np.uint32] | None = None,
        replacements: bytes = b"",
        *,
        symbols: UnigramTrie | None = None,
        merges_spaces: bool = False,
    ) -> None: ...
    def text(self, text: str, *, before: bool = False, after: bool = False) -> str: ...
