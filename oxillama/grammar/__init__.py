"""Grammars: what a text may be, and which tokens keep it so.

`gbnf` reads llama.cpp's notation, `automaton` has the form that notations are brought into and what it is compiled to,
`matcher` follows a text.
"""

from oxillama.grammar.automaton import RuleSet, Vocabulary, utf8_sequences
from oxillama.grammar.matcher import Grammar, GrammarState, apply_grammar_mask

__all__ = ["Grammar", "GrammarState", "RuleSet", "Vocabulary", "apply_grammar_mask", "utf8_sequences"]
