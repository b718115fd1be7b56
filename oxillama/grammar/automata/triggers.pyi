import numpy as np
from numpy.typing import NDArray

from oxillama.grammar.automata.masks import Masks
from oxillama.grammar.automata.stacks import Stacks

class Triggers:
    start: int
    def __init__(self, stacks: Stacks, texts: list[bytes], at_line: bool = ...) -> None: ...
    def step(self, state: int, text: bytes | None) -> tuple[int, int]: ...
    def mask(self, masks: Masks, state: int, out: NDArray[np.uint32]) -> int: ...
