"""Chat: how models write reasoning, content and calls of tools, and how it is read and held to grammars.

`format` recognises it from a chat template (`probe`, `recognise`) as one of the `shapes`; `parser` reads an answer,
with a reader for each shape; `call_grammar` makes the grammar of answers; `dispatch` calls functions with arguments
that `arguments` checks.
"""
