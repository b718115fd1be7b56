"""Scores of chat on a folder of recorded templates: `python -m tests.chat.score FOLDER [TABLE ...]`.

The folder has a file for each template, `NAME.json`, and `conversations.json`; `recorded.py` says what is in them. Each
table is a module of this package with a function `table(folder)`, which gives its lines.
"""
