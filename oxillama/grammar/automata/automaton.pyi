from oxillama.errors import GrammarError
from oxillama.grammar.automata.rules import Rules

class NoTextError(GrammarError): ...

class Automaton:
    start: int
    nullable: bool
    has_tokens: bool
    n_classes: int
    n_states: int
    n_bytes: int
    def __init__(self, rules: Rules, root: int) -> None: ...
