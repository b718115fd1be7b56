from oxillama.grammar.automata.rules import Rules

class Nfa:
    def __init__(self, rules: Rules, root: int) -> None: ...
