from oxillama.kernels.grammar_nfa import Nfa

class LeftRecursion:
    def __init__(self, nfa: Nfa) -> None: ...
