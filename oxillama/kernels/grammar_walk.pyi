from oxillama.kernels.grammar_stacks import Stacks
from oxillama.kernels.grammar_trie import TokenTrie

UTF8: tuple[tuple[int, int, int, int], ...]
ALPHABETS: tuple[tuple[int, int, int], ...]

class Walk:
    def __init__(self, stacks: Stacks, trie: TokenTrie) -> None: ...
