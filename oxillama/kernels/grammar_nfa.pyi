from oxillama.kernels.grammar_rules import Rules

class Nfa:
    def __init__(self, rules: Rules, root: int) -> None: ...
