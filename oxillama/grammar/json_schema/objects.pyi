from collections.abc import Callable, Sequence

from oxillama.grammar.json_schema.json_text import JsonText
from oxillama.grammar.json_schema.literals import Literal
from oxillama.grammar.json_schema.strings import Strings

class Objects:
    def __init__(self, texts: JsonText) -> None: ...
    def expr(
        self,
        literals: Sequence[Literal],
        any_order: bool,
        value: Callable[[Sequence[Literal]], int],
        key_sets: Callable[[Sequence[Literal]], list[Strings]],
    ) -> int: ...
