from collections.abc import Callable, Sequence
from typing import Any

from oxillama.grammar.automaton import Budget
from oxillama.grammar.json_schema.json_text import JsonText
from oxillama.grammar.json_schema.literals import Literal
from oxillama.grammar.json_schema.strings import Strings

class ObjectSchema:
    @property
    def literal(self) -> Literal: ...
    @property
    def properties(self) -> dict[str, Any]: ...
    @property
    def patterns(self) -> list[Any]: ...
    @property
    def additional(self) -> Literal | None: ...
    def __init__(self, literal: Literal, budget: Budget) -> None: ...

class Demands:
    def __init__(self, budget: Budget, schemas: list[ObjectSchema]) -> None: ...

class Objects:
    def __init__(self, texts: JsonText) -> None: ...
    def expr(
        self,
        literals: Sequence[Literal],
        any_order: bool,
        value: Callable[[Sequence[Literal]], int],
        key_sets: Callable[[Sequence[Literal]], list[Strings]],
    ) -> int: ...
    def drop(self) -> None: ...
