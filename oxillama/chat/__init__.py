"""Chat: messages to the prompt that a model was trained to continue, and its answers to messages.

`template` renders messages, with repairs for what it can't print; `format` recognises how answers are written from a
template (`probe`, `recognise`) as one of the `shapes`; `parser` reads an answer, with a reader for each shape;
`call_grammar` makes the grammar of answers; `dispatch` calls functions with arguments that `arguments` checks.
"""

from oxillama.chat.template import ChatTemplate

__all__ = ["ChatTemplate"]
