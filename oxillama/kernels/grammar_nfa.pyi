from oxillama.errors import GrammarError
from oxillama.kernels.grammar_rules import Rules

def too_large() -> GrammarError: ...

class Nfa:
    def __init__(self, rules: Rules, root: int) -> None: ...
