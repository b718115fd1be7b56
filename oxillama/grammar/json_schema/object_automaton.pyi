from oxillama.grammar.json_schema.json_text import JsonText
from oxillama.grammar.json_schema.literals import Literal
from oxillama.grammar.json_schema.strings import Strings

class Wanted:
    literal: Literal
    keys: list[Strings]
    value: Literal | None
    def __init__(self, literal: Literal, keys: list[Strings], value: Literal | None) -> None: ...
    def __contains__(self, name: str) -> bool: ...

class Pair:
    ways: list[tuple[int, int]]
    required: bool
    def __init__(self, one: int, required: bool, ways: list[tuple[int, int]] | None = ...) -> None: ...

class Plan:
    groups: list[object]
    others: list[tuple[int, int]]
    wanted: list[Wanted]
    least: int
    most: int | None
    def __init__(self, wanted: list[Wanted]) -> None: ...

def is_graph(plan: Plan) -> bool: ...
def graph_expr(texts: JsonText, plan: Plan, literals: list[Literal]) -> int: ...
