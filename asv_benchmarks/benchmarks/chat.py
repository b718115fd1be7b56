"""Reading of answers: microseconds of the parser and of the masks for a token of an answer with reasoning and a call.

The vocabulary is that of the benchmarks of grammars. A step of a model of 1B takes about 50,000 microseconds.
"""

import json

import numpy as np

from oxillama.chat.format import ChatFormat
from oxillama.grammar import Vocabulary

from .grammar import N_VOCAB, vocabulary_texts

TAGS = (
    "<do>\n<fn={{ c.name }}>\n{% for k, v in c.arguments.items() %}<arg={{ k }}>\n"
    "{{ v if v is string else v | tojson }}\n</arg>\n{% endfor %}</fn>\n</do>"
)
JSON = '<call>\n{"name": "{{ c.name }}", "arguments": {{ c.arguments | tojson }}}\n</call>'
CALLS = {"json": JSON, "tags": TAGS}
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}"
    "{% for t in m.tool_calls %}{% set c = t.function %}CALL{% endfor %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
CODE = "def area(width, height):\n    # The product, in square metres.\n    return width * height\n" * 6
WRITE = {"type": "object", "properties": {"path": {"type": "string"}, "code": {"type": "string"}}, "required": ["path"]}
TOOLS = [{"type": "function", "function": {"name": "write_file", "parameters": WRITE}}]
THOUGHT = "The user wants a file. It is about areas, and I think of a function with two arguments. " * 8
SPOKEN = {
    "json": "<call>\n"
    + json.dumps({"name": "write_file", "arguments": {"path": "area.py", "code": CODE}})
    + "\n</call>",
    "tags": f"<do>\n<fn=write_file>\n<arg=path>\narea.py\n</arg>\n<arg=code>\n{CODE}\n</arg>\n</fn>\n</do>",
}


class Answers:
    """One answer of some 500 tokens, token by token."""

    params = tuple(CALLS)
    param_names = ("calls",)

    def setup(self, name: str) -> None:
        self.source = TEMPLATE.replace("CALL", CALLS[name])
        self.form = ChatFormat.of_template(self.source)
        self.texts = vocabulary_texts()
        self.vocabulary = Vocabulary(self.texts, [N_VOCAB - 1])
        self.mask = np.empty(self.vocabulary.n_words, np.uint32)
        ids = {text: i for i, text in enumerate(self.texts) if text}
        self.tokens = []
        rest = f"<think>\n{THOUGHT}\n</think>\n\n{SPOKEN[name]}".encode()
        while rest:
            longest = next(k for k in range(40, 0, -1) if rest[:k] in ids)
            self.tokens.append(ids[rest[:longest]])
            rest = rest[longest:]
        self.pieces = [(self.texts[token] or b"").decode("utf-8", "replace") for token in self.tokens]
        self.grammar = self.form.grammar(TOOLS, "required").grammar
        self._follow()

    def _follow(self) -> None:
        state = self.grammar.state(self.vocabulary)
        for token in self.tokens:
            state.mask(self.mask)
            state.advance(token)

    def time_parse(self, name: str) -> None:
        parser = self.form.parser(TOOLS)
        for piece in self.pieces:
            parser.push(piece)
        parser.finish()

    def time_masks(self, name: str) -> None:
        self._follow()

    def time_compile(self, name: str) -> None:
        self.form.grammar(TOOLS, "required")

    def track_tokens(self, name: str) -> int:
        return len(self.tokens)
