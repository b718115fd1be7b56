import numpy as np
from numpy.typing import NDArray

from oxillama.grammar.automata.stacks import Stacks
from oxillama.grammar.automata.trie import TokenTrie

class Masks:
    stacks: Stacks
    trie: TokenTrie
    limit: int
    n_bytes: int
    def __init__(self, stacks: Stacks, trie: TokenTrie, limit: int = ...) -> None: ...
    def mask(self, node: int, out: NDArray[np.uint32]) -> int: ...
    def forget(self) -> None: ...

def apply_mask(logits: NDArray[np.float32], mask: NDArray[np.uint32]) -> None: ...
