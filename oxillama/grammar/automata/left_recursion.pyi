from oxillama.grammar.automata.nfa import Nfa

class LeftRecursion:
    def __init__(self, nfa: Nfa) -> None: ...
