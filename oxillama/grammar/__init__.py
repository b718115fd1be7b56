"""Grammars: languages of texts, and masks of the tokens that keep a text in them.

`gbnf` parses llama.cpp's notation, `automaton` has the rules that all notations compile to and their automaton,
`matcher` follows a text.
"""

from oxillama.grammar.automaton import RuleSet, Vocabulary, utf8_sequences
from oxillama.grammar.matcher import Grammar, GrammarState, apply_grammar_mask

__all__ = ["Grammar", "GrammarState", "RuleSet", "Vocabulary", "apply_grammar_mask", "utf8_sequences"]
