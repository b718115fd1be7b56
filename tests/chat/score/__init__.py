"""Scores of chat on a folder of recorded templates: ``python -m tests.chat.score FOLDER``.

The folder has a file for each template, `NAME.json`, and `conversations.json`; `recorded.py` says what is in them.
Tables of prompts are modules of this package, those of answers functions that yield rows of one template's.
"""
