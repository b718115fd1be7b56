"""Automata over bytes and characters, compiled: rules become an automaton, its texts stacks, their next tokens masks.

rules            expressions over bytes, characters, calls and tokens; `spelling` has UTF-8 and escapes
nfa              one rule as an automaton with calls; `left_recursion` converts rules that begin with themselves
automaton        all rules, deterministic, those that need no stack copied into their callers
stacks           the positions that a text can have reached, as nodes with shared stacks
trie, walk       the tokens of a vocabulary by their bytes, and which of them go on from a node
masks            the next tokens as bits, kept by state; `triggers` says where in a text a grammar begins
pattern_nfa      regular expressions over characters; `dfa` intersects them into a `char_table`
budget           the work that a compilation may take; `vectors`: arrays in C for all of these
"""

import oxillama.kernels  # noqa: F401  the settings of OpenMP come before any compiled module
