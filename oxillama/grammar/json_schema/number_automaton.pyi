from oxillama.grammar.json_schema.numbers import Numbers

Edge = tuple[int, str, str, int]  # node, first and last character, node

MAX_STATES: int

class NumberAutomaton:
    def __init__(self, numbers: Numbers, max_states: int = ..., max_digits: int | None = None) -> None: ...
    @property
    def work(self) -> int: ...
    def build(self) -> tuple[int, list[Edge], list[int]]: ...
