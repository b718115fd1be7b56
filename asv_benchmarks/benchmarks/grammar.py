"""Grammars over a vocabulary as large as those of current models: what compiling costs, and masks, cold and warm.

The vocabulary is made up, with the shape of a real one: words with and without a space before them, capitals, numbers,
runs of punctuation, characters beyond ASCII and pieces of such. A cold mask belongs to a new grammar on a vocabulary
that has met none yet; the sum over a text is measured, as every position costs something else.
"""

import json
import random
from functools import lru_cache

import numpy as np

from oxillama.grammar import Grammar, GrammarState, Vocabulary, apply_grammar_mask

N_VOCAB = 128_256
JSON = r"""
value   ::= object | array | string | number | "true" | "false" | "null"
object  ::= "{" (string ": " value (", " string ": " value)*)? "}"
array   ::= "[" (value (", " value)*)? "]"
string  ::= "\"" char* "\""
char    ::= [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt/] | "u" [0-9a-fA-F]{4})
number  ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,15})?
"""
PERSON = r"""
root    ::= "{\"name\": " string ", \"born\": " date ", \"mail\": " mail ", \"tags\": [" tag (", " tag)* "]}"
date    ::= "\"" [12] [0-9]{3} "-" ("0" [1-9] | "1" [0-2]) "-" ([0-2] [0-9] | "3" [01]) "\""
mail    ::= "\"" [a-zA-Z0-9._%+-]+ "@" [a-zA-Z0-9-]+ ("." [a-zA-Z0-9-]+)+ "\""
tag     ::= "\"" [a-z] ([a-z0-9-]{0,30} [a-z0-9])? "\""
"""
TEXTS = {
    "json": {"id": 7, "title": "A tale of two café owners", "sizes": [1, 2.5, -3e7], "more": {"ok": True, "no": None}},
    "person": {"name": "Zoë van Dyk", "born": "1987-11-30", "mail": "zoe@mail.example.com", "tags": ["chess", "go-9"]},
    "limits": {"short": "no more than a few words", "long": "up to a thousand characters, " * 12},
}
GRAMMARS = {
    "json": f"root ::= object\n{JSON}",
    "person": PERSON + JSON,
    "limits": 'root ::= "{\\"short\\": \\"" char{1,40} "\\", \\"long\\": \\"" char{0,1000} "\\"}"' + JSON,
}


@lru_cache(maxsize=1)
def vocabulary_texts(n: int = N_VOCAB) -> list[bytes | None]:
    """Texts of n tokens; the last has none, and ends a text."""
    draw = random.Random(1)
    syllables = [c + v for c in "bcdfghklmnprstvw" for v in ("a", "e", "i", "o", "u", "ar", "en", "ing", "er")]
    beyond = [chr(c) for c in (*range(0xC0, 0x180), *range(0x400, 0x450), *range(0x4E00, 0x5800))]
    texts = {bytes([i]) for i in range(256)} | {str(i).encode() for i in range(1000)}
    texts |= {(p * k).encode() for p in ' .,:;-=_*#/"\n\t(){}[]<>!?' for k in range(1, 17)}
    texts |= {t.encode() for t in ('": "', '", "', '"}', "'s", '",', '":', "\\n", "\\u", '{"', '["', ": ", ", ")}
    while len(texts) < n - 1:
        word = "".join(draw.choice(syllables) for _ in range(draw.choice((1, 2, 2, 3, 3, 4))))
        kind = draw.random()
        if kind < 0.25:
            word = "".join(draw.choice(beyond) for _ in range(draw.randint(1, 4)))
        elif kind < 0.5:
            word = draw.choice((word.capitalize(), word.upper(), word + draw.choice(syllables).capitalize()))
        text = draw.choice((word, " " + word)).encode()
        texts.add(text[:-1] if draw.random() < 0.01 else text)
    return [*sorted(texts), None]


class _Case:
    params = tuple(GRAMMARS)
    param_names = ("grammar",)

    def setup(self, name: str) -> None:
        self.texts = vocabulary_texts()
        self.vocabulary = Vocabulary(self.texts, [N_VOCAB - 1])
        self.mask = np.empty(self.vocabulary.n_words, np.uint32)
        self.logits = np.zeros(N_VOCAB, np.float32)
        self.grammar = Grammar.parse(GRAMMARS[name])
        ids = {text: i for i, text in enumerate(self.texts) if text}
        self.tokens = []
        rest = json.dumps(TEXTS[name], ensure_ascii=False).encode()
        while rest:
            longest = next(k for k in range(40, 0, -1) if rest[:k] in ids)
            self.tokens.append(ids[rest[:longest]])
            rest = rest[longest:]
        self.follow(self.grammar.state(self.vocabulary))

    def follow(self, state: GrammarState) -> None:
        """A mask and a step for each token of the text."""
        for token in self.tokens:
            state.mask(self.mask)
            state.advance(token)


class Compile(_Case):
    """From text to automaton."""

    def time_parse(self, name: str) -> None:
        Grammar.parse(GRAMMARS[name])


class Warm(_Case):
    """All masks of a text that was followed before."""

    def time_masks(self, name: str) -> None:
        self.follow(self.grammar.state(self.vocabulary))

    def time_apply(self, name: str) -> None:
        apply_grammar_mask(self.logits, self.grammar.state(self.vocabulary))

    def track_tokens(self, name: str) -> int:
        return len(self.tokens)


class Cold(_Case):
    """All masks of the first text of a new grammar, when the vocabulary remembers nothing of others."""

    number, repeat, warmup_time = 1, 5, 0

    def setup(self, name: str) -> None:
        super().setup(name)
        self.grammar = Grammar.parse(GRAMMARS[name])
        self.vocabulary = Vocabulary(self.texts, [N_VOCAB - 1])

    def time_masks(self, name: str) -> None:
        self.follow(self.grammar.state(self.vocabulary))


class MakeVocabulary:
    """Once for each tokenizer."""

    def setup(self) -> None:
        self.texts = vocabulary_texts()

    def time_vocabulary(self) -> None:
        Vocabulary(self.texts, [N_VOCAB - 1])
