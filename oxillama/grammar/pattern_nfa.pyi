from collections.abc import Iterable

from oxillama.grammar.automaton import Range
from oxillama.grammar.regex import Node

class PatternNfa:
    moves: list[list[tuple[tuple[Range, ...], int]]]
    empty: list[list[tuple[str, int]]]
    start: int
    end: int
    def __init__(self, node: Node) -> None: ...
    def step(self, states: frozenset[int], first: bool, code: int) -> tuple[frozenset[int], int]: ...
    def closure(self, states: Iterable[int], first: bool, last: bool) -> set[int]: ...
