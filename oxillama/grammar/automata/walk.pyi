from oxillama.grammar.automata.stacks import Stacks
from oxillama.grammar.automata.trie import TokenTrie

UTF8: tuple[tuple[int, int, int, int], ...]
ALPHABETS: tuple[tuple[int, int, int], ...]

class Walk:
    def __init__(self, stacks: Stacks, trie: TokenTrie) -> None: ...
